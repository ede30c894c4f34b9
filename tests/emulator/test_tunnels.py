"""Tunnels of Identity-Aware Proxy: tpuctl's client, the local cloud's relay, and a port."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.locations import PROJECT, ZONE
from tpuctl.emulator.machines.interface import Endpoint
from tpuctl.errors import Denied, TpuctlError, Unreachable
from tpuctl.remote.iap import Destination, IapRoute, OpenRoute, Relay

NAME = "controller"
MACHINE = f"projects/{PROJECT}/zones/{ZONE}/instances/{NAME}"
NETWORK = f"projects/{PROJECT}/global/networks/default"
KIB = 1 << 10
RULE = {
    "network": NETWORK,
    "direction": "INGRESS",
    "disabled": False,
    "priority": 1000,
    "sourceRanges": ["35.235.240.0/20"],
    "targetTags": ["bert-tpu"],
    "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}],
}


@dataclass
class Machine:
    """An echo server on port 22."""

    port: int = 0
    connections: int = 0
    open: list[asyncio.StreamWriter] = field(default_factory=list)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open.append(writer)
        try:
            while data := await reader.read(64 * KIB):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


@pytest.fixture
async def machine(cloud: Any) -> AsyncIterator[Machine]:
    """A running instance with an echo server for SSH, and a firewall rule for IAP."""
    made = Machine()
    server = await asyncio.start_server(made.answer, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    cloud.host.reserved[MACHINE] = Endpoint("127.0.0.1", made.port)
    row = {
        "status": "RUNNING",
        "tags": {"items": ["bert-tpu"]},
        "networkInterfaces": [{"network": NETWORK, "subnetwork": "", "accessConfigs": []}],
        "serviceAccounts": [],
        "address": "127.0.0.1",
    }
    store = cloud.server.store
    store.put_json("compute.instances", MACHINE, row)
    for name, _ in list(store.items("compute.firewalls", f"projects/{PROJECT}/")):
        store.delete("compute.firewalls", name)
    store.put_json("compute.firewalls", f"projects/{PROJECT}/global/firewalls/bert-ssh", RULE)
    yield made
    server.close()
    for writer in made.open:
        writer.transport.abort()


def way(cloud: Any, *, token: str = "", instance: str = NAME, port: int = 22) -> IapRoute:
    async def give() -> str:
        return token or cloud.token

    relay = Relay(f"ws://127.0.0.1:{cloud.server.port}/v4", give, is_local=True)
    return IapRoute(relay, Destination(PROJECT, ZONE, instance, port))


@asynccontextmanager
async def reached(way: IapRoute) -> AsyncIterator[tuple[OpenRoute, Any, Any]]:
    opened = await way.open()
    reader, writer = await asyncio.open_connection(sock=opened.socket)
    try:
        yield opened, reader, writer
    finally:
        writer.close()
        await opened.close()


async def echoed(reader: Any, writer: Any, data: bytes) -> bytes:
    async def send() -> None:
        for start in range(0, len(data), 50_000):
            writer.write(data[start : start + 50_000])
            await writer.drain()

    _, back = await asyncio.wait_for(asyncio.gather(send(), reader.readexactly(len(data))), 30)
    return bytes(back)


def fault(cloud: Any, kind: str, **fields: Any) -> Any:
    return cloud.server.registry.faults.add({"kind": kind, **fields})


async def test_data_passes_in_both_directions(cloud: Any, machine: Machine) -> None:
    data = os.urandom(3000 * KIB)
    async with reached(way(cloud)) as (opened, reader, writer):
        assert await echoed(reader, writer, data) == data
        assert await echoed(reader, writer, b"x") == b"x"
    assert (machine.connections, opened.reconnections, opened.failure) == (1, 0, None)


@pytest.mark.parametrize("part", ["response", "request"])
@pytest.mark.parametrize("code", [None, "UNAUTHENTICATED"])
async def test_cut_connections_lose_and_repeat_nothing(
    cloud: Any, machine: Machine, part: str, code: str | None
) -> None:
    """The connection to the relay is cut repeatedly, silently or for an expired token; that to
    the machine stays open."""
    data = os.urandom(2000 * KIB)
    cuts = [
        fault(cloud, "truncate", method="iap.tunnels.*", body=part, after_bytes=count, code=code)
        for count in (1, 300 * KIB, 33 * KIB)
    ]
    async with reached(way(cloud)) as (opened, reader, writer):
        assert await echoed(reader, writer, data) == data
        assert opened.reconnections == len(cuts)
    assert all(cut.fields["applied"] == 1 for cut in cuts)
    assert machine.connections == 1
    calls = [call["method"] for call in cloud.server.registry.traffic.calls()["calls"]]
    assert calls.count("iap.tunnels.connect") == 1
    assert calls.count("iap.tunnels.reconnect") == len(cuts)


async def test_unavailable_relay_is_retried(cloud: Any, machine: Machine) -> None:
    cut = fault(cloud, "truncate", method="iap.tunnels.connect", after_bytes=10)
    away = fault(cloud, "unavailable", method="iap.tunnels.reconnect", times=2)
    async with reached(way(cloud)) as (opened, reader, writer):
        for _ in range(2):  # the first may succeed before the connection closes
            assert await echoed(reader, writer, b"many bytes" * 1000) == b"many bytes" * 1000
        assert opened.reconnections == 1
    assert (cut.fields["applied"], away.fields["applied"]) == (1, 2)


async def test_tunnel_ends_when_machine_closes(cloud: Any, machine: Machine) -> None:
    async with reached(way(cloud)) as (opened, reader, writer):
        assert await echoed(reader, writer, b"hello") == b"hello"
        machine.open[0].close()
        assert await asyncio.wait_for(reader.read(), 10) == b""
    assert opened.reconnections == 0


async def test_closing_tunnel_closes_machine_connection(cloud: Any, machine: Machine) -> None:
    async with reached(way(cloud)) as (_, reader, writer):
        assert await echoed(reader, writer, b"hello") == b"hello"
        (session,) = cloud.server._tunnels._sessions.values()
    await asyncio.wait_for(machine.open[0].wait_closed(), 10)
    assert session.is_over
    assert cloud.server._tunnels._sessions == {}


async def test_session_belongs_to_its_caller(cloud: Any, machine: Machine) -> None:
    stranger = cloud.server.registry.access.token_for("eve@example.com")
    session = way(cloud)
    other_session = way(cloud, token=stranger)
    async with reached(session) as (_, reader, writer):
        assert await echoed(reader, writer, b"hello") == b"hello"
        (sid,) = cloud.server._tunnels._sessions
        from tpuctl.remote.iap import _Connector

        lines = _Connector(other_session)
        line = await lines.reconnect(sid, 0)
        message = await line.receive()
        assert message.data == 4001
        await lines.close()
        assert await echoed(reader, writer, b"still mine") == b"still mine"


async def refused(way: IapRoute) -> TpuctlError:
    with pytest.raises(TpuctlError) as caught:
        await way.open()
    return caught.value


async def test_denied_caller_gets_required_role(cloud: Any, machine: Machine) -> None:
    token = cloud.server.registry.access.token_for("eve@example.com")
    error = await refused(way(cloud, token=token))
    assert isinstance(error, Denied)
    assert "4033" in str(error)
    assert "roles/iap.tunnelResourceAccessor" in error.diagnostics[0].hint
    assert machine.connections == 0


async def test_role_is_sufficient(cloud: Any, machine: Machine) -> None:
    registry = cloud.server.registry
    role = {"role": "roles/iap.tunnelResourceAccessor", "members": ["user:ann@example.com"]}
    registry.authority._policies.add(f"projects/{PROJECT}", [role])
    token = registry.access.token_for("ann@example.com")
    async with reached(way(cloud, token=token)) as (_, reader, writer):
        assert await echoed(reader, writer, b"hello") == b"hello"


async def test_invalid_token_is_rejected(cloud: Any, machine: Machine) -> None:
    error = await refused(way(cloud, token="made-up"))
    assert isinstance(error, Denied)
    assert "401" in str(error)


async def test_stopped_machines_are_not_found(cloud: Any, machine: Machine) -> None:
    assert "4047" in str(await refused(way(cloud, instance="absent")))
    row = cloud.server.store.get_json("compute.instances", MACHINE)
    cloud.server.store.put_json("compute.instances", MACHINE, {**row, "status": "TERMINATED"})
    error = await refused(way(cloud))
    assert isinstance(error, Unreachable)
    assert "4047" in str(error)
    assert "tpuctl status" in error.diagnostics[0].hint


async def test_port_without_server(cloud: Any, machine: Machine) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        cloud.host.reserved[MACHINE] = Endpoint("127.0.0.1", listener.getsockname()[1])
        error = await refused(way(cloud))
    assert isinstance(error, Unreachable)
    assert "4003" in str(error)
    assert "4003" in str(await refused(way(cloud, port=8888)))


async def test_relay_requires_firewall_rule(cloud: Any, machine: Machine) -> None:
    name = f"projects/{PROJECT}/global/firewalls/bert-ssh"
    rule = {**RULE, "sourceRanges": ["203.0.113.7/32"]}
    cloud.server.store.put_json("compute.firewalls", name, rule)
    error = await refused(way(cloud))
    assert "4003" in str(error)
    assert "35.235.240.0/20" in str(error)
