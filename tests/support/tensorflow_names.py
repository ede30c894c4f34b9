"""Names and parameters of old TensorFlows, read from their wheels without running them.

python tests/support/tensorflow_names.py    # updates tests/job/tensorflow_names.json
"""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["KEPT", "read_names", "sources"]

ROOT = Path(__file__).resolve().parents[2]
LISTED = ROOT / "requirements" / "tensorflow-old.txt"
KEPT = ROOT / "tests" / "job" / "tensorflow_names.json"
# The parts of the public `tf` from which strategies are created, and where their code is.
PARTS = (
    *("config", "config.experimental", "config.threading", "distribute"),
    *("distribute.cluster_resolver", "distribute.experimental", "errors", "tpu.experimental"),
)
WITH_METHODS = (
    "MirroredStrategy",
    "OneDeviceStrategy",
    "ReplicaContext",
    "Strategy",
    "TPUStrategy",
)
CODE = ("_api/v2/", "python/distribute/", "python/eager/", "python/framework/", "python/tpu/")
PYTHON = "3.7"  # the newest with wheels for all of them

Names = dict[str, list[str]]


def sources(cache: Path) -> dict[str, Path]:
    """Return folders with TensorFlow's code by version, downloading missing wheels.

    Of each wheel of over 100 MB, only the files that are read here are kept.
    """
    collected = {}
    for line in LISTED.read_text("utf-8").splitlines():
        if line.startswith("#"):
            continue
        requirement, _, digest = line.partition(" --hash=sha256:")
        version = requirement.partition("==")[2]
        collected[version] = cache / f"tensorflow-{version}-{digest[:16]}"
        if not collected[version].exists():
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                unpack(download(line, Path(folder)), Path(folder, "code"))
                Path(folder, "code").rename(collected[version])
    return collected


def download(line: str, folder: Path) -> Path:
    (folder / "line.txt").write_text(line, "utf-8")
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--only-binary=:all:", "--python-version", PYTHON),
            *("--platform", "manylinux2010_x86_64", "--require-hashes"),
            *("--requirement", folder / "line.txt", "--dest", folder),
        ],
        check=True,
        stdout=sys.stderr,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def unpack(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            # The package used to be called tensorflow_core.
            package, _, path = name.partition("/")
            if package.startswith("tensorflow") and path.endswith(".py") and path.startswith(CODE):
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(name) as source, target.open("wb") as copy:
                    shutil.copyfileobj(source, copy)


def read_names(folder: Path) -> Names:
    """Return the public names with the parameters they take, without `self`.

    `name=` is an optional parameter, `*name` and `**name` are variadic. Methods follow
    their class: `tf.distribute.Strategy.run`.
    """
    found: Names = {}
    for part in PARTS:
        public = Module.read(folder, "_api.v2." + part)
        for name, (module, original) in sorted(public.imported.items()):
            if not name.startswith("_"):
                found |= describe(folder, f"tf.{part}.{name}", module, original)
    return found


def describe(folder: Path, name: str, module: str, original: str) -> Names:
    """The parameters of a function, or of a class and selected methods; none for a constant."""
    place = Module.read(folder, module)
    defined = place.defined.get(original)
    if isinstance(defined, ast.FunctionDef):
        return {name: parameters(defined)}
    if not isinstance(defined, ast.ClassDef):
        return {}
    found: Names = {name: []}
    for method in methods(folder, place, defined):
        if method.name == "__init__":
            found[name] = parameters(method)[1:]
        elif name.rpartition(".")[2] in WITH_METHODS and not method.name.startswith("_"):
            found[f"{name}.{method.name}"] = parameters(method)[1:]
    return found


def methods(folder: Path, place: Module, defined: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    """The methods inherited from stored base classes, followed by the class's own."""
    for base in defined.bases:
        if isinstance(base, ast.Name):
            module, original = place.imported.get(base.id, (place.name, base.id))
        elif isinstance(base, ast.Attribute) and isinstance(base.value, ast.Name):
            package, imported = place.imported.get(base.value.id, ("", ""))
            module, original = f"{package}.{imported}", base.attr
        else:
            continue
        there = Module.read(folder, module)
        inherited = there.defined.get(original)
        if isinstance(inherited, ast.ClassDef):
            yield from methods(folder, there, inherited)
    yield from (node for node in defined.body if isinstance(node, ast.FunctionDef))


def parameters(function: ast.FunctionDef) -> list[str]:
    parameters = function.args
    positional = [node.arg for node in (*parameters.posonlyargs, *parameters.args)]
    needed = len(positional) - len(parameters.defaults)
    collected = [name if n < needed else f"{name}=" for n, name in enumerate(positional)]
    collected += [f"*{parameters.vararg.arg}"] if parameters.vararg else []
    collected += [f"{node.arg}=" for node in parameters.kwonlyargs]
    return collected + ([f"**{parameters.kwarg.arg}"] if parameters.kwarg else [])


class Module(NamedTuple):
    """A module's definitions, and its imports by local name."""

    name: str
    defined: dict[str, ast.stmt]
    imported: dict[str, tuple[str, str]]

    @classmethod
    def read(cls, folder: Path, name: str) -> Module:
        """Parse a module; returns an empty one if it is not stored."""
        path = folder.joinpath(*name.removeprefix("tensorflow.").split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        body = ast.parse(path.read_text("utf-8")).body if path.is_file() else []
        return cls(
            name,
            {node.name: node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)},
            {
                alias.asname or alias.name: (node.module, alias.name)
                for node in body
                if isinstance(node, ast.ImportFrom) and node.module
                for alias in node.names
            },
        )


def main() -> None:
    from tpuctl.emulator.machines.images import ImageStore

    names = {
        version: read_names(folder)
        for version, folder in sources(ImageStore().cache / "tensorflow-names").items()
    }
    lines = []
    for version, collected in names.items():
        rows = [f"  {json.dumps(name)}: {json.dumps(takes)}" for name, takes in collected.items()]
        lines.append(f" {json.dumps(version)}: {{\n" + ",\n".join(rows) + "\n }")
    KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main()
