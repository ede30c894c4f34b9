"""Fixtures of the unit tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, empty, of a user who has set nothing for tpuctl."""
    monkeypatch.chdir(tmp_path)
    for name in ("CLOUD", "JSON", "STACK_FILE", "YES"):
        monkeypatch.delenv(f"TPUCTL_{name}", raising=False)
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(tmp_path.with_name(f"{tmp_path.name}-config")))
    monkeypatch.setenv("TPUCTL_LOCAL_HOME", str(tmp_path / "local"))
    return tmp_path
