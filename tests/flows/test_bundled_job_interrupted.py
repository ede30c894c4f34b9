"""The bundled job on a preempted node, and without access to its output.

The tests share a stack, on whose machine the job's requirements are installed once.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.polling import async_until
from tests.support.recovery_jobs import inject_fault, log_of
from tests.support.stack_jobs import displayed_log
from tpuctl.api import Tpuctl
from tpuctl.flows.jobs.attempts import read_attempts
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.events import Event

STEPS, STEPS_PER_CALL, NEVER = 400, 5, 10_000
STACK = {"name": "bundled-job", "runtime": "auto, capacity: spot"}


def rows(log: str) -> list[int]:
    return [int(step) for step in re.findall(r"^step (\d+)/\d+  loss ", log, re.MULTILINE)]


@pytest.mark.soak
@pytest.mark.tensorflow
@pytest.mark.timeout(1500)
async def test_job_saves_at_preemption_notice_and_next_attempt_resumes(
    make_stack: Callable[..., Tpuctl],
    reset_cloud: LocalCloud,
    events: list[Event],
    bert_job: Path,
) -> None:
    stack = make_stack(**STACK)
    await stack.up()
    record = await stack.submit(
        bert_job / "pretrain.py",
        f"--steps {STEPS} --steps-per-call {STEPS_PER_CALL} --batch 16 --vocabulary-size 600 "
        f"--sequence-length 32 --replicas 1 --checkpoint-minutes {NEVER}".split(),
    )
    following = asyncio.ensure_future(stack.follow(record))
    await async_until(lambda: len(rows(log_of(events, 1))) > 3, "rows in the log", 600)
    # With pace `real` the notice lasts 30 seconds; everything else runs with pace `instant`.
    await asyncio.to_thread(remote_control.change_settings, reset_cloud, pace="real")
    await inject_fault(reset_cloud, "preempt", node=(await stack.node()).name)
    await async_until(
        lambda: "preemption notice: saving before exit" in log_of(events, 1),
        "preemption notice: saving before exit",
        60,
    )
    await asyncio.to_thread(remote_control.change_settings, reset_cloud, pace="instant")
    assert await asyncio.wait_for(following, 900) == 0

    first, second = log_of(events, 1), log_of(events, 2)
    reached = int(re.findall(r"^stopped at step (\d+) of", first, re.MULTILINE)[0])
    assert first.count("saving before exit") == 1, "the signal after the notice does not save again"
    assert reached == rows(first)[-1] < STEPS
    assert f"resuming from step {reached} (" in second
    assert [*rows(first), *rows(second)] == [1, *range(STEPS_PER_CALL, STEPS + 1, STEPS_PER_CALL)]
    (attempt,) = await read_attempts(stack.store, record)
    assert (attempt.number, attempt.verdict.kind) == (2, "preemption")


@pytest.mark.soak
@pytest.mark.tensorflow
@pytest.mark.timeout(900)  # the first time, the image is downloaded
async def test_denied_output_bucket_names_bucket_and_account(
    make_stack: Callable[..., Tpuctl], events: list[Event], bert_job: Path
) -> None:
    stack = make_stack(**STACK)
    await stack.up()
    other = f"{stack.stack.bucket}-of-others"
    storage = stack.cloud.client("storage")
    storage.create_bucket(other, location="us-central1")
    script = bert_job / "pretrain.py"
    assert await stack.run(script, ["--output", f"gs://{other}/results"]) == 1

    log = displayed_log(events)
    (error,) = [line for line in log.splitlines() if line.startswith("error: ")]
    account = stack.stack.service_account
    assert error.startswith(f"error: cannot write gs://{other}/results/options.json: ")
    # What `tpuctl explain` looks for.
    assert f"{account} does not have storage.objects.create access" in error
    assert "Traceback" not in log
    storage.bucket(other).delete(force=True)
