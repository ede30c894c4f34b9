"""The hunt for a spot TPU: 72 hours of weather, in the minutes that tpuctl's own work takes.

The hunt is the recovery of a job, as on a controller or a computer that follows it, on a local
cloud with stub machines. The weather's time passes where tpuctl waits, and by what each of Google's
operations takes at the real pace: the speed of this computer does not matter.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

from tests.benchmarks.figures import Figure, goal, sized, stack_in
from tests.support import projects
from tests.support.capacity_traces import HOURS, SHIPPED, TYPE, ZONES
from tests.support.job_records import job_record
from tests.support.polling import async_until
from tpuctl import catalog
from tpuctl.api import Tpuctl
from tpuctl.capacity_trace import ZoneTrace, read_trace
from tpuctl.emulator.server import PACES
from tpuctl.errors import NoCapacity
from tpuctl.flows.context import Context
from tpuctl.flows.jobs import recover
from tpuctl.flows.stack.plan import Prepared
from tpuctl.flows.stack.up import provision
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.capacity.hunt import Hunt, Run, room_seconds, room_until, saved_seconds
from tpuctl.model.cost.cost import node_cost
from tpuctl.model.events import Event, Outcome, StepFinished, ignore
from tpuctl.units import counted

GOAL = 0.9  # of the time in which any zone has room
END = sized(HOURS, 4.0) * 3600
CHECKPOINT_SECONDS = 1800.0
CREATION, DELETION, REFUSAL, NOTICE = (
    PACES[step][1]
    for step in ("tpu.nodes.create", "tpu.nodes.delete", "tpu.stockout", "tpu.preempt")
)
TICK_SECONDS = 0.3  # in which the local cloud notices the weather


class Weather:
    """The weather of a local cloud, as a clock: it stands still until somebody sleeps."""

    def __init__(self, cloud: LocalCloud, zones: Sequence[ZoneTrace]) -> None:
        self._cloud = cloud
        self._changes = sorted({time for zone in zones for time in zone.times})
        self._now = 0.0
        self._fault = ""

    def now(self) -> float:
        return self._now

    def skip(self, seconds: float) -> None:
        """Let time pass that the local cloud notices when somebody sleeps next."""
        self._now += seconds

    async def sleep(self, seconds: float) -> None:
        self.skip(seconds)
        await asyncio.sleep(min(seconds, 0.01))
        while self._changes and self._changes[0] <= self._now:
            hours = self._changes.pop(0) / 3600
            trace, before = str(SHIPPED), self._fault
            fields = {"trace": trace, "speed": 0, "hours": hours}
            self._fault = remote_control.add_fault(self._cloud, "weather", **fields)["id"]
            if before:
                remote_control.remove_fault(self._cloud, before)
            await asyncio.sleep(TICK_SECONDS)


def hunt() -> Iterator[Figure]:
    """What tpuctl makes of the weather, beside two simple strategies."""
    trace = read_trace(SHIPPED)
    zones = [zone for name in ZONES if (zone := trace.find(name, TYPE)) is not None]
    usable = room_seconds(zones, 0, END)
    yield Figure("any zone has room", f"{usable / 3600:.1f} h", f"of {END / 3600:.0f} h")
    # A script that asks again as soon as it is refused, and a request that waits in a queue.
    setup = NOTICE + DELETION + CREATION
    strategies = {
        "all zones in turn": Hunt(zones, setup, poll=REFUSAL * len(zones)),
        "one zone and wait": Hunt(zones[:1], setup),
    }
    runs, given_up = _hunt_with_tpuctl(zones)
    yield _figure("tpuctl", runs, usable, has_goal=True)
    patience = f"after {recover.CAPACITY_SECONDS / 3600:.0f} h, and was started again"
    yield Figure("… gave up", counted(given_up, "time"), patience)
    for label, strategy in strategies.items():
        yield _figure(label, [*strategy.runs(0, END)], usable)


def _figure(label: str, runs: Sequence[Run], usable: float, *, has_goal: bool = False) -> Figure:
    ratio = sum(run.seconds for run in runs) / usable
    accelerator = catalog.accelerator_type(TYPE)
    assert accelerator is not None
    price = 0.0
    for run in runs:
        per_hour = node_cost(accelerator, run.zone.zone, capacity="spot").per_hour
        assert per_hour is not None
        price += run.seconds / 3600 * float(per_hour)
    chip_hours = accelerator.chips * saved_seconds(runs, CHECKPOINT_SECONDS) / 3600
    preemptions = sum(run.is_preempted for run in runs)
    of_saved = "nothing saved"
    if chip_hours:
        of_saved = f"${price / chip_hours:.3f} per chip-hour of saved work"
    return Figure(
        label,
        f"{ratio:.3f} of it",
        f"{of_saved}, {preemptions} preemptions",
        goal(f"{GOAL:g}", ratio >= GOAL) if has_goal else "",
    )


def _hunt_with_tpuctl(zones: Sequence[ZoneTrace]) -> tuple[list[Run], int]:
    """The runs of tpuctl's node, and how often it gave up."""
    with tempfile.TemporaryDirectory(prefix="tpuctl-bench-") as folder:
        root = Path(folder)
        os.environ["TPUCTL_LOCAL_HOME"] = str(root / "cloud")
        os.environ["TPUCTL_CONFIG_HOME"] = str(root / "config")
        with projects.serving(root / "cloud") as cloud, patch.object(recover, "up", _provision):
            asyncio.run(projects.provision(_stack(root)))
            weather = Weather(cloud, zones)

            def emit(event: Event) -> None:
                if isinstance(event, StepFinished) and event.address.startswith("node/"):
                    seconds = {Outcome.DONE: CREATION, Outcome.FAILED: REFUSAL}
                    weather.skip(seconds.get(event.outcome, 0.0))

            stack = _stack(root, emit)
            stack.cloud.clock = weather
            return asyncio.run(_run_until_end(stack, weather, zones))


def _stack(folder: Path, emit: Callable[[Event], None] = ignore) -> Tpuctl:
    return stack_in(
        folder,
        emit,
        where=f"type: {TYPE}, capacity: spot, zones: [{', '.join(ZONES)}]",
        tpu="runtime: v2-alpha-tpuv5-lite",
        extra="bucket: {allow_egress: true}\n",
    )


async def _provision(context: Context, *, prepared: Prepared) -> None:
    """`up` without logging in: the machines are stubs."""
    await provision(context, prepared)


async def _run_until_end(
    stack: Tpuctl, weather: Weather, zones: Sequence[ZoneTrace]
) -> tuple[list[Run], int]:
    names = stack.stack.names
    record = job_record(stack=names.stack, project=stack.project, node=names.node)
    by_name = {zone.zone: zone for zone in zones}
    runs: list[Run] = []
    given_up = 0
    await weather.sleep(0.0)  # the first zone has no room: the hunt begins with a preemption
    await async_until(lambda: _is_preempted(stack), "the preemption")
    while weather.now() < END:
        try:
            await recover.restore_stack(stack.context, record)
        except NoCapacity:
            given_up += 1
            continue
        await weather.sleep(0.0)
        node = await stack.node()
        start = weather.now()
        end = room_until(by_name[node.zone], start, END)
        if start < end:
            runs.append(Run(by_name[node.zone], start, end, is_preempted=end < END))
            await weather.sleep(end - start)
        if end < END:
            await async_until(lambda: _is_preempted(stack), "the preemption")
            weather.skip(NOTICE + DELETION)
    return runs, given_up


async def _is_preempted(stack: Tpuctl) -> bool:
    return (await stack.node()).state == "PREEMPTED"
