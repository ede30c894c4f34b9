"""Requirements as declared in a lock, requirements.txt or pyproject.toml; none is resolved."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tpuctl.errors import Usage
from tpuctl.files import is_file
from tpuctl.model.scripts.dependency_sets import choose_sets, split_setting
from tpuctl.model.scripts.lock_files import (
    LOCAL,
    PYLOCK,
    UV_LOCK,
    form_of,
    lock_of_script,
    read_lock,
)
from tpuctl.model.scripts.script_metadata import read_script_metadata
from tpuctl.model.scripts.toml_documents import parse_toml

REQUIREMENTS, PROJECT = "requirements.txt", "pyproject.toml"

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


class Requirement(NamedTuple):
    """A requirement and where it is declared."""

    path: Path
    line: int
    name: str
    clauses: str
    column: int = 0
    extras: frozenset[str] = frozenset()
    is_conditional: bool = False  # has a marker, such as `; python_version < "3.11"`
    is_locked: bool = False  # to the version of a lock
    is_transitive: bool = False  # of a lock, and required by other packages only

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


def usual_file(root: Path) -> str | None:
    """The file that `job.requirements: auto` stands for in a folder; None if there is none. The
    metadata in a script comes before it."""
    if is_file(root / UV_LOCK) and is_file(root / PROJECT):
        return UV_LOCK
    return next((name for name in (PYLOCK, REQUIREMENTS, PROJECT) if is_file(root / name)), None)


def required(root: Path, file: str | None = None, script: Path | None = None) -> list[Requirement]:
    """The requirements of a job that apply everywhere, without those that have a marker. `file` is
    what the stack file names, with extras in brackets; None for the usual ones."""
    possible = possibly_required(root, file, script)
    return [requirement for requirement in possible if not requirement.is_conditional]


def possibly_required(
    root: Path, file: str | None = None, script: Path | None = None
) -> list[Requirement]:
    """The requirements of a job, also those that have a marker."""
    of_script = _of_script(script)
    if of_script is not None and file is None:
        return of_script
    if file is not None and form_of(root / split_setting(file)[0]) is not None:
        return declared(root, file)
    return [*declared(root, file), *(of_script or ())]


def _of_script(script: Path | None) -> list[Requirement] | None:
    """The requirements in a script's metadata (PEP 723), or in its lock; None without any."""
    try:
        metadata = read_script_metadata(script)
    except Usage:  # reported when the job's dependencies are read
        return None
    if metadata is None or script is None or not metadata.has_dependencies:
        return None
    lock = lock_of_script(script)
    if is_file(lock):
        return _locked(lock, [])
    return [
        requirement
        for dependency in metadata.dependencies
        for requirement in parse_requirement(script, metadata.line, dependency)
    ]


def declared(root: Path, file: str | None = None) -> list[Requirement]:
    """The requirements of a job: of `file` in its folder, by default of the usual one, the first of
    uv.lock, pylock.toml, requirements.txt and pyproject.toml. Those with an address are left out.

    Of a lock, all packages that a job installs, with their exact versions and lines.
    """
    name, sets = split_setting(file or usual_file(root) or REQUIREMENTS)
    path = root / name
    if path.name == PROJECT:
        return list(_dependencies(path, sets))
    if not is_file(path):
        return []
    if form_of(path) is not None:
        return _locked(path, sets)
    return list(_lines(path, root, set()))


def _locked(path: Path, names: list[str]) -> list[Requirement]:
    """The packages of a lock; none if it is invalid, which is reported when it is read to install
    it."""
    try:
        lock = read_lock(path)
        sets = choose_sets(names, *lock.available, path.name)
    except Usage:
        return []
    return [
        Requirement(
            path,
            locked.package.line,
            locked.package.name,
            f"=={locked.package.version}",
            extras=locked.extras,
            is_conditional=locked.is_conditional,
            is_locked=True,
            is_transitive=locked.is_transitive,
        )
        for locked in lock.installed(sets)
        if locked.package.version and not {*LOCAL, "git", "url", "path"} & {*locked.package.source}
    ]


def _lines(file: Path, root: Path, visited: set[Path]) -> Iterator[Requirement]:
    if file in visited or not _is_below(file, root):
        return
    visited.add(file)
    for number, text in enumerate(_read(file).split("\n"), 1):
        other = re.match(r"\s*(?:-r|--requirement)[\s=]*(\S+)", text)
        if other is not None:
            yield from _lines(file.parent / other[1], root, visited)
            continue
        # The hashes of a locked requirement follow on lines of their own.
        yield from parse_requirement(file, number, text.rstrip().removesuffix("\\"))


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
    name, _ = split_setting(file or usual_file(root) or REQUIREMENTS)
    first = root / name
    if first.name == PROJECT or form_of(first) is not None or not first.is_file():
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


def _dependencies(file: Path, names: Sequence[str]) -> Iterator[Requirement]:
    """The dependencies of a project, with its extras and groups of these names."""
    text = _read(file)
    try:
        document = parse_toml(text)
    except ValueError:
        return
    project, groups = document.get("project", {}), document.get("dependency-groups", {})
    if not isinstance(project, dict) or not isinstance(groups, dict):
        return
    optional = project.get("optional-dependencies", {})
    listed = [project.get("dependencies", [])]
    with suppress(Usage, AttributeError):  # reported when the job's dependencies are read
        sets = choose_sets(names, optional, groups, file.name)
        listed += [entries for name, entries in optional.items() if _normal(name) in sets.extras]
        listed += [entries for name, entries in groups.items() if _normal(name) in sets.groups]
    lines = text.split("\n")
    for dependency in [item for items in listed if isinstance(items, list) for item in items]:
        if not isinstance(dependency, str):
            continue
        number = next((n for n, line in enumerate(lines, 1) if dependency in line), 1)
        for requirement in parse_requirement(file, number, dependency):
            column = max(lines[number - 1].find(dependency), 0)
            yield requirement._replace(column=column)


def _read(file: Path) -> str:
    try:
        return RequirementsFile(file).text()
    except UnicodeDecodeError:
        return file.read_text("utf-8", "replace")
    except OSError:
        return ""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()
