"""Requirements as declared in requirements.txt or pyproject.toml; none is resolved."""

from __future__ import annotations

import codecs
import re
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from tpuctl.errors import Usage
from tpuctl.model.scripts.script_metadata import read_script_metadata

MARKS = {  # the longer ones first
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
CODING = re.compile(rb"coding[:=]\s*([-\w.]+)")

REQUIREMENT = re.compile(
    r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[([^\]]*)\])?\s*\(?([^;#)]*)\)?\s*(;[^#]*)?"
)
CLAUSE = re.compile(r"\s*(===|==|~=|!=|<=|>=|<|>)\s*v?(\d+(?:\.\d+)*)(\.\*)?\S*\s*")


@dataclass(frozen=True)
class Requirement:
    """A requirement and where it is declared."""

    path: Path
    line: int
    name: str
    clauses: str
    column: int = 0
    extras: frozenset[str] = frozenset()
    is_conditional: bool = False  # has a marker, such as `; python_version < "3.11"`

    @property
    def text(self) -> str:
        """As declared: `jax[tpu]==0.6.2`."""
        extras = f"[{','.join(sorted(self.extras))}]" if self.extras else ""
        return f"{self.name}{extras}{self.clauses.strip()}"


def allows(clauses: str, version: str) -> bool:
    """Whether a version meets a requirement's clauses, such as `>=2.12,<2.16`.

    Clauses that cannot be parsed count as met.
    """
    actual = _numbers(version)
    return all(_meets(clause, actual) for clause in clauses.split(",") if clause.strip())


def _meets(clause: str, actual: tuple[int, ...]) -> bool:
    match = CLAUSE.fullmatch(clause)
    if match is None:
        return True
    operator, expected, is_open = match[1], _numbers(match[2]), match[3] is not None
    length = max(len(actual), len(expected))
    a, b = _padded(actual, length), _padded(expected, length)
    has_prefix = actual[: len(expected)] == expected
    is_equal = has_prefix if is_open else a == b
    compatible = a >= b and actual[: len(expected) - 1] == expected[:-1]
    results = {"==": is_equal, "===": is_equal, "!=": not is_equal, "~=": compatible}
    return {**results, ">=": a >= b, "<=": a <= b, ">": a > b, "<": a < b}[operator]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:4])


def _padded(numbers: tuple[int, ...], length: int) -> tuple[int, ...]:
    return numbers + (0,) * (length - len(numbers))


def required(root: Path, file: str | None = None, script: Path | None = None) -> list[Requirement]:
    """The requirements of a job that apply everywhere, without those that have a marker."""
    listed = [*declared(root, file), *_of_script(script)]
    return [requirement for requirement in listed if not requirement.is_conditional]


def _of_script(script: Path | None) -> Iterator[Requirement]:
    """The requirements in a script's metadata (PEP 723)."""
    try:
        metadata = read_script_metadata(script)
    except Usage:  # reported when the job's dependencies are read
        return
    if metadata is not None and script is not None:
        for dependency in metadata.dependencies:
            yield from parse_requirement(script, metadata.line, dependency)


def declared(root: Path, file: str | None = None) -> list[Requirement]:
    """The requirements of a job: of `file` in its folder, by default of requirements.txt, or
    otherwise of pyproject.toml. Those with an address are left out.
    """
    requirements = root / (file or "requirements.txt")
    if requirements.name == "pyproject.toml":
        return list(_dependencies(requirements))
    if requirements.is_file():
        return list(_lines(requirements, root, set()))
    return list(_dependencies(root / "pyproject.toml")) if file is None else []


def _lines(file: Path, root: Path, visited: set[Path]) -> Iterator[Requirement]:
    if file in visited or not _is_below(file, root):
        return
    visited.add(file)
    for number, text in enumerate(_read(file).split("\n"), 1):
        other = re.match(r"\s*(?:-r|--requirement)[\s=]*(\S+)", text)
        if other is not None:
            yield from _lines(file.parent / other[1], root, visited)
            continue
        yield from parse_requirement(file, number, text)


class RequirementsFile(NamedTuple):
    """A requirements file that pip reads."""

    path: Path

    def text(self) -> str:
        """As pip decodes it. Raises UnicodeDecodeError."""
        data = self.path.read_bytes()
        for mark, encoding in MARKS.items():
            if data.startswith(mark):
                return data[len(mark) :].decode(encoding)
        for line in data.split(b"\n", 2)[:2]:
            declared = CODING.search(line) if line.startswith(b"#") else None
            if declared is not None:
                with suppress(LookupError):
                    return data.decode(declared[1].decode("ascii"))
        return data.decode("utf-8")


def included_files(root: Path, file: str | None = None) -> list[RequirementsFile]:
    """The requirements file of a job, and the files of its folder that it includes."""
    first = root / (file or "requirements.txt")
    if first.name == "pyproject.toml" or not first.is_file():
        return []
    pending, files = [first], dict[Path, RequirementsFile]()
    while pending:
        path = pending.pop()
        if path in files or not path.is_file() or not _is_below(path, root):
            continue
        files[path] = RequirementsFile(path)
        included = re.findall(
            r"(?m)^\s*(?:-[rc]|--requirement|--constraint)[\s=]*(\S+)", _read(path)
        )
        pending += (path.parent / name for name in included)
    return list(files.values())


def _is_below(path: Path, root: Path) -> bool:
    return path.resolve().is_relative_to(root.resolve())


def parse_requirement(file: Path, number: int, text: str) -> Iterator[Requirement]:
    """The requirement in a line, unless it has an address."""
    match = REQUIREMENT.match(text)
    if match is not None and "@" not in match[3]:
        yield Requirement(
            file,
            number,
            _normal(match[1]),
            match[3].partition(" --")[0],
            len(text) - len(text.lstrip()),
            frozenset(_normal(extra) for extra in (match[2] or "").split(",") if extra.strip()),
            match[4] is not None,
        )


def _dependencies(file: Path) -> Iterator[Requirement]:
    text = _read(file)
    try:
        project = tomllib.loads(text).get("project", {})
        dependencies = project.get("dependencies", []) if isinstance(project, dict) else []
    except tomllib.TOMLDecodeError:
        return
    lines = text.split("\n")
    for dependency in dependencies if isinstance(dependencies, list) else []:
        number = next((n for n, line in enumerate(lines, 1) if str(dependency) in line), 1)
        for requirement in parse_requirement(file, number, str(dependency)):
            column = max(lines[number - 1].find(str(dependency)), 0)
            yield replace(requirement, column=column)


def _read(file: Path) -> str:
    try:
        return RequirementsFile(file).text()
    except UnicodeDecodeError:
        return file.read_text("utf-8", "replace")
    except OSError:
        return ""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()
