"""Reaching a node's workers: addresses, host keys, connections."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tpuctl.cloud.clients import Cloud
from tpuctl.errors import Diagnostic, NotFound, TpuctlError, Unreachable
from tpuctl.model.events import Emit, Warned
from tpuctl.model.stack import Stack
from tpuctl.model.status import NodeStatus
from tpuctl.remote.ssh import Address, SshTransport, ask_host_key
from tpuctl.waiting import Backoff, all_ended, wait_until

__all__ = ["connect_workers", "transports_of"]

BOOT_SECONDS = 300.0
HOST_KEY_SECONDS = 20.0  # the machines of a READY node have published theirs, if they ever do


async def transports_of(
    stack: Stack,
    cloud: Cloud,
    node: NodeStatus,
    *,
    key: Path,
    known_hosts: Path,
    emit: Emit,
) -> dict[int, SshTransport]:
    """A transport for each worker of a READY node, not connected yet.

    Host keys come from the machines' guest attributes. A project or policy may forbid those: the
    key then seen at the first connection is kept in `known_hosts` and demanded from there on.
    """
    if node.state != "READY":
        raise Unreachable(
            "Node is not ready",
            f"node {node.name} in {node.zone} is {node.state}",
            hint="Bring it up with\n    tpuctl up",
        )
    published = await _published_keys(stack, cloud, node)
    transports = {}
    for worker, (host, port) in enumerate(zip(node.addresses, node.ssh_ports, strict=True)):
        keys = published.get(worker) or await _remembered_key(
            known_hosts / f"{stack.project}-{node.id}-{worker}", host, port, emit
        )
        address = Address(host, port, stack.user, keys)
        transports[worker] = SshTransport(worker, address, key)
    return transports


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


async def _published_keys(
    stack: Stack, cloud: Cloud, node: NodeStatus
) -> dict[int, tuple[str, ...]]:
    """The host keys that the machines have put into their guest attributes, by worker."""
    client = cloud.client("tpu")
    request = {
        "name": f"projects/{stack.project}/locations/{node.zone}/nodes/{node.name}",
        "query_path": "hostkeys/",
    }

    async def probe() -> dict[int, tuple[str, ...]] | None:
        answer = await cloud.call("host keys", client.get_guest_attributes, request)
        found = {index: _keys(one) for index, one in enumerate(answer.guest_attributes)}
        found = {index: keys for index, keys in found.items() if keys}
        return found if len(found) == len(node.addresses) else None

    try:
        return await wait_until(
            probe, what="host keys", seconds=HOST_KEY_SECONDS, clock=cloud.clock
        )
    except NotFound:
        raise
    except TpuctlError:
        return {}


def _keys(attributes: Any) -> tuple[str, ...]:
    return tuple(
        f"{item.key} {item.value}"
        for item in attributes.query_value.items
        if item.namespace == "hostkeys"
    )


async def _remembered_key(path: Path, host: str, port: int, emit: Emit) -> tuple[str, ...]:
    if path.exists():
        return (path.read_text("utf-8").strip(),)
    seen = await ask_host_key(host, port)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.write_text(seen + "\n", "utf-8")
    emit(
        Warned(
            Diagnostic(
                "Host key taken on trust",
                f"{host}:{port} publishes none; the one seen now is kept in {path}",
                "Later connections demand this key.",
            )
        )
    )
    return (seen,)
