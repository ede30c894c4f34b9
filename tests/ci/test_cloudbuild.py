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
        code, _, told = desk.type(*words, folder=repository)
        assert code == 0, told
        text = (repository / "cloudbuild.yaml").read_text("utf-8")
        host = Host(local_cloud, tmp_path / "host")
        callers = Callers(local_cloud, stack, desk.role(repository))
        return Build(text, host, callers, repository)

    return make


def end(desk: Desk, made: Build, *codes: int) -> None:
    jobs = desk.answer("jobs", folder=made.repository)
    assert [one["exit_code"] for one in jobs] == list(codes)
    code, out, _ = desk.type("orphans", folder=made.repository)
    assert code == 0, out
    assert desk.type("down", "--yes", "--delete-bucket", folder=made.repository)[0] == 0


@pytest.mark.soak
def test_a_job_succeeds_and_nothing_is_left(build: Make, desk: Desk) -> None:
    made = build("3", "0", "0").run()
    assert made.exit_code == 0, made.shown
    assert [*made.results] == ["install", "check", "train", "down", "report", "result"]
    assert made.outputs["train"] in made.shown["report"]
    assert "| loss | 8 |" in made.shown["report"]
    end(desk, made, 0)


@pytest.mark.soak
def test_a_job_that_fails_fails_the_build_with_its_code(build: Make, desk: Desk) -> None:
    made = build("2", "0", "7").run()
    assert made.exit_code == 7, made.shown
    assert made.results["down"] == "success"
    assert "failed with exit code 7" in made.shown["report"]
    end(desk, made, 7)


@pytest.mark.soak
def test_what_the_check_refuses_brings_nothing_up(build: Make) -> None:
    made = build("1", "0", "0")
    (made.repository / "train.py").write_text("if\n")
    made.run()
    assert (made.exit_code, [*made.results]) == (1, ["install", "check"])
