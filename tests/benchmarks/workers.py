"""The first line of `run` on workers with cores of their own, at a distance."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.fanout import HELLO, LIMITS, Run, timed
from tests.benchmarks.figures import Figure, command_of, goal, sized, stack_in
from tests.support.locations import ZONE
from tests.support.simulated_workers import LATENCY, Simulation, simulation
from tpuctl.api import Tpuctl

WORKERS, TYPE = sized((256, "v3-2048"), (4, "v3-32"))
TIMES = sized(3, 1)
GOAL = 2.5  # seconds


def first_line_of_workers() -> Iterator[Figure]:
    """From the start of the program `tpuctl run` to the first line of the log of any worker.

    The workers are simulated by one process, which shares this computer with the client. Nothing
    is subtracted for what it needs, as real workers would not.
    """
    run, simulated = min((_measure() for _ in range(TIMES)), key=lambda result: result[0].first)
    logins = max(worker.connections for worker in simulated.workers)
    commands = max(len(worker.commands) for worker in simulated.workers)
    yield Figure(
        f"first line of run on {WORKERS} simulated workers, {2000 * LATENCY:.0f} ms away",
        f"{run.first:.2f} s",
        f"{run.cpu_seconds:.1f} s of client CPU; {simulated.cpu_seconds:.1f} s of CPU to simulate "
        f"the workers; {logins} login and {commands} commands per worker",
        goal(f"{GOAL:g} s", run.first <= GOAL),
    )


def _measure() -> tuple[Run, Simulation]:
    """One run in a new cloud."""
    with tempfile.TemporaryDirectory(prefix="tpuctl-bench-") as name:
        folder = Path(name)
        (folder / "cloud").mkdir()
        (folder / "job").mkdir()
        script = folder / "job" / "hello.py"
        script.write_text(HELLO, "utf-8")
        os.environ["TPUCTL_CONFIG_HOME"] = str(folder / "config")
        with simulation(folder / "cloud", WORKERS) as simulated:
            stack = stack_in(folder, where=f"type: {TYPE}, zones: [{ZONE}]", extra=LIMITS)
            asyncio.run(_provision(stack))
            command = command_of(stack, "run", str(script), "--all-workers")
            run = timed(command, os.environ, folder, WORKERS)
    return run, simulated


async def _provision(stack: Tpuctl) -> None:
    """Like `up`, without connecting to the machines."""
    await stack.provision(await stack.plan())
