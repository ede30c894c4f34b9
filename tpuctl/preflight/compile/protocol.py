"""The protocol between tpuctl, the script's process and the compiler: JSON lines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

SOCKET = "conversation"
MAX_LINE_BYTES = 1 << 24  # TensorFlow's messages can be long


class Disconnected(Exception):
    """The other process exited before it replied; the message says how, if known."""


class ScriptSocket:
    """The socket in `folder` to which the script's process connects at its first step.

    The path of `folder` must be short: socket paths are limited to about 100 bytes. `restore` is
    applied to each line that is received.
    """

    def __init__(self, folder: Path, restore: Callable[[str], str] = str) -> None:
        self.path, self._restore = folder / SOCKET, restore
        self._connections: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = (
            asyncio.Queue()
        )
        self._server: asyncio.Server | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reader: asyncio.StreamReader | None = None

    async def open(self) -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._connections.put((reader, writer))

        self._server = await asyncio.start_unix_server(accept, self.path, limit=MAX_LINE_BYTES)

    async def first_message(self) -> dict[str, Any]:
        """Wait for the script's process to connect; return its first message."""
        self._reader, self._writer = await self._connections.get()
        return await self._read_message()

    async def lower(self, batch: int | None) -> dict[str, Any]:
        assert self._writer is not None
        self._writer.write(json.dumps({"batch": batch}).encode() + b"\n")
        return await self._read_message()

    async def close(self) -> None:
        """Close the connection, which makes the script's process exit."""
        if self._writer is not None:
            self._writer.close()
        if self._server is not None:
            self._server.close()

    async def _read_message(self) -> dict[str, Any]:
        assert self._reader is not None
        try:
            line = await self._reader.readline()
        except (ConnectionError, ValueError):
            line = b""
        if not line.endswith(b"\n"):
            raise Disconnected
        return dict(json.loads(self._restore(line.decode())))


class Compiler:
    """The compiler's process, started by the first query."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._argv, self._environment, self._log = argv, environment, log
        self._process: asyncio.subprocess.Process | None = None

    async def query(self, **request: Any) -> dict[str, Any]:
        """Send a request and return the reply.

        Raises Disconnected if the compiler exits, for example for lack of memory.
        """
        if self._process is None:
            with self._log.open("wb") as log:  # libtpu logs errors about the missing TPU
                self._process = await asyncio.create_subprocess_exec(
                    *self._argv,
                    env=dict(self._environment),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    limit=MAX_LINE_BYTES,
                    start_new_session=True,  # not interrupted by Ctrl-C
                )
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            await process.stdin.drain()
            line = await process.stdout.readline()
        except (BrokenPipeError, ConnectionResetError):
            line = b""
        if not line:
            code = await process.wait()
            self._process = None
            raise Disconnected(
                f"the compiler was killed by signal {-code}"
                if code < 0
                else f"the compiler exited with code {code}"
            )
        return dict(json.loads(line))

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
