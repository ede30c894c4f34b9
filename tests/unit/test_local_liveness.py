"""Work that needs the local cloud ends when the cloud stops, unless it restarts in time."""

from __future__ import annotations

import asyncio
import errno
import time

import pytest

from tpuctl.cloud.endpoints import GOOGLE, Endpoint
from tpuctl.errors import Unreachable
from tpuctl.flows.machines import local_liveness
from tpuctl.local_cloud import server_process


async def serve(port: int = 0) -> tuple[asyncio.Server, Endpoint, asyncio.Queue[None]]:
    looks: asyncio.Queue[None] = asyncio.Queue()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        looks.put_nowait(None)
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", port)
    number = server.sockets[0].getsockname()[1]
    return server, Endpoint("local", f"http://127.0.0.1:{number}", "token"), looks


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_liveness, "POLL_SECONDS", 0.02)


async def test_work_is_canceled_when_local_cloud_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_liveness, "GONE_SECONDS", 0.2)
    server, endpoint, looks = await serve()
    was_cancelled = False

    async def work() -> None:
        nonlocal was_cancelled
        try:
            await asyncio.Event().wait()
        finally:
            was_cancelled = True

    task = asyncio.ensure_future(
        local_liveness.run_while_alive(work(), endpoint, "tpuctl wait acorn")
    )
    async with asyncio.timeout(20):
        await looks.get()
        assert not task.done()
        server.close()
        await server.wait_closed()
        with pytest.raises(Unreachable, match=endpoint.authority) as ended:
            await task
    assert was_cancelled
    assert ended.value.exit_code == 69
    assert "tpuctl local up\n    tpuctl wait acorn" in ended.value.diagnostics[0].hint


async def test_restart_in_time_keeps_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each successful check resets the timeout."""
    monkeypatch.setattr(local_liveness, "GONE_SECONDS", 3600.0)
    server, endpoint, looks = await serve()
    done = asyncio.Event()

    async def work() -> str:
        await done.wait()
        return "done"

    task = asyncio.ensure_future(local_liveness.run_while_alive(work(), endpoint, ""))
    async with asyncio.timeout(20):
        await looks.get()
        port = int(endpoint.authority.rpartition(":")[2])
        server.close()
        await server.wait_closed()
        server, _, looks = await serve(port)
        await looks.get()
        done.set()
        assert await task == "done"
    server.close()


async def test_google_cloud_is_not_monitored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_liveness, "GONE_SECONDS", 0.0)

    async def work() -> str:
        await asyncio.sleep(0.1)
        return "done"

    assert await local_liveness.run_while_alive(work(), GOOGLE, "") == "done"


async def test_errors_of_work_are_raised() -> None:
    server, endpoint, _ = await serve()

    async def work() -> None:
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        await local_liveness.run_while_alive(work(), endpoint, "")
    server.close()


def test_start_waits_under_a_changed_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """libfaketime breaks `time.sleep` if it changes the wall clock alone."""

    def fail(seconds: float) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(time, "sleep", fail)
    answers = iter([False, False, True])
    assert server_process.wait_until(lambda: next(answers), 20)
