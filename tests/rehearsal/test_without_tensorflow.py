"""Scripts that do without TensorFlow, and all the ways in which Python is started."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tpuctl.preflight.rehearsal.observations import Ended, Started

Rehearse = Callable[..., Any]


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """A module that has the name of one of the shim's, and the machine's own sitecustomize."""
    (tmp_path / "settings.py").write_text("TEXT = 'my own writing'\n", "utf-8")
    other = tmp_path / "machine"
    other.mkdir()
    (other / "sitecustomize.py").write_text("print('site was customized')\n", "utf-8")
    return tmp_path


def test_a_script_and_those_it_starts_are_each_told_once(rehearse: Rehearse, beside: Path) -> None:
    rehearsed = rehearse("without.py", "parent")
    assert rehearsed.code == 7, rehearsed.output
    assert sorted(rehearsed.output.splitlines()) == [
        "my own writing child",
        "my own writing parent",
        "shim on the path: False",
        "shim on the path: False",
    ]
    started = rehearsed.all(Started)
    assert sorted(one.script.rsplit(" ", 1)[1] for one in started) == ["child", "parent"]
    assert {one.tensorflow for one in started} == {None}
    assert len({one.process for one in started}) == 2
    ended = {one.process: one for one in rehearsed.all(Ended)}
    parent = next(one.process for one in started if one.script.endswith("parent"))
    assert ended.pop(parent).exit == 7
    [child] = ended.values()
    assert (child.reason, child.exit, child.error) == ("finished", None, None)


@pytest.mark.parametrize("form", ["module", "shell"])
def test_modules_and_shell_scripts_are_watched_beside_the_sitecustomize_that_was_there(
    rehearse: Rehearse, beside: Path, form: str
) -> None:
    shell = beside / "start.sh"
    shell.write_text(f"#!/bin/sh\nexec '{sys.executable}' train.py \"$@\"\n", "utf-8")
    shell.chmod(0o755)
    command = [str(shell), "x"] if form == "shell" else [sys.executable, "-m", "train", "x"]
    rehearsed = rehearse("without.py", command=command, path=[beside / "machine"])
    assert rehearsed.code == 0, rehearsed.output
    assert rehearsed.output.splitlines() == [
        "site was customized",
        "my own writing x",
        "shim on the path: False",
    ]
    assert rehearsed.one(Started).tensorflow is None
    assert rehearsed.one(Ended).reason == "finished"


def test_a_usage_error_is_the_script_s_own(rehearse: Rehearse, beside: Path) -> None:
    rehearsed = rehearse("without.py", command=[sys.executable, "-c", "import sys; sys.exit('no')"])
    assert (rehearsed.code, rehearsed.output) == (1, "no\n")
    ended = rehearsed.one(Ended)
    assert (ended.reason, ended.exit) == ("finished", 1)


def test_settings_that_cannot_be_read_leave_the_script_as_it_is(
    rehearse: Rehearse, beside: Path
) -> None:
    missing = {"TPUCTL_REHEARSAL": str(beside / "missing.json")}
    rehearsed = rehearse("without.py", "x", environment=missing)
    assert rehearsed.code == 0
    assert "my own writing x" in rehearsed.output
    assert "missing.json" in rehearsed.output  # and why nothing will be observed
    assert rehearsed.observations == []


def test_nothing_is_watched_where_nobody_asks(rehearse: Rehearse, beside: Path) -> None:
    rehearsed = rehearse("without.py", "x", environment={"TPUCTL_REHEARSAL": ""})
    assert rehearsed.output.splitlines() == ["my own writing x", "shim on the path: False"]
    assert rehearsed.observations == []
