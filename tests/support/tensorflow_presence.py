"""The names in each TensorFlow 2, read from the wheels without running them.

python tests/support/tensorflow_presence.py FOLDER   # downloads some 5 GB, keeps 1 GB in FOLDER
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tpuctl.preflight.analysis.tensorflow.versioned_names import read_names

ROOT = Path(__file__).resolve().parents[2]
STORED = ROOT / "tests" / "corpus" / "tensorflow_presence.json"
VERSIONS = [f"2.{minor}" for minor in range(1, 19)]
KERAS = {"2.13": "2.13.1"} | dict.fromkeys(("2.16", "2.17", "2.18"), "3.15.1")
PATCH = {"2.16": "2.16.1"}
PYTHONS = {"2.1": "3.7", "2.2": "3.7", "2.3": "3.7", "2.4": "3.8", "2.5": "3.8"}
PLATFORMS = ("manylinux2010_x86_64", "manylinux2014_x86_64", "manylinux_2_17_x86_64", "any")
ALIASES = ("losses", "metrics", "optimizers", "initializers")  # of tf.keras
API = "tensorflow._api.v2"

# What a name in a module refers to: a module, a class with its module, or anything else.
Found = tuple[str, str, ast.ClassDef | None]


def fetch(package: str, version: str, python: str, cache: Path) -> Path:
    """The folder with a wheel's Python files, downloaded if missing."""
    folder = cache / f"{package}-{version}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as place:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            command += ["--only-binary=:all:", "--python-version", python, "--dest", place]
            command += [f"--platform={item}" for item in PLATFORMS] + [f"{package}=={version}"]
            subprocess.run(command, check=True, stdout=sys.stderr)
            (wheel,) = Path(place).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if name.endswith(".py"):
                        archive.extract(name, Path(place, "code"))
            Path(place, "code").rename(folder)
    return folder


class Reader:
    """Looks names up in the files of one version, its Keras and its estimators."""

    def __init__(self, version: str, cache: Path) -> None:
        minor = int(version.split(".")[1])
        python = PYTHONS.get(version, "3.11" if minor >= 16 else "3.9")
        full = PATCH.get(version, f"{version}.0")
        wheel = fetch("tensorflow-cpu", full, python, cache)
        tensorflow = wheel / "tensorflow_core"  # the package's former name
        tensorflow = tensorflow if tensorflow.is_dir() else wheel / "tensorflow"
        self.roots = {"tensorflow": tensorflow, "tensorflow_core": tensorflow}
        self.tops = {("keras",): "tensorflow.python.keras.api._v2.keras"}
        if minor >= 6:
            keras_version = KERAS.get(version, f"{version}.0")
            self.roots["keras"] = fetch("keras", keras_version, python, cache) / "keras"
            new = minor >= 16
            self.tops["keras",] = "keras._tf_keras.keras" if new else "keras.api._v2.keras"
        estimator = "tensorflow_estimator.python.estimator.api._v{}.estimator"
        self.tops["estimator",] = estimator.format(2)
        self.tops["compat", "v1", "estimator"] = estimator.format(1)
        if minor < 16:
            place = fetch("tensorflow-estimator", f"{version}.0", python, cache)
            self.roots["tensorflow_estimator"] = place / "tensorflow_estimator"
        self.read: dict[str, dict[str, Found]] = {}

    def has(self, name: str) -> bool:
        """Whether `tensorflow.a.b` exists; for classes also methods, including inherited ones."""
        parts = name.split(".")[1:]
        if parts[0] in ALIASES:
            parts = ["keras", *parts]
        for top, module in self.tops.items():
            if tuple(parts[: len(top)]) == top:
                return self.file(module) is not None and self.walk(module, parts[len(top) :])
        if self.file(f"{API}.{parts[0]}"):
            return self.walk(f"{API}.{parts[0]}", parts[1:])
        return self.walk(f"{API}.v2" if self.file(f"{API}.v2") else API, parts)

    def walk(self, module: str, parts: list[str]) -> bool:
        here: Found | None = ("module", module, None)
        for part in parts:
            if here is None:
                return False
            kind, place, defined = here
            if kind == "module":
                here = self.member(place, part)
            elif defined is not None:
                here = ("other", "", None) if part in set(self.methods(place, defined)) else None
            else:
                return False
        return here is not None

    def file(self, module: str) -> Path | None:
        first, *rest = module.split(".")
        if first not in self.roots:
            return None
        place = self.roots[first].joinpath(*rest)
        for path in (place / "__init__.py", *([place.with_suffix(".py")] if rest else [])):
            if path.is_file():
                return path
        return None

    def member(self, module: str, name: str) -> Found | None:
        entries = self.names(module).get(name)
        if entries is None and self.file(f"{module}.{name}"):
            return "module", f"{module}.{name}", None
        if entries is not None and entries[0].startswith("from "):
            source, original = entries[1], entries[0].removeprefix("from ")
            if (source, original) == (module, name):
                return (
                    ("module", f"{source}.{name}", None) if self.file(f"{source}.{name}") else None
                )
            return self.member(source, original) or ("other", "", None)
        return entries

    def names(self, module: str) -> dict[str, Found]:
        """The names that a module defines or imports."""
        if module in self.read:
            return self.read[module]
        entries = self.read[module] = {}
        path = self.file(module)
        if path is None:
            return entries
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        for node in statements(ast.parse(path.read_text("utf-8")).body):
            if isinstance(node, ast.ImportFrom):
                entries.update(self.imported(node, package))
            elif isinstance(node, ast.Import):
                for item in node.names:
                    first = item.name if item.asname else item.name.split(".")[0]
                    entries[item.asname or first] = ("module", first, None)
            elif isinstance(node, ast.ClassDef):
                entries[node.name] = ("class", module, node)
            elif isinstance(node, ast.FunctionDef):
                entries[node.name] = ("other", "", None)
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        same = (
                            entries.get(node.value.id) if isinstance(node.value, ast.Name) else None
                        )
                        entries[target.id] = same or ("other", "", None)
        return entries

    def methods(self, module: str, defined: ast.ClassDef) -> Iterator[str]:
        for base in defined.bases:
            entries = None
            if isinstance(base, ast.Name):
                entries = self.member(module, base.id)
            elif isinstance(base, ast.Attribute) and isinstance(base.value, ast.Name):
                there = self.member(module, base.value.id)
                entries = (
                    self.member(there[1], base.attr) if there and there[0] == "module" else None
                )
            if entries is not None and entries[2] is not None and entries[2] is not defined:
                yield from self.methods(entries[1], entries[2])
        for node in defined.body:
            if isinstance(node, ast.FunctionDef):
                yield node.name


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a module, including those in conditions and tries; defaults come last."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from statements(node.orelse)
            yield from statements(node.body)


def main() -> None:
    names = list(read_names())
    readers = {version: Reader(version, Path(sys.argv[1])) for version in VERSIONS}
    rows = []
    for name in names:
        having = [version for version, reader in readers.items() if reader.has(name)]
        rows.append(f" {json.dumps(name)}: {json.dumps(' '.join(having))}")
    STORED.write_text("{\n" + ",\n".join(rows) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main()
