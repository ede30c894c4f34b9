"""Scripts without TensorFlow, and the ways of starting Python."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tpuctl.preflight.rehearsal.observations import Ended, Started

Rehearse = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a module named like one of the shim's, and a machine's sitecustomize."""
    (tmp_path / "settings.py").write_text("TEXT = 'my own writing'\n", "utf-8")
    other = tmp_path / "machine"
    other.mkdir()
    (other / "sitecustomize.py").write_text("print('site was customized')\n", "utf-8")
    return tmp_path


def test_script_and_its_child_processes_are_each_reported_once(
    rehearse: Rehearse, folder: Path
) -> None:
    rehearsed = rehearse("without.py", "parent")
    assert rehearsed.code == 7, rehearsed.output
    assert sorted(rehearsed.output.splitlines()) == [
        "my own writing child",
        "my own writing parent",
        "shim on the path: False",
        "shim on the path: False",
    ]
    started = rehearsed.all(Started)
    assert sorted(each.script.rsplit(" ", 1)[1] for each in started) == ["child", "parent"]
    assert {each.tensorflow for each in started} == {None}
    assert len({each.process for each in started}) == 2
    ended = {each.process: each for each in rehearsed.all(Ended)}
    parent = next(each.process for each in started if each.script.endswith("parent"))
    assert ended.pop(parent).exit == 7
    [child] = ended.values()
    assert (child.reason, child.exit, child.error) == ("finished", None, None)


@pytest.mark.parametrize("form", ["module", "shell"])
def test_modules_and_shell_scripts_are_observed_with_existing_sitecustomize(
    rehearse: Rehearse, folder: Path, form: str
) -> None:
    shell = folder / "start.sh"
    shell.write_text(f"#!/bin/sh\nexec '{sys.executable}' train.py \"$@\"\n", "utf-8")
    shell.chmod(0o755)
    command = [str(shell), "x"] if form == "shell" else [sys.executable, "-m", "train", "x"]
    rehearsed = rehearse("without.py", command=command, path=[folder / "machine"])
    assert rehearsed.code == 0, rehearsed.output
    assert rehearsed.output.splitlines() == [
        "site was customized",
        "my own writing x",
        "shim on the path: False",
    ]
    assert rehearsed.only(Started).tensorflow is None
    assert rehearsed.only(Ended).reason == "finished"


def test_usage_error_counts_as_finished(rehearse: Rehearse, folder: Path) -> None:
    rehearsed = rehearse("without.py", command=[sys.executable, "-c", "import sys; sys.exit('no')"])
    assert (rehearsed.code, rehearsed.output) == (1, "no\n")
    ended = rehearsed.only(Ended)
    assert (ended.reason, ended.exit) == ("finished", 1)


def test_script_runs_unobserved_with_unreadable_settings(rehearse: Rehearse, folder: Path) -> None:
    missing = {"TPUCTL_REHEARSAL": str(folder / "missing.json")}
    rehearsed = rehearse("without.py", "x", environment=missing)
    assert rehearsed.code == 0
    assert "my own writing x" in rehearsed.output
    assert "missing.json" in rehearsed.output  # reported as the reason
    assert rehearsed.observations == []


def test_nothing_is_observed_without_settings(rehearse: Rehearse, folder: Path) -> None:
    rehearsed = rehearse("without.py", "x", environment={"TPUCTL_REHEARSAL": ""})
    assert rehearsed.output.splitlines() == ["my own writing x", "shim on the path: False"]
    assert rehearsed.observations == []
