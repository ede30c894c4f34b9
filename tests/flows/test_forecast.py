"""`plan --forecast`: what a trace and earlier requests say, and what the stack's record keeps."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.locations import ZONE
from tests.support.projects import Project
from tpuctl.errors import Usage
from tpuctl.model.capacity.forecast import Range
from tpuctl.resources.project.stack_record import Record

# An hour without room, then ten days with room for two nodes.
TRACE = f"hours,zone,type,nodes\n0,{ZONE},v3-8,0\n1,{ZONE},v3-8,2\n240,{ZONE},v3-8,2\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE, "utf-8")
    return path


async def test_forecast_is_shown_and_kept_with_the_request(project: Project, trace: Path) -> None:
    bench = project.stack("capacity: spot, queue: true", zones=ZONE)
    options = ("--trace", str(trace), "--hours", "10")
    answer = (await asyncio.to_thread(bench.answer, "plan", *options))["data"]["forecast"]
    assert (answer["hours"], answer["unfinished"]) == (10, 0)
    assert answer["wait"] == {"low": 300, "high": 300}  # the first hour is a tenth at an end
    assert answer["preemptions"] == {"low": 0, "high": 0}
    assert answer["duration"] == {"low": 36300, "high": 36300}
    assert answer["checkpoint"] is None
    _, output, _ = await asyncio.to_thread(bench.type, "plan", *options)
    assert "Forecast for 10 h of work:" in output
    assert "10 h 5 min" in output
    await bench.provision()
    contents = await Record(bench.stack.stack, bench.stack.cloud).read()
    assert contents is not None
    assert contents.forecast is not None
    assert contents.forecast.duration == Range(36300, 36300)
    again = bench.stack.forecast()
    assert (again.hours, again.starts, again.grants) == (24, 0, answer["grants"] + 1)


def test_spot_trace_stands_for_the_zone_it_is_given_for(project: Project, trace: Path) -> None:
    trace.write_text('{"metadata": {"gap_seconds": 3600}, "data": [0, 0, 1, 1, 1, 1]}', "utf-8")
    stack = project.stack("capacity: spot", zones=ZONE).stack
    assert stack.forecast([f"{ZONE}={trace}"], 1).wait == stack.forecast([str(trace)], 1).wait
    two = project.stack("capacity: spot, queue: {nodes: 2}").stack
    assert two.forecast([str(trace)], 1).wait is None  # there is room for one


def test_trace_without_the_zones_is_refused(project: Project, trace: Path) -> None:
    stack = project.stack("capacity: spot", zones=ZONE, type_name="v2-8").stack
    with pytest.raises(Usage, match="no trace has v2-8 in europe-west4-a") as raised:
        stack.forecast([str(trace)])
    assert raised.value.diagnostics[0].where == "--trace"
