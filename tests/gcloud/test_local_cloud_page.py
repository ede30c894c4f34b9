"""The gcloud commands of docs/local-cloud.md, on a fresh local cloud."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.docs.page_blocks import ROOT, blocks
from tests.support.commands import succeed
from tests.support.gcloud import require_gcloud
from tests.support.projects import serving


def test_first_block_for_other_clients_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_gcloud()
    page_blocks = blocks(ROOT / "docs" / "local-cloud.md")
    (block,) = (block for block in page_blocks if block.needs == "gcloud")
    typed = [command.text for command in block.commands]
    assert any("tpu-vm list" in command for command in typed)
    home = tmp_path / "cloud"
    monkeypatch.setenv("TPUCTL_LOCAL_HOME", str(home))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    with serving(home):
        done = succeed(["bash", "-e", "-c", "\n".join(typed)], cwd=tmp_path, timeout=240)
    assert "SERVICE_DISABLED" not in done.stderr
