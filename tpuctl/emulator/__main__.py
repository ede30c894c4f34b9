"""`python -m tpuctl.emulator --home FOLDER`: serve a local cloud until stopped."""

from __future__ import annotations

import argparse
import asyncio
import errno
import gc
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Literal


async def serve(home: Path, port: int, pace: str, ssh: Literal["auto", "high"]) -> int:
    from tpuctl.emulator.machines.host import LocalHost
    from tpuctl.emulator.server import Server, StartableHost
    from tpuctl.emulator.wire.transcript import Transcript
    from tpuctl.local_cloud.home_lock import HomeInUse

    def make_host(folder: Path, api_address: tuple[str, int]) -> StartableHost:
        return LocalHost(folder, api_address=api_address, ssh=ssh)

    transcript = Transcript.from_environment()
    server = Server(home, make_host, port=port, pace=pace, transcript=transcript)
    try:
        await server.start()
    except HomeInUse as error:
        print(f"Folder in use: {error}", file=sys.stderr)
        return 4
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            print(f"Port in use: {port}", file=sys.stderr)
            return 3
        raise
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stopping.set)
    server.write_address()
    logging.info("serving %s from %s", server.url, home)
    gc.collect()
    gc.freeze()
    await server.stopping.wait()
    logging.info("stopping")
    await server.close()
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tpuctl.emulator", description=__doc__)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--pace", default="quick")
    parser.add_argument("--ssh", default="auto", choices=("auto", "high"))
    options = parser.parse_args()
    # Machines are child processes; gRPC's fork support is not needed and interferes.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    os.umask(0o077)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("asyncssh").setLevel(logging.WARNING)
    return asyncio.run(serve(options.home, options.port, options.pace, options.ssh))


if __name__ == "__main__":
    sys.exit(main())
