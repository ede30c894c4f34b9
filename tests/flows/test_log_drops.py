"""Logs through dropping connections to a real machine: every byte once and in order."""

from __future__ import annotations

import asyncio
import hashlib
import random
from pathlib import Path

import pytest

from tests.support.job_following import follow
from tests.support.relay import Cut, cut_transport
from tpuctl.api import Tpuctl
from tpuctl.cloud.objects import ObjectStore
from tpuctl.flows.jobs.job_start import submit
from tpuctl.flows.jobs.submission import Submission
from tpuctl.model.events import Event, LogChunk, ignore
from tpuctl.remote.ssh import SshTransport

SCRIPT = """
import sys, time
for number in range(40000):
    print(number, "." * (number % 97), end="\\r\\n" if number % 5 else "\\r")
    if number % 400 == 0:
        time.sleep(0.005)
"""


def whole_log() -> bytes:
    return "".join(
        f"{number} {'.' * (number % 97)}" + ("\r\n" if number % 5 else "\r")
        for number in range(40000)
    ).encode()


@pytest.mark.parametrize(
    ("has_bucket", "seed", "cuts"),
    [
        (True, 1, 60),
        pytest.param(False, 2, 60, marks=pytest.mark.soak),
    ],
)
async def test_log_is_complete_after_dropped_connections(
    stack: Tpuctl, tmp_path: Path, has_bucket: bool, seed: int, cuts: int
) -> None:
    """With a bucket, the rest of a finished job's log is read from it."""
    script = tmp_path / "drops.py"
    script.write_text(SCRIPT)
    transports = await stack.transports()
    direct = transports[0]
    assert isinstance(direct, SshTransport)
    choice = random.Random(seed)
    drops = [Cut("answer", choice.randrange(60_000)) for _ in range(cuts)]
    store = ObjectStore(stack.cloud.client("storage"), stack.stack.bucket)
    checksum = hashlib.sha256()
    at = 0

    def emit(event: Event) -> None:
        nonlocal at
        if isinstance(event, LogChunk):
            assert event.offset == at
            at += len(event.data)
            checksum.update(event.data)

    record = await submit(
        Submission.of(stack.stack, script, cloud="local"), store, transports, ignore
    )
    async with cut_transport(direct, stack.key.path, drops) as (cut, relay):
        following = follow(record, store if has_bucket else None, {0: cut}, emit)
        assert await asyncio.wait_for(following, 400) == 0
    await direct.close()
    assert relay.connections > (2 if has_bucket else 30)
    assert at == len(whole_log())
    assert checksum.hexdigest() == hashlib.sha256(whole_log()).hexdigest()
    assert await store.get_bytes(record.log_name(0)) == whole_log()
