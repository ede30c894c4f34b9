"""Builds a wheel from the files of the running tpuctl, to install it on controllers.

A controller runs `tpuctl wait`, so the wheel lacks the local cloud, the check and the templates,
more than half of the files. Nothing that recovers a job imports them.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tpuctl.assets import PACKAGE, runtime_lock
from tpuctl.version import __version__

# Packages and folders of tpuctl.
NOT_ON_CONTROLLERS = ("emulator", "local_cloud", "preflight", "templates")
ZIP_TIMESTAMP = (1980, 1, 1, 0, 0, 0)  # constant, for reproducible builds


@dataclass(frozen=True)
class Wheel:
    """A package's files, by their names in the wheel."""

    package: str
    version: str
    files: Mapping[str, bytes]

    @property
    def name(self) -> str:
        return f"{self.package}-{self.version}-py3-none-any.whl"

    @property
    def digest(self) -> str:
        """A hash of the package's name, version and files."""
        whole = hashlib.sha256(f"{self.package} {self.version}\n".encode())
        for name in sorted(self.files):
            whole.update(f"{name} {hashlib.sha256(self.files[name]).hexdigest()}\n".encode())
        return whole.hexdigest()

    def build(self) -> bytes:
        """The wheel as a file (packaging.python.org, "Binary distribution format")."""
        folder = f"{self.package}-{self.version}.dist-info"
        metadata = {
            f"{folder}/METADATA": f"Metadata-Version: 2.1\nName: {self.package}\n"
            f"Version: {self.version}\nRequires-Python: >=3.11\n",
            f"{folder}/WHEEL": "Wheel-Version: 1.0\nGenerator: tpuctl\n"
            "Root-Is-Purelib: true\nTag: py3-none-any\n",
            f"{folder}/entry_points.txt": "[console_scripts]\n"
            f"{self.package} = {self.package}.__main__:main\n",
        }
        files = {**self.files, **{name: text.encode() for name, text in metadata.items()}}
        lines = [
            *(f"{name},sha256={_hash(content)},{len(content)}" for name, content in files.items()),
            f"{folder}/RECORD,,",
        ]
        files[f"{folder}/RECORD"] = "".join(f"{line}\n" for line in lines).encode()
        target = io.BytesIO()
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                info = zipfile.ZipInfo(name, ZIP_TIMESTAMP)
                info.external_attr = 0o644 << 16
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, content)
        return target.getvalue()


def controller_wheel() -> Wheel:
    """A wheel with what a controller runs of this tpuctl, wherever it was installed from."""
    package_wheel = wheel_of(PACKAGE, __version__)
    absent = tuple(f"tpuctl/{name}/" for name in NOT_ON_CONTROLLERS)
    files = {
        name: content
        for name, content in package_wheel.files.items()
        if not name.startswith(absent)
    }
    files["tpuctl/runtime.lock"] = runtime_lock().read_bytes()
    return Wheel(package_wheel.package, package_wheel.version, files)


def wheel_of(package: Path, version: str) -> Wheel:
    """A wheel of a package's folder."""
    files = {f"{package.name}/{name}": file.read_bytes() for name, file in _files(package)}
    return Wheel(package.name, version, files)


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for file in sorted(folder.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            yield file.relative_to(folder).as_posix(), file


def _hash(content: bytes) -> str:
    digest = hashlib.sha256(content).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
