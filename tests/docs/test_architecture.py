"""The architecture page shows the layers that the import contracts enforce."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_page_shows_enforced_layers() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    contracts = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    [layers] = [
        contract["layers"] for contract in contracts if contract.get("containers") == ["tpuctl"]
    ]
    page = (ROOT / "docs" / "design" / "architecture.md").read_text("utf-8")
    drawn = page.split("```")[1].splitlines()
    packages = [line for line in drawn if line and not line.startswith(" ")]
    assert len(packages) == len(layers)
    for line, layer in zip(packages, layers, strict=True):
        assert line == layer or line.startswith(f"{layer} "), line
