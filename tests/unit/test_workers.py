"""Connecting to workers that are booting, or never answer; their order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fake_clock import FakeClock
from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.endpoints import Endpoint
from tpuctl.errors import Unreachable
from tpuctl.flows.machines.workers import connect_workers, in_order
from tpuctl.remote.keys import default_key
from tpuctl.remote.ssh import Address, SshTransport


async def test_unreachable_workers_raise_one_error(tmp_path: Path) -> None:
    key = default_key(tmp_path)
    host_key = " ".join(key.public_line.split()[:2])
    unreachable = Address("127.0.0.1", 9, "someone", (host_key,))
    clock = FakeClock()
    cloud = Cloud(Endpoint("local", "http://127.0.0.1:9", "token"), "my-project", clock)
    with pytest.raises(Unreachable, match=r"worker 1 at 127\.0\.0\.1:9"):
        await connect_workers(cloud, [SshTransport(n, unreachable, key.path) for n in (1, 3)])
    assert clock.time > 60, "booting machines get enough time"


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (["2\n", "0\n", "1\n"], ["tpu-b2", "tpu-c3", "tpu-a1"]),
        (["\n", "\n", "\n"], ["tpu-a1", "tpu-b2", "tpu-c3"]),
        (["0\n", "0\n", "1\n"], ["tpu-a1", "tpu-b2", "tpu-c3"]),
        (["1\n", "2\n", "3\n"], ["tpu-a1", "tpu-b2", "tpu-c3"]),
        (["2\n", "one\n", "0\n"], ["tpu-a1", "tpu-b2", "tpu-c3"]),
    ],
    ids=["numbers", "none", "twice", "not from 0", "not a number"],
)
def test_instances_are_workers_by_their_own_numbers(
    answers: list[str], expected: list[str]
) -> None:
    assert in_order(("tpu-a1", "tpu-b2", "tpu-c3"), answers) == expected
