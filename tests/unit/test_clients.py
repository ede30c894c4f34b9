"""The official clients connect only to the local cloud's endpoint, and leak no token."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tests.support.fake_clock import InstantClock
from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.endpoints import Endpoint
from tpuctl.errors import Transient

NODE = "projects/my-project/locations/us-central1-b/nodes/n"
CALLS: list[tuple[str, str, tuple[Any, ...], dict[str, Any]]] = [
    ("tpu", "get_node", ({"name": NODE},), {}),
    ("tpu", "get_operation", ({"name": "projects/p/locations/z/operations/o"},), {}),
    ("projects", "get_project", ({"name": "projects/my-project"},), {}),
    ("services", "list_services", ({"parent": "projects/my-project"},), {}),
    ("iam", "get_service_account", ({"name": "projects/p/serviceAccounts/a"},), {}),
    ("networks", "get", (), {"project": "my-project", "network": "n"}),
    ("firewalls", "get", (), {"project": "my-project", "firewall": "f"}),
    ("global_operations", "wait", (), {"project": "my-project", "operation": "o"}),
    ("storage", "get_bucket", ("b",), {}),
]


@pytest.mark.parametrize(
    ("client", "method", "arguments", "fields"),
    CALLS,
    ids=[f"{case[0]}-{case[1]}" for case in CALLS],
)
async def test_all_clients_use_endpoint(
    monkeypatch: pytest.MonkeyPatch,
    client: str,
    method: str,
    arguments: tuple[Any, ...],
    fields: dict[str, Any],
) -> None:
    """Nothing listens there: the library's error names the endpoint."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:10")
    monkeypatch.setenv("GOOGLE_CLOUD_UNIVERSE_DOMAIN", "elsewhere.example")
    cloud = Cloud(
        Endpoint("local", "http://127.0.0.1:9", "the-token"), "my-project", InstantClock()
    )
    with pytest.raises(Transient) as caught:
        await cloud.call("it", getattr(cloud.client(client), method), *arguments, **fields)
    text = str(caught.value)
    assert "127.0.0.1:9" in text or ("host='127.0.0.1'" in text and "port=9)" in text), text
    assert "the-token" not in text


async def test_abandoned_calls_are_awaited_but_not_long_polls() -> None:
    """What an interrupted creation may still do matters; how it ends can be asked again."""
    cloud = Cloud(Endpoint("local", "http://127.0.0.1:9", "token"), "my-project", InstantClock())
    has_started, may_end = threading.Event(), threading.Event()

    def block(*, timeout: float, retry: None) -> None:
        has_started.set()
        may_end.wait()

    async def abandon(**options: Any) -> None:
        has_started.clear()
        call = asyncio.create_task(cloud.call("it", block, **options))
        while not has_started.is_set():
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    await abandon(only_waits=True)
    await cloud.abandoned_calls()
    await abandon()
    waiting = asyncio.create_task(cloud.abandoned_calls())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    may_end.set()
    await waiting
