"""What is said with the script's process, and with the compiler's: a line of JSON each way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["SOCKET", "Compiler", "Disconnected", "ScriptSocket"]

SOCKET = "conversation"
MAX_LINE_BYTES = 1 << 24  # a line; TensorFlow's words can be long


class Disconnected(Exception):
    """The other side went away before it answered; what it said at last."""


class ScriptSocket:
    """Where the script's process comes with its step: a socket in `folder`, whose path is short."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / SOCKET
        self._came: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = (
            asyncio.Queue()
        )
        self._server: asyncio.Server | None = None
        self._speaking: asyncio.StreamWriter | None = None
        self._heard: asyncio.StreamReader | None = None

    async def open(self) -> None:
        async def come(reader: asyncio.StreamReader, speaking: asyncio.StreamWriter) -> None:
            await self._came.put((reader, speaking))

        self._server = await asyncio.start_unix_server(come, self.path, limit=MAX_LINE_BYTES)

    async def first_message(self) -> dict[str, Any]:
        """What the first that comes says."""
        self._heard, self._speaking = await self._came.get()
        return await self._line()

    async def lower(self, batch: int | None) -> dict[str, Any]:
        assert self._speaking is not None
        self._speaking.write(json.dumps({"batch": batch}).encode() + b"\n")
        return await self._line()

    async def close(self) -> None:
        """Hang up: the script's process ends with that."""
        if self._speaking is not None:
            self._speaking.close()
        if self._server is not None:
            self._server.close()

    async def _line(self) -> dict[str, Any]:
        assert self._heard is not None
        try:
            line = await self._heard.readline()
        except (ConnectionError, ValueError):
            line = b""
        if not line.endswith(b"\n"):
            raise Disconnected
        return dict(json.loads(line))


class Compiler:
    """The compiler, which answers one question after another."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._argv, self._environment, self._log = argv, environment, log
        self._process: asyncio.subprocess.Process | None = None

    async def query(self, **question: Any) -> dict[str, Any]:
        """Raise Disconnected if the compiler exits, for example for lack of memory."""
        if self._process is None:
            with self._log.open("wb") as log:  # libtpu complains of the TPU that is not there
                self._process = await asyncio.create_subprocess_exec(
                    *self._argv,
                    env=dict(self._environment),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    limit=MAX_LINE_BYTES,
                    start_new_session=True,  # Ctrl-C is not its own
                )
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(question).encode() + b"\n")
            await process.stdin.drain()
            line = await process.stdout.readline()
        except (BrokenPipeError, ConnectionResetError):
            line = b""
        if not line:
            code = await process.wait()
            self._process = None
            raise Disconnected(
                f"it was ended by signal {-code}" if code < 0 else f"it ended with {code}"
            )
        return dict(json.loads(line))

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
