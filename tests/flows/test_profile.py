"""`tpuctl profile`: a running job, whose script was not changed, is traced."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from tests.support.forked_cli import run_tpuctl
from tests.support.polling import async_until
from tests.support.recovery_jobs import log_of, script
from tpuctl.api import Tpuctl
from tpuctl.errors import Conflict, RemoteFailed
from tpuctl.model.events import Event

MakeStack = Callable[..., Tpuctl]
JAX = """
import jax
import jax.numpy as jnp

@jax.jit
def train_step(weights):
    return jnp.tanh(weights @ weights)

weights, number = jnp.ones((64, 64)), 0
while True:
    weights = train_step(weights).block_until_ready()
    number += 1
    if number == 10:
        print("training", flush=True)
"""
TENSORFLOW = """
import tensorflow as tf

@tf.function(jit_compile=True)
def train_step(weights):
    return tf.tanh(weights @ weights)

weights, number = tf.ones((64, 64)), 0
while True:
    weights = train_step(weights)
    number += 1
    if number == 10:
        print("training", flush=True)
"""


async def test_job_that_cannot_be_traced_is_refused(
    make_stack: MakeStack, events: list[Event]
) -> None:
    stack = make_stack()
    await stack.up()
    text = "import time\nprint('began', flush=True)\ntime.sleep(600)\n"
    record = await stack.submit(script(stack, text))
    following = asyncio.ensure_future(stack.follow(record))
    await async_until(lambda: "began" in log_of(events, 1), "the script")
    with pytest.raises(RemoteFailed) as refused:
        await stack.profile(record, 1.0)
    assert "worker 0: no Python process of the job uses JAX" in refused.value.diagnostics[0].detail
    following.cancel()
    await stack.stop(record, grace=0.0)
    with pytest.raises(Conflict, match="Job is not running"):
        await stack.profile(record, 1.0)
    assert (await stack.down(delete_bucket=True)).leaks == ()


@pytest.mark.soak
@pytest.mark.parametrize(
    ("place", "requirements", "text"),
    [
        # A TPU that only Compute Engine sells.
        (
            {"type_name": "tpu7x-8", "runtime": "auto", "zone": "us-central1-c"},
            "jax==0.10.2\n",
            JAX,
        ),
        pytest.param(
            {"runtime": "tpu-vm-tf-2.18.0-pjrt-v5p-and-below"},
            "",
            TENSORFLOW,
            marks=pytest.mark.tensorflow("2.18.0"),
        ),
    ],
    ids=["jax", "tensorflow"],
)
async def test_running_job_is_traced(
    make_stack: MakeStack,
    events: list[Event],
    place: dict[str, str],
    requirements: str,
    text: str,
) -> None:
    stack = make_stack(**place, extra="job: {requirements: requirements.txt}\n")
    folder = stack.stack_file.parent
    (folder / "requirements.txt").write_text(requirements, "utf-8")
    await stack.up()
    record = await stack.submit(script(stack, text), check=False)
    following = asyncio.ensure_future(stack.follow(record))
    await async_until(lambda: "training" in log_of(events, 1), "the training", seconds=240)
    done = await asyncio.to_thread(run_tpuctl, "profile", "1", "--json", folder=folder)
    assert done.returncode == 0, done.stdout
    data = json.loads(done.stdout)["data"]
    assert data["folder"] == f"{record.output}/profile"
    names = [name.removeprefix(f"gs://{record.bucket}/") for name in data["objects"]["0"]]
    (trace,) = [name for name in names if name.endswith("/worker-0.xplane.pb")]
    assert "/output/profile/plugins/profile/" in trace
    assert b"train_step" in await stack.store.get_bytes(trace)
    assert not following.done(), "the job continues"
    again = await asyncio.to_thread(run_tpuctl, "profile", "0.2", folder=folder)
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith(f"{data['folder']}\n")
    following.cancel()
    await stack.stop(record, grace=0.0)
    assert (await stack.down(delete_bucket=True)).leaks == ()
