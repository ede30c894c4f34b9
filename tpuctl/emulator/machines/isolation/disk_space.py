"""Disk limits: how many bytes the programs of a machine can still write."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tpuctl.emulator.machines.interface import MachineError
from tpuctl.interpreters import current

PROGRAM = Path(__file__).with_name("sandbox_disk.py")
TIMEOUT_SECONDS = 20.0
UNLIMITED_BYTES = 1 << 49  # more free space than any limit allows


class LimitedDisk:
    """The disk of one machine, from its first limit on until its processes end."""

    def __init__(
        self, folder: Path, writable: Sequence[Path], mirrors: Mapping[Path, Sequence[str]]
    ) -> None:
        """`folder` is an empty folder for bookkeeping; `mirrors` are a folder's other paths."""
        self._folder = folder
        self._writable = [str(path) for path in writable]
        self._mirrors = {str(path): list(others) for path, others in mirrors.items()}
        self._pid: int | None = None

    @property
    def root(self) -> str:
        """The prefix under which the server sees the machine's paths; "" without a limit."""
        return "" if self._pid is None else f"/proc/{self._pid}/root"

    async def limit(self, pid: int, free: int | None) -> None:
        """Limit the machine with that process to `free` more bytes; MachineError on failure."""
        self._folder.mkdir(exist_ok=True)
        request = {
            "folder": str(self._folder),
            "writable": self._writable,
            "mirrors": self._mirrors,
            "free": free,
        }
        process = await asyncio.create_subprocess_exec(
            *(current().path, "-I", "-S", str(PROGRAM), str(pid), json.dumps(request)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
            cwd="/",
        )
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                _, stderr = await process.communicate()
        except BaseException:
            process.kill()
            await process.wait()
            raise
        if process.returncode:
            reason = stderr.decode(errors="replace").strip()
            raise MachineError(f"Failed to limit the machine's disk: {reason}")
        self._pid = pid

    def free(self) -> int | None:
        """How many bytes can still be written; None if unlimited."""
        if self._pid is None:
            return None
        try:
            filesystem = os.statvfs(f"{self.root}{self._folder}")
        except OSError:  # its processes are gone
            return None
        free = filesystem.f_bavail * filesystem.f_frsize
        return None if free > UNLIMITED_BYTES else free

    def reset(self) -> None:
        """Forget the limit: it ends with the machine's processes."""
        self._pid = None
