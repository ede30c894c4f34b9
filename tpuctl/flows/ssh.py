"""`ssh`: the command line of the `ssh` program that connects to a worker."""

from __future__ import annotations

from collections.abc import Sequence

from tpuctl.flows.context import Context, known_hosts
from tpuctl.flows.workers import select_workers, transports
from tpuctl.remote.ssh import openssh_command

__all__ = ["ssh_command"]


async def ssh_command(
    context: Context, worker: int, line: str = "", *, tunnel: Sequence[str] = ()
) -> list[str]:
    """The command line that opens a shell on a worker, or runs the shell command `line` there.

    `tunnel` is the proxy command for IAP, without its arguments project, zone and instance.
    """
    (transport,) = select_workers(await transports(context), worker).values()
    host_keys_file = known_hosts() / f"{context.stack.name}-{worker}"
    proxy: list[str] = []
    if transport.address.route is not None:
        destination = transport.address.route.destination
        proxy = [*tunnel, destination.project, destination.zone, destination.instance]
    return openssh_command(transport.address, context.keys.pair.path, host_keys_file, line, proxy)
