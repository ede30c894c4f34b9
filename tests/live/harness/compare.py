"""Compares the observations and durations in the records of two live runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Comparison", "Difference", "compare", "load", "report", "write_differences"]

MARGIN = 1.5  # times the longest polling gap: shorter states may have been missed
MISSING = "(nothing)"
PHASE_FIELDS = ("statusDetail",)  # only in answers during a part of an operation
COMMANDS = {"local": "TPUCTL_LIVE_CLOUD=local", "google": "TPUCTL_LIVE_PROJECT=my-project"}
Record = Mapping[str, Any]
Row = tuple[str, float, float]


@dataclass(frozen=True)
class Difference:
    """A difference between two records: its place, and the value in each."""

    topic: str
    where: str
    first: str
    second: str


@dataclass(frozen=True)
class Comparison:
    """Differences, differences that may be random, and durations."""

    differences: tuple[Difference, ...]
    by_chance: tuple[Difference, ...]
    durations: tuple[Row, ...]


def compare(first: Record, other: Record) -> Comparison:
    """Compare two records of `make live`, which contain no ids and timestamps."""
    differences = [
        *_mappings("facts", first["facts"], other["facts"], ignore=("cloud",)),
        *_steps(first, other),
        *_substeps(first, other),
        *_answers(first, other),
        *_mappings("refusals", _refusals(first), _refusals(other)),
    ]
    by_chance = [
        *_mappings(
            "methods called by only one run", _methods(first, other), _methods(other, first)
        ),
        *_mappings("other errors", _errors(first), _errors(other)),
    ]
    for field in _fields(first, other):
        (by_chance if field.where.endswith(PHASE_FIELDS) else differences).append(field)
    for state in _states(first, other):
        (by_chance if state[0] else differences).append(state[1])
    return Comparison(tuple(differences), tuple(by_chance), tuple(_durations(first, other)))


def load(path: Path) -> Record:
    found: Record = json.loads(path.read_text("utf-8"))
    return found


def _mappings(
    topic: str, first: Mapping[str, Any], other: Mapping[str, Any], ignore: tuple[str, ...] = ()
) -> Iterator[Difference]:
    for name in sorted({*first, *other} - {*ignore}):
        left, right = first.get(name), other.get(name)
        if left != right:
            yield Difference(topic, name, _as_text(left), _as_text(right))


def _as_text(value: Any) -> str:
    if value is None:
        return MISSING
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _steps(first: Record, other: Record) -> Iterator[Difference]:
    left, right = ([step["name"] for step in each["steps"]] for each in (first, other))
    if left != right:
        yield Difference("steps", "their order", ", ".join(left), ", ".join(right))
    outcomes = [
        {step["name"]: step["outcome"] for step in each["steps"]} for each in (first, other)
    ]
    for name in left:
        if name in outcomes[1] and outcomes[0][name] != outcomes[1][name]:
            yield Difference("steps", name, outcomes[0][name], outcomes[1][name])


def _substeps(first: Record, other: Record) -> Iterator[Difference]:
    """What `up` and `down` did to each resource."""

    def substeps_of(record: Record) -> dict[str, str]:
        return {
            f"{step}: {address}": f"{part['action']}, {part['outcome']}"
            for step, substeps in record["substeps"].items()
            for address, part in substeps.items()
        }

    return _mappings("substeps", substeps_of(first), substeps_of(other))


def _fields(first: Record, other: Record) -> Iterator[Difference]:
    for method in sorted({*first["answers"]} & {*other["answers"]}):
        left, right = ({*record["answers"][method]["fields"]} for record in (first, other))
        for path in sorted(left ^ right):
            words = ("there", MISSING) if path in left else (MISSING, "there")
            yield Difference("fields of answers", f"{method}: {path}", *words)


def _answers(first: Record, other: Record) -> Iterator[Difference]:
    for method in sorted({*first["answers"]} & {*other["answers"]}):
        left, right = first["answers"][method], other["answers"][method]
        both = {*left["fields"]} & {*right["fields"]}
        for path in sorted(both & ({*left["values"]} | {*right["values"]})):
            if _is_transient(path):
                continue
            values = [", ".join(each["values"].get(path, [])) for each in (left, right)]
            if values[0] != values[1]:
                yield Difference("values in answers", f"{method}: {path}", *values)


def _is_transient(path: str) -> bool:
    """Whether the value changes during a run, so that the observed values depend on polling."""
    last = path.rpartition(".")[2]
    return last in ("state", "status", "done", "health")


def _refusals(record: Record) -> dict[str, str]:
    return {
        f"{name}: {field}": str(value)
        for name, refusal in record["refusals"].items()
        for field, value in refusal.items()
    }


def _methods(first: Record, other: Record) -> dict[str, str]:
    return {method: "called" for method in first["answers"] if method not in other["answers"]}


def _errors(record: Record) -> dict[str, str]:
    return {
        f"{method}: {kind}": details["text"]
        for method, kinds in record["errors"].items()
        for kind, details in kinds.items()
    }


def _states(first: Record, other: Record) -> Iterator[tuple[bool, Difference]]:
    """Differences in states, each with whether it may be random."""
    for resource in sorted({*first["states"]} | {*other["states"]}):
        left, right = (_state_record(each, resource) for each in (first, other))
        orders = [[state["state"] for state in each["observed"]] for each in (left, right)]
        if orders[0] == orders[1]:
            continue
        missed = [_may_have_missed(left, right), _may_have_missed(right, left)]
        common = [[state for state in orders[i] if state in orders[1 - i]] for i in (0, 1)]
        may_be_chance = common[0] == common[1] and all(missed)
        difference = Difference("states", resource, " → ".join(orders[0]), " → ".join(orders[1]))
        yield may_be_chance, difference


def _state_record(record: Record, resource: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = record["states"].get(resource, {"observed": [], "longest_gap": 0.0})
    return found


def _may_have_missed(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Whether all states observed only on the left were too short to be observed reliably."""
    known_states = {state["state"] for state in right["observed"]}
    return bool(known_states) and all(
        state["seconds"] <= MARGIN * max(right["longest_gap"], left["longest_gap"])
        for state in left["observed"]
        if state["state"] not in known_states
    )


def _durations(first: Record, other: Record) -> Iterator[Row]:
    def seconds(record: Record) -> dict[str, float]:
        durations = {step["name"]: step["seconds"] for step in record["steps"]}
        for step, substeps in record["substeps"].items():
            durations |= {f"{step}: {name}": part["seconds"] for name, part in substeps.items()}
        for resource, watched in record["states"].items():
            durations |= {
                f"{resource} {comparison['state']}": comparison["seconds"]
                for comparison in watched["observed"]
            }
        return durations

    left, right = seconds(first), seconds(other)
    for name in left:
        if name in right:
            yield name, left[name], right[name]


def report(first: Record, other: Record) -> str:
    """The comparison as Markdown."""
    names = first["facts"].get("cloud", "one"), other["facts"].get("cloud", "other")
    comparison = compare(first, other)
    lines = [f"# What differed between {names[0]} and {names[1]}", ""]
    lines += _table(comparison.differences, names) or ["Nothing."]
    if comparison.by_chance:
        lines += ["", "## Possibly random", ""]
        lines += _table(comparison.by_chance, names)
    lines += ["", "## Durations", "", "| step | " + " | ".join(names) + " | ratio |"]
    lines.append("|---|--:|--:|--:|")
    for name, left, right in comparison.durations:
        ratio = f"{right / left:.1f}" if left >= 0.05 else ""
        lines.append(f"| {_cell(name)} | {left:.1f} s | {right:.1f} s | {ratio} |")
    return "\n".join(lines) + "\n"


def _table(rows: tuple[Difference, ...], names: tuple[str, str]) -> list[str]:
    if not rows:
        return []
    head = [f"| topic | where | {names[0]} | {names[1]} |", "|---|---|---|---|"]
    return head + [
        f"| {_cell(row.topic)} | {_cell(row.where)} | {_cell(row.first)} | {_cell(row.second)} |"
        for row in rows
    ]


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def write_differences(folder: Path) -> Path:
    """Write `differences.md` next to the records, or say which record is missing."""
    records = {name: folder / f"{name}.json" for name in ("local", "google")}
    missing = [name for name, path in records.items() if not path.exists()]
    if missing:
        text = (
            f"# What differed\n\nNothing to compare with yet: run\n\n"
            f"    {COMMANDS[missing[0]]} make live\n"
        )
    else:
        text = report(load(records["local"]), load(records["google"]))
    path = folder / "differences.md"
    path.write_text(text, "utf-8")
    return path
