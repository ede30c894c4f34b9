"""Every kind of fault is implemented and documented everywhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tpuctl.emulator
from tpuctl.emulator.faults.fault import SCHEDULED
from tpuctl.emulator.faults.google_messages import REJECTING_KINDS
from tpuctl.local_cloud.fault_kinds import FIELDS, KINDS

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
    assert kind in KINDS, f"tpuctl/local_cloud/fault_kinds.py: KINDS has no {kind}"


def test_fields_of_kinds_are_declared() -> None:
    fields = {field.rstrip("*") for kind in KINDS.values() for field in kind} | {"times", "at"}
    assert fields == {*FIELDS}, "tpuctl/local_cloud/fault_kinds.py: FIELDS, or KINDS"
