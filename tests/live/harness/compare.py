"""Lists how the local cloud differs from Google Cloud, from what two live runs have recorded.

The responses are compared by `tpuctl local replay`, which repeats the calls of the run on Google.
What no call shows is compared between the two runs: outcomes, the node's states, and durations.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpuctl.emulator.replay.comparison import form
from tpuctl.emulator.replay.recordings import Recording, read_recording
from tpuctl.emulator.replay.replayer import ReplayedCall, replay

MARGIN = 1.5  # times the longest polling gap: shorter states may have been missed
MISSING = "(nothing)"
COMMANDS = {"local": "TPUCTL_LIVE_CLOUD=local", "google": "TPUCTL_LIVE_PROJECT=my-project"}
Record = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Difference:
    """Where two runs differ, and the value in each. Only one may have observed it by chance."""

    where: str
    google: str
    local: str
    may_be_chance: bool = False


def write_differences(folder: Path) -> Path:
    """Write `differences.md` next to the files of the runs, or say which run is missing."""
    missing = [
        name
        for name in COMMANDS
        if not all((folder / f"{name}.{ending}").exists() for ending in ("json", "jsonl"))
    ]
    lines = ["# How the local cloud differs from Google Cloud", ""]
    if missing:
        lines += ["Nothing to compare with yet: run", "", f"    {COMMANDS[missing[0]]} make live"]
    else:
        names = ("google", "local")
        google, local = (json.loads((folder / f"{name}.json").read_text("utf-8")) for name in names)
        recordings = [read_recording(folder / f"{name}.jsonl") for name in names]
        calls = replay(recordings[0], nodes="denied")  # as on the local cloud of a live run
        differences = [*compare(google, local), *_methods(*recordings)]
        lines += _sections(calls, differences)
        lines += ["", "## Durations", "", *_durations(google["seconds"], local["seconds"])]
    path = folder / "differences.md"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def compare(google: Record, local: Record) -> list[Difference]:
    """How two runs differ, but for their responses and durations."""
    differences = []
    for topic in ("facts", "outcomes"):
        first, other = google[topic], local[topic]
        for name in dict.fromkeys([*first, *other]):
            left, right = (each.get(name, MISSING) for each in (first, other))
            if form(left) != form(right) and name != "cloud":
                differences.append(Difference(name, _as_text(left), _as_text(right)))
    return differences + list(_states(google["states"], local["states"]))


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _states(google: Mapping[str, Any], local: Mapping[str, Any]) -> Iterator[Difference]:
    for resource in sorted({*google} | {*local}):
        first, other = (
            each.get(resource, {"observed": [], "longest_gap": 0.0}) for each in (google, local)
        )
        left, right = ([state["state"] for state in each["observed"]] for each in (first, other))
        if left != right:
            common = [state for state in left if state in right]
            is_same_order = common == [state for state in right if state in left]
            longest = MARGIN * max(first["longest_gap"], other["longest_gap"])
            is_short = all(
                state["seconds"] <= longest
                for state in (*first["observed"], *other["observed"])
                if state["state"] not in common
            )
            yield Difference(
                *(resource, " → ".join(left), " → ".join(right)),
                may_be_chance=bool(left and right) and is_same_order and is_short,
            )


def _methods(google: Recording, local: Recording) -> Iterator[Difference]:
    """Methods that only one run has called."""
    first, other = ({call.method for call in each.calls} for each in (google, local))
    for method in sorted(first ^ other):
        words = ("called", MISSING) if method in first else (MISSING, "called")
        yield Difference(method or "others", *words, may_be_chance=True)


def _sections(calls: Iterable[ReplayedCall], differences: Iterable[Difference]) -> Iterator[str]:
    responses = [
        (call.method, f"{each.kind} {each.path}", each.recorded, each.local)
        for call in calls
        for each in call.differences
    ]
    yield from ("## Responses", "")
    yield from _table(("method", "differs in", "google", "local"), dict.fromkeys(responses))
    for title, may_be_chance in (("Runs", False), ("Possibly random", True)):
        rows = [
            (difference.where, difference.google, difference.local)
            for difference in differences
            if difference.may_be_chance == may_be_chance
        ]
        yield from ("", f"## {title}", "")
        yield from _table(("where", "google", "local"), rows)


def _durations(google: Mapping[str, float], local: Mapping[str, float]) -> Iterator[str]:
    rows = []
    for name in (name for name in local if name in google):
        ratio = f"{google[name] / local[name]:.1f}" if local[name] >= 0.05 else ""
        rows.append((name, f"{google[name]:.1f} s", f"{local[name]:.1f} s", ratio))
    yield from _table(("step", "google", "local", "ratio"), rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    lines = [[" ".join(cell.replace("|", "\\|").split()) for cell in row] for row in rows]
    if not lines:
        yield "Nothing."
        return
    for line in (head, ["---"] * len(head), *lines):
        yield f"| {' | '.join(line)} |"
