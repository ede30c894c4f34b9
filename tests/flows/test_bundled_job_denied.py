"""The bundled job on a machine without write access to the bucket: its error message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tpuctl.api import Tpuctl
from tpuctl.model.events import Event, LogChunk


@pytest.mark.soak
@pytest.mark.tensorflow
@pytest.mark.timeout(900)  # the first time, the image is downloaded
async def test_denied_output_bucket_names_bucket_and_account(
    make_stack: Callable[..., Tpuctl], events: list[Event], bert_job: Path
) -> None:
    stack = make_stack(runtime="auto")
    await stack.up()
    other = f"{stack.stack.bucket}-of-others"
    storage = stack.cloud.client("storage")
    storage.create_bucket(other, location="us-central1")
    script = bert_job / "pretrain.py"
    assert await stack.run(script, ["--output", f"gs://{other}/results"]) == 1

    log = b"".join(event.data for event in events if isinstance(event, LogChunk)).decode()
    (error,) = [line for line in log.splitlines() if line.startswith("error: ")]
    account = stack.stack.service_account
    assert error.startswith(f"error: cannot write gs://{other}/results/options.json: {account} ")
    assert f"does not have storage.objects.create access to gs://{other}" in error
    assert error.endswith(f"--member=serviceAccount:{account} --role=roles/storage.objectAdmin")
    assert "Traceback" not in log
    assert (await stack.down(delete_bucket=True)).leaks == ()
    storage.bucket(other).delete(force=True)
