"""ProxyCommand for `ssh`: connects stdin and stdout to a machine's SSH server through IAP.

python -m tpuctl.api.tunnel CLOUD PROJECT ZONE INSTANCE
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpuctl.errors import Diagnostic
    from tpuctl.remote.iap import IapRoute

__all__ = ["command", "main", "run_tunnel", "show", "standard_streams"]

CHUNK = 1 << 16


def command(cloud: str) -> list[str]:
    """The command line of this program, without project, zone and instance."""
    # -P: do not import modules from the current folder.
    return [sys.executable, "-P", "-m", __spec__.name, cloud]


async def _connect_instance(cloud: str, project: str, zone: str, instance: str) -> None:
    from tpuctl.cloud.clients import Cloud
    from tpuctl.flows.local_cloud import endpoint_of
    from tpuctl.model.events import ignore
    from tpuctl.remote.iap import Destination, IapRoute, Relay

    endpoint = endpoint_of(cloud, ignore)
    access_token = Cloud(endpoint, project).access_token
    relay = Relay(endpoint.relay, access_token, is_local=endpoint.is_local)
    await run_tunnel(IapRoute(relay, Destination(project, zone, instance)))


async def run_tunnel(route: IapRoute) -> None:
    """Connect stdin and stdout to the route's port, until a side ends. Raises TpuctlError."""
    from tpuctl.remote.iap import open_tunnel

    tunnel = await open_tunnel(route, *await standard_streams())
    await tunnel.run()
    if tunnel.failure is not None:
        raise tunnel.failure


async def standard_streams() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Stdin and stdout."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=CHUNK)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    # A protocol with flow control; its reader is not used.
    protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
    transport, _ = await loop.connect_write_pipe(lambda: protocol, sys.stdout.buffer)
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)


def show(diagnostic: Diagnostic) -> None:
    """Write it to stderr, which `ssh` shows."""
    text = f"tpuctl: {diagnostic.summary}: {diagnostic.detail}\n{diagnostic.hint}\n"
    os.write(2, text.encode())


def main(work: Coroutine[Any, Any, None]) -> int:
    """Run a tunnel; return the exit code."""
    from tpuctl.errors import TpuctlError

    try:
        asyncio.run(work)
    except TpuctlError as error:
        for diagnostic in error.diagnostics:
            show(diagnostic)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(_connect_instance(*sys.argv[1:])))
