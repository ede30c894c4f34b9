"""A local cloud without machines that can be killed at any crash point, and restarted.

A crash point is just before a lasting effect: a transaction's end in its database, or the creation,
renaming or removal of a file in its folder. They are counted from the start of the process. Between
two of them, a kill leaves the same behind: SQLite forgets a transaction that has not ended.
"""

from __future__ import annotations

import signal
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import requests

from tests.support import fork_server

fork_server.prepare("tests.support.crash_points")

_SECONDS = 20.0


class KillableServer:
    """A folder and the process that currently serves it."""

    def __init__(self, home: Path, pace: str = "instant") -> None:
        self.home = home
        self.pace = pace
        self.crash_points = fork_server.context.Value("i", 0)  # of the current or last process
        self.url = self.token = ""
        self._process: BaseProcess | None = None
        self._session = requests.Session()
        self._session.trust_env = False

    def start(self, kill_at: int = 0) -> bool:
        """Start the server, to be killed at that crash point; returns whether it began to serve."""
        near, far = fork_server.context.Pipe()
        arguments = (self.home, self.pace, kill_at, self.crash_points, far)
        self._process = fork_server.context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        far.close()
        with near:
            try:
                assert near.poll(_SECONDS), "the server did not start"
                port, self.token = near.recv()
            except EOFError:
                return False
        self.url = f"http://127.0.0.1:{port}"
        self._session.headers["Authorization"] = f"Bearer {self.token}"
        return True

    def request(self, verb: str, path: str, **more: Any) -> requests.Response:
        """Send a request; raises requests.RequestException if the server was killed."""
        return self._session.request(verb, self.url + path, timeout=_SECONDS, **more)

    def session(self) -> requests.Session:
        """Return an independent HTTP session."""
        made = requests.Session()
        made.trust_env = False
        made.headers["Authorization"] = f"Bearer {self.token}"
        return made

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.is_alive()

    @property
    def pid(self) -> int:
        assert self._process is not None and self._process.pid is not None
        return self._process.pid

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self.wait()

    def wait(self) -> None:
        assert self._process is not None
        self._process.join(_SECONDS)
        assert self._process.exitcode == -signal.SIGKILL, self._process.exitcode
        self._process.close()
        self._process = None

    def close(self) -> None:
        if self.is_alive:
            self.kill()
        self._session.close()


def _serve(*arguments: Any) -> None:
    """Imported in the fork: importing it here would slow down every test run."""
    from tests.support.crash_points import serve

    serve(*arguments)
