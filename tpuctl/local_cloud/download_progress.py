"""The progress of pip's current download, which pip itself only reports to terminals."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

from tpuctl.units import transferred

# Bytes downloaded, total bytes, and a text with both.
BytesProgress = Callable[[int, int, str], None]
# pip's output before a download (pip/_internal/network/download.py: `_prepare_download`).
DOWNLOAD_LINE = re.compile(r"Downloading (?:\S*/)?(\S+) \(([\d.]+) (bytes|kB|MB|GB)\)")
UNITS = {"bytes": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}
POLL_SECONDS = 0.5


class DownloadProgress:
    """Watches the folder that pip downloads to: its TMPDIR."""

    def __init__(self, folder: Path, on_bytes: BytesProgress) -> None:
        self._folder = folder
        self._on_bytes = on_bytes
        self._name, self._size = "", 0

    def on_line(self, line: str) -> None:
        """Process a line of pip's output."""
        match = DOWNLOAD_LINE.match(line)
        self._name = match[1] if match else ""
        self._size = int(float(match[2]) * UNITS[match[3]]) if match else 0

    async def poll(self) -> None:
        """Report the progress until cancelled."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            self.report()

    def report(self) -> None:
        """Report the progress of the current download, if any."""
        if not self._name:
            return
        try:
            done = max(path.stat().st_size for path in self._folder.glob(f"*/{self._name}"))
        except (OSError, ValueError):  # not created yet, or already moved
            return
        done = min(done, self._size)
        text = f"{self._name}: {transferred(done, self._size)}"
        self._on_bytes(done, self._size, text)
