"""The build for Cloud Build, run step by step against the local cloud."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ci.cloudbuild_runner import Build
from tests.ci.desk import Desk
from tests.ci.hosts import Callers, Host, make_repository
from tpuctl.emulator.client.server_process import LocalCloud

_numbers = itertools.count(1)
Make = Callable[..., Build]


@pytest.fixture
def build(local_cloud: LocalCloud, desk: Desk, tmp_path: Path) -> Make:
    def make(*job: str) -> Build:
        stack = f"build-{next(_numbers)}"
        repository = make_repository(tmp_path / "repository", stack)
        words = ("ci", "cloudbuild", "train.py", "--", *job)
        code, _, err = desk.type(*words, folder=repository)
        assert code == 0, err
        text = (repository / "cloudbuild.yaml").read_text("utf-8")
        host = Host(local_cloud, tmp_path / "host")
        callers = Callers(local_cloud, stack, desk.role(repository))
        return Build(text, host, callers, repository)

    return make


def end(desk: Desk, build: Build, *codes: int) -> None:
    jobs = desk.answer("jobs", folder=build.repository)
    assert [job["exit_code"] for job in jobs] == list(codes)
    code, out, _ = desk.type("orphans", folder=build.repository)
    assert code == 0, out
    assert desk.type("down", "--yes", "--delete-bucket", folder=build.repository)[0] == 0


@pytest.mark.soak
def test_job_succeeds_and_nothing_is_left(build: Make, desk: Desk) -> None:
    result = build("3", "0", "0").run()
    assert result.exit_code == 0, result.output
    assert [*result.results] == ["install", "check", "train", "down", "report", "result"]
    assert result.outputs["train"] in result.output["report"]
    assert "| loss | 8 |" in result.output["report"]
    end(desk, result, 0)


@pytest.mark.soak
def test_failed_job_fails_build_with_its_exit_code(build: Make, desk: Desk) -> None:
    result = build("2", "0", "7").run()
    assert result.exit_code == 7, result.output
    assert result.results["down"] == "success"
    assert "failed with exit code 7" in result.output["report"]
    end(desk, result, 7)


@pytest.mark.soak
def test_failed_check_brings_nothing_up(build: Make) -> None:
    result = build("1", "0", "0")
    (result.repository / "train.py").write_text("if\n")
    result.run()
    assert (result.exit_code, [*result.results]) == (1, ["install", "check"])
