"""JAX's compilation cache in the bucket, with the real JAX."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.support.polling import async_until
from tests.support.recovery_jobs import inject_fault, log_of
from tpuctl.api import Tpuctl
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.events import Event
from tpuctl.model.text.names import CACHE

pytestmark = pytest.mark.soak

# JAX's own events say what it compiled, and what it read from its cache.
SCRIPT = """
import collections, os, time
import jax
import jax.numpy as jnp

events = collections.Counter()
jax.monitoring.register_event_listener(lambda name, **_: events.update([name]))


@jax.jit
def step(weights):
    return weights - 0.1 * jax.grad(lambda w: jnp.sum(jnp.tanh(w @ w)))(weights)


weights = step(jnp.ones((8, 8)))
print("result", float(weights[0, 0]))
counts = [events[f"/jax/compilation_cache/cache_{kind}"] for kind in ("hits", "misses")]
print("hits and misses", *counts, flush=True)
if os.environ["TPUCTL_ATTEMPT"] == "1" and "WAIT" in os.environ:
    time.sleep(600)
"""


async def test_next_attempt_reads_compiled_programs(
    make_stack: Callable[..., Tpuctl], local_cloud: LocalCloud, events: list[Event]
) -> None:
    settings = "{JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS: '0', WAIT: '1'}"
    stack = make_stack(
        runtime="tpu-ubuntu2204-base, capacity: spot", extra=f"job: {{env: {settings}}}\n"
    )
    folder = stack.stack_file.parent / "project"
    folder.mkdir()
    (folder / "requirements.txt").write_text("jax==0.6.2\n", "utf-8")
    (folder / "train.py").write_text(SCRIPT, "utf-8")
    await stack.up()
    prefix = f"{CACHE}/compiled/v2/tpu-ubuntu2204-base/jax/"

    async def programs() -> list[str]:
        return [info.name for info in await stack.store.list(prefix)]

    record = await stack.submit(folder / "train.py", check=False)
    following = asyncio.ensure_future(stack.follow(record))
    await async_until(lambda: "hits and misses" in log_of(events, 1), "compiled", seconds=300)
    first = log_of(events, 1).splitlines()
    hits, misses = map(int, first[-1].split()[-2:])
    assert hits == 0
    assert misses > 0
    async with asyncio.timeout(60):
        while len(await programs()) < misses:
            await asyncio.sleep(0.5)
    await inject_fault(local_cloud, "preempt", node=(await stack.node()).name)
    assert await asyncio.wait_for(following, 300) == 0
    second = [line for line in log_of(events, 2).splitlines() if not line.startswith("tpuctl: ")]
    assert second == [first[-2], f"hits and misses {misses} 0"]
    assert "tpuctl: unpacked requirements.txt from the bucket" in log_of(events, 2)

    async def run() -> list[str]:
        """Run the job, up to its last line, and return its log."""
        events.clear()
        following = asyncio.ensure_future(
            stack.follow(await stack.submit(folder / "train.py", check=False))
        )
        await async_until(lambda: "hits and misses" in log_of(events, 1), "compiled", seconds=300)
        await stack.stop(await stack.job())
        await following
        return log_of(events, 1).splitlines()

    # Garbage and truncated programs do not break a job: JAX warns, and compiles.
    for number, name in enumerate(await programs()):
        content = await stack.store.get_bytes(name)
        await stack.store.put_bytes(name, content[: len(content) // 2] if number % 2 else b"\0")
    damaged = await run()
    assert "Error reading persistent compilation cache entry for 'jit_step'" in "\n".join(damaged)
    assert damaged[-2] == first[-2]
    assert damaged[-1].startswith("hits and misses 0 ")

    # Another version does not even open them.
    (folder / "requirements.txt").write_text("jax==0.6.1\njaxlib==0.6.1\n", "utf-8")
    assert (await run())[-2:] == [first[-2], f"hits and misses 0 {misses}"]
    assert "Error reading" not in log_of(events, 1)
    await stack.down(delete_bucket=True)
