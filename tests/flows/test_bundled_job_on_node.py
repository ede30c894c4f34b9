"""The bundled job on a TPU node of the local cloud: run by its controller, data from the bucket."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.stack_jobs import displayed_log
from tpuctl.api import Tpuctl
from tpuctl.local_cloud import remote_control, server_process
from tpuctl.model.events import Event

JOB = Path(__file__).resolve().parents[2] / "templates" / "jobs" / "bert-pretraining"
SMALL = [
    *("--batch", "16", "--steps-per-call", "10"),
    *("--vocabulary-size", "500", "--sequence-length", "32"),
]


def losses(log: str) -> dict[int, float]:
    """The loss of training by step."""
    rows = re.findall(r"^step (\d+)/\d+  loss ([\d.]+)", log, re.MULTILINE)
    return {int(step): float(loss) for step, loss in rows}


@pytest.mark.soak
@pytest.mark.tensorflow("2.12.1")
@pytest.mark.timeout(900)  # the first time, the image is downloaded
async def test_bert_trains_on_tpu_node_and_resumes_from_checkpoint(
    make_stack: Callable[..., Tpuctl],
    local_cloud: server_process.LocalCloud,
    events: list[Event],
) -> None:
    stack = make_stack(
        runtime="auto, kind: node", extra="job: {requirements: requirements-node.txt}\n"
    )
    await stack.up()
    node = await stack.node()
    output = f"gs://{stack.stack.bucket}/bert"
    since = remote_control.calls(local_cloud)[-1]["number"]
    arguments = [*SMALL, "--output", output, "--steps"]
    assert await stack.run(JOB / "pretrain.py", [*arguments, "20"]) == 0, displayed_log(events)
    log = displayed_log(events)
    assert f"TensorFlow 2.12.1 on the CPU of 'grpc://{node.endpoints[0]}'" in log
    first = losses(log)
    assert list(first) == [1, 10, 20]
    assert first[20] < first[1]
    # The node's account read the records: the data does not pass through the controller.
    called = {
        call["method"]
        for call in remote_control.calls(local_cloud, since)
        if (call["caller"], call["status"]) == (node.service_account, "OK")
    }
    assert "storage.objects.get" in called
    storage = stack.cloud.client("storage")
    names = {blob.name for blob in storage.list_blobs(stack.stack.bucket, prefix="bert/")}
    assert "bert/checkpoints/model-20.index" in names
    assert any(name.startswith("bert/records/") for name in names)

    events.clear()
    assert await stack.run(JOB / "pretrain.py", [*arguments, "40"]) == 0, displayed_log(events)
    log = displayed_log(events)
    assert f"resuming from step 20 ({output}/checkpoints/model-20)" in log
    further = losses(log)
    assert min(further) > 20 and further[40] < first[20]
    assert (await stack.down(delete_bucket=True)).leaks == ()
