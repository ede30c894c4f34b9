"""Writes observations immediately, one JSON line each."""

from __future__ import annotations

import json
import os
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any


class Writer:
    """Appends lines atomically, even if several processes write; never raises.

    A forked child process writes nothing: it inherits the hooks, but its actions are not the
    script's.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.process = os.getpid()
        self._lock = threading.RLock()  # a signal handler may interrupt a write of its thread
        self._failures: set[str] = set()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o644)

    def is_forked(self) -> bool:
        """Whether this is a forked child of the observed process."""
        return os.getpid() != self.process

    def write(self, kind: str, **fields: Any) -> None:
        """Write one observation."""
        if self.is_forked():
            return
        line = {"kind": kind, "process": self.process, "at": round(time.time(), 6), **fields}
        try:
            encoded = json.dumps(line, default=str).encode() + b"\n"
            with self._lock:
                os.write(self._descriptor, encoded)
        except (OSError, ValueError, TypeError):
            pass  # never disturb the script

    def fail(self, action: str) -> None:
        """Write that a part of the shim failed, once per action."""
        text = traceback.format_exc()
        if action not in self._failures:
            self._failures.add(action)
            self.write("shim-failed", action=action, traceback=text)

    def attempt(self, action: str, do: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Return the result of `do`; if it raises, record the failure and return None."""
        try:
            return do(*arguments, **keywords)
        except Exception:
            self.fail(action)
            return None
