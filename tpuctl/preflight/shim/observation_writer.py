"""Observations, written down as they are made: one line of JSON each."""

from __future__ import annotations

import json
import os
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

__all__ = ["Writer"]


class Writer:
    """Appends lines that stay whole when several processes write; never raises.

    A process that was forked from the one that made this writes nothing: it shares what was
    watched, but not what is done.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.process = os.getpid()
        self._lock = threading.RLock()  # a signal's handler may write while its thread does
        self._failures: set[str] = set()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o644)

    def is_foreign(self) -> bool:
        """Whether this is a process that was forked from the one that is watched."""
        return os.getpid() != self.process

    def write(self, kind: str, **fields: Any) -> None:
        """Write one observation."""
        if self.is_foreign():
            return
        line = {"kind": kind, "process": self.process, "at": round(time.time(), 6), **fields}
        try:
            encoded = json.dumps(line, default=str).encode() + b"\n"
            with self._lock:
                os.write(self._descriptor, encoded)
        except (OSError, ValueError, TypeError):
            pass  # the script is worth more than what is seen of it

    def fail(self, action: str) -> None:
        """Write that something of the shim went wrong, once for each place."""
        text = traceback.format_exc()
        if action not in self._failures:
            self._failures.add(action)
            self.write("shim-failed", action=action, traceback=text)

    def attempt(self, action: str, do: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """What `do` returns, or None, written down, where it fails."""
        try:
            return do(*arguments, **keywords)
        except Exception:
            self.fail(action)
            return None
