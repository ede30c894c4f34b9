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
        'resource.name.matches("/in/[a-z]+[.]txt$")',
        'resource.type in ["storage.googleapis.com/Bucket", "storage.googleapis.com/Object"]',
        'resource.name.extract("/buckets/{bucket}/objects/") == "data"',
        'resource.name.extract("/objects/{object}") == "in/a.txt"',
        'resource.name.extract("/disks/{disk}") == ""',
        'resource.name.extract("/objects/{object}/versions/") == ""',
        'request.time.getHours("Europe/Berlin") == 2',  # summer time
        "request.time.getDayOfWeek() == 5",  # a Friday; Sunday is 0
        'request.time + duration("60s") > timestamp("2026-05-01T00:00:59Z")',
        # By CEL's specification, an operand that decides the result hides errors of the other.
        "destination.ip == '10.0.0.1' || true",
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
        'resource.name.matches("^in/")',
        'request.time.getHours("Europe/Berlin") == 0',
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
        'resource.name.matches("(")',
        "resource.name.extract(1) == ''",
        'resource.matchTag("a", "b")',
        'request.time.getHours("Mars/Olympus") < 3',
        'request.time < timestamp("tomorrow")',
        'request.time < timestamp("2026-05-01T00:00:00")',
        "request.time < 'now'",
        "destination.ip == '10.0.0.1'",
        "true && 1",
        "(" * 1000 + "true" + ")" * 1000,
        "!" * 10_000 + "true",
    ],
)
def test_unsupported_condition_grants_nothing(expression: str) -> None:
    assert not holds(expression, FACTS)
