"""A mirror of Pythons on loopback, for uv: archives in the layout of python-build-standalone, made
of interpreters of this computer, and the list of them."""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import platform
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from tests.support.http_server import serving_http
from tests.support.prerequisites import skip_or_fail
from tpuctl.environments import environments_folder
from tpuctl.interpreters import Interpreter, find

RELEASE = "20261110"  # as python-build-standalone names its releases
LEFT_OUT = {"site-packages", "test", "idlelib", "tkinter", "turtledemo", "__pycache__", "ensurepip"}
LIST = "downloads.json"


@dataclass
class PythonMirror:
    """What it serves, and what was asked of it. Its list names each archive's checksum, so that a
    changed archive is refused."""

    url: str
    folder: Path
    requests: list[str] = field(default_factory=list)  # names of archives

    @property
    def variables(self) -> dict[str, str]:
        """By which uv knows the mirror's builds and no others."""
        return {"UV_PYTHON_DOWNLOADS_JSON_URL": str(self.folder / LIST)}

    def archive(self, version: str) -> Path:
        """The archive of a version, to be damaged or deleted."""
        return next(self.folder.glob(f"cpython-{version}+*.tar.gz"))

    def remove_all(self) -> None:
        """From now on, no archive can be downloaded."""
        for archive in self.folder.glob("*.tar.gz"):
            archive.unlink()


@contextmanager
def python_mirror(folder: Path, minors: Sequence[str]) -> Iterator[PythonMirror]:
    """Serve the interpreters of these minor versions, until the end of the block. Skips the test
    without them."""
    folder.mkdir(parents=True, exist_ok=True)
    mirror = PythonMirror("", folder)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            mirror.requests.append(self.path.rpartition("/")[2])
            super().do_GET()

        def log_message(self, format: str, *arguments: object) -> None:
            """Do not log."""

    with serving_http(functools.partial(Handler, directory=str(folder))) as server:
        mirror.url = f"http://127.0.0.1:{server.server_port}"
        rows = {}
        for minor in minors:
            interpreter = portable_interpreter(minor)
            archive = packed(interpreter)
            served = folder / archive.name
            if not served.exists():
                served.symlink_to(archive)
            rows |= _row(interpreter, f"{mirror.url}/{quote(archive.name)}", archive)
        (folder / LIST).write_text(json.dumps(rows))
        yield mirror


@functools.cache
def portable_interpreter(minor: str) -> Interpreter:
    """An interpreter of this minor version whose files can be copied elsewhere."""
    interpreter = find([minor])
    if interpreter is None:
        skip_or_fail(f"no Python {minor} has venv and ensurepip")
    if Path(interpreter.path).resolve().is_relative_to("/usr/bin"):
        skip_or_fail(f"Python {minor} cannot be copied, since it is the system's")
    return interpreter


@functools.cache
def packed(interpreter: Interpreter) -> Path:
    """An interpreter's archive, kept between runs."""
    folder = environments_folder() / "python-archives"
    folder.mkdir(parents=True, exist_ok=True)
    name = f"cpython-{interpreter.version}+{RELEASE}-{platform.machine()}-unknown-linux-gnu"
    archive = folder / f"{name}-install_only_stripped.tar.gz"
    if not archive.exists():
        partial = archive.with_suffix(f".{id(folder)}.part")
        prefix = Path(interpreter.path).resolve().parent.parent
        with tarfile.open(partial, "w:gz", compresslevel=1) as target:
            for part in ("bin", "lib"):
                target.add(prefix / part, f"python/{part}", filter=_without_extras)
        partial.replace(archive)
    return archive


def _without_extras(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    parts = entry.name.split("/")
    is_out = entry.name.endswith((".a", ".pyc")) or not LEFT_OUT.isdisjoint(parts)
    return None if is_out or parts[-2:-1] == ["pkgconfig"] else entry


def _row(interpreter: Interpreter, url: str, archive: Path) -> dict[str, dict[str, object]]:
    """A line of the list, as uv reads it."""
    major, minor, patch = map(int, interpreter.version.split("."))
    machine = platform.machine()
    row = {
        "name": "cpython",
        "arch": {"family": machine, "variant": None},
        "os": "linux",
        "libc": "gnu",
        "major": major,
        "minor": minor,
        "patch": patch,
        "prerelease": "",
        "url": url,
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
        "variant": None,
        "build": RELEASE,
    }
    return {f"cpython-{interpreter.version}-linux-{machine}-gnu": row}
