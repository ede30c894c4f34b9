"""A folder for programs."""

from __future__ import annotations

from pathlib import Path

import pytest

SETTINGS = ("GITHUB_WORKSPACE", "TPUCTL_CLOUD", "TPUCTL_JSON", "TPUCTL_STACK_FILE", "TPUCTL_YES")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which is empty; without the caller's settings for tpuctl."""
    monkeypatch.chdir(tmp_path)
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    return tmp_path
