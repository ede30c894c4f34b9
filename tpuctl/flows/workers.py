"""Reaching a node's workers: addresses, host keys, connections."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpuctl.cloud.clients import Cloud
from tpuctl.errors import Diagnostic, NotFound, TpuctlError, Unreachable, Usage
from tpuctl.files import private_folder
from tpuctl.flows.controller import find_controller
from tpuctl.model.events import Emit, Warned
from tpuctl.model.stack import Stack
from tpuctl.model.status import NodeStatus
from tpuctl.remote.iap import Destination, IapWay, Relay
from tpuctl.remote.ssh import Address, SshTransport, ask_host_key
from tpuctl.waiting import Backoff, all_ended, wait_until

__all__ = ["connect_workers", "controller_transport", "transports_of"]

BOOT_SECONDS = 300.0
SSH_PORT = 22  # of machines as the relay knows them
HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")  # RFC 1123
HOST_KEY_SECONDS = 20.0  # the machines of a READY node have published theirs, if they ever do


@dataclass(frozen=True)
class _Told:
    """What a machine tells of itself in its guest attributes."""

    keys: tuple[str, ...]  # of its SSH server
    hostname: str = ""  # of a worker, by which Compute Engine knows it


@dataclass(frozen=True)
class _Machines:
    """The machines that run a stack's jobs, in the order of their workers."""

    id: str
    zone: str
    places: tuple[tuple[str, int], ...]  # host and port of their SSH servers
    published: Callable[[], Awaitable[dict[int, _Told]]]  # of those that have told
    instance: str = ""  # where there is one machine of a known name


async def transports_of(
    stack: Stack,
    cloud: Cloud,
    nodes: Sequence[NodeStatus],
    *,
    key: Path,
    known_hosts: Path,
    emit: Emit,
    is_inside: bool = False,
) -> dict[int, SshTransport]:
    """A transport for each worker of READY nodes, not connected yet, numbered through all nodes.

    `is_inside` of a program in the stack's network: firewalls let it in by internal addresses.
    A TPU node has one: its controller. Host keys come from the machines' guest attributes. A
    project or policy may forbid those: the key then seen at the first connection is kept in
    `known_hosts` and demanded from there on.
    """
    found = await all_ended(
        _transports_of_one(stack, cloud, node, key, known_hosts, emit, number, is_inside)
        for number, node in enumerate(nodes)
    )
    return {one.worker: one for each in found for one in each}


async def _transports_of_one(
    stack: Stack,
    cloud: Cloud,
    node: NodeStatus,
    key: Path,
    known_hosts: Path,
    emit: Emit,
    number: int,
    is_inside: bool,
) -> list[SshTransport]:
    if node.state != "READY":
        raise Unreachable(
            "Node is not ready",
            f"node {node.name} in {node.zone} is {node.state}",
            hint="Bring it up with\n    tpuctl up",
        )
    if stack.is_node:
        machines = await _controller(stack.in_zone(node.zone), cloud, is_inside=is_inside)
    else:
        machines = _workers(stack, cloud, node, is_inside=is_inside)
    first = number * len(machines.places)  # nodes are alike
    relay = None if is_inside else _relay(stack, cloud)
    return await _to_machines(machines, stack, cloud, key, known_hosts, emit, relay, first)


async def controller_transport(
    stack: Stack, cloud: Cloud, *, key: Path, known_hosts: Path, emit: Emit
) -> SshTransport:
    """A transport for the controller in the zone in use, not connected yet."""
    machines = await _controller(stack, cloud, is_inside=False)
    relay = _relay(stack, cloud)
    return (await _to_machines(machines, stack, cloud, key, known_hosts, emit, relay))[0]


def _relay(stack: Stack, cloud: Cloud) -> Relay | None:
    """By which machines are reached that have no port open to this one."""
    if stack.file.network.ssh != "iap":
        return None
    return Relay(cloud.endpoint.relay, cloud.access_token, is_local=cloud.endpoint.is_local)


async def _to_machines(
    machines: _Machines,
    stack: Stack,
    cloud: Cloud,
    key: Path,
    known_hosts: Path,
    emit: Emit,
    relay: Relay | None,
    first: int = 0,
) -> list[SshTransport]:
    published = await _published(cloud, machines)
    transports = []
    for worker, place in enumerate(machines.places):
        told = published.get(worker, _Told(()))
        host, port, way = *place, None
        if relay is not None:
            instance = machines.instance or told.hostname
            if not instance:
                raise _no_hostname(first + worker)
            host, port = instance, SSH_PORT
            way = IapWay(relay, Destination(stack.project, machines.zone, instance, port))
        keys, remembered = told.keys, None
        if not keys:
            remembered = known_hosts / f"{stack.project}-{machines.id}-{worker}"
            keys = await _remembered_key(remembered, host, port, way, emit)
        address = Address(host, port, stack.user, keys, way, remembered)
        transports.append(SshTransport(first + worker, address, key))
    return transports


def _no_hostname(worker: int) -> Unreachable:
    return Unreachable(
        "Worker has no host name",
        f"worker {worker}: IAP reaches a TPU VM by the host name that it writes into its guest "
        "attributes, and no valid one is there",
        hint="An organization policy may forbid guest attributes "
        "(compute.disableGuestAttributesAccess). SSH without IAP:\n"
        "    network: {ssh: external}",
    )


def _workers(stack: Stack, cloud: Cloud, node: NodeStatus, *, is_inside: bool) -> _Machines:
    request = {"name": f"projects/{stack.project}/locations/{node.zone}/nodes/{node.name}"}
    by_name = stack.file.network.ssh == "iap" and not is_inside
    if not by_name:
        # Else all there are: nobody tells in which namespace the host name is. The Google Cloud SDK
        # looks for its key alone (528, command_lib/compute/tpus/tpu_vm/ssh.py).
        request["query_path"] = "hostkeys/"

    async def published() -> dict[int, _Told]:
        client = cloud.client("tpu")
        try:
            answer = await cloud.call("host keys", client.get_guest_attributes, request)
        except Usage:  # 400 "GuestAttributes value not found": none are written yet
            return {}
        found = {index: _told(one) for index, one in enumerate(answer.guest_attributes)}
        return {
            index: told
            for index, told in found.items()
            if told.keys and (told.hostname or not by_name)
        }

    addresses = node.inner_addresses if is_inside else node.addresses
    places = tuple(zip(addresses, node.ssh_ports, strict=True))
    return _Machines(node.id, node.zone, places, published)


async def _controller(stack: Stack, cloud: Cloud, *, is_inside: bool) -> _Machines:
    machine = await find_controller(stack, cloud)
    if machine.state != "RUNNING":
        raise Unreachable(
            "Controller is not running",
            f"controller {machine.name} in {machine.zone} is {machine.state}",
            hint="Bring it up with\n    tpuctl up",
        )
    request = {
        "project": stack.project,
        "zone": machine.zone,
        "instance": machine.name,
        "query_path": "hostkeys/",
    }

    async def published() -> dict[int, _Told]:
        client = cloud.client("instances")
        try:
            answer = await cloud.call("host keys", client.get_guest_attributes, request)
        except NotFound:  # so Compute Engine says that there are none yet
            return {}
        told = _told(answer)
        return {0: told} if told.keys else {}

    address = machine.inner_address if is_inside else machine.address
    places = ((address, machine.ssh_port),)
    return _Machines(machine.id, machine.zone, places, published, machine.name)


async def connect_workers(cloud: Cloud, transports: Sequence[SshTransport]) -> None:
    """Connect to all at once, trying again while machines boot and keys spread."""

    async def connect(transport: SshTransport) -> None:
        last: list[TpuctlError] = []

        async def probe() -> bool | None:
            try:
                await transport.connect()
            except Unreachable as error:
                last[:] = [error]
                return None
            return True

        try:
            await wait_until(
                probe,
                what=f"worker {transport.worker} answering over SSH",
                seconds=BOOT_SECONDS,
                backoff=Backoff(0.2, 5.0),
                clock=cloud.clock,
            )
        except TpuctlError as error:
            raise last[0] if last else error from None

    await all_ended(connect(transport) for transport in transports)


async def _published(cloud: Cloud, machines: _Machines) -> dict[int, _Told]:
    """What the machines have put into their guest attributes, by worker.

    Machines that are not waited for any longer, or may not be asked, are left out. A cloud that
    cannot be reached is an error: whoever keeps its answers from us shall not be trusted for it.
    """
    last: dict[int, _Told] = {}

    async def probe() -> bool | None:
        last.clear()
        last.update(await machines.published())
        return len(last) == len(machines.places) or None

    try:
        await wait_until(probe, what="host keys", seconds=HOST_KEY_SECONDS, clock=cloud.clock)
    except (NotFound, Unreachable):
        raise
    except TpuctlError:
        pass
    return last


def _told(attributes: Any) -> _Told:
    """Anything may stand there: a program on the machine can write it."""
    items = attributes.query_value.items
    return _Told(
        tuple(
            f"{item.key} {item.value}"
            for item in items
            if item.namespace == "hostkeys" and item.key != "hostname"
        ),
        next(
            (
                item.value
                for item in items
                if item.key == "hostname" and HOST_NAME.fullmatch(item.value)
            ),
            "",
        ),
    )


async def _remembered_key(
    path: Path, host: str, port: int, way: IapWay | None, emit: Emit
) -> tuple[str, ...]:
    if path.exists():
        return (path.read_text("utf-8").strip(),)
    seen = await ask_host_key(host, port, way)
    private_folder(path.parent)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(seen + "\n", "utf-8")
    try:
        path.hardlink_to(draft)  # fails, unlike a rename, where another program was first
    except FileExistsError:
        return (path.read_text("utf-8").strip(),)
    finally:
        draft.unlink()
    emit(
        Warned(
            Diagnostic(
                "Host key taken on trust",
                f"{way or f'{host}:{port}'} publishes none; the one seen now is kept in {path}",
                "Later connections demand this key.",
            )
        )
    )
    return (seen,)
