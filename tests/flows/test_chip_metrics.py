"""`status` says why it shows no duty cycle and no memory of a job's chips."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import aclosing

from tests.support.forked_cli import run_tpuctl
from tests.support.recovery_jobs import script
from tpuctl.api import Tpuctl

ABSENCE = "the local cloud has no TPUs"


async def test_status_names_absence_of_chip_metrics(make_stack: Callable[..., Tpuctl]) -> None:
    stack = make_stack()
    await stack.up()
    record = await stack.submit(script(stack, "import time\ntime.sleep(600)\n"))
    async with asyncio.timeout(60), aclosing(stack.watch(0.5)) as snapshots:
        async for snapshot in snapshots:
            (job,) = snapshot.jobs
            if job.workers and job.workers[0].chips is not None:
                break
    assert job.workers[0].chips.absence == ABSENCE
    folder = stack.stack_file.parent
    done = await asyncio.to_thread(run_tpuctl, "status", "--json", folder=folder)
    (metrics,) = json.loads(done.stdout)["data"]["jobs"][0]["chip_metrics"].values()
    assert (metrics["absence"], metrics["duty_cycle_percent"]) == (ABSENCE, [])
    done = await asyncio.to_thread(run_tpuctl, "status", folder=folder)
    assert f"no chip metrics: {ABSENCE}" in done.stdout
    await stack.stop(record)
    done = await asyncio.to_thread(run_tpuctl, "status", folder=folder)
    assert "chip metrics" not in done.stdout, "the job has ended"
    assert (await stack.down(delete_bucket=True)).leaks == ()
