"""The generated Cloud Build file, run step by step against the local cloud."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ci.cloudbuild_runner import Build
from tests.ci.hosts import Callers, Host, make_repository
from tests.ci.owner_shell import OwnerShell
from tpuctl.local_cloud.server_process import LocalCloud

_numbers = itertools.count(1)
MakeBuild = Callable[..., Build]


@pytest.fixture
def make_build(local_cloud: LocalCloud, owner_shell: OwnerShell, tmp_path: Path) -> MakeBuild:
    def make(*job: str) -> Build:
        stack = f"build-{next(_numbers)}"
        repository = make_repository(tmp_path / "repository", stack)
        words = ("ci", "cloudbuild", "train.py", "--", *job)
        code, _, err = owner_shell.run(*words, folder=repository)
        assert code == 0, err
        text = (repository / "cloudbuild.yaml").read_text("utf-8")
        host = Host(local_cloud, tmp_path / "host")
        callers = Callers(local_cloud, stack, owner_shell.role(repository))
        return Build(text, host, callers, repository)

    return make


def check_and_clean_up(owner_shell: OwnerShell, build: Build, *codes: int) -> None:
    jobs = owner_shell.run_json("jobs", folder=build.repository)
    assert [job["exit_code"] for job in jobs] == list(codes)
    code, out, _ = owner_shell.run("orphans", folder=build.repository)
    assert code == 0, out
    assert owner_shell.run("down", "--yes", "--delete-bucket", folder=build.repository)[0] == 0


@pytest.mark.soak
def test_job_succeeds_and_nothing_is_left(make_build: MakeBuild, owner_shell: OwnerShell) -> None:
    result = make_build("3", "0", "0").run()
    assert result.exit_code == 0, result.output
    assert [*result.results] == ["install", "check", "train", "down", "report", "result"]
    assert result.outputs["train"] in result.output["report"]
    assert "| loss | 8 |" in result.output["report"]
    check_and_clean_up(owner_shell, result, 0)


@pytest.mark.soak
def test_failed_job_fails_build_with_its_exit_code(
    make_build: MakeBuild, owner_shell: OwnerShell
) -> None:
    result = make_build("2", "0", "7").run()
    assert result.exit_code == 7, result.output
    assert result.results["down"] == "success"
    assert "failed with exit code 7" in result.output["report"]
    check_and_clean_up(owner_shell, result, 7)


@pytest.mark.soak
def test_failed_check_brings_nothing_up(make_build: MakeBuild) -> None:
    result = make_build("1", "0", "0")
    (result.repository / "train.py").write_text("if\n")
    result.run()
    assert (result.exit_code, [*result.results]) == (1, ["install", "check"])
