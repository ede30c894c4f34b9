"""The generated GitHub Actions workflow, run step by step against the local cloud."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ci.github_runner import Actions, Workflow
from tests.ci.hosts import Callers, Host, make_repository
from tests.ci.owner_shell import OwnerShell
from tpuctl.local_cloud.server_process import LocalCloud

_numbers = itertools.count(1)


class Bench:
    """A repository with a workflow, and the computers that run it."""

    def __init__(
        self,
        cloud: LocalCloud,
        owner_shell: OwnerShell,
        folder: Path,
        stack: str,
        hours: str,
        *job: str,
    ) -> None:
        self.owner_shell, self.stack = owner_shell, stack
        self.repository = make_repository(folder / "repository", stack)
        words = ("ci", "github", "train.py", "--hours", hours, "--", *job)
        code, _, err = owner_shell.run(*words, folder=self.repository)
        assert code == 0, err
        self.callers = Callers(cloud, stack, owner_shell.role(self.repository))
        self.host = Host(cloud, folder / "host")
        self.actions = Actions(self.host, self.callers, self.repository, folder / "artifacts")
        self.text = (self.repository / ".github/workflows/tpu.yml").read_text("utf-8")

    def run(self, event: str = "workflow_dispatch") -> Workflow:
        workflow = Workflow(self.text, self.actions, event)
        workflow.run()
        return workflow

    def jobs(self) -> list[dict[str, object]]:
        found: list[dict[str, object]] = self.owner_shell.run_json("jobs", folder=self.repository)
        return found

    def check_and_clean_up(self) -> None:
        """Check that nothing billable is left; delete the bucket."""
        code, out, _ = self.owner_shell.run("orphans", folder=self.repository)
        assert code == 0, out
        status = self.owner_shell.run_json("status", folder=self.repository)
        assert not re.search(rf'"node/{self.stack}', json.dumps(status))
        words = ("down", "--yes", "--delete-bucket")
        assert self.owner_shell.run(*words, folder=self.repository)[0] == 0


@pytest.fixture
def make_bench(
    local_cloud: LocalCloud, owner_shell: OwnerShell, tmp_path: Path
) -> Callable[..., Bench]:
    def make(*job: str, hours: str = "0.5") -> Bench:
        return Bench(local_cloud, owner_shell, tmp_path, f"github-{next(_numbers)}", hours, *job)

    return make


@pytest.mark.soak
def test_job_succeeds_and_nothing_is_left(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench("3", "0", "0")
    run = bench.run()
    assert run.result == "success", {name: job.output for name, job in run.jobs.items()}
    train, down = run.jobs["train"], run.jobs["down"]
    assert [line for line in train.output.splitlines() if '"loss"' in line] == [
        json.dumps({"step": step, "loss": 8 / step}) for step in (1, 2, 3)
    ]
    assert train.outputs["state"] == "ended"
    shipped = re.search(r"^shipped (.*)", train.output, re.MULTILINE)
    assert shipped is not None and "train.py" in shipped[1]
    assert (
        "gha-creds" not in shipped[1]
    )  # the credentials file that the auth action leaves in the checkout
    assert (train.outputs["job"],) == tuple(job["id"] for job in bench.jobs())
    assert "| loss | 8 | 2.667 | step 3 | `█▃▁` |" in down.summary
    assert "tpu-report" in down.summary  # the artifact's address
    page = bench.actions.artifacts / "tpu-report" / "report.html"
    assert str(train.outputs["job"]) in page.read_text("utf-8")
    assert "::notice title=TPU job" in down.output
    assert len(bench.callers.members) == 2  # each job signs in once
    # Each job installed this version, and its dependencies with hashes.
    installed = bench.host.installed.read_text("utf-8").splitlines()
    assert sum(package.startswith("tpuctl==") for package in installed) == 3
    assert sum(package.startswith("google-auth==") for package in installed) == 3
    bench.check_and_clean_up()


@pytest.mark.soak
def test_exit_code_of_failed_job_is_passed_through(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench("2", "0", "7")
    run = bench.run()
    train, down = run.jobs["train"], run.jobs["down"]
    assert (run.result, train.result, down.result) == ("failure", "failure", "success")
    assert train.outcome("Follow the job") == "failure"
    assert [job["exit_code"] for job in bench.jobs()] == [7]
    assert "failed with exit code 7" in down.summary
    assert re.search(r"::error title=TPU job \S+ failed with exit code 7::", down.output)
    bench.check_and_clean_up()


@pytest.mark.soak
def test_failed_start_is_summarized(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench("2", "0", "0")
    file = bench.repository / "tpuctl.yaml"
    file.write_text(file.read_text("utf-8") + "job: {setup: 'echo no compiler; exit 5'}\n")
    run = bench.run()
    assert (run.jobs["train"].result, run.jobs["down"].result) == ("failure", "success")
    assert run.jobs["train"].outcome("Start the job") == "failure"
    assert "no compiler" in run.jobs["down"].summary
    bench.check_and_clean_up()


@pytest.mark.soak
def test_next_jobs_continue_and_token_may_expire(make_bench: Callable[..., Bench]) -> None:
    """The first job follows for a second instead of four hours. The next ones run on other
    computers, whose SSH keys are not authorized yet; the token of the second one expires."""
    bench = make_bench("100000", "0.2", "0", hours="10")
    bench.text = bench.text.replace("--for 250m", "--for 1s", 1)
    assert bench.text.count("--for 300m") == 2

    def on_sign_in(count: int) -> None:
        if count == 2:
            bench.callers.expire(25)
        elif count == 3:
            bench.owner_shell.stop_soon(bench.repository)

    bench.callers.on_sign_in = on_sign_in
    run = bench.run()
    first, second, third = (run.jobs[name] for name in ("train", "train-2", "train-3"))
    for job in (first, second):
        assert (job.result, job.outputs["state"]) == ("success", "running"), job.output
    assert second.output.count("Credentials expired") == 1, second.output
    assert (third.result, run.jobs["down"].result) == ("failure", "success")
    assert [job["exit_code"] for job in bench.jobs()] == [143]
    output = first.output + second.output + third.output
    lines = [line for line in output.splitlines() if '"loss"' in line]
    steps = range(1, len(lines) + 1)
    assert lines == [json.dumps({"step": step, "loss": 8 / step}) for step in steps]
    bench.check_and_clean_up()


@pytest.mark.soak
def test_job_that_outlives_workflow_is_stopped_and_reported(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench("600", "0.5", "0")
    bench.text = bench.text.replace("--for 250m", "--for 1s")
    run = bench.run()
    down = run.jobs["down"]
    assert (run.jobs["train"].result, down.result) == ("success", "failure")
    assert down.outcome("Report an unfinished job") == "failure"
    assert [job["state"] for job in bench.jobs()] == ["stopped"]
    bench.check_and_clean_up()


@pytest.mark.soak
def test_canceled_run_deletes_everything(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench("600", "0.2", "0")
    bench.host.should_cancel = lambda line: '"step": 2,' in line
    run = bench.run()
    assert (run.jobs["train"].result, run.jobs["down"].result) == ("cancelled", "success")
    assert run.result == "cancelled"
    assert [job["state"] for job in bench.jobs()] == ["stopped"]
    bench.check_and_clean_up()


@pytest.mark.soak
def test_run_canceled_during_up_leaves_nothing(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench("3", "0", "0")
    bench.host.should_cancel = lambda line: "create node/" in line and bench.stack in line
    run = bench.run()
    assert (run.jobs["train"].result, run.jobs["down"].result) == ("cancelled", "success")
    assert run.jobs["train"].outcome("Start the job") == "skipped"
    bench.check_and_clean_up()


@pytest.mark.soak
def test_pull_request_is_only_checked(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench("3", "0", "0")
    (bench.repository / "train.py").write_text(
        "import tensorflow as tf\n\n\n@tf.function(jit_compile=True)\ndef step(x):\n"
        "    return tf.py_function(print, [x], [])\n"
    )
    run = bench.run("pull_request")
    assert run.jobs["check"].result == "failure"
    assert re.search(r"::error file=train\.py,line=\d+", run.jobs["check"].output)
    assert (run.jobs["train"].result, run.jobs["down"].result) == ("skipped", "skipped")
    assert not bench.callers.members
    assert run.group != Workflow(bench.text, bench.actions).group  # does not wait for training
    assert run.cancels_others and not Workflow(bench.text, bench.actions).cancels_others
