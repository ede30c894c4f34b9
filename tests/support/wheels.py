"""Wheels and projects created by tests, so that installing them needs no index."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

# A build backend within the project it builds: nothing else is needed. If the project has a
# file `gate`, it names a file that must exist before anything is built.
BACKEND = """
import os, time, zipfile

def build_wheel(target, config_settings=None, metadata_directory=None):
    if os.path.exists("gate"):
        gate = open("gate").read()
        open(gate + ".reached", "w").close()
        while not os.path.exists(gate):
            time.sleep(0.02)
    name, version, module = open("facts").read().split()
    stem = name.replace("-", "_") + "-" + version
    info = stem + ".dist-info/"
    files = {
        info + "METADATA": f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n",
        info + "WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        info + "entry_points.txt": f"[console_scripts]\\nsay-{module} = {module}:say\\n",
    }
    for folder, _, names in os.walk("lib"):
        for file in names:
            if file.endswith(".py"):
                path = os.path.join(folder, file)
                files[os.path.relpath(path, "lib")] = open(path).read()
    record = "".join(f"{path},,\\n" for path in [*files, info + "RECORD"])
    wheel = stem + "-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(target, wheel), "w") as archive:
        for path, text in {**files, info + "RECORD": record}.items():
            archive.writestr(path, text)
    return wheel
"""


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    *,
    module: str = "",
    requires: Sequence[str] = (),
    text: str = "",
    programs: Sequence[str] = (),
    requires_python: str = "",
) -> Path:
    """A wheel with one module that has `__version__`; `text` is added to the module.

    `programs` are entry points such as `say-hello = module:function`.
    """
    module = module or name.replace("-", "_")
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Python: {requires_python}\n" if requires_python else ""
    metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    contents = {
        f"{module}/__init__.py": f"__version__ = {version!r}\nfrom_wheel = {name!r}\n{text}",
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/top_level.txt": f"{module}\n",
    }
    if programs:
        contents[f"{info}/entry_points.txt"] = "\n".join(["[console_scripts]", *programs, ""])
    record = "".join(f"{path},,\n" for path in [*contents, f"{info}/RECORD"])
    folder.mkdir(exist_ok=True)
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in {**contents, f"{info}/RECORD": record}.items():
            archive.writestr(path, content)
    return wheel


def make_source(folder: Path, name: str, backend: str) -> None:
    """A source distribution, version 1.0, with that build backend."""
    files = {
        "PKG-INFO": f"Metadata-Version: 2.2\nName: {name}\nVersion: 1.0\n",
        "pyproject.toml": f'[project]\nname = "{name}"\nversion = "1.0"\n'
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": backend,
    }
    with tarfile.open(folder / f"{name}-1.0.tar.gz", "w:gz") as archive:
        for path, text in files.items():
            info = tarfile.TarInfo(f"{name}-1.0/{path}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))


def make_project(
    folder: Path,
    module: str,
    code: str,
    *,
    version: str = "1.0",
    dependencies: Sequence[str] = (),
    gate: Path | None = None,
) -> None:
    """A package with its own build backend, which finds the module in `lib`."""
    (folder / "lib").mkdir(parents=True, exist_ok=True)
    (folder / "lib" / f"{module}.py").write_text(code)
    (folder / "backend.py").write_text(BACKEND)
    (folder / "facts").write_text(f"{module} {version} {module}")
    if gate is not None:
        (folder / "gate").write_text(str(gate))
    (folder / "pyproject.toml").write_text(
        f'[project]\nname = "{module}"\nversion = "{version}"\n'
        f"dependencies = {list(dependencies)}\n"
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
