"""The generated GitLab CI pipeline, run script by script against the local cloud."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from google.auth import identity_pool

from tests.ci.gitlab_runner import Pipeline
from tests.ci.hosts import Callers, Host, make_repository
from tests.ci.owner_shell import OwnerShell
from tpuctl.local_cloud.server_process import LocalCloud

_numbers = itertools.count(1)
MakePipeline = Callable[..., tuple[Pipeline, Path]]


@pytest.fixture
def make_pipeline(local_cloud: LocalCloud, owner_shell: OwnerShell, tmp_path: Path) -> MakePipeline:
    def create(*job: str, hours: str = "0.5", source: str = "web") -> tuple[Pipeline, Path]:
        stack = f"gitlab-{next(_numbers)}"
        repository = make_repository(tmp_path / "repository", stack, host="gitlab.example.com")
        words = ("ci", "gitlab", "train.py", "--hours", hours, "--", *job)
        code, _, err = owner_shell.run(*words, folder=repository)
        assert code == 0, err
        text = (repository / ".gitlab-ci.yml").read_text("utf-8")
        host = Host(local_cloud, tmp_path / "host")
        callers = Callers(local_cloud, stack, owner_shell.role(repository))
        return Pipeline(text, host, callers, repository, source), repository

    return create


def check_and_clean_up(owner_shell: OwnerShell, repository: Path, *codes: int | None) -> None:
    """Check the jobs' exit codes and that nothing billable is left; delete the bucket."""
    jobs = owner_shell.run_json("jobs", folder=repository)
    assert [job["exit_code"] for job in jobs] == list(codes)
    code, out, _ = owner_shell.run("orphans", folder=repository)
    assert code == 0, out
    assert owner_shell.run("down", "--yes", "--delete-bucket", folder=repository)[0] == 0


@pytest.mark.soak
def test_failed_job_fails_pipeline_and_takes_stack_down(
    make_pipeline: MakePipeline, owner_shell: OwnerShell
) -> None:
    pipeline, repository = make_pipeline("2", "0", "7")
    jobs = pipeline.run()
    assert (jobs["tpu-train"].result, jobs["tpu-down"].result) == ("failed", "success")
    assert "failed with exit code 7" in jobs["tpu-down"].output
    check_and_clean_up(owner_shell, repository, 7)


@pytest.mark.soak
def test_canceled_pipeline_takes_stack_down_immediately(
    make_pipeline: MakePipeline, owner_shell: OwnerShell
) -> None:
    pipeline, repository = make_pipeline("600", "0.2", "0")
    pipeline.host.should_cancel = lambda line: '"step": 2,' in line
    jobs = pipeline.run()
    assert (jobs["tpu-train"].result, jobs["tpu-down"].result) == ("canceled", "canceled")
    assert "No billable resources are left" in jobs["tpu-train"].output
    check_and_clean_up(owner_shell, repository, 143)


@pytest.mark.soak
def test_jobs_continue_after_token_expiry(
    make_pipeline: MakePipeline, owner_shell: OwnerShell, tmp_path: Path
) -> None:
    pipeline, repository = make_pipeline("100000", "0.2", "0", hours="6")
    first, second, third = "tpu-train", "tpu-train-2", "tpu-train-3"
    pipeline.document[first]["script"] = [
        line.replace("--for 150m", "--for 2s") for line in pipeline.document[first]["script"]
    ]

    def on_sign_in(count: int) -> None:
        if count == 2:
            pipeline.callers.expire(25)
        elif count == 3:
            owner_shell.stop_soon(repository)

    pipeline.callers.on_sign_in = on_sign_in
    jobs = pipeline.run()
    assert [jobs[name].dotenv["JOB_STATE"] for name in (first, second)] == ["running"] * 2
    assert "Credentials expired" in jobs[second].output
    assert (jobs[third].result, jobs[third].dotenv["JOB_STATE"]) == ("failed", "ended")
    assert jobs[third].dotenv["JOB_EXIT_CODE"] == "143"
    output = "".join(jobs[name].output for name in (first, second, third))
    lines = [line for line in output.splitlines() if '"loss"' in line]
    steps = range(1, len(lines) + 1)
    assert lines == [json.dumps({"step": step, "loss": 8 / step}) for step in steps]
    report = jobs["tpu-down"].folder / "tpu-report"
    assert jobs[first].dotenv["JOB_ID"] in (report / "report.html").read_text("utf-8")
    assert "| loss | 8 |" in (report / "summary.md").read_text("utf-8")
    # Google's client accepts the generated credentials file.
    file = tmp_path / "google.json"
    file.write_text(jobs[first].credentials)
    credentials = identity_pool.Credentials.from_file(str(file))
    account = credentials.service_account_email
    assert account == "tpuctl-ci@local-project.iam.gserviceaccount.com"
    check_and_clean_up(owner_shell, repository, 143)


@pytest.mark.soak
def test_merge_request_is_only_checked(make_pipeline: MakePipeline) -> None:
    pipeline, repository = make_pipeline("1", "0", "0", source="merge_request_event")
    (repository / "train.py").write_text(
        "import tensorflow as tf\n\n\n@tf.function(jit_compile=True)\ndef step(x):\n"
        "    return tf.py_function(print, [x], [])\n"
    )
    jobs = pipeline.run()
    assert {name: job.result for name, job in jobs.items()} == {"tpu-check": "failed"}
    entries = json.loads((jobs["tpu-check"].folder / "quality.json").read_text("utf-8"))
    assert entries[0]["location"]["path"] == "train.py"
    assert not pipeline.callers.members
