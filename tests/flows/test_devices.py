"""Jobs of the local cloud find the devices of their TPU, whatever `job.env` says."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.recovery_jobs import log_of
from tpuctl.api import Tpuctl
from tpuctl.model.events import Event

STANDARD = Path(__file__).resolve().parents[1] / "rehearsal" / "scripts" / "standard.py"
NEEDS_TPU = """
import os, sys
print("devices", os.environ["TPUCTL_TPU_DEVICES"], "_tpuctl.simulated_tpu.machine" in sys.modules)
raise ValueError("Only interpret mode is supported on CPU backend.")
"""


async def test_job_has_devices_and_is_not_blamed_for_missing_chips(
    make_stack: Callable[..., Tpuctl], events: list[Event]
) -> None:
    stack = make_stack(
        name="devices",
        type_name="v5litepod-4",
        runtime="v2-alpha-tpuv5-lite",
        zone="us-east1-c",
        extra="job: {env: {PYTHONPATH: /nowhere}}\n",
    )
    script = stack.stack.path.parent / "devices" / "train.py"
    script.parent.mkdir()
    script.write_text(NEEDS_TPU, "utf-8")
    await stack.up()
    assert await stack.run(script) == 1
    assert "devices 4 True\n" in log_of(events, 1)
    failure = (await stack.explain(await stack.job())).failure
    assert failure is not None
    assert failure.name == "needs-tpu"
    assert "The script may be right" in failure.cause
    await stack.down(delete_bucket=True)


@pytest.mark.soak
@pytest.mark.tensorflow
@pytest.mark.timeout(900)
async def test_standard_script_runs_as_it_is(
    make_stack: Callable[..., Tpuctl], events: list[Event]
) -> None:
    stack = make_stack(
        name="standard",
        type_name="v3-8",
        runtime="tpu-vm-tf-2.18.0-pjrt-v5p-and-below",
        zone="us-central1-a",
    )
    script = stack.stack.path.parent / "standard" / "train.py"
    script.parent.mkdir()
    shutil.copyfile(STANDARD, script)
    await stack.up()
    assert await stack.run(script) == 0
    log = log_of(events, 1)
    assert "replicas 8 8\n" in log
    assert "first loss 4.0 then less True\n" in log
    await stack.down(delete_bucket=True)
