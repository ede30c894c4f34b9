"""A folder with a stack, and a history of jobs, for completions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpuctl.api import Tpuctl
from tpuctl.cli.completion import name_history
from tpuctl.cli.state import State

STACK = "stack: bert\nproject: {id: my-project}\ntpu: {type: v3-32, zones: [europe-west4-a]}\n"
JOBS = ("20261121-061400-amber", "20261122-101500-lark")


def enter_stack_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a new folder with this stack, with an empty history and no default cloud."""
    monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("TPUCTL_CLOUD", "TPUCTL_STACK_FILE"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "tpuctl.yaml").write_text(STACK, "utf-8")


def learn(*jobs: str, text: str = STACK, cloud: str = "google") -> None:
    """Record these jobs of this stack."""
    path = Path("seen.yaml")
    path.write_text(text, "utf-8")
    made = Tpuctl(path, cloud=cloud)
    assert made.stack.name
    path.unlink()
    name_history.remember(State(clients=[made]).stacks, jobs)
