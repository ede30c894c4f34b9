"""Conditions of bindings: supported ones are evaluated, unsupported ones grant nothing."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tpuctl.emulator.iam.conditions import holds

FACTS = {
    "resource.name": "projects/_/buckets/data/objects/in/a.txt",
    "resource.type": "storage.googleapis.com/Object",
    "resource.service": "storage.googleapis.com",
    "request.time": datetime(2026, 5, 1, tzinfo=UTC),
}
IN = 'resource.name.startsWith("projects/_/buckets/data/objects/in/")'
OUT = 'resource.name.startsWith("projects/_/buckets/data/objects/out/")'


@pytest.mark.parametrize(
    "expression",
    [
        "true",
        IN,
        f"({IN})",
        f"!({OUT})",
        f"!{OUT}",
        f"{IN} || {OUT}",
        f"{OUT} || {IN}",
        f"{IN} && resource.type == 'storage.googleapis.com/Object'",
        f"{OUT} && {OUT} || {IN}",
        'resource.service != "compute.googleapis.com"',
        'resource.name.endsWith(".txt") && resource.name.contains("/in/")',
        'request.time < timestamp("2026-05-01T00:00:01Z")',
        'request.time >= timestamp("2026-05-01T00:00:00Z")',
        'request.time > timestamp("2026-05-01T00:00:00+01:00")',
        r'"a\"b" == "a\"b"',
    ],
)
def test_true_conditions(expression: str) -> None:
    assert holds(expression, FACTS)


@pytest.mark.parametrize(
    "expression",
    [
        "false",
        OUT,
        f"!{IN}",
        f"{IN} && {OUT}",
        f"{OUT} && ({IN} || {IN})",
        'resource.type == "storage.googleapis.com/Bucket"',
        'request.time < timestamp("2026-05-01T00:00:00Z")',
    ],
)
def test_false_conditions(expression: str) -> None:
    assert not holds(expression, FACTS)


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "true true",
        "true ||",
        "(true",
        "true)",
        "resource.name",
        '"text"',
        "!resource.name",
        'resource.name.matches("in")',
        'resource.matchTag("a", "b") || true',
        "request.time.getHours() < 3 || true",
        'request.time < timestamp("tomorrow")',
        'request.time < timestamp("2026-05-01T00:00:00")',
        "request.time < 'now'",
        "destination.ip == '10.0.0.1' || true",
        "true && 1 < 2",
        "(" * 1000 + "true" + ")" * 1000,
        "!" * 10_000 + "true",
    ],
)
def test_unsupported_condition_grants_nothing(expression: str) -> None:
    assert not holds(expression, FACTS)
