"""Compares the records of two live runs: what they observed, and how long it took."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Comparison", "Difference", "compare", "load", "report", "write_differences"]

MARGIN = 1.5  # of the longest gap between two looks: what lasted less may have been missed
MISSING = "(nothing)"
HOW = {"local": "TPUCTL_LIVE_CLOUD=local", "google": "TPUCTL_LIVE_PROJECT=my-project"}
Record = Mapping[str, Any]
Row = tuple[str, float, float]


@dataclass(frozen=True)
class Difference:
    """One thing that is not alike: where, what it is on the one side and on the other."""

    topic: str
    where: str
    first: str
    second: str


@dataclass(frozen=True)
class Comparison:
    """What differs; what may differ by chance alone; and how long everything took."""

    differences: tuple[Difference, ...]
    by_chance: tuple[Difference, ...]
    durations: tuple[Row, ...]


def compare(first: Record, other: Record) -> Comparison:
    """Both as `make live` wrote them. Ids and times are not in them."""
    differences = [
        *_mappings("facts", first["facts"], other["facts"], ignore=("cloud",)),
        *_steps(first, other),
        *_substeps(first, other),
        *_answers(first, other),
        *_mappings("refusals", _refusals(first), _refusals(other)),
    ]
    by_chance = [
        *_mappings("asked of one alone", _methods(first, other), _methods(other, first)),
        *_mappings("refusals along the way", _errors(first), _errors(other)),
    ]
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
        here, there = first.get(name), other.get(name)
        if here != there:
            yield Difference(topic, name, _as_text(here), _as_text(there))


def _as_text(value: Any) -> str:
    if value is None:
        return MISSING
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _steps(first: Record, other: Record) -> Iterator[Difference]:
    here, there = ([step["name"] for step in each["steps"]] for each in (first, other))
    if here != there:
        yield Difference("steps", "their order", ", ".join(here), ", ".join(there))
    outcomes = [
        {step["name"]: step["outcome"] for step in each["steps"]} for each in (first, other)
    ]
    for name in here:
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


def _answers(first: Record, other: Record) -> Iterator[Difference]:
    for method in sorted({*first["answers"]} & {*other["answers"]}):
        here, there = first["answers"][method], other["answers"][method]
        for path in sorted({*here["fields"]} ^ {*there["fields"]}):
            has = path in here["fields"]
            words = ("there", MISSING) if has else (MISSING, "there")
            yield Difference("fields of answers", f"{method}: {path}", *words)
        both = {*here["fields"]} & {*there["fields"]}
        for path in sorted(both & ({*here["values"]} | {*there["values"]})):
            if _is_moving(path):
                continue
            values = [", ".join(each["values"].get(path, [])) for each in (here, there)]
            if values[0] != values[1]:
                yield Difference("values in answers", f"{method}: {path}", *values)


def _is_moving(path: str) -> bool:
    """What changes while one looks: how often one looked decides what was seen."""
    last = path.rpartition(".")[2]
    return last in ("state", "status", "done", "health")


def _refusals(record: Record) -> dict[str, str]:
    return {
        f"{name}: {field}": str(value)
        for name, refusal in record["refusals"].items()
        for field, value in refusal.items()
    }


def _methods(first: Record, other: Record) -> dict[str, str]:
    return {method: "asked" for method in first["answers"] if method not in other["answers"]}


def _errors(record: Record) -> dict[str, str]:
    return {
        f"{method}: {kind}": details["text"]
        for method, kinds in record["errors"].items()
        for kind, details in kinds.items()
    }


def _states(first: Record, other: Record) -> Iterator[tuple[bool, Difference]]:
    """With whether chance alone may be the reason."""
    for thing in sorted({*first["states"]} | {*other["states"]}):
        here, there = (_watched(each, thing) for each in (first, other))
        orders = [[state["state"] for state in each["observed"]] for each in (here, there)]
        if orders[0] == orders[1]:
            continue
        missed = [_missed(here, there), _missed(there, here)]
        common = [[state for state in orders[i] if state in orders[1 - i]] for i in (0, 1)]
        may_be_chance = common[0] == common[1] and all(missed)
        difference = Difference("states", thing, " → ".join(orders[0]), " → ".join(orders[1]))
        yield may_be_chance, difference


def _watched(record: Record, thing: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = record["states"].get(thing, {"observed": [], "longest_gap": 0.0})
    return found


def _missed(here: Mapping[str, Any], there: Mapping[str, Any]) -> bool:
    """Whether all that only the one saw was too short for the other to be sure of it."""
    known_states = {state["state"] for state in there["observed"]}
    return bool(known_states) and all(
        state["seconds"] <= MARGIN * max(there["longest_gap"], here["longest_gap"])
        for state in here["observed"]
        if state["state"] not in known_states
    )


def _durations(first: Record, other: Record) -> Iterator[Row]:
    def seconds(record: Record) -> dict[str, float]:
        durations = {step["name"]: step["seconds"] for step in record["steps"]}
        for step, substeps in record["substeps"].items():
            durations |= {f"{step}: {name}": part["seconds"] for name, part in substeps.items()}
        for thing, watched in record["states"].items():
            durations |= {
                f"{thing} {comparison['state']}": comparison["seconds"]
                for comparison in watched["observed"]
            }
        return durations

    here, there = seconds(first), seconds(other)
    for name in here:
        if name in there:
            yield name, here[name], there[name]


def report(first: Record, other: Record) -> str:
    """All of it as a page of Markdown."""
    names = first["facts"].get("cloud", "one"), other["facts"].get("cloud", "other")
    comparison = compare(first, other)
    lines = [f"# What differed between {names[0]} and {names[1]}", ""]
    lines += _table(comparison.differences, names) or ["Nothing."]
    if comparison.by_chance:
        lines += ["", "## What chance may explain", ""]
        lines += _table(comparison.by_chance, names)
    lines += ["", "## How long it took", "", "| what | " + " | ".join(names) + " | ratio |"]
    lines.append("|---|--:|--:|--:|")
    for name, here, there in comparison.durations:
        ratio = f"{there / here:.1f}" if here >= 0.05 else ""
        lines.append(f"| {_cell(name)} | {here:.1f} s | {there:.1f} s | {ratio} |")
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
            f"    {HOW[missing[0]]} make live\n"
        )
    else:
        text = report(load(records["local"]), load(records["google"]))
    path = folder / "differences.md"
    path.write_text(text, "utf-8")
    return path
