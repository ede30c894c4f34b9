"""Runs another shipped program in a fork of this process.

A fork has the modules of this process, of which those for HTTP and TLS alone take longer to import
than most of these programs run. Like the programs that import it, this file is sent to workers as
it is: standard library only, Python 3.8 and later.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys

TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from typing import NoReturn

MAX_DESCRIPTORS = 1 << 16


class Process:
    """A child process, with the methods of `subprocess.Popen` that are needed here."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None  # negative: the number of the signal that killed it

    def poll(self) -> int | None:
        """The return code; None while the process runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._save(status)
        return self.returncode

    def wait(self) -> int:
        if self.returncode is None:
            self._save(os.waitpid(self.pid, 0)[1])
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _save(self, status: int) -> None:
        is_signal = os.WIFSIGNALED(status)
        self.returncode = -os.WTERMSIG(status) if is_signal else os.WEXITSTATUS(status)


def fork_program(name: str, *arguments: str, output: int | None = None) -> Process:
    """Start a shipped program, such as `fetch`, in a session of its own.

    Its output goes to the descriptor `output`, by default to that of this process. It inherits no
    other descriptor, so that it holds none of this process's locks.
    """
    main = importlib.import_module(name).main  # imported here, so that later forks have it, too
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _run(main, arguments, output)
    return Process(pid)


def _run(main: object, arguments: tuple[str, ...], output: int | None) -> NoReturn:
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        if output is not None:
            os.dup2(output, 1)
            os.dup2(output, 2)
        os.closerange(3, MAX_DESCRIPTORS)
        assert callable(main)
        code = main(list(arguments))
    except SystemExit as exit_request:
        code = exit_request.code if isinstance(exit_request.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
