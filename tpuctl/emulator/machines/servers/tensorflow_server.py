"""Supervises a TPU node's TensorFlow server: starts it on its machine, and restarts it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from tpuctl.emulator.machines.interface import MachineError
from tpuctl.emulator.machines.programs.processes import RunningProcess

PROGRAM = Path(__file__).with_name("node_server.py")
READY_SECONDS = 300.0  # TensorFlow's import takes seconds, or a minute on a busy computer
RESTART_DELAY_SECONDS = 1.0
MAX_LOG_BYTES = 2000


class Launch(Protocol):
    """Starts the program on the machine, on these files; the second value sends it a signal."""

    def __call__(
        self, files: tuple[int, int, int]
    ) -> Awaitable[tuple[RunningProcess, Callable[[int], None]]]: ...


class Gate(Protocol):
    """The forwarded port that clients connect to."""

    async def open_port(self) -> None: ...
    async def close_port(self) -> None: ...


class TensorflowServer:
    """`start` returns when the server accepts connections; from then on it is supervised."""

    def __init__(
        self, launch: Launch, gate: Gate, console: Path, report: Callable[[str], None]
    ) -> None:
        """The gate is open while the server runs; its stderr goes to `console`."""
        self._launch = launch
        self._gate = gate
        self._console = console
        self._report = report
        self._supervisor: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start it. Raises MachineError, with the end of its output, if it fails to start."""
        offset = self._console.stat().st_size if self._console.exists() else 0
        started = await self._run_until_ready()
        if started is None:
            output = (
                self._console.read_bytes()[offset:][-MAX_LOG_BYTES:]
                .decode("utf-8", "replace")
                .strip()
            )
            raise MachineError(f"The node's TensorFlow server failed to start:\n{output}")
        await self._gate.open_port()
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise(started))

    async def stop(self) -> None:
        """Stop supervising it; it ends with the machine's processes."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
            self._supervisor = None

    async def _supervise(self, started: RunningProcess | None) -> None:
        while True:
            if started is not None:
                result = await asyncio.shield(started.exit)  # not ours to cancel
                await self._gate.close_port()
                self._report(f"the TensorFlow server exited with {result.code}")
            await asyncio.sleep(RESTART_DELAY_SECONDS)
            try:
                started = await self._run_until_ready()
                if started is not None:
                    await self._gate.open_port()
            except (MachineError, OSError) as problem:
                self._report(f"the TensorFlow server failed to start: {problem}")
                started = None

    async def _run_until_ready(self) -> RunningProcess | None:
        """The running server once it accepts connections; None if it exited before."""
        reading, writing = os.pipe()
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb", 0)
        )
        try:
            try:
                started, send_signal = await self._start_process(writing)
            finally:
                os.close(writing)
            try:
                async with asyncio.timeout(READY_SECONDS):
                    async for line in reader:
                        if line.startswith(b"serving "):
                            return started
            except TimeoutError:
                send_signal(signal.SIGKILL)
                raise MachineError("The node's TensorFlow server hangs at startup.") from None
        finally:
            transport.close()
        return None

    async def _start_process(self, stdout: int) -> tuple[RunningProcess, Callable[[int], None]]:
        null = os.open(os.devnull, os.O_RDONLY)
        console = os.open(self._console, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            return await self._launch((null, stdout, console))
        finally:
            os.close(null)
            os.close(console)
