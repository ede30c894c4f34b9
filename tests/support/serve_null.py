"""A local cloud in a separate process that can be killed: `serve_null.py HOME PACE`."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from tests.support.null_host import NullHost
from tpuctl.emulator.server import Server
from tpuctl.emulator.wire.transcript import Transcript


async def serve(home: Path, pace: str) -> None:
    transcript = Transcript.from_environment()
    server = Server(home, NullHost, pace=pace, transcript=transcript)
    await server.start()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.stopping.set)
    print(server.port, server.token, flush=True)
    await server.stopping.wait()
    await server.close()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2]))
