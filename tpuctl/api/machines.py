"""A stack's machines as people reach them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tpuctl.api.stack import StackApi
from tpuctl.errors import Usage

if TYPE_CHECKING:
    from tpuctl.flows.copying import Copied
    from tpuctl.flows.everywhere import Ending
    from tpuctl.flows.forwarding import WantedPort
    from tpuctl.model.copy_path import Copying
    from tpuctl.remote.ssh import SshTransport

__all__ = ["MachineApi"]


class MachineApi(StackApi):
    """Ways to the workers of one stack."""

    async def ssh_command(self, worker: int, line: str = "") -> list[str]:
        """The command line of the `ssh` program that opens a shell on a worker, or runs a line."""
        from tpuctl.remote.keys import config_home
        from tpuctl.remote.ssh import program

        (transport,) = _chosen(await self.transports(), worker).values()
        known_hosts = config_home() / "known_hosts" / f"{self.stack.name}-{worker}"
        proxy: list[str] = []
        if transport.address.way is not None:
            from tpuctl.api import tunnel

            to = transport.address.way.destination
            proxy = tunnel.command(self.cloud_name, to.project, to.zone, to.instance)
        return program(transport.address, self.key.path, known_hosts, line, proxy)

    async def run_everywhere(self, line: str, worker: int | None = None) -> list[Ending]:
        """Run a shell's line on every worker at once, or on one; how it ended, the first first.

        What it writes is emitted. A worker that cannot be reached is told, and the others go on.
        """
        from tpuctl.flows.everywhere import run_everywhere

        async with self.connections() as transports:
            return await run_everywhere(line, _chosen(transports, worker), self.emit)

    async def copy(self, wanted: Copying, *, recursive: bool = False) -> list[Copied]:
        """Copy between this machine and workers, whole files or none; what each one was sent."""
        from tpuctl.flows.copying import copy

        async with self.connections() as transports:
            chosen = _chosen(transports, wanted.worker)
            return await copy(wanted, chosen, self.emit, recursive=recursive)

    @asynccontextmanager
    async def forwarding(self, ports: Sequence[WantedPort], worker: int = 0) -> AsyncIterator[None]:
        """Within, connections to ports of this machine's loopback lead to the worker's ports."""
        from tpuctl.flows.forwarding import forwarding

        async with self.connections() as transports:
            (transport,) = _chosen(transports, worker).values()
            is_local = self.endpoint.is_local  # its machines share this one's loopback
            async with forwarding(ports, transport, self.emit, is_own_loopback=is_local):
                yield


def _chosen(transports: Mapping[int, SshTransport], worker: int | None) -> dict[int, SshTransport]:
    if worker is None:
        return dict(transports)
    if worker not in transports:
        last = len(transports) - 1
        there = f"there are workers 0 to {last}" if last else "there is worker 0 alone"
        raise Usage(
            "No such worker",
            f"{there}, not {worker}",
            hint="See the workers with\n    tpuctl status",
        )
    return {worker: transports[worker]}
