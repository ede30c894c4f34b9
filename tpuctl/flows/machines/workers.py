"""A stack's nodes and workers: list them, connect over SSH, and run commands on all of them."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from tpuctl.assets import program
from tpuctl.cloud.clients import Cloud
from tpuctl.errors import Diagnostic, NotFound, TpuctlError, Unreachable, Usage
from tpuctl.files import private_folder
from tpuctl.flows.context import Context, known_hosts
from tpuctl.flows.machines.controller import find_controller
from tpuctl.flows.machines.inventory import list_nodes, stack_on
from tpuctl.flows.machines.os_login import profile_user, project_uses_os_login
from tpuctl.jobs.job_shell import in_job_environment
from tpuctl.model.events import CommandOutput, Emit, WarningIssued
from tpuctl.model.stack.stack import Stack
from tpuctl.model.status.status import NodeStatus
from tpuctl.model.workers.worker_numbering import WorkerNumbering
from tpuctl.polling import Backoff, gather_all, wait_until
from tpuctl.remote.iap import Destination, IapRoute, Relay
from tpuctl.remote.keys import config_home, load_key
from tpuctl.remote.ssh import Address, SshPool, SshTransport, fetch_host_key

T = TypeVar("T")
SSH_RETRY_SECONDS = 300.0
SSH_PORT = 22  # of machines behind the IAP relay
HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")  # RFC 1123
HOST_KEY_SECONDS = 20.0  # for a READY node to publish host keys, if it ever does


@dataclass(frozen=True)
class _GuestAttributes:
    """What a machine publishes in its guest attributes."""

    keys: tuple[str, ...]  # host keys of its SSH server
    hostname: str = ""  # a worker's name in Compute Engine


@dataclass(frozen=True)
class _Machines:
    """The machines that run a stack's jobs, in the order of their workers."""

    id: str
    zone: str
    addresses: tuple[tuple[str, int], ...]  # host and port of each SSH server
    published: Callable[[], Awaitable[dict[int, _GuestAttributes]]]  # by worker, where available
    instances: tuple[str, ...] = ()  # their names, if they are instances of Compute Engine
    os_login: bool | None = None  # of their metadata; None if the project's decides


async def transports(context: Context) -> dict[int, SshTransport]:
    """A transport for each worker of READY nodes, not connected yet; workers are numbered across
    nodes.

    A TPU node has one worker: its controller. On a controller, internal addresses are used. Host
    keys come from the machines' guest attributes; if those are not available, the key of the
    first connection is stored and required from then on.
    """
    nodes = await ordered_nodes(context)
    context = replace(context, stack=stack_on(nodes[0], context.stack))
    per_node = await gather_all(
        _transports_of_node(context, node, number) for number, node in enumerate(nodes)
    )
    return {transport.worker: transport for transports in per_node for transport in transports}


@asynccontextmanager
async def connections(
    context: Context, *, required: bool = True
) -> AsyncIterator[dict[int, SshTransport]]:
    """Transports to the stack's workers, closed on exit, unless within `kept_connections`.

    Without a READY node: raises if `required`, otherwise empty.
    """
    try:
        by_worker = await transports(context)
    except (NotFound, Unreachable):
        if required:
            raise
        by_worker = {}
    pool = context.ssh_pool or SshPool()
    try:
        yield {worker: pool.reuse(transport) for worker, transport in by_worker.items()}
    finally:
        if pool is not context.ssh_pool:
            await pool.close()


@asynccontextmanager
async def kept_connections(context: Context) -> AsyncIterator[Context]:
    """A context whose `connections` stay open and are used again until the exit from this one.

    Logging in takes several round trips, and much of a command's CPU time on hundreds of workers.
    """
    pool = SshPool()
    try:
        yield replace(context, ssh_pool=pool)
    finally:
        await pool.close()


@asynccontextmanager
async def connect_selected(
    context: Context, worker: int | None = None
) -> AsyncIterator[dict[int, SshTransport]]:
    """Transports to all workers, or to one. Raises Usage for an unknown worker."""
    async with connections(context) as by_worker:
        yield select_workers(by_worker, worker, context.stack.numbering)


def select_workers(
    by_worker: Mapping[int, SshTransport], worker: int | None, numbering: WorkerNumbering
) -> dict[int, SshTransport]:
    """All transports, or that of one worker. Raises Usage for an unknown worker."""
    if worker is None:
        return dict(by_worker)
    if worker not in by_worker:
        first, last = numbering.name(0), numbering.name(len(by_worker) - 1)
        workers = f"workers {first} to {last}" if len(by_worker) > 1 else f"only worker {first}"
        raise Usage(
            "Worker not found",
            f"the stack has {workers}, not {worker}",
            hint="List the workers:\n    tpuctl status",
        )
    return {worker: by_worker[worker]}


async def _transports_of_node(
    context: Context, node: NodeStatus, number: int
) -> list[SshTransport]:
    stack, cloud = context.stack, context.cloud
    is_inside = context.controller is not None  # the stack's network
    if node.state != "READY":
        raise Unreachable(
            "Node is not ready",
            f"node {node.name} in {node.zone} is {node.state}",
            hint="Bring the stack up:\n    tpuctl up",
        )
    if stack.is_node:
        machines = await _controller(stack.in_zone(node.zone), cloud, is_inside=is_inside)
    elif node.instances:
        machines = _instances(stack, cloud, node, is_inside=is_inside)
    else:
        machines = _workers(stack, cloud, node, is_inside=is_inside)
    first = number * len(machines.addresses)  # all nodes have the same number of workers
    relay = None if is_inside else _relay(stack, cloud)
    key = context.keys.pair.path
    return await _machine_transports(
        machines, stack, cloud, key, known_hosts(), context.emit, relay, first
    )


async def controller_transport(
    stack: Stack, cloud: Cloud, *, key: Path, known_hosts: Path, emit: Emit
) -> SshTransport:
    """A transport for the controller in the stack's zone, not connected yet."""
    machines = await _controller(stack, cloud, is_inside=False)
    relay = _relay(stack, cloud)
    return (await _machine_transports(machines, stack, cloud, key, known_hosts, emit, relay))[0]


def _relay(stack: Stack, cloud: Cloud) -> Relay | None:
    """The IAP relay, if the stack uses it."""
    if stack.file.network.ssh != "iap":
        return None
    return Relay(cloud.endpoint.relay, cloud.access_token, is_local=cloud.endpoint.is_local)


async def _machine_transports(
    machines: _Machines,
    stack: Stack,
    cloud: Cloud,
    key: Path,
    known_hosts: Path,
    emit: Emit,
    relay: Relay | None,
    first: int = 0,
) -> list[SshTransport]:
    os_login_user = await _os_login_user(machines, stack, cloud, key)
    published = await _published(cloud, machines)
    transports = []
    for worker, ssh_address in enumerate(machines.addresses):
        attributes = published.get(worker, _GuestAttributes(()))
        host, port, way = *ssh_address, None
        if relay is not None:
            instance = machines.instances[worker] if machines.instances else attributes.hostname
            if not instance:
                raise _no_hostname(stack.numbering.name(first + worker))
            host, port = instance, SSH_PORT
            way = IapRoute(relay, Destination(stack.project, machines.zone, instance, port))
        keys, key_file = attributes.keys, None
        if not keys:
            key_file = known_hosts / f"{stack.project}-{machines.id}-{worker}"
            keys = await _trusted_key(key_file, host, port, way, emit)
        address = Address(
            *(host, port, os_login_user or stack.user, keys, way, key_file),
            os_login=os_login_user is not None,
        )
        transports.append(SshTransport(first + worker, address, key, numbering=stack.numbering))
    return transports


async def _os_login_user(machines: _Machines, stack: Stack, cloud: Cloud, key: Path) -> str | None:
    """The user of machines with OS Login, after adding the key to the caller's profile."""
    is_on = machines.os_login
    if is_on is None:
        is_on = await project_uses_os_login(stack.project, cloud)
    return await profile_user(stack.project, cloud, load_key(key).public_line) if is_on else None


def _no_hostname(worker: str) -> Unreachable:
    return Unreachable(
        "Worker has no host name",
        f"worker {worker}: IAP needs the host name that a TPU VM writes to its guest attributes, "
        "and no valid one was found",
        hint="An organization policy may deny guest attributes "
        "(compute.disableGuestAttributesAccess). To use SSH without IAP:\n"
        "    network: {ssh: external}",
    )


def _workers(stack: Stack, cloud: Cloud, node: NodeStatus, *, is_inside: bool) -> _Machines:
    request = {"name": f"projects/{stack.project}/locations/{node.zone}/nodes/{node.name}"}
    by_name = stack.file.network.ssh == "iap" and not is_inside
    if not by_name:
        # For IAP query all attributes: the namespace of the host name is not documented. The Google
        # Cloud SDK looks for the key only (528, command_lib/compute/tpus/tpu_vm/ssh.py).
        request["query_path"] = "hostkeys/"

    async def published() -> dict[int, _GuestAttributes]:
        client = cloud.client("tpu")
        try:
            answer = await cloud.call("host keys", client.get_guest_attributes, request)
        except Usage:  # 400 "GuestAttributes value not found": none written yet
            return {}
        by_worker = {
            index: _parse_guest_attributes(item)
            for index, item in enumerate(answer.guest_attributes)
        }
        return {
            index: attributes
            for index, attributes in by_worker.items()
            if attributes.keys and (attributes.hostname or not by_name)
        }

    addresses = node.inner_addresses if is_inside else node.addresses
    places = tuple(zip(addresses, node.ssh_ports, strict=True))
    return _Machines(node.id, node.zone, places, published, os_login=node.os_login)


async def _controller(stack: Stack, cloud: Cloud, *, is_inside: bool) -> _Machines:
    machine = await find_controller(stack, cloud)
    if machine.state != "RUNNING":
        raise Unreachable(
            "Controller is not running",
            f"controller {machine.name} in {machine.zone} is {machine.state}",
            hint="Bring the stack up:\n    tpuctl up",
        )
    address = machine.inner_address if is_inside else machine.address
    names = (machine.name,)
    published = _published_by_instances(stack, cloud, machine.zone, names)
    places = ((address, machine.ssh_port),)
    return _Machines(machine.id, machine.zone, places, published, names, machine.os_login)


def _instances(stack: Stack, cloud: Cloud, node: NodeStatus, *, is_inside: bool) -> _Machines:
    """The workers of a slice that Compute Engine sells."""
    published = _published_by_instances(stack, cloud, node.zone, node.instances)
    addresses = node.inner_addresses if is_inside else node.addresses
    places = tuple(zip(addresses, node.ssh_ports, strict=True))
    return _Machines(node.id, node.zone, places, published, node.instances, node.os_login)


def _published_by_instances(
    stack: Stack, cloud: Cloud, zone: str, names: Sequence[str]
) -> Callable[[], Awaitable[dict[int, _GuestAttributes]]]:
    """What instances of Compute Engine publish, by their index."""
    client = cloud.client("instances")

    async def of_instance(name: str) -> _GuestAttributes:
        request = {
            "project": stack.project,
            "zone": zone,
            "instance": name,
            "query_path": "hostkeys/",
        }
        try:
            answer = await cloud.call("host keys", client.get_guest_attributes, request)
        except NotFound:  # Compute Engine's answer if none are written yet
            return _GuestAttributes(())
        return _parse_guest_attributes(answer)

    async def published() -> dict[int, _GuestAttributes]:
        attributes = enumerate(await gather_all(map(of_instance, names)))
        return {index: values for index, values in attributes if values.keys}

    return published


async def connect_workers(cloud: Cloud, transports: Sequence[SshTransport]) -> None:
    """Connect to all in parallel, retrying while machines boot and keys propagate."""

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
                description=f"worker {transport.name} answering over SSH",
                seconds=SSH_RETRY_SECONDS,
                backoff=Backoff(0.2, 5.0),
                clock=cloud.clock,
            )
        except TpuctlError as error:
            raise last[0] if last else error from None

    await gather_all(connect(transport) for transport in transports)


async def _published(cloud: Cloud, machines: _Machines) -> dict[int, _GuestAttributes]:
    """The machines' guest attributes, by worker.

    Machines without them after a timeout, or to which access is denied, are left out. An
    unreachable cloud is an error, so that blocking its answers does not cause trust on first use.
    """
    last: dict[int, _GuestAttributes] = {}

    async def probe() -> bool | None:
        last.clear()
        last.update(await machines.published())
        return len(last) == len(machines.addresses) or None

    try:
        await wait_until(
            probe, description="host keys", seconds=HOST_KEY_SECONDS, clock=cloud.clock
        )
    except (NotFound, Unreachable):
        raise
    except TpuctlError:
        pass
    return last


def _parse_guest_attributes(attributes: Any) -> _GuestAttributes:
    """Parse untrusted attributes: any program on the machine can write them."""
    items = attributes.query_value.items
    return _GuestAttributes(
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


async def _trusted_key(
    path: Path, host: str, port: int, way: IapRoute | None, emit: Emit
) -> tuple[str, ...]:
    if path.exists():
        return (path.read_text("utf-8").strip(),)
    host_key = await fetch_host_key(host, port, way)
    private_folder(path.parent)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(host_key + "\n", "utf-8")
    try:
        path.hardlink_to(draft)  # unlike a rename, fails if another process was first
    except FileExistsError:
        return (path.read_text("utf-8").strip(),)
    finally:
        draft.unlink()
    emit(
        WarningIssued(
            Diagnostic(
                "Host key trusted on first use",
                f"{way or f'{host}:{port}'} publishes none; the current one is stored in {path}",
                "Later connections require this key.",
            )
        )
    )
    return (host_key,)


async def ordered_nodes(context: Context) -> list[NodeStatus]:
    """The stack's nodes, like `nodes_of`, with their instances in the order of the workers."""
    nodes = await nodes_of(context.stack, context.cloud)
    return await gather_all(_in_worker_order(context, node) for node in nodes)


async def _in_worker_order(context: Context, node: NodeStatus) -> NodeStatus:
    """Order the instances of a slice, which their group names at random, by their numbers.

    Only the machines know these. They are asked once, and must have booted; the answer is stored.
    """
    if len(node.instances) < 2 or node.state != "READY":
        return node
    file = config_home() / "workers" / f"{context.stack.project}-{node.id}"
    names = file.read_text("utf-8").split() if file.exists() else []
    if {*names} != {*node.instances}:
        names = await _ask_order(context, node)
        draft = private_folder(file.parent) / f"{file.name}.{os.getpid()}"
        draft.write_text("\n".join(names) + "\n", "utf-8")
        draft.replace(file)
    order = [node.instances.index(name) for name in names]

    def ordered(values: tuple[T, ...]) -> tuple[T, ...]:
        return tuple(values[index] for index in order)

    return replace(
        node,
        instances=ordered(node.instances),
        addresses=ordered(node.addresses),
        ssh_ports=ordered(node.ssh_ports),
        inner_addresses=ordered(node.inner_addresses),
    )


async def _ask_order(context: Context, node: NodeStatus) -> list[str]:
    """The names of the instances in the order of the workers, as the machines know it."""
    transports = await _transports_of_node(context, node, 0)
    source = program("worker_number.py").encode()
    try:
        await connect_workers(context.cloud, transports)
        answers = await gather_all(
            transport.run(["python3", "-S", "-I", "-"], input=source) for transport in transports
        )
    finally:
        await gather_all(transport.close() for transport in transports)
    texts = [answer.check("asking for the worker's number").stdout.decode() for answer in answers]
    return in_order(node.instances, texts)


def in_order(instances: Sequence[str], answers: Sequence[str]) -> list[str]:
    """The instances by the numbers that they answered; by name, unless each has its own."""
    numbers = [int(text) for text in answers if text.strip().isdecimal()]
    if sorted(numbers) != [*range(len(instances))]:
        return sorted(instances)
    return [name for _, name in sorted(zip(numbers, instances, strict=True))]


async def nodes_of(stack: Stack, cloud: Cloud) -> list[NodeStatus]:
    """The stack's nodes, in order, in the zone where it is up.

    Raises NotFound if there are none, or if one of several is missing.
    """
    nodes = await list_nodes(cloud, stack)
    if not nodes:
        raise NotFound(
            "Node not found",
            f"stack {stack.name} has no node",
            hint="Bring the stack up:\n    tpuctl up",
        )
    first = min(nodes, key=lambda node: (node.zone != stack.zone, node.state != "READY"))
    stack = stack_on(first, stack)
    if len(stack.nodes) == 1:
        return [first]
    by_name = {node.name: node for node in nodes if node.zone == first.zone}
    missing = [name for name in stack.nodes if name not in by_name]
    if missing:
        raise NotFound(
            "Node missing",
            f"stack {stack.name} has no {', '.join(missing)} in {first.zone}",
            hint="Bring the stack up again:\n    tpuctl up",
        )
    return [by_name[name] for name in stack.nodes]


@dataclass(frozen=True)
class CommandResult:
    """The result of a command on one worker."""

    worker: int
    exit_code: int
    slice: int | None = None  # of a stack of several slices


async def run_on_workers(
    command: str, transports: Mapping[int, SshTransport], emit: Emit
) -> list[CommandResult]:
    """Run a shell command on all workers in parallel, in the environment of their latest job,
    emitting its output; results in order of finish.

    An unreachable worker is reported, with the exit code of that error as its result, and the
    others continue. Cancelling interrupts the command on all workers.
    """
    results: list[CommandResult] = []

    async def run_on_worker(worker: int, transport: SshTransport) -> None:
        try:
            code = await transport.run_streaming(
                in_job_environment(command),
                lambda data: emit(CommandOutput(worker, data, slice=transport.slice)),
                lambda data: emit(CommandOutput(worker, data, True, transport.slice)),
            )
        except TpuctlError as error:
            for diagnostic in error.diagnostics:
                emit(WarningIssued(diagnostic, is_error=True))
            code = error.exit_code
        results.append(CommandResult(worker, code, transport.slice))

    async with asyncio.TaskGroup() as group:
        for worker, transport in transports.items():
            group.create_task(run_on_worker(worker, transport))
    return results
