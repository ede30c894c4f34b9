"""The bundled job where the machine's account may not write: what it says of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tpuctl.api import Tpuctl
from tpuctl.model.events import Event, LogChunk


@pytest.mark.soak
@pytest.mark.tensorflow
@pytest.mark.timeout(900)  # the first time, the image is downloaded
async def test_a_bucket_that_may_not_be_written_is_named_with_who_may_not(
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
