"""Every kind of fault is implemented and documented everywhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tpuctl.emulator
from tpuctl.cli.local import faults
from tpuctl.emulator.faults.fault import KINDS, SCHEDULED
from tpuctl.emulator.faults.google_messages import REJECTING_KINDS

SOURCES = Path(tpuctl.emulator.__file__).parent
APPLIED_IN = {
    kind
    for file in SOURCES.rglob("*.py")
    if file.name != "fault.py"
    for kind in re.findall(r'"([a-z-]+)"', file.read_text("utf-8"))
}


@pytest.mark.parametrize("kind", KINDS)
def test_kind_is_applied(kind: str) -> None:
    places = "[kinds] of tpuctl/emulator/faults/google_messages.toml, or tpuctl/emulator/faults/"
    assert kind in {*REJECTING_KINDS, *SCHEDULED, *APPLIED_IN}, f"{kind} is not applied: {places}"


@pytest.mark.parametrize("kind", REJECTING_KINDS)
def test_rejecting_kinds_exist(kind: str) -> None:
    assert kind in KINDS, f"tpuctl/emulator/faults/fault.py: KINDS has no {kind}"


@pytest.mark.parametrize("kind", KINDS)
def test_kind_is_in_help(kind: str) -> None:
    mention = re.search(rf"(?<![\w-]){kind}(?![\w-])", faults._KINDS)
    assert mention, f"tpuctl/cli/local/faults.py: _KINDS does not name {kind}"
