"""Traces of capacity: for how many nodes of a type a zone has room, over time.

Two formats are read. A CSV file with a line for each change, in the order of time:

    hours,zone,type,nodes
    0,us-central1-b,v5litepod-8,2
    3.5,us-central1-b,v5litepod-8,0

And files of github.com/skypilot-org/spot-traces, with a sample every so many seconds. They name
neither a zone nor a type:

    {"metadata": {"gap_seconds": 300}, "data": [0, 1, 1]}

Before its first line a zone has no room; after the last one it keeps what it has. A preemption is a
fall below the number of nodes that run.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tpuctl.errors import Usage
from tpuctl.files import read_file

ANY = "*"  # the zone and the type of a trace that names none
HEADER = "hours,zone,type,nodes"
FORMATS = (
    "Pass a file of github.com/skypilot-org/spot-traces, or a CSV file such as\n"
    f"    {HEADER}\n    0,us-central1-b,v5litepod-8,2"
)
MAX_FILE_BYTES = 16 << 20
MAX_HOURS = 10 * 366 * 24.0
MAX_NODES = 100_000
MAX_GAP_SECONDS = 7 * 86400.0
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_NUMBER = re.compile(r"\d{1,12}(?:\.\d{1,12})?")


@dataclass(frozen=True)
class ZoneTrace:
    """The room for one type in one zone: `nodes[i]` from second `times[i]` on."""

    zone: str
    type: str
    times: tuple[float, ...]  # increasing
    nodes: tuple[int, ...]
    line: int = 1  # of the file, where it begins

    def nodes_at(self, seconds: float) -> int:
        """For how many nodes there is room at that time."""
        index = bisect_right(self.times, seconds)
        return self.nodes[index - 1] if index else 0


@dataclass(frozen=True)
class CapacityTrace:
    """All zones and types of a file, of which each pair is there once."""

    path: Path
    zones: tuple[ZoneTrace, ...]
    seconds: float  # its length

    def find(self, zone: str, type_name: str) -> ZoneTrace | None:
        """The trace of a type in a zone, or the one that stands for all."""
        names = ((zone, type_name), (ANY, ANY))
        return next((trace for trace in self.zones if (trace.zone, trace.type) in names), None)


def read_trace(path: Path) -> CapacityTrace:
    """Read a file in either format. Raises Usage that says what is invalid in which line."""
    try:
        text = read_file(path, MAX_FILE_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeError) as error:
        detail = error.strerror if isinstance(error, OSError) else None
        raise Usage(
            "Invalid capacity trace", detail or str(error), hint=FORMATS, where=str(path)
        ) from error
    is_samples = text.lstrip().startswith("{")
    return _read_samples(path, text) if is_samples else _read_changes(path, text)


def _read_changes(path: Path, text: str) -> CapacityTrace:
    lines = enumerate(text.splitlines(), start=1)
    if next(lines, (1, ""))[1].strip() != HEADER:
        raise _invalid(path, 1, f"the first line must be {HEADER}")
    changes: dict[tuple[str, str], list[tuple[int, float, int]]] = {}
    end = 0.0
    for number, line in lines:
        if not line.strip():
            continue
        seconds, zone, type_name, nodes = _parse_change(path, number, line)
        if seconds < end:
            raise _invalid(path, number, "its time is before that of the line above")
        before = changes.setdefault((zone, type_name), [])
        if before and before[-1][1] == seconds:
            raise _invalid(path, number, f"{zone} and {type_name} have a line at this time already")
        before.append((number, seconds, nodes))
        end = seconds
    if not changes:
        raise _invalid(path, 2, "it has no lines of capacity")
    zones = []
    for (zone, type_name), rows in changes.items():
        numbers, times, counts = zip(*rows, strict=True)
        zones.append(ZoneTrace(zone, type_name, times, counts, numbers[0]))
    return CapacityTrace(path, tuple(zones), end)


def _parse_change(path: Path, number: int, line: str) -> tuple[float, str, str, int]:
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != len(HEADER.split(",")):
        raise _invalid(path, number, f"it must have the fields {HEADER}")
    hours, zone, type_name, nodes = fields
    if not _NUMBER.fullmatch(hours) or float(hours) > MAX_HOURS:
        raise _invalid(path, number, f"hours must be a number from 0 to {MAX_HOURS:.0f}")
    for field, name in (("zone", zone), ("type", type_name)):
        if not _NAME.fullmatch(name):
            raise _invalid(path, number, f"{field} must be a name of lower-case letters and digits")
    if not (nodes.isascii() and nodes.isdigit()) or len(nodes) > 6 or int(nodes) > MAX_NODES:
        raise _invalid(path, number, f"nodes must be a whole number from 0 to {MAX_NODES}")
    return float(hours) * 3600, zone, type_name, int(nodes)


def _read_samples(path: Path, text: str) -> CapacityTrace:
    try:
        document = json.loads(text)
        gap, samples = document["metadata"]["gap_seconds"], document["data"]
    except json.JSONDecodeError as error:
        raise _invalid(path, error.lineno, error.msg) from error
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise _invalid(path, 1, "it must have metadata.gap_seconds and data") from error
    if type(gap) not in (int, float) or not 1 <= gap <= MAX_GAP_SECONDS:
        detail = f"metadata.gap_seconds must be a number from 1 to {MAX_GAP_SECONDS:.0f}"
        raise _invalid(path, 1, detail)
    if not isinstance(samples, list) or not samples or len(samples) * gap > MAX_HOURS * 3600:
        raise _invalid(path, 1, f"data must be a list of samples of up to {MAX_HOURS:.0f} hours")
    for index, sample in enumerate(samples):
        if type(sample) is not int or not 0 <= sample <= MAX_NODES:
            detail = f"data[{index}] must be a whole number from 0 to {MAX_NODES}"
            raise _invalid(path, 1, detail)
    times, nodes = zip(*_changes(samples, gap), strict=True)
    return CapacityTrace(path, (ZoneTrace(ANY, ANY, times, nodes),), len(samples) * float(gap))


def _changes(samples: list[int], gap: float) -> Iterator[tuple[float, int]]:
    """When the samples change, and to what."""
    yield 0.0, samples[0]
    for index, (before, sample) in enumerate(pairwise(samples), start=1):
        if sample != before:
            yield index * gap, sample


def _invalid(path: Path, line: int, detail: str) -> Usage:
    return Usage("Invalid capacity trace", detail, hint=FORMATS, where=f"{path}:{line}")
