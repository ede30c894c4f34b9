"""Findings about the processes of a slice, from handwritten observations."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from tests.unit.test_rehearsal_assessment import failed, steps
from tpuctl.preflight.rehearsal.findings import Finding, Target
from tpuctl.preflight.rehearsal.observations import parse
from tpuctl.preflight.rehearsal.passes import Pass
from tpuctl.preflight.rehearsal.topics.process_findings import processes

SLICE = Target("v5litepod-16", "v5e", 16, 16, 16 << 30, workers=4)
DEVICES = 8
STEPS_DONE = {"kind": "ended", "reason": "steps", "exit": 143}
WAITING = {"kind": "waiting", "where": {"file": "/job/train.py", "line": 20}}
STARTED = {"kind": "started", "jax": "0.10.2"}


def joint(function: str, line: int) -> dict[str, Any]:
    return {"kind": "joint", "function": function, "where": {"file": "/job/train.py", "line": line}}


def compiled(devices: int) -> dict[str, Any]:
    return {"kind": "compiled", "function": "step", "devices": devices, "where": None}


STEP = joint("step", 10)
BARRIER = joint("sync_global_devices", 20)


def process(*observations: Any, **more: Any) -> Pass:
    lines = map(json.dumps, [STARTED, *observations])
    return Pass("replicas", DEVICES, tuple(parse(lines)), **more)


def finding_of(*members: Pass) -> Finding:
    [finding] = processes(replace(members[0], processes=members), SLICE)
    return finding


def line_of(finding: Finding) -> int | None:
    return None if finding.where is None else finding.where.line


def test_barrier_of_one_process_is_reported_at_its_line() -> None:
    first = process(STEP, BARRIER, WAITING, stopped="timeout")
    other = process(STEP, STEP, WAITING, stopped="timeout")
    finding = finding_of(first, other, other)
    assert (finding.severity, line_of(finding)) == ("error", 20)
    assert "process 0 of 3 waits in sync_global_devices" in finding.message
    assert finding.detail.splitlines() == [
        "process 0: sync_global_devices, line 20",
        "processes 1 and 2: step, line 10",
    ]


def test_barrier_that_the_others_leave_out_at_their_end_is_reported() -> None:
    first = process(STEP, BARRIER, WAITING, stopped="timeout")
    finding = finding_of(first, process(STEP, STEPS_DONE, exit_code=0))
    assert (finding.severity, line_of(finding)) == ("error", 20)
    assert "process 1: no call" in finding.detail


def test_wait_without_an_observed_call_is_reported_at_its_line() -> None:
    finding = finding_of(
        process(STEP, WAITING, stopped="timeout"), process(STEP, STEPS_DONE, exit_code=0)
    )
    assert (finding.severity, line_of(finding)) == ("error", 20)
    assert finding.message.startswith("process 0 of 2 waits")


def test_first_failure_is_reported_although_others_wait_for_that_process() -> None:
    later = failed("JaxRuntimeError", "Connection reset by peer", at=9.0)
    first = failed("RuntimeError", "spans non-addressable devices", at=5.0)
    members = process(STEP, STEP, later, exit_code=1), process(STEP, first, exit_code=1)
    finding = finding_of(*members)
    assert (finding.severity, line_of(finding)) == ("error", 34)
    assert finding.message == ("process 1 of 2 fails: RuntimeError: spans non-addressable devices")


def test_training_on_own_devices_only_is_a_risk() -> None:
    members = [process(compiled(4), STEPS_DONE, exit_code=143)] * 2
    finding = finding_of(*members)
    assert finding.severity == "risk"
    assert "trains alone, on 4 of 8 devices" in finding.message


def test_counts_are_in_all_and_per_process() -> None:
    losses = steps(1.0, 0.5, examples=32)
    members = [process(compiled(8), *losses, STEPS_DONE, exit_code=143)] * 2
    finding = finding_of(*members)
    assert finding.severity == "fine"
    assert "2 processes of 4 devices each" in finding.message
    assert "32 examples in all, 16 in each" in finding.message
    assert "v5litepod-16 has 4" in finding.message
