"""The Python that a job asks for, and what says so: the stack file, an option, or its own files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tpuctl.errors import Usage
from tpuctl.files import is_file
from tpuctl.model.scripts.script_metadata import read_script_metadata
from tpuctl.model.scripts.toml_documents import parse_toml

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

AUTO, IMAGE = "auto", "image"
KEY = "requires-python"
# Files that ask for a Python, with the key, the first that does so first.
FILES = (
    ("uv.lock", KEY),
    ("pylock.toml", KEY),
    ("pyproject.toml", "project", KEY),
    ("pyproject.toml", "tool", "poetry", "dependencies", "python"),
)
MAX_PATCH = 40  # more releases than a minor version has
# As `.python-version`, uv and pyenv write it; a release level only to be named in the error.
VERSION = re.compile(r"(?:cpython[-@]?|python-?)?(?P<version>\d+(?:\.\d+){0,2})(?P<rest>\S*)")
# Of Poetry, which has more than ranges.
POETRY = re.compile(r"(?P<sign>[\^~]) *(?P<major>\d+)(?:\.(?P<minor>\d+))?(?:\.\d+)?")


class PythonRequest(NamedTuple):
    """Which Pythons a job may run on.

    `exact` is the version if one was named, as in "3.12" or "3.12.7". `where` names the key, the
    option, or file and line.
    """

    specifier: SpecifierSet
    where: str
    exact: str = ""
    is_image: bool = False  # of the machine's image, whatever its version

    def allows(self, version: str) -> bool:
        """Whether a version satisfies it."""
        return self.is_image or self.specifier.contains(version)

    def allows_minor(self, minor: str) -> bool:
        """Whether a release of a minor version ("3.10") may satisfy it."""
        return any(self.allows(f"{minor}.{patch}") for patch in range(MAX_PATCH))

    def allows_image(self, minor: str) -> bool:
        """Whether any release of a minor version satisfies it, as that of an image, of which only
        the minor version is known. A lower bound may be within the minor version (">=3.10.4"):
        images have late releases."""
        return self.allows(f"{minor}.{MAX_PATCH}") and self.exact.count(".") < 2

    def setting(self, version: str) -> str:
        """How to ask for another version instead, in a message."""
        is_option = self.where.startswith("-")
        return f"{self.where} {version}" if is_option else f"job: {{python: '{version}'}}"

    def __str__(self) -> str:
        return "the image's Python" if self.is_image else f"Python {self.exact or self.specifier}"


def parse_python(text: str, where: str) -> PythonRequest:
    """The request of a setting: `image`, a version, or a range. Raises Usage."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # rarely needed

    value = text.strip()
    if value == IMAGE:
        return PythonRequest(SpecifierSet(), where, is_image=True)
    match = VERSION.fullmatch(value)
    if match and not match["rest"] and "." in match["version"]:
        version = match["version"]
        is_minor = version.count(".") == 1
        return PythonRequest(
            SpecifierSet(f"=={version}.*" if is_minor else f"=={version}"), where, version
        )
    if match and not match["rest"]:
        return PythonRequest(SpecifierSet(f"=={value}.*"), where)
    try:
        return PythonRequest(SpecifierSet(value), where)
    except InvalidSpecifier:
        raise Usage(
            "Invalid Python version",
            f"{where}: {value!r} is neither a version of CPython nor a range of versions",
            where=where,
            hint="Use a version or a range:\n    3.12\n    3.12.7\n    >=3.12,<3.14",
        ) from None


def request_of(
    setting: str, folder: Path, script: Path | None = None, *, where: str = "job.python"
) -> PythonRequest | None:
    """What a job asks for: `setting`, of the key or option `where`, or else what its files say, in
    this order: the script's metadata (PEP 723), .python-version, requires-python of uv.lock,
    pylock.toml or pyproject.toml, and Poetry's `python`. None if nothing says anything. Raises
    Usage for what is no version."""
    if setting != AUTO:
        return parse_python(setting, where)
    return next(_requests(folder, script), None)


def _requests(folder: Path, script: Path | None) -> Iterator[PythonRequest]:
    if request := script_request(script):
        yield request
    if request := _pinned(folder / ".python-version"):
        yield request
    for name, *keys in FILES:
        if request := file_request(folder / name, *keys):
            yield request


def script_request(script: Path | None) -> PythonRequest | None:
    """What a script's metadata asks for (PEP 723); None if nothing. Raises Usage."""
    metadata = read_script_metadata(script)
    value = None if metadata is None else metadata.document.get(KEY)
    if metadata is None or script is None or not isinstance(value, str):
        return None
    lines = script.read_text("utf-8-sig").split("\n")
    return parse_python(value, f"{script}:{_line(lines, KEY, metadata.line)}")


def file_request(file: Path, *keys: str) -> PythonRequest | None:
    """What a key of a TOML file asks for; None if nothing. Raises Usage."""
    value = _value(file, keys)
    if isinstance(value, str) and "poetry" in keys:
        value = _of_poetry(value)
    if not isinstance(value, str):
        return None
    line = _line(_text(file).split("\n"), keys[-1], 1)
    return parse_python(value, f"{file}:{line}")


def _pinned(file: Path) -> PythonRequest | None:
    """What .python-version asks for: the first CPython in it."""
    if not is_file(file):
        return None
    for number, line in enumerate(_text(file).split("\n"), 1):
        word = line.partition("#")[0].strip()
        if word and not word.startswith(("pypy", "graalpy", "system")):
            return parse_python(word, f"{file}:{number}")
    return None


def _of_poetry(constraint: str) -> str | None:
    """A constraint of Poetry's, "^3.12", as a range: ">=3.12,<4"; None for alternatives, which are
    no single range."""
    clauses = []
    for clause in filter(None, re.split(r"[,\s]+(?![\d.])", constraint.strip())):
        match = POETRY.fullmatch(clause)
        if match is None:
            clauses.append(f"=={clause}" if re.fullmatch(r"[\d.]+\.\*", clause) else clause)
            continue
        major, minor = int(match["major"]), match["minor"]
        end = f"{major}.{int(minor) + 1}" if match["sign"] == "~" and minor else f"{major + 1}"
        clauses.append(f">={clause[1:].strip()},<{end}")
    try:
        parse_python(",".join(clauses), "")
    except Usage:
        return None
    return ",".join(clauses)


def _value(file: Path, keys: Sequence[str]) -> Any:
    """A key of a TOML file; None if it has none, or is no TOML, which its other readers report."""
    try:
        value: Any = parse_toml(_text(file)) if is_file(file) else None
    except ValueError:
        return None
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _text(file: Path) -> str:
    return file.read_text("utf-8", "replace")


def _line(lines: list[str], key: str, default: int) -> int:
    pattern = re.compile(rf"\s*#?\s*{key}\s*=")
    return next((n for n, line in enumerate(lines, 1) if pattern.match(line)), default)
