"""A local cloud in a process of its own, so that it can be killed: `serve_null.py HOME PACE`."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
import sys
from pathlib import Path
from typing import Any

from tpuctl.emulator.server import Server
from tpuctl.emulator.wire.transcript import Transcript


def null_host() -> Any:
    path = Path(__file__).with_name("null_host.py")
    spec = importlib.util.spec_from_file_location("emulator_null_host", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["emulator_null_host"] = module
    spec.loader.exec_module(module)
    return module.NullHost


async def serve(home: Path, pace: str) -> None:
    transcript = Transcript.from_environment()
    server = Server(home, null_host(), pace=pace, transcript=transcript)
    await server.start()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.stopping.set)
    print(server.port, server.token, flush=True)
    await server.stopping.wait()
    await server.close()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2]))
