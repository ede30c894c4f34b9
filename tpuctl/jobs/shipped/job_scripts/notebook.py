"""Serves notebooks on a worker, keeps their files in the bucket, and reports what kernels do.

Like `supervisor.py`, whose job this is, this file is sent to workers as it is: standard library
only, Python 3.8 and later. It runs in the job's environment, whose JupyterLab it starts on the
machine's loopback interface. `notebook.json` in the job's folder has the server's port and token
for `tpuctl notebook`, and for the watchdog whether a kernel is busy, and when one last was.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from tpuctl.jobs.shipped.machine.folder import Folder
    from tpuctl.jobs.shipped.machine.storage import Bucket
else:
    from folder import Folder
    from storage import Bucket

NOTEBOOKS = "~/notebooks"
FIRST_PORT = 8888
LOOK_SECONDS, SAVE_SECONDS = 2.0, 30.0
STOP_SECONDS = 10.0  # for the server to end
MAX_FILE_BYTES = 100 * 1000**2  # larger files are not saved


class Files:
    """The folder of notebooks, and its copy in the bucket."""

    def __init__(self, folder: str, bucket: Bucket, prefix: str) -> None:
        self.folder = folder
        self.bucket = bucket
        self.prefix = prefix + "/"
        self.saved: dict[str, tuple[int, int]] = {}  # versions by relative path
        self.too_large: set[str] = set()

    def restore(self) -> None:
        """Download what is in the bucket only, such as after the machine was recreated."""
        for name in self.bucket.names(self.prefix):
            path = name[len(self.prefix) :]
            target = os.path.join(self.folder, path)
            if not path or ".." in path.split("/") or os.path.lexists(target):
                continue
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with self.bucket.open("GET", self.bucket.object(name), alt="media") as source:
                with open(target + ".part", "wb") as file:
                    shutil.copyfileobj(source, file)
            os.replace(target + ".part", target)
            self.saved[path] = version(target)

    def save(self) -> None:
        """Upload files that are new or changed; delete those that were deleted here."""
        current = dict(self.current())
        for path, current_version in current.items():
            if self.saved.get(path) != current_version:
                with open(os.path.join(self.folder, path), "rb") as source:
                    self.bucket.put(self.prefix + path, source)
                self.saved[path] = current_version
        for path in [path for path in self.saved if path not in current]:
            self.bucket.delete(self.prefix + path)
            del self.saved[path]

    def current(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """The files to save: path and version."""
        for folder, folders, names in os.walk(self.folder):
            folders[:] = [name for name in folders if name[0] != "." and name != "__pycache__"]
            for name in names:
                full_path = os.path.join(folder, name)
                path = os.path.relpath(full_path, self.folder)
                if os.path.islink(full_path) or not os.path.isfile(full_path):
                    continue
                if os.path.getsize(full_path) > MAX_FILE_BYTES:
                    if path not in self.too_large:
                        log(f"{path} is too large to be saved in the bucket")
                    self.too_large.add(path)
                    continue
                yield path, version(full_path)


class Server:
    """JupyterLab."""

    def __init__(self, job: Folder, folder: str) -> None:
        self.token = secrets.token_hex(24)
        self.runtime = job.file("jupyter")
        self.port = 0  # unknown yet
        self.activity = ""  # when a kernel last did something
        code = job.file("code")
        modules = [code, *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {
            "JUPYTER_TOKEN": self.token,  # not an argument, which all users could read
            "JUPYTER_RUNTIME_DIR": self.runtime,
            "PYTHONPATH": os.pathsep.join(modules),
        }
        settings = {
            "ip": "127.0.0.1",
            "port": FIRST_PORT,
            "port_retries": 100,
            "open_browser": False,
            "allow_root": True,
            "root_dir": folder,
        }
        options = [f"--ServerApp.{name}={value}" for name, value in settings.items()]
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-m", "jupyterlab", *options],
            cwd=folder,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
        )

    def state(self) -> dict[str, Any] | None:
        """For `notebook.json`; None until the server responds."""
        try:
            self.port = self.port or self.read_port()
            kernels = self.get("kernels")
        except (OSError, ValueError, http.client.HTTPException):
            if not self.activity:
                return None
            kernels = []  # it responded before
        terminals: list[dict[str, Any]] = []
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            terminals = self.get("terminals")
        times = [str(session.get("last_activity")) for session in (*kernels, *terminals)]
        self.activity = max([*times, self.activity or "0"])
        return {
            "port": self.port,
            "token": self.token,
            "kernels": len(kernels),
            "is_busy": any(kernel.get("execution_state") == "busy" for kernel in kernels),
            "last_activity": self.activity,
        }

    def read_port(self) -> int:
        path = os.path.join(self.runtime, f"jpserver-{self.process.pid}.json")
        with open(path, encoding="utf-8") as file:
            return int(json.load(file)["port"])

    def get(self, name: str) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            headers = {"Authorization": f"token {self.token}"}
            connection.request("GET", f"/api/{name}", headers=headers)
            response = connection.getresponse()
            if response.status != 200:
                raise OSError(f"HTTP {response.status}")
            return json.loads(response.read())
        finally:
            connection.close()

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def version(path: str) -> tuple[int, int]:
    """Changes when the file does."""
    status = os.stat(path)
    return (status.st_mtime_ns, status.st_size)


def log(text: str) -> None:
    print(f"tpuctl: {text}", flush=True)


def copy_notebooks(code: str, folder: str) -> None:
    """Copy the notebooks that were uploaded with the job, unless they exist."""
    for parent, folders, names in os.walk(code):
        folders[:] = [name for name in folders if name[0] != "."]
        for name in names:
            source = os.path.join(parent, name)
            target = os.path.join(folder, os.path.relpath(source, code))
            if name.endswith(".ipynb") and not os.path.lexists(target):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copy(source, target)


def attempt(work: Callable[[], None], verb: str) -> None:
    """Run a transfer, which fails without consequences for the notebooks on the machine."""
    try:
        work()
    except Exception as error:
        log(f"cannot {verb} notebooks: {type(error).__name__}: {error}")


def main() -> int:
    job = Folder(os.path.dirname(os.path.abspath(__file__)))
    spec = job.read("spec.json")
    assert spec is not None
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    folder = os.path.expanduser(NOTEBOOKS)
    os.makedirs(folder, exist_ok=True)
    files = Files(folder, Bucket(spec["bucket"]), spec["notebooks"])
    attempt(files.restore, "restore")
    copy_notebooks(job.file("code"), folder)
    server = Server(job, folder)
    saved_at, last_state = time.monotonic(), None
    try:
        while not stopped and server.process.poll() is None:
            state = server.state()
            if state is not None and state != last_state:
                job.write("notebook.json", state)
                last_state = state
            if time.monotonic() - saved_at >= SAVE_SECONDS:
                attempt(files.save, "save")
                saved_at = time.monotonic()
            time.sleep(LOOK_SECONDS if last_state else 0.2)
    finally:
        server.stop()
        with contextlib.suppress(FileNotFoundError):
            os.remove(job.file("notebook.json"))
        attempt(files.save, "save")
    return 0 if stopped else server.process.returncode


if __name__ == "__main__":
    sys.exit(main())
