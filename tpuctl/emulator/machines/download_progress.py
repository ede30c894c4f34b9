"""How much of the file that pip is fetching has come, which pip itself tells people alone."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

__all__ = ["BytesProgress", "DownloadProgress"]

# Bytes that have come, all of them, and the same in words.
BytesProgress = Callable[[int, int, str], None]
# What pip says before it fetches (pip/_internal/network/download.py: `_prepare_download`).
DOWNLOAD_LINE = re.compile(r"Downloading (?:\S*/)?(\S+) \(([\d.]+) (bytes|kB|MB|GB)\)")
UNITS = {"bytes": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}
POLL_SECONDS = 0.5


class DownloadProgress:
    """Looks at the folder in which pip, given it as TMPDIR, writes what it fetches."""

    def __init__(self, folder: Path, on_bytes: BytesProgress) -> None:
        self._folder = folder
        self._on_bytes = on_bytes
        self._name, self._size = "", 0

    def on_line(self, line: str) -> None:
        """A line that pip has printed."""
        match = DOWNLOAD_LINE.match(line)
        self._name = match[1] if match else ""
        self._size = int(float(match[2]) * UNITS[match[3]]) if match else 0

    async def poll(self) -> None:
        """Tell how far it is, until cancelled."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            self.report()

    def report(self) -> None:
        """Tell how far it is now, where something is being fetched."""
        if not self._name:
            return
        try:
            done = max(path.stat().st_size for path in self._folder.glob(f"*/{self._name}"))
        except (OSError, ValueError):  # it is not there, yet or any more
            return
        done = min(done, self._size)
        text = f"{self._name}: {done / 1e6:,.1f} of {self._size / 1e6:,.1f} MB"
        self._on_bytes(done, self._size, text)
