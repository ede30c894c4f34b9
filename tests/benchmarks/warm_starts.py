"""The first step of a job on new machines, with and without the cache in the bucket."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.figures import IS_SMALLEST, Figure, local_cloud, sized, stack_in
from tests.support.wheels import make_wheel
from tpuctl.api import Tpuctl
from tpuctl.model.events import Event, LogChunk

WHERE = "type: v3-32, zones: [europe-west4-a]"
SMALLEST_WHERE = "type: v2-8, zones: [us-central1-b]"
MARK = b"first step"
# XLA needs some seconds to compile it; with more layers, several minutes.
SCRIPT = """
import jax
import jax.numpy as jnp


@jax.jit
def step(weights):
    def loss(weights):
        x = jnp.ones((8, 64))
        for weight in weights:
            x = jnp.tanh(x @ weight) + jax.nn.softmax(x)
        return jnp.sum(x)
    slopes = jax.grad(loss)(weights)
    return [weight - 0.1 * slope for weight, slope in zip(weights, slopes)]


jax.block_until_ready(step([jnp.eye(64)] * 10))
print("first step", flush=True)
"""
SMALLEST_SCRIPT = "import small_library\nprint('first step', flush=True)\n"


def warm_starts() -> Iterator[Figure]:
    """The same job three times, each time on machines without any trace of the last."""
    started = 0.0
    seconds: list[float] = []

    def emit(event: Event) -> None:
        if isinstance(event, LogChunk) and event.worker == 0 and MARK in event.data:
            seconds.append(time.perf_counter() - started)

    with local_cloud("instant") as folder:
        script = write_job(folder / "job")
        installs = []
        for cache in ("false", "true", "true"):
            stack = stack_in(
                folder,
                emit,
                where=sized(WHERE, SMALLEST_WHERE),
                extra=f"job: {{cache: {cache}, workers: all}}\n",
            )
            asyncio.run(stack.up())
            started = time.perf_counter()
            asyncio.run(run(stack, script))
            installs.append(asyncio.run(clear_machines(stack)))
    (without, first, following), workers = seconds, sized(4, 1)
    yield Figure(
        "first step without cache", f"{without:.1f} s", installations(installs[0], workers)
    )
    yield Figure(
        "… of the first job with it",
        f"{first:.1f} s",
        f"{first / without:.2f} × without, {installations(installs[1], workers)}",
    )
    yield Figure(
        "… of the next job, on new machines",
        f"{following:.1f} s",
        f"{following / without:.2f} × without, {installations(installs[2], workers)}",
    )


def write_job(folder: Path) -> Path:
    folder.mkdir()
    if IS_SMALLEST:  # nothing is downloaded
        make_wheel(folder / "wheels", "small-library", "1.0")
    else:
        (folder / "requirements.txt").write_text("jax==0.6.2\n", "utf-8")
    script = folder / "train.py"
    script.write_text(sized(SCRIPT, SMALLEST_SCRIPT), "utf-8")
    return script


async def run(stack: Tpuctl, script: Path) -> None:
    code = await stack.run(script)
    if code != 0:
        raise RuntimeError(f"exit code {code}")


async def clear_machines(stack: Tpuctl) -> int:
    """Remove what jobs left on all workers; returns on how many of them packages were
    installed."""
    count = 0
    for transport in (await stack.transports()).values():
        search = "grep -lE '^(Successfully i|I)nstalled ' .tpuctl/jobs/*/1/install.log || :"
        count += bool((await transport.run(["sh", "-c", search])).stdout)
        await transport.run(["rm", "-rf", ".tpuctl"])
        await transport.close()
    return count


def installations(count: int, workers: int) -> str:
    return f"installed on {count} of {workers} workers"
