"""`up` and `down` of each kind of stack, compared with the minimum duration of their operations."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.benchmarks.critical_path import CriticalPath, critical_path, seconds_of, until_visible
from tests.benchmarks.figures import (
    Figure,
    command_of,
    goal,
    local_cloud,
    sized,
    skipped,
    stack_in,
    time_program,
)
from tpuctl.api import Tpuctl
from tpuctl.emulator.server import PACES
from tpuctl.flows.stack.down import prepare_down
from tpuctl.local_cloud.machine_images import ImageStore
from tpuctl.local_cloud.pace import Pace
from tpuctl.model.events import Event, StepFinished, StepStarted
from tpuctl.model.plan import Plan

BILLING = "010CA1-010CA1-010CA1"  # predefined in the local cloud
TIMES = sized(2, 1)
PROGRAM_GOALS = {"up": 1.2, "down": 1.4}  # of the critical path
DETAIL = 0.03  # seconds above its pace from which a step is reported
KINDS = {
    "TPU VM": {},
    "queued resource": {"tpu": "runtime: tpu-ubuntu2204-base, queue: true"},
    "TPU VM, disk, controller": {
        "tpu": "runtime: tpu-ubuntu2204-base, data_disks: [{size_gb: 20}]",
        "extra": "controller: {}\n",
    },
    "new project": {"project": f"id: bench-project, create: true, billing_account: {BILLING}"},
    "TPU node, controller": {"tpu": "kind: node"},
}
MEASURED = sized(tuple(KINDS), ("TPU VM, disk, controller",))


@dataclass
class StepTimes:
    """When each step began and ended, in seconds since the start of the command."""

    command_started: float = 0.0
    started: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)

    def on(self, event: Event) -> None:
        now = time.perf_counter() - self.command_started
        if isinstance(event, StepStarted):
            self.started[event.address] = now
        elif isinstance(event, StepFinished) and event.address in self.started:
            self.ended[event.address] = now

    def clear(self) -> None:
        self.started.clear()
        self.ended.clear()
        self.command_started = time.perf_counter()

    def overhead(
        self, plan: Plan, pace: Pace, took: float, booted: Mapping[str, float] = {}
    ) -> str:
        """The time that no operation accounts for, along the path of actual waits."""
        delays = []
        address = max(
            (address for address in plan.after if address in self.ended),
            key=lambda address: self.ended[address],
        )
        walked = self.ended[address]
        while address:
            kind, change = address.partition("/")[0], plan.change(address)
            before = max(
                self._before(address, plan), key=lambda address: self.ended[address], default=""
            )
            least = max(seconds_of(change, pace), booted.get(address, 0.0))
            if before:
                least += until_visible(plan.change(before), change, pace)
            delays.append((kind, self.ended[address] - self.started[address] - least))
            delays.append((f"before {kind}", self.started[address] - self.ended.get(before, 0.0)))
            address = before
        delays.reverse()
        settling = [settling for settling in self.ended if settling not in plan.after]
        settling.sort(key=lambda address: self.started[address])
        for step in settling:
            delays.append((step, self.ended[step] - self.started[step]))
            walked = max(walked, self.ended[step])
        delays.append(("after all steps", took - walked))
        return ", ".join(f"{step} {seconds:.2f}" for step, seconds in delays if seconds >= DETAIL)

    def _before(self, address: str, plan: Plan) -> Iterator[str]:
        """The steps that this one followed, skipping those without work."""
        for other in plan.after[address]:
            if other in self.ended:
                yield other
            else:
                yield from self._before(other, plan)


def missing_image(stack: Tpuctl) -> str:
    """The TensorFlow whose image a TPU node would first have to build; empty if it exists."""
    tensorflow = stack.stack.runtime.tensorflow
    if tensorflow is None or ImageStore().is_cached(tensorflow):
        return ""
    return tensorflow


@dataclass(frozen=True)
class CommandTime:
    """One command: its duration, the minimum duration, and where the rest went."""

    seconds: float
    path: CriticalPath
    overhead: str

    def figures(self, label: str) -> Iterator[Figure]:
        limit = 1.05 * self.path.seconds + 0.5
        ratio = f"{self.seconds / self.path.seconds:.2f} × its path of {self.path.seconds:.1f} s"
        is_met = self.seconds <= limit
        yield Figure(label, f"{self.seconds:.2f} s", ratio, goal(f"{limit:.2f} s", is_met))
        yield Figure("", "", f"path: {self.path}")
        yield Figure("", "", f"beyond it: {self.overhead or 'nothing significant'}")


def measure(kind: str, pace_name: str, times: int) -> Iterator[Figure]:
    """The better of several runs, each in a new cloud."""
    found: list[tuple[CommandTime, CommandTime]] = []
    for _ in range(times):
        with local_cloud(pace_name) as folder:
            times_of_steps = StepTimes()
            stack = stack_in(folder, times_of_steps.on, **KINDS[kind])
            absent = missing_image(stack)
            if absent:
                reason = f"the image of TensorFlow {absent} does not exist"
                yield skipped(f"up: {kind}", reason)
                return
            found.append(
                (
                    up(stack, times_of_steps, Pace(pace_name, PACES)),
                    down(stack, times_of_steps, Pace(pace_name, PACES)),
                )
            )
    for index, command in enumerate(("up", "down")):
        best = min(
            (result[index] for result in found),
            key=lambda runs_of_kind: runs_of_kind.seconds - runs_of_kind.path.seconds,
        )
        yield from best.figures(f"{command}: {kind}")


def up(stack: Tpuctl, step_times: StepTimes, pace: Pace) -> CommandTime:
    # Clients and connections are created once, by the plan that a user looks at first.
    plan = asyncio.run(stack.plan()).plan
    step_times.clear()
    asyncio.run(stack.up())
    took = time.perf_counter() - step_times.command_started
    booted = boot_seconds(stack) if stack.stack.is_node else {}
    return CommandTime(
        took, critical_path(plan, pace, booted), step_times.overhead(plan, pace, took, booted)
    )


def down(stack: Tpuctl, step_times: StepTimes, pace: Pace) -> CommandTime:
    plan = asyncio.run(prepare_down(stack.stack, stack.cloud, delete_bucket=True)).plan
    step_times.clear()
    asyncio.run(stack.down(delete_bucket=True))
    took = time.perf_counter() - step_times.command_started
    return CommandTime(took, critical_path(plan, pace), step_times.overhead(plan, pace, took))


def boot_seconds(stack: Tpuctl) -> dict[str, float]:
    """The boot time that the cloud reports for the TPU node, which starts a real TensorFlow."""
    from google.cloud.tpu_v1.types import OperationMetadata

    parent = f"projects/{stack.stack.project}/locations/{stack.stack.zone}"
    answer = stack.cloud.client("tpu_v1").list_operations({"name": parent}, timeout=60)
    for operation in answer.operations:
        metadata = OperationMetadata.deserialize(operation.metadata.value)
        if metadata.verb == "create":
            return {
                f"tpu/{metadata.target.rpartition('/')[2]}": (
                    metadata.end_time - metadata.create_time
                ).total_seconds()
            }
    return {}


def program_time(pace_name: str = "quick") -> Iterator[Figure]:
    """`tpuctl up` and `down` as run from a shell, including the startup of the program."""
    pace = Pace(pace_name, PACES)
    with local_cloud(pace_name) as folder:
        stack = stack_in(folder)
        plan = asyncio.run(stack.plan()).plan
        for name, command in (("up", ["up"]), ("down", ["down", "--delete-bucket"])):
            if name == "down":
                plan = asyncio.run(prepare_down(stack.stack, stack.cloud, delete_bucket=True)).plan
            took = time_program(command_of(stack, *command, "--yes"))
            path = critical_path(plan, pace)
            ratio = f"{took / path.seconds:.2f} × its path of {path.seconds:.1f} s"
            yield Figure(
                f"tpuctl {name}: TPU VM, the whole program",
                f"{took:.2f} s",
                ratio,
                goal(f"{PROGRAM_GOALS[name]:g} ×", took <= PROGRAM_GOALS[name] * path.seconds),
            )


def up_time() -> Iterator[Figure]:
    """At the pace at which operations are almost instant."""
    for kind in MEASURED:
        yield from measure(kind, "quick", TIMES)
    yield from program_time()


def up_real_time() -> Iterator[Figure]:
    """At the pace of the real cloud: 45 minutes in all."""
    for kind in MEASURED:
        yield from measure(kind, sized("real", "quick"), 1)
