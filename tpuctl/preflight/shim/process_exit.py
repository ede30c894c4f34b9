"""How a rehearsed script ends: as a preemption would end it, then hard; and what is said of it."""

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

__all__ = ["Ending"]

EXIT = 128 + signal.SIGTERM


class Ending:
    """Writes how the process ends, whichever way, and ends it once the steps are done."""

    def __init__(self, writer: Writer, grace: float) -> None:
        self.writer = writer
        self.grace = grace
        self.has_begun = False  # the steps are done
        self.error: dict[str, Any] | None = None
        self.where: Any = None  # finds the user's line of an exception
        self.last: list[Any] = []  # called before the end, whatever it is
        self._is_written = False
        self._status: int | None = None  # as far as it is known
        self._leave = os._exit

    def install(self) -> None:
        """Be there when the process ends; before the script, so that all it registers goes first.

        A script that handles SIGTERM replaces the handler set here, which does what Python does
        at the end of a script: a `finally` and what is registered with atexit have their turn.
        """
        atexit.register(self._at_exit)
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        ):
            signal.signal(signal.SIGTERM, self._terminated)
        report = sys.excepthook

        def excepthook(kind: Any, error: BaseException, traceback: Any) -> None:
            self.writer.attempt("the script's exception", self._note, error)
            sys.excepthook = report
            report(kind, error, traceback)

        sys.excepthook = excepthook

        def leave(status: int) -> NoReturn:
            self.write(status)
            self._leave(status)

        os._exit = leave
        stop = sys.exit

        def leave_python(status: Any = None) -> NoReturn:
            self._status = 0 if status is None else status if isinstance(status, int) else 1
            stop(status)

        sys.exit = leave_python

    def begin(self) -> None:
        """End the script: SIGTERM to itself now, and hard when the grace is over.

        Returns; where the main thread calls this, the signal's handler has been called by then.
        """
        if self.has_begun:
            return
        self.has_begun = True
        threading.Thread(target=self._end_hard, daemon=True, name="tpuctl-grace").start()
        os.kill(os.getpid(), signal.SIGTERM)

    def leave_now(self) -> NoReturn:
        """End the process at once, all that was wanted of it being known."""
        self.has_begun = True
        self.write(0)
        self._flush()
        self._leave(0)
        raise SystemExit(0)

    def write(self, status: int | None, hard: bool = False) -> None:
        """Write the end, the first time only."""
        if self._is_written or os.getpid() != self.writer.process:
            return
        self._is_written = True
        for function in self.last:
            self.writer.attempt("the end", function)
        reason = "steps" if self.has_begun else "failed" if self.error else "finished"
        self.writer.write("ended", reason=reason, exit=status, error=self.error, hard=hard)

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        if self.has_begun:
            self._status = EXIT
            raise SystemExit(EXIT)
        self.write(EXIT)  # somebody else wants the script to end
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    def _at_exit(self) -> None:
        status = 1 if self.error else self._status
        if self.has_begun and status is None:
            status = 0
        self.write(status)
        if self.has_begun and os.getpid() == self.writer.process:
            # Taking TensorFlow apart in the middle of its work can hang or abort.
            self._flush()
            self._leave(status or 0)

    def _end_hard(self) -> None:
        time.sleep(self.grace)
        self.write(EXIT, hard=True)
        self._flush()
        self._leave(EXIT)

    def _note(self, error: BaseException) -> None:
        where = self.where(error) if self.where else None
        self.error = {
            "type": type(error).__name__,
            "message": str(error)[:20000],
            "where": where,
        }

    def _flush(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
