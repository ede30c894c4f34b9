"""Unreachable workers and buckets: what is reported, and what remains."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.support.forked_cli import run_tpuctl
from tests.support.job_following import follow
from tpuctl.api import Tpuctl
from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.endpoints import Endpoint
from tpuctl.cloud.objects import ObjectStore
from tpuctl.cloud.operations import long_operation
from tpuctl.errors import Transient, Unreachable
from tpuctl.flows.jobs.job_start import submit
from tpuctl.flows.jobs.submission import Submission
from tpuctl.local_cloud import server_process
from tpuctl.model.events import Event, LogChunk, WarningIssued
from tpuctl.remote import transport
from tpuctl.remote.transport import Result, Stream

DISCARD_PORT = 9  # the discard port, on which nothing listens
MakeStack = Callable[..., Tpuctl]


@pytest.fixture
async def stack(make_stack: MakeStack) -> AsyncIterator[Tpuctl]:
    stack = make_stack()
    await stack.up()
    yield stack
    assert (await stack.down(delete_bucket=True)).leaks == ()


async def move_ssh(stack: Tpuctl, port: int) -> None:
    """Set another SSH port in the node's metadata."""
    node = await stack.node()
    name = f"projects/local-project/locations/{node.zone}/nodes/{node.name}"
    client = stack.cloud.client("tpu")
    node_now = await stack.cloud.call("node", client.get_node, {"name": name})
    metadata = {**node_now.metadata, "tpuctl-ssh-port": str(port)}
    request = {
        "node": {"name": name, "metadata": metadata},
        "update_mask": {"paths": ["metadata"]},
    }
    operation = await stack.cloud.call("node", client.update_node, request)
    await long_operation(stack.cloud, "tpu", operation.operation, subject="node", seconds=120)


def tpuctl(stack: Tpuctl, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_tpuctl(*arguments, folder=stack.stack_file.parent, **environment)


async def test_run_fails_if_ssh_port_is_closed(stack: Tpuctl) -> None:
    (stack.stack_file.parent / "job.py").write_text("print('began')\n")
    direct = await stack.transports()
    await move_ssh(stack, DISCARD_PORT)
    done = await asyncio.to_thread(tpuctl, stack, "run", "job.py")
    assert done.returncode == 69
    assert done.stdout == ""
    assert done.stderr.count("error: ") == 1
    assert f":{DISCARD_PORT}: " in done.stderr
    assert "Cannot reach worker" in done.stderr
    assert "tpuctl status" in done.stderr
    assert "Traceback" not in done.stderr

    jobs = await asyncio.to_thread(tpuctl, stack, "jobs", "--json")
    (job,) = json.loads(jobs.stdout)["data"]
    assert (job["state"], job["exit_code"]) == ("lost", 69)
    response = await direct[0].run(["sh", "-c", "ls .tpuctl/jobs"])
    assert response.exit_code != 0, "nothing was started"
    await direct[0].close()


async def test_run_ends_when_local_cloud_is_killed(
    make_stack: MakeStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "cloud"
    monkeypatch.setenv("TPUCTL_LOCAL_HOME", str(home))
    monkeypatch.setattr("tpuctl.flows.machines.local_liveness.GONE_SECONDS", 1.0)
    running = server_process.start(home, pace="instant")
    try:

        def kill(event: Event) -> None:
            if isinstance(event, LogChunk):
                os.kill(running.pid, signal.SIGKILL)

        stack = make_stack(emit=kill)
        script = stack.stack_file.parent / "job.py"
        script.write_text("import time\nprint('began', flush=True)\ntime.sleep(600)\n")
        async with asyncio.timeout(60):
            with pytest.raises(Unreachable, match="nothing has listened") as ended:
                await stack.run(script, up=True)
        assert "tpuctl wait 2" in ended.value.diagnostics[0].hint
    finally:
        server_process.start(home)  # stops processes of the killed cloud's machines
        server_process.stop(home)


@pytest.mark.soak
async def test_start_with_lost_response_is_stopped(
    stack: Tpuctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker becomes unreachable right after the job was started."""
    monkeypatch.setattr(transport, "RETRY_SECONDS", 0.5)
    (tmp_path / "job.py").write_text("import time\nprint('began', flush=True)\ntime.sleep(600)\n")
    transports = await stack.transports()
    direct = transports[0]

    class Lossy:
        worker, name = 0, "0"
        lost = False

        async def run(self, argv: list[str], *, input: bytes | None = None) -> Result:
            self.require_connection()
            return await direct.run(argv, input=input)

        async def open_stream(self, argv: list[str], *, input: bytes | None = None) -> Stream:
            self.require_connection()
            stream = await direct.open_stream(argv, input=input)
            await stream.read_line()  # the job was started
            stream.close()
            self.lost = True
            raise Transient("Connection to worker lost", "worker 0")

        def require_connection(self) -> None:
            if self.lost:
                raise Unreachable("Cannot reach worker", "worker 0")

    planned = Submission.of(stack.stack, tmp_path / "job.py", cloud="local")
    store = ObjectStore(stack.cloud.client("storage"), stack.stack.bucket)
    with pytest.raises(Unreachable):
        await submit(planned, store, {0: Lossy()}, stack.emit)  # type: ignore[dict-item]
    record = await stack.job()
    # Its supervisor receives the stop through the bucket, and records it.
    assert await asyncio.wait_for(follow(record, store, {0: direct}, stack.emit), 60) == 143
    await direct.close()


@pytest.mark.parametrize("problem", ["refused", "forbidden"])
async def test_bundle_is_uploaded_over_ssh_without_bucket(
    stack: Tpuctl, tmp_path: Path, problem: str
) -> None:
    (tmp_path / "job.py").write_text("print(open('greeting.txt').read(), end='')\n")
    (tmp_path / "greeting.txt").write_text("안녕\n", "utf-8")
    local = stack.endpoint
    broken_endpoint = {
        "refused": Endpoint("local", f"http://127.0.0.1:{DISCARD_PORT}", local.token),
        "forbidden": Endpoint("local", local.url, "not-the-token"),
    }[problem]
    broken = ObjectStore(
        Cloud(broken_endpoint, stack.stack.project).client("storage"),
        stack.stack.bucket,
        retry_seconds=0.5,
    )
    transports = await stack.transports()
    events: list[Event] = []
    planned = Submission.of(stack.stack, tmp_path / "job.py", cloud="local")
    record = await submit(planned, broken, transports, events.append)
    summaries = [event.diagnostic.summary for event in events if isinstance(event, WarningIssued)]
    assert summaries == ["Bucket not reachable"]
    assert await asyncio.wait_for(follow(record, None, transports, events.append), 60) == 0
    log = b"".join(event.data for event in events if isinstance(event, LogChunk))
    assert log.decode() == "안녕\n"
    assert await stack.store.list("tpuctl/bundles/") == []
    await asyncio.gather(*(transport.close() for transport in transports.values()))


@pytest.mark.soak
async def test_proxy_variables_are_ignored_for_local_cloud(stack: Tpuctl) -> None:
    unused_proxy = f"http://127.0.0.1:{DISCARD_PORT}"
    proxies = dict.fromkeys(
        ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"),
        unused_proxy,
    )
    done = await asyncio.to_thread(tpuctl, stack, "plan", "--json", **proxies)
    assert done.returncode == 0, done.stderr
    done = await asyncio.to_thread(tpuctl, stack, "jobs", "--json", **proxies)
    assert done.returncode == 0, done.stderr
