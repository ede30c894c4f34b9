"""Command lines in a pseudo-terminal, with key presses."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.support.forked_cli import forked_tpuctl


class Terminal:
    """A command line in a separate terminal: its output, Ctrl-C and exit code.

    It runs tpuctl, unless `program` is set.

    with Terminal(folder, "run", "train.py") as terminal:
        terminal.wait_for("step 3")
        terminal.press_ctrl_c()
        assert terminal.end() == 130
    """

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        program: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._master, terminal_side = pty.openpty()
        self._seen = b""
        self._grew = threading.Condition()
        self._process = subprocess.Popen(
            [*(program or (forked_tpuctl(),)), *arguments],
            cwd=folder,
            env=environment,
            stdin=terminal_side,
            stdout=terminal_side,
            stderr=terminal_side,
            start_new_session=True,  # keys reach only this command
        )
        os.close(terminal_side)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(20)
        self._reader.join(20)
        os.close(self._master)

    @property
    def output(self) -> str:
        """All output so far, without the cursor movements of live parts."""
        return self._seen.decode(errors="replace").replace("\r\n", "\n")

    @property
    def sentences(self) -> str:
        """All output so far in one line: sentences are wrapped at the terminal's width."""
        return " ".join(self.output.split())

    def _count(self, text: str) -> int:
        return max(self.output.count(text), self.sentences.count(text))

    def wait_for(self, text: str, seconds: float = 240.0, *, times: int = 1) -> None:
        deadline = time.monotonic() + seconds
        with self._grew:
            while self._count(text) < times:
                left = deadline - time.monotonic()
                assert left > 0, f"no {text!r} in\n{self.output}"
                has_ended = self._process.poll() is not None and not self._reader.is_alive()
                is_shown = self._count(text) >= times
                assert not has_ended or is_shown, f"ended without {text!r}\n{self.output}"
                self._grew.wait(min(left, 0.5))

    def press_ctrl_c(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def refuse_with_ctrl_c(self) -> None:
        """Press Ctrl-C at a question until the command ends: Python loses one that comes after its
        last check for signals and before it reads the answer."""
        while self._process.poll() is None:
            self.press_ctrl_c()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(5)

    def kill(self) -> None:
        """End the command itself, but not what it has started, without a chance to clean up."""
        self._process.kill()

    def type(self, text: str) -> None:
        """Type keys, such as an answer to a prompt."""
        os.write(self._master, text.encode())

    def end(self, seconds: float = 240.0) -> int:
        """Wait for the end; returns its exit code."""
        code = self._process.wait(seconds)
        self._reader.join(20)
        assert "Traceback" not in self.output, self.output
        return code

    def _read(self) -> None:
        while True:
            try:
                more = os.read(self._master, 10_000)
            except OSError:  # the other end was closed
                more = b""
            with self._grew:
                self._seen += more
                self._grew.notify_all()
            if not more:
                return
