"""A mirror of Pythons on loopback, for uv: archives in the layout of python-build-standalone, made
of interpreters of this computer, and the list of them."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote

from tests.support.http_server import QuietHandler, serving_http
from tests.support.prerequisites import skip_or_fail
from tpuctl.interpreters import Interpreter, find

RELEASE = "20261110"  # as python-build-standalone names its releases
# Where python-build-standalone has its releases; uv replaces it by UV_PYTHON_INSTALL_MIRROR.
UPSTREAM = "https://github.com/astral-sh/python-build-standalone/releases/download"
LEFT_OUT = {
    "site-packages",
    "test",
    "idlelib",
    "tkinter",
    "turtledemo",
    "__pycache__",
    "pydoc_data",
}
LAYOUT = 1  # of what is kept between runs
LIST = "downloads.json"
CHUNK_BYTES = 65_536
Fault = Literal["", "fail", "hang", "truncate", "wrong bytes"]


@dataclass
class PythonMirror:
    """What it serves, and what was asked of it.

    Its list names each archive's checksum, so that a changed archive is refused. `fault` applies to
    all archives from then on, and "" ends it:

    - "fail": the answer is 503;
    - "hang": the answer ends after `fault_after` bytes, but not the connection;
    - "truncate": both end after `fault_after` bytes;
    - "wrong bytes": as long as the right ones.
    """

    url: str
    folder: Path
    fault: Fault = ""
    fault_after: int = 100_000
    requests: list[str] = field(default_factory=list)  # names of archives
    bytes_sent: int = 0  # of archives
    rows: dict[str, dict[str, object]] = field(default_factory=dict)
    is_hanging: threading.Event = field(default_factory=threading.Event)
    end: threading.Event = field(default_factory=threading.Event)

    @property
    def variables(self) -> dict[str, str]:
        """By which uv knows the mirror's builds and no others."""
        return {"UV_PYTHON_DOWNLOADS_JSON_URL": f"{self.url}/{LIST}"}

    @property
    def mirror_variables(self) -> dict[str, str]:
        """The same for a list that names the usual place, in the stead of which the mirror is."""
        upstream = self.folder / f"upstream-{LIST}"
        upstream.write_text(json.dumps(self.rows).replace(self.url, UPSTREAM))
        return {
            "UV_PYTHON_DOWNLOADS_JSON_URL": str(upstream),
            "UV_PYTHON_INSTALL_MIRROR": self.url,
        }

    def key(self, version: str, architecture: str = platform.machine()) -> str:
        """The key of a build as tpuctl names it; of a minor version, that of its only release."""
        prefix, suffix = f"cpython-{version}", f"-linux-{architecture}-gnu"
        (key,) = (
            key
            for key in self.rows
            if key == prefix + suffix or (key.startswith(f"{prefix}.") and key.endswith(suffix))
        )
        return f"{key}-{RELEASE}"

    def sha256(self, version: str, architecture: str = platform.machine()) -> str:
        """The checksum of a version's archive."""
        row = self.rows[self.key(version, architecture).removesuffix(f"-{RELEASE}")]
        return str(row["sha256"])

    def archive(self, version: str, architecture: str = platform.machine()) -> Path:
        """The file of a version's archive, which tests may delete or replace, but not write to."""
        key = self.key(version, architecture)
        return self.folder / _archive_name(key.split("-")[1], architecture)

    def add(self, version: str, archive: Path, architecture: str = platform.machine()) -> None:
        """Serve an archive as that of a version, also of one that no interpreter here has."""
        major, minor, patch = map(int, version.split("."))
        name = _archive_name(version, architecture)
        (self.folder / name).symlink_to(archive)
        self.rows[f"cpython-{version}-linux-{architecture}-gnu"] = {
            "name": "cpython",
            "arch": {"family": architecture, "variant": None},
            "os": "linux",
            "libc": "gnu",
            "major": major,
            "minor": minor,
            "patch": patch,
            "prerelease": "",
            "url": f"{self.url}/{RELEASE}/{quote(name)}",
            "sha256": _sha256(archive),
            "variant": None,
            "build": RELEASE,
        }

    def remove_all(self) -> None:
        """From now on, no archive can be downloaded."""
        for archive in self.folder.glob("*.tar.gz"):
            archive.unlink()


@contextmanager
def python_mirror(
    folder: Path, minors: Sequence[str], architectures: Sequence[str] = (platform.machine(),)
) -> Iterator[PythonMirror]:
    """Serve the interpreters of these minor versions, until the end of the block. Skips the test
    without them.

    Those of other architectures are the same archives: they can be installed, but not run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mirror = PythonMirror("", folder)

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            _answer(self, mirror)

    with serving_http(Handler) as server:
        mirror.url = f"http://127.0.0.1:{server.server_port}"
        for minor in minors:
            interpreter = portable_interpreter(minor)
            for architecture in architectures:
                mirror.add(interpreter.version, packed(interpreter), architecture)
        try:
            yield mirror
        finally:
            mirror.end.set()


def _answer(handler: QuietHandler, mirror: PythonMirror) -> None:
    name = unquote(handler.path).rpartition("/")[2]
    if name == LIST:
        _send(handler, json.dumps(mirror.rows).encode())
        return
    mirror.requests.append(name)
    archive = mirror.folder / name
    is_missing = not archive.is_file()
    if is_missing or mirror.fault == "fail":
        handler.send_error(HTTPStatus.NOT_FOUND if is_missing else HTTPStatus.SERVICE_UNAVAILABLE)
        return
    data = archive.read_bytes()
    if mirror.fault == "wrong bytes":
        middle = len(data) // 2
        data = data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]
    size = len(data)
    if mirror.fault in ("hang", "truncate"):
        data = data[: mirror.fault_after]
    mirror.bytes_sent += _send(handler, data, size)
    if mirror.fault == "hang":
        mirror.is_hanging.set()
        mirror.end.wait()
    handler.close_connection = True


def _send(handler: QuietHandler, data: bytes, size: int | None = None) -> int:
    """Send data as an answer of `size` bytes; returns how much of it was taken."""
    handler.send_response(HTTPStatus.OK)
    handler.send_header("Content-Length", str(len(data) if size is None else size))
    handler.end_headers()
    count = 0
    with suppress(ConnectionError):  # the client was ended
        for start in range(0, len(data), CHUNK_BYTES):
            count += handler.wfile.write(data[start : start + CHUNK_BYTES])
        handler.wfile.flush()
    return count


def _archive_name(version: str, architecture: str) -> str:
    platform_name = f"{architecture}-unknown-linux-gnu"
    return f"cpython-{version}+{RELEASE}-{platform_name}-install_only_stripped.tar.gz"


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
    """An interpreter's archive, kept between runs of the tests."""
    import platformdirs

    path = Path(interpreter.path).resolve()
    status = path.stat()
    state = f"{path} {status.st_size} {status.st_mtime_ns} {LAYOUT}"
    digest = hashlib.sha256(state.encode()).hexdigest()[:16]
    folder = platformdirs.user_cache_path("tpuctl-tests") / "pythons"
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"{interpreter.version}-{digest}.tar.gz"
    if not archive.exists():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            tree = Path(scratch, "python")
            _copy_relocatable(path.parent.parent, interpreter.minor, tree)
            partial = Path(scratch, archive.name)
            with tarfile.open(partial, "w:gz", compresslevel=1) as target:
                target.add(tree, "python")
            partial.replace(archive)
    return archive


def _copy_relocatable(prefix: Path, minor: str, tree: Path) -> None:
    """Copy what a Python needs to run, from its prefix, which others may share."""
    for folder in ("bin", "include", "lib"):
        (tree / folder).mkdir(parents=True)
    program = f"python{minor}"
    libraries = list(prefix.glob(f"lib/libpython{minor}.so*"))
    for source in (prefix / "bin" / program, *libraries):
        shutil.copy2(source, tree / source.relative_to(prefix), follow_symlinks=False)
    for name in ("python", "python3"):
        (tree / "bin" / name).symlink_to(program)
    shutil.copytree(
        prefix / "lib" / program,
        tree / "lib" / program,
        symlinks=True,
        ignore=lambda folder, names: [
            name for name in names if name in LEFT_OUT or name.startswith("config-")
        ],
    )
    (tree / "lib" / program / "site-packages").mkdir()
    headers = prefix / "include" / program
    if headers.is_dir():
        shutil.copytree(headers, tree / "include" / program)
    binaries = [tree / "bin" / program, *tree.glob("lib/*.so*"), *tree.rglob("lib-dynload/*.so")]
    binaries = [binary for binary in binaries if not binary.is_symlink()]
    if shutil.which("strip"):
        subprocess.run(["strip", "--strip-unneeded", *binaries], check=True, capture_output=True)
    for binary in binaries:
        _make_relocatable(binary, prefix / "lib")


def _make_relocatable(binary: Path, libraries: Path) -> None:
    """Have it look for its libraries by its own path, if it names their folder (DT_RUNPATH)."""
    absolute = f"{libraries}\0".encode()
    relative = b"$ORIGIN/../lib\0"
    if len(absolute) >= len(relative):
        data = binary.read_bytes()
        if absolute in data:
            binary.write_bytes(data.replace(absolute, relative.ljust(len(absolute), b"\0")))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def unpacked(archive: Path, folder: Path) -> Path:
    """The interpreter of an archive, unpacked to a folder."""
    with tarfile.open(fileobj=io.BytesIO(archive.read_bytes())) as source:
        if sys.version_info >= (3, 12):
            source.extractall(folder, filter="tar")
        else:
            source.extractall(folder)
    return folder / "python" / "bin" / "python3"
