"""The stack file of the current folder, which may be in a folder above it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tpuctl.cli.main import run
from tpuctl.errors import Diagnostic
from tpuctl.model.stack.stack_search import find_stack_file

STACK = "stack: bert\nproject: {id: my-project}\ntpu: {type: v3-8, startup_script: start.sh}\n"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a stack file, and folders below it; the current one is two levels deeper."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = tmp_path / "home" / "project"
    (folder / "code" / "train").mkdir(parents=True)
    (folder / "tpuctl.yaml").write_text(STACK, "utf-8")
    (folder / "start.sh").write_text("#!/bin/sh\n", "utf-8")
    monkeypatch.chdir(folder / "code" / "train")
    return folder


def test_nearest_stack_file_is_found(project: Path) -> None:
    here = project / "code" / "train"
    assert find_stack_file(here) == project / "tpuctl.yaml"
    (project / "code" / "tpuctl.yaml").write_text(STACK, "utf-8")
    assert find_stack_file(here) == project / "code" / "tpuctl.yaml"
    (here / "tpuctl.yaml").symlink_to("nowhere")
    assert find_stack_file(here) == here / "tpuctl.yaml", "its error is reported"
    (project / "code" / "tpuctl.yaml").unlink()
    (project / "code" / "tpuctl.yaml").mkdir()
    (here / "tpuctl.yaml").unlink()
    assert find_stack_file(here) == project / "tpuctl.yaml"


@pytest.mark.parametrize("top", ["code", "code/train", "."])
def test_search_ends_at_top_of_repository(project: Path, top: str) -> None:
    (project / top / ".git").mkdir()
    here = project / "code" / "train"
    folder = project if top == "." else here
    assert find_stack_file(here) == folder / "tpuctl.yaml"


def test_search_ends_at_home(project: Path, tmp_path: Path) -> None:
    """Outside of it, at the root."""
    (project / "tpuctl.yaml").rename(tmp_path / "tpuctl.yaml")
    here = project / "code" / "train"
    assert find_stack_file(here) == here / "tpuctl.yaml"
    assert find_stack_file(tmp_path / "home") == tmp_path / "home" / "tpuctl.yaml"
    (tmp_path / "elsewhere").mkdir()
    assert find_stack_file(tmp_path / "elsewhere") == tmp_path / "tpuctl.yaml"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("is_link", [False, True], ids=["file", "link"])
def test_file_of_another_user_is_not_used(project: Path, is_link: bool) -> None:
    if is_link:
        (project / "tpuctl.yaml").rename(project / "mine.yaml")
        (project / "tpuctl.yaml").symlink_to("mine.yaml")
    os.chown(project / "tpuctl.yaml", 54321, -1, follow_symlinks=False)
    here = project / "code" / "train"
    warnings: list[Diagnostic] = []
    assert find_stack_file(here, warnings.append) == here / "tpuctl.yaml"
    assert [warning.detail for warning in warnings] == [
        f"{project / 'tpuctl.yaml'} belongs to user 54321"
    ]
    os.chown(here, 54321, -1)  # whose folder this is, as in a container
    assert find_stack_file(here, warnings.append) == project / "tpuctl.yaml"


def test_command_says_which_file_it_uses(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Paths in the file are relative to it, and those of the command to the current folder."""
    Path("train.py").write_text("print(1)\n", "utf-8")
    assert run(["check"]) == 0
    output = capsys.readouterr()
    assert "bert" in output.out
    assert output.err == "Using the stack file ../../tpuctl.yaml.\n"
    assert run(["check", "train.py"]) == 0
    assert "v3-8" in capsys.readouterr().out
    (project / "start.sh").unlink()
    assert run(["check"]) == 2
    assert "../../start.sh" in capsys.readouterr().err


def test_named_file_is_not_searched(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["check", "--stack-file", "tpuctl.yaml"]) == 2
    assert "tpuctl.yaml does not exist" in capsys.readouterr().err
    monkeypatch.setenv("TPUCTL_STACK_FILE", "../other.yaml")
    assert run(["check"]) == 2
    assert "../other.yaml does not exist" in capsys.readouterr().err
