"""ProxyCommand for `ssh`: connects stdin and stdout to a machine's SSH server through IAP.

python -m tpuctl.api.tunnel CLOUD PROJECT ZONE INSTANCE
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

__all__ = ["command", "main"]

CHUNK = 1 << 16


def command(cloud: str) -> list[str]:
    """The command line of this program, without project, zone and instance."""
    # -P: do not import modules from the current folder.
    return [sys.executable, "-P", "-m", __spec__.name, cloud]


async def _run_tunnel(cloud: str, project: str, zone: str, instance: str) -> None:
    from tpuctl.api.local_cloud import endpoint_of
    from tpuctl.cloud.clients import Cloud
    from tpuctl.model.events import ignore
    from tpuctl.remote.iap import Destination, IapRoute, Relay, open_tunnel

    endpoint = endpoint_of(cloud, ignore)
    access_token = Cloud(endpoint, project).access_token
    relay = Relay(endpoint.relay, access_token, is_local=endpoint.is_local)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=CHUNK)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    # A protocol with flow control; its reader is not used.
    protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
    transport, _ = await loop.connect_write_pipe(lambda: protocol, sys.stdout.buffer)
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    tunnel = await open_tunnel(
        IapRoute(relay, Destination(project, zone, instance)), reader, writer
    )
    await tunnel.run()
    if tunnel.failure is not None:
        raise tunnel.failure


def main(words: Sequence[str]) -> int:
    """Run the tunnel; return the exit code. Errors go to stderr, which `ssh` shows."""
    from tpuctl.errors import TpuctlError

    try:
        asyncio.run(_run_tunnel(*words))
    except TpuctlError as error:
        for diagnostic in error.diagnostics:
            text = f"tpuctl: {diagnostic.summary}: {diagnostic.detail}\n{diagnostic.hint}\n"
            os.write(2, text.encode())
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
