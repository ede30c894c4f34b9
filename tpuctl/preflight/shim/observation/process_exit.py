"""Ends a rehearsed script as a preemption would, and records how it exits."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, NoReturn

from .observation_writer import Writer
from .user_lines import UserLines

SIGTERM_CODE = 128 + signal.SIGTERM


class ScriptExit:
    """Records the exit of the process, for any cause, and ends it after the last step."""

    def __init__(self, writer: Writer, grace: float) -> None:
        self.writer = writer
        self.grace = grace
        self.is_requested = False  # after the last step
        self.error: dict[str, Any] | None = None
        self.user_lines: UserLines | None = None
        self.callbacks: list[Any] = []  # called before the exit, for any cause
        self._is_written = False
        self._status: int | None = None  # if known
        self._os_exit = os._exit

    def install(self) -> None:
        """Install the hooks before the script runs, so that its own exit handlers run first.

        A script that handles SIGTERM replaces the handler set here, which raises SystemExit:
        `finally` blocks and atexit handlers still run.
        """
        atexit.register(self._on_exit)
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        ):
            signal.signal(signal.SIGTERM, self._on_sigterm)
        report = sys.excepthook

        def excepthook(kind: Any, error: BaseException, traceback: Any) -> None:
            self.writer.attempt("the script's exception", self._record_exception, error)
            self.write(1)  # at once: JAX waits for the other processes of a slice before it exits
            sys.excepthook = report
            report(kind, error, traceback)

        sys.excepthook = excepthook

        def os_exit(status: int) -> NoReturn:
            self.write(status)
            self._os_exit(status)

        os._exit = os_exit
        original_exit = sys.exit

        def sys_exit(status: Any = None) -> NoReturn:
            self._status = 0 if status is None else status if isinstance(status, int) else 1
            original_exit(status)

        sys.exit = sys_exit

    def request_exit(self) -> None:
        """Send SIGTERM to this process, and kill it after the grace period.

        Returns, in the main thread only after the signal handler has run.
        """
        if self.is_requested:
            return
        self.is_requested = True
        threading.Thread(target=self._exit_after_grace, daemon=True, name="tpuctl-grace").start()
        os.kill(os.getpid(), signal.SIGTERM)

    def exit_now(self) -> NoReturn:
        """Exit immediately, without exit handlers."""
        self.is_requested = True
        self.write(0)
        self._flush()
        self._os_exit(0)
        raise SystemExit(0)

    def write(self, status: int | None, grace_expired: bool = False) -> None:
        """Write the exit, only once."""
        if self._is_written or os.getpid() != self.writer.process:
            return
        self._is_written = True
        for function in self.callbacks:
            self.writer.attempt("the exit", function)
        reason = "steps" if self.is_requested else "failed" if self.error else "finished"
        self.writer.write(
            "ended", reason=reason, exit=status, error=self.error, grace_expired=grace_expired
        )

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        if self.is_requested:
            self._status = SIGTERM_CODE
            raise SystemExit(SIGTERM_CODE)
        self.write(SIGTERM_CODE)  # the signal is from another process
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    def _on_exit(self) -> None:
        status = 1 if self.error else self._status
        if self.is_requested and status is None:
            status = 0
        self.write(status)
        if self.is_requested and os.getpid() == self.writer.process:
            # Shutting down TensorFlow while it is working can hang or abort.
            self._flush()
            self._os_exit(status or 0)

    def _exit_after_grace(self) -> None:
        time.sleep(self.grace)
        self.write(SIGTERM_CODE, grace_expired=True)
        self._flush()
        self._os_exit(SIGTERM_CODE)

    def _record_exception(self, error: BaseException) -> None:
        lines = self.user_lines
        self.error = {
            "type": type(error).__name__,
            "message": str(error)[:20000],
            "where": lines.of_exception(error) if lines is not None else None,
            "is_tpuctls": lines is not None and lines.is_tpuctls(error),
        }

    def _flush(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
