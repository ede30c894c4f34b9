"""What the check of a job's start sees: sockets and stacks of real processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.polling import until
from tpuctl.jobs.shipped.machine.folder import Folder
from tpuctl.jobs.shipped.supervision.start_check import (
    ESTABLISHED,
    LISTEN,
    StartCheck,
    is_waiting,
    place,
    probe,
)
from tpuctl.jobs.shipped.tracing.stacks import Stack, handler_folder, read_stacks

SPEC = {"bucket": "b", "prefix": "p", "worker": 0, "start_barrier": {"workers": [0, 1]}}
# Listens like gRPC, for IPv4 and IPv6 at once, and waits.
SCRIPT = """
import socket, time

def wait_for_peers():
    time.sleep(600)

server = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
print(server.getsockname()[1], flush=True)
client, _ = server.accept()
print("accepted", flush=True)
wait_for_peers()
"""


@pytest.fixture
def script(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    path = tmp_path / "code" / "train.py"
    path.parent.mkdir()
    path.write_text(SCRIPT, "utf-8")
    environment = {**os.environ, "PYTHONPATH": handler_folder(Folder(str(tmp_path)))}
    with subprocess.Popen(
        ["sh", "-c", '"$0" "$1"; exit', sys.executable, str(path)],  # a parent of this job alone
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        yield process
        os.killpg(process.pid, signal.SIGKILL)


def test_connections_and_stacks_of_job(tmp_path: Path, script: subprocess.Popen[str]) -> None:
    assert script.stdout is not None
    port = int(script.stdout.readline())
    check = StartCheck(Folder(str(tmp_path)), SPEC)
    check.job_parent = script.pid
    check.addresses, check.ports = ["127.0.0.1", "127.0.0.2"], [port]
    assert check.arrivals() == (port, [])
    with socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0)):
        assert script.stdout.readline() == "accepted\n"
        assert check.arrivals() == (port, [1])
        states = {(each.state, each.address) for each in check.connections() if each.port == port}
        assert {(LISTEN, "0.0.0.0"), (ESTABLISHED, "127.0.0.2")} <= states
        until(lambda: "wait_for_peers" in place(read_stacks(script.pid)), "the wait")
        assert place(read_stacks(script.pid)) == (
            "its script is at line 5 of train.py, in wait_for_peers"
        )
        assert not is_waiting(read_stacks(script.pid))


def test_ports_are_probed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert probe("127.0.0.1", port) == "open"
    assert probe("127.0.0.1", port) == "closed"


@pytest.mark.parametrize(
    ("call", "waits"),
    [
        ('File "/e/site-packages/jax/_src/distributed.py", line 173 in initialize', True),
        ('File "/e/site-packages/torch/distributed/rendezvous.py", line 9 in _create', True),
        ('File "/home/me/jax/train/distributed.py", line 3 in initialize', False),
    ],
)
def test_calls_that_wait_for_other_workers(call: str, waits: bool) -> None:
    stack = Stack(os.getpid(), f"Current thread 0x7f (most recent call first):\n  {call}")
    assert is_waiting([stack]) == waits
