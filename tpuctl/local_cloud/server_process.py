"""Start, find and stop a local cloud from another process.

cloud = start(default_home())          # the running one, or a new one
report(cloud)["nodes"]
stop(cloud.home)
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs

from tpuctl.errors import Conflict, NotFound, TpuctlError, Unreachable, Usage
from tpuctl.files import private_folder
from tpuctl.local_cloud.folder_removal import remove_folder
from tpuctl.local_cloud.home_lock import LOCK_FILE, home_holder
from tpuctl.local_cloud.pace import PACES
from tpuctl.shell_record import original_environment

if TYPE_CHECKING:
    from filelock import FileLock

_POLL_SECONDS = 0.03
_STOP_SECONDS = 20.0
_LOG_LINES = 15
_CHANGE_HINTS = {
    "port": "Stop it first:\n    tpuctl local down",
    "pace": "Change it while it runs:\n    tpuctl local set pace {}",
}
_MAX_LOG_BYTES = 4 << 20  # a larger log is rotated at the next start
# Everything a local cloud stores in its folder. Images are cached elsewhere.
_STATE_NAMES = (
    "addresses.json",
    "addresses.new",
    "authority",
    "discarded",
    "environment",
    "gateway.json",
    "machines",
    "objects",
    "parts",
    "server.draft",
    "server.json",
    "server.log",
    "server.log.old",
    "shared",
    "state.sqlite",
    "state.sqlite-shm",
    "state.sqlite-wal",
    "token",
    "token.draft",
    "uploads",
)


@dataclass(frozen=True)
class LocalCloud:
    """A running local cloud."""

    url: str  # http://127.0.0.1:PORT, without a trailing slash
    token: str
    port: int
    pid: int
    home: Path
    pace: str
    isolation: str = ""  # how machines are isolated from the computer

    @property
    def runs_startup_scripts(self) -> bool:
        """Whether machines run startup scripts: only where they are isolated."""
        return not self.isolation.startswith("none")


def default_home() -> Path:
    """The folder of the user's local cloud, or the one that TPUCTL_LOCAL_HOME names."""
    configured = os.environ.get("TPUCTL_LOCAL_HOME")
    if configured:
        return Path(configured).expanduser().absolute()
    return Path(platformdirs.user_data_dir("tpuctl")) / "local"


def status(home: Path) -> LocalCloud | None:
    """The local cloud of this folder if it is running, else None. Starts nothing."""
    try:
        record = json.loads((home / "server.json").read_text("utf-8"))
        token = (home / "token").read_text("ascii").strip()
        cloud = LocalCloud(
            url=record["url"],
            token=token,
            port=int(record["port"]),
            pid=int(record["pid"]),
            home=home,
            pace=record["pace"],
        )
        answer = report(cloud)
    except (OSError, ValueError, KeyError, TpuctlError):
        return None
    # Another program may use the port by now; only ours knows the token and its folder.
    is_its_home = os.path.realpath(str(answer.get("home"))) == os.path.realpath(home)
    is_ours = answer.get("pid") == cloud.pid and is_its_home
    return replace(cloud, isolation=str(answer.get("isolation"))) if is_ours else None


def start(
    home: Path,
    *,
    port: int | None = None,
    pace: str | None = None,
    ssh: str = "auto",
    timeout: float = 60.0,
) -> LocalCloud:
    """The local cloud of this folder, started if it is not running. Safe to call concurrently.

    Without `port` it reuses the last one, if that is free. A running one is returned as it is;
    Conflict if it has another port or pace than requested. The timeout is for a process that stays
    alive without an answer: reading its modules has taken more than 20 s from a busy disk.
    """
    if pace is not None and pace not in PACES:
        raise Usage("Unknown pace", repr(pace), hint=f"Use one of {', '.join(PACES)}.")
    home = home.absolute()
    private_folder(home)
    with _lock(home):
        running = status(home)
        if running is not None:
            return _require_settings(running, port, pace)
        # One that stops does not answer any more, but has not saved everything yet.
        if not wait_until(lambda: home_holder(home) is None, _STOP_SECONDS):
            raise _unresponsive(f"process {home_holder(home)} serves {home} and does not answer")
        record = _read_record(home)
        chosen_port = int(record.get("port") or 0)
        if port is not None:
            _require_free(port)
            chosen_port = port
        elif chosen_port and not _is_free(chosen_port):
            chosen_port = 0  # another program uses it now: pick a free one
        command = [sys.executable, "-m", "tpuctl.emulator", "--home", str(home)]
        command += ["--port", str(chosen_port), "--ssh", ssh]
        command += ["--pace", pace or str(record.get("pace") or "quick")]
        return _spawn(command, home, timeout)


def report(cloud: LocalCloud) -> dict[str, Any]:
    """The server's status: version, uptime, pace, and resource counts."""
    return request(cloud, "GET", "/_local/status")


def stop(home: Path) -> bool:
    """Stop the local cloud of this folder with its machines; False if it was not running."""
    home = home.absolute()
    if not home.is_dir():
        return False
    with _lock(home):
        return _stop(home)


def _stop(home: Path) -> bool:
    cloud = status(home)
    if cloud is None:
        holder = home_holder(home)
        return holder is not None and _kill(holder, home)
    with contextlib.suppress(TpuctlError):
        request(cloud, "POST", "/_local/shutdown")
    if not wait_until(lambda: not _is_alive(cloud.pid), _STOP_SECONDS):
        _kill(cloud.pid, home)
    return True


def reset(home: Path) -> None:
    """Stop the local cloud and delete all its state: nodes, buckets, projects, machines.

    Cached machine images stay. Usage for a folder that is not a local cloud's.
    """
    home = home.absolute()
    if not home.exists():
        return
    names = {path.name for path in home.iterdir()} - {"lock", LOCK_FILE}
    if names and not {"token", "state.sqlite"} & names:
        raise Usage(
            "Not a local cloud folder",
            f"{home} contains other files: {', '.join(sorted(names)[:5])}",
            hint="Use the folder of a local cloud, or an empty one.",
        )
    with _lock(home):
        _stop(home)
        if (holder := home_holder(home)) is not None:
            raise _unresponsive(f"process {holder} serves {home}, and cannot be stopped")
        for name in _STATE_NAMES:
            path = home / name
            if path.is_dir() and not path.is_symlink():
                remove_folder(path)
            else:
                path.unlink(missing_ok=True)


def _require_settings(running: LocalCloud, port: int | None, pace: str | None) -> LocalCloud:
    for name, requested, actual in (("port", port, running.port), ("pace", pace, running.pace)):
        if requested is not None and requested != actual:
            raise Conflict(
                "Local cloud is already running with different settings",
                f"its {name} is {actual}, not {requested} (process {running.pid})",
                hint=_CHANGE_HINTS[name].format(requested),
            )
    return running


def _spawn(command: list[str], home: Path, timeout: float) -> LocalCloud:
    log = home / "server.log"
    if log.exists() and log.stat().st_size > _MAX_LOG_BYTES:
        log.replace(home / "server.log.old")
    # Without the variables of `tpuctl local env`: they would route it through its own gateway.
    environment = {**original_environment(os.environ), "PYTHONUNBUFFERED": "1"}
    with log.open("ab") as out:
        offset = out.tell()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=home,
            env=environment,
            start_new_session=True,
        )
    clouds: list[LocalCloud] = []

    def answers() -> bool:
        if process.poll() is not None:
            return True
        cloud = status(home)
        if cloud is not None and cloud.pid == process.pid:
            clouds.append(cloud)
        return bool(clouds)

    wait_until(answers, timeout)
    if clouds:
        # It is meant to outlive this process: no ResourceWarning.
        process.returncode = 0
        return clouds[0]
    with log.open("rb") as file:
        file.seek(offset)
        lines = file.read().decode("utf-8", "replace").splitlines()[-_LOG_LINES:]
    output = "\n".join(lines) or "(no output)"
    if process.poll() is None:
        process.kill()
        process.wait()
        raise _unresponsive(f"no answer within {timeout:.0f} s:\n{output}")
    if any(line.startswith("Port in use") for line in lines):
        raise _port_taken(int(command[command.index("--port") + 1]))
    raise TpuctlError(
        "Failed to start the local cloud",
        f"it exited with code {process.returncode}:\n{output}",
        hint=f"See the full log in {log}",
    )


def _require_free(port: int) -> None:
    try:
        is_free = _is_free(port)
    except PermissionError:
        raise Usage(
            "Port not allowed",
            f"{port} requires administrator rights",
            hint="Use a port above 1023:\n    tpuctl local up --port N",
        ) from None
    if not is_free:
        raise _port_taken(port)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except PermissionError:
            raise
        except OSError:
            return False
    return True


def _port_taken(port: int) -> Usage:
    return Usage(
        "Port in use",
        f"another program listens on 127.0.0.1:{port}",
        hint="Stop that program, or use another port:\n    tpuctl local up --port N",
    )


def request(cloud: LocalCloud, verb: str, path: str, body: Any = None) -> dict[str, Any]:
    """Send a request to the cloud's control API, such as `GET /_local/faults`.

    Raises Usage with the cloud's message for an invalid request, NotFound, or Unreachable.
    """
    request = urllib.request.Request(
        cloud.url + path,
        method=verb,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {cloud.token}", "Content-Type": "application/json"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=10) as answer:
            return dict(json.loads(answer.read()))
    except urllib.error.HTTPError as error:
        with error, contextlib.suppress(ValueError, KeyError):
            refusal = NotFound if error.code == 404 else Usage
            if error.code in (400, 404):
                message = json.loads(error.read())["error"]["message"]
                raise refusal("Rejected by the local cloud", message) from error
        raise _unresponsive(f"{cloud.url}: {error}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _unresponsive(f"{cloud.url}: {error}") from error


def _unresponsive(detail: str) -> Unreachable:
    return Unreachable(
        "Local cloud is not responding",
        detail,
        hint="Restart it (its state is kept):\n    tpuctl local down\n    tpuctl local up",
    )


def _kill(pid: int, home: Path) -> bool:
    """Kill the server of this folder; True."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        # Checked each time: the process id may have been reused.
        if home_holder(home) != pid:
            return True
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        if wait_until(lambda: not _is_alive(pid), 5.0):
            return True
    return True


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # reap it if this process is its parent
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    # It may be a zombie of another parent.
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1] != b"Z"
    return True


def wait_until(condition: Callable[[], bool], timeout: float) -> bool:
    """Poll the condition; False if it is not met before the timeout."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        # Not time.sleep, which fails under libfaketime if that changes the wall clock alone.
        threading.Event().wait(_POLL_SECONDS)
    return True


def _read_record(home: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((home / "server.json").read_text("utf-8")))
    except (OSError, ValueError):
        return {}


def _lock(home: Path) -> FileLock:
    """Serializes starts and stops across processes."""
    from filelock import FileLock

    return FileLock(home / "lock", mode=0o600)
