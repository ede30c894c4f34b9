"""Files of capacity over time: what they mean, and what is refused in which line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpuctl.capacity_trace import ANY, read_trace
from tpuctl.errors import Usage

HEADER = "hours,zone,type,nodes\n"
TWO_ZONES = f"""{HEADER}0,us-central1-a,v2-8,2
0.5,us-central1-b,v2-8,1
1.5,us-central1-a,v2-8,0
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace"
    path.write_text(text, "utf-8")
    return path


def test_room_changes_at_each_line(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, TWO_ZONES))
    first, second = trace.find("us-central1-a", "v2-8"), trace.find("us-central1-b", "v2-8")
    assert first is not None
    assert second is not None
    assert [first.nodes_at(hours * 3600) for hours in (0, 1.49, 1.5, 100)] == [2, 2, 0, 0]
    assert [second.nodes_at(hours * 3600) for hours in (0, 0.5, 100)] == [0, 1, 1]
    assert trace.seconds == 5400
    assert trace.find("us-central1-c", "v2-8") is None
    assert trace.find("us-central1-a", "v3-8") is None


def test_spot_traces_stand_for_every_zone(tmp_path: Path) -> None:
    """The format of github.com/skypilot-org/spot-traces, README.md."""
    text = '{"metadata": {"gap_seconds": 300}, "data": [0, 0, 4, 4, 1]}'
    trace = read_trace(write(tmp_path, text))
    zone = trace.find("us-central1-a", "v2-8")
    assert zone is not None
    assert (zone.zone, zone.times, zone.nodes) == (ANY, (0.0, 600.0, 1200.0), (0, 4, 1))
    assert trace.seconds == 1500


@pytest.mark.parametrize(
    ("text", "line", "detail"),
    [
        ("", 1, "first line"),
        ("zone,hours\n", 1, "first line"),
        (HEADER, 2, "no lines"),
        (f"{HEADER}0,a,v2-8\n", 2, "fields"),
        (f"{HEADER}\n0,a,v2-8,1,1\n", 3, "fields"),
        (f"{HEADER}-1,a,v2-8,1\n", 2, "hours"),
        (f"{HEADER}nan,a,v2-8,1\n", 2, "hours"),
        (f"{HEADER}1e9,a,v2-8,1\n", 2, "hours"),
        (f"{HEADER}999999,a,v2-8,1\n", 2, "hours"),
        (f"{HEADER}0,,v2-8,1\n", 2, "zone"),
        (f"{HEADER}0,a,V2 8,1\n", 2, "type"),
        (f"{HEADER}0,a,v2-8,-1\n", 2, "nodes"),
        (f"{HEADER}0,a,v2-8,1.5\n", 2, "nodes"),
        (f"{HEADER}0,a,v2-8,999999\n", 2, "nodes"),
        (f"{HEADER}2,a,v2-8,1\n1,b,v2-8,1\n", 3, "before"),
        (f"{HEADER}1,a,v2-8,1\n1,a,v2-8,0\n", 3, "already"),
        ('{"metadata":\n]', 2, "Expecting"),
        ("{}", 1, "gap_seconds"),
        ('{"metadata": [], "data": []}', 1, "gap_seconds"),
        ('{"metadata": {"gap_seconds": 0}, "data": [1]}', 1, "gap_seconds"),
        ('{"metadata": {"gap_seconds": NaN}, "data": [1]}', 1, "gap_seconds"),
        ('{"metadata": {"gap_seconds": 1}, "data": []}', 1, "data"),
        ('{"metadata": {"gap_seconds": 1}, "data": [1, true]}', 1, r"data\[1\]"),
        ('{"metadata": {"gap_seconds": 1}, "data": [-1]}', 1, r"data\[0\]"),
        ("[" * 100_000, 1, "first line"),
        ('{"metadata": ' + "[" * 100_000, 1, "gap_seconds"),
    ],
)
def test_invalid_file_is_refused_with_its_line(
    tmp_path: Path, text: str, line: int, detail: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(Usage, match=detail) as raised:
        read_trace(path)
    assert raised.value.diagnostics[0].where == f"{path}:{line}"


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_unreadable_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "trace"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Usage) as raised:
        read_trace(path)
    assert raised.value.diagnostics[0].where == str(path)
