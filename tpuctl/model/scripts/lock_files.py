"""Locks: uv.lock, a script's lock as `uv lock --script` writes it, and pylock.toml (PEP 751)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tpuctl.errors import Usage
from tpuctl.files import is_file
from tpuctl.model.scripts.dependency_sets import DependencySets, normalize
from tpuctl.model.scripts.toml_documents import parse_toml

LockForm = Literal["uv", "script", "pylock"]
UV_LOCK, PYLOCK = "uv.lock", "pylock.toml"
PYLOCK_NAME = re.compile(r"pylock(\.[^.]+)?\.toml")
# The versions of the formats that uv 0.13 reads.
FORMATS = {"uv": 1, "script": 1, "pylock": 1}
CONFLICT = re.compile(r"(?m)^(?:<{7}|>{7}|={7})(?: .*)?$")
TABLE = re.compile(r"(?m)^\[\[packages?\]\][ \t]*$")
# How uv writes that a package is one of conflicting extras or groups: extra-3-app-tpu.
CONFLICTING = re.compile(
    r"extra (?P<operator>[=!]=) '(?P<kind>extra|group)-(?P<length>\d+)-(?P<name>[^']*)'"
)
ALWAYS, NEVER = "python_version >= '0'", "python_version < '0'"
# Where a package of the project's own folders is from.
LOCAL = ("editable", "directory", "virtual")
NO_SETS = DependencySets()
MINORS = tuple(f"3.{minor}" for minor in range(8, 16))
MACHINES = ("x86_64", "aarch64")


class LockedPackage(NamedTuple):
    """A package of a lock, with the line of its version."""

    name: str
    version: str
    line: int
    entry: Mapping[str, Any]

    @property
    def source(self) -> Mapping[str, Any]:
        """Where it is from, as uv.lock says it."""
        source = self.entry.get("source")
        if isinstance(source, dict):
            return source
        directory, archive = self.entry.get("directory"), self.entry.get("archive")
        if isinstance(directory, dict):  # PEP 751
            return {"directory": directory.get("path", ".")}
        if isinstance(archive, dict):
            return {"path" if "path" in archive else "url": archive.get("path", archive.get("url"))}
        return {"git": ""} if "vcs" in self.entry else {}

    @property
    def folder(self) -> str | None:
        """Its folder, relative to the lock's; None if it is from elsewhere."""
        return next((str(self.source[key]) for key in LOCAL if key in self.source), None)

    @property
    def is_built(self) -> bool:
        """Whether it is a package to build from a folder, and not only a list of dependencies."""
        return self.folder is not None and "virtual" not in self.source

    @property
    def has_wheels(self) -> bool:
        return bool(self.entry.get("wheels"))


class Locked(NamedTuple):
    """A package that a job installs. Conditional: only on some machines or some Pythons."""

    package: LockedPackage
    extras: frozenset[str]
    is_conditional: bool
    is_transitive: bool  # required by other packages of an index only


class Lock(NamedTuple):
    """A lock as parsed."""

    path: Path
    form: LockForm
    document: Mapping[str, Any]
    text: str
    packages: tuple[LockedPackage, ...]

    @property
    def manifest(self) -> Mapping[str, Any]:
        manifest = self.document.get("manifest")
        return manifest if isinstance(manifest, dict) else {}

    @property
    def root(self) -> LockedPackage | None:
        """The project beside the lock; None if it has none, as a workspace without a project."""
        return next((package for package in self.packages if package.folder == "."), None)

    @property
    def members(self) -> tuple[LockedPackage, ...]:
        """All members of the workspace, and the root project."""
        names = {normalize(str(name)) for name in self.manifest.get("members", ())}
        return tuple(
            package
            for package in self.packages
            if package.folder == "." or (package.folder is not None and package.name in names)
        )

    @property
    def requires_python(self) -> str:
        return str(self.document.get("requires-python", ""))

    def line(self, pattern: str, default: int = 1) -> int:
        """The first line that starts with a pattern."""
        match = re.search(rf"(?m)^{pattern}", self.text)
        return self.text.count("\n", 0, match.start()) + 1 if match else default

    @property
    def available(self) -> DependencySets:
        """The extras and the groups that a job may install."""
        if self.form == "pylock":
            listed = (self.document.get(key, ()) for key in ("extras", "dependency-groups"))
            return DependencySets(*(tuple(map(str, names)) for names in listed))
        extras, groups = dict[str, None](), dict[str, None]()
        for package in self._roots:
            metadata = package.entry.get("metadata", {})
            extras |= dict.fromkeys(package.entry.get("optional-dependencies", {}))
            extras |= dict.fromkeys(metadata.get("provides-extras", ()))
            groups |= dict.fromkeys(package.entry.get("dev-dependencies", {}))
            groups |= dict.fromkeys(metadata.get("requires-dev", {}))
        groups |= dict.fromkeys(self.manifest.get("dependency-groups", {}))
        return DependencySets(tuple(extras), tuple(groups))

    @property
    def _roots(self) -> Sequence[LockedPackage]:
        return (self.root,) if self.root is not None else self.members

    def installed(self, sets: DependencySets = NO_SETS) -> list[Locked]:
        """What a job installs of it on Linux, in the order of the file."""
        walk = _Walk(self, sets)
        if self.form == "pylock":
            walk.add_all()
        elif self.form == "script":
            walk.follow(self.manifest.get("requirements", ()), is_direct=True, is_certain=True)
        else:
            for package in self._roots:
                walk.add_root(package)
            groups = self.manifest.get("dependency-groups", {})
            for group in sets.groups:
                walk.follow(_get(groups, group), is_direct=True, is_certain=True)
        return [walk.reached[index] for index in sorted(walk.reached)]


class _Walk:
    """Follows dependencies from a lock's roots."""

    def __init__(self, lock: Lock, sets: DependencySets) -> None:
        self.lock = lock
        if lock.form == "pylock" and not sets.groups:
            sets = sets._replace(groups=tuple(lock.document.get("default-groups", ())))
        self._sets = sets
        self.reached: dict[int, Locked] = {}
        self._pythons = _pythons(lock.requires_python)
        self._indexes = dict[str, list[int]]()
        for index, package in enumerate(lock.packages):
            self._indexes.setdefault(package.name, []).append(index)

    def add_all(self) -> None:
        has_libtpu = "libtpu" in self._indexes
        for index, package in enumerate(self.lock.packages):
            is_possible, is_certain = self._applies([package.entry.get("marker")])
            # pylock.toml keeps no extras: JAX with libtpu is what jax[tpu] stands for.
            extras = frozenset({"tpu"} if package.name == "jax" and has_libtpu else ())
            if is_possible:
                self.reached[index] = Locked(package, extras, not is_certain, False)

    def add_root(self, package: LockedPackage) -> None:
        index = self.lock.packages.index(package)
        self._reach(index, frozenset(self._sets.extras), is_direct=True, is_certain=True)
        groups = package.entry.get("dev-dependencies", {})
        for group in self._sets.groups:
            self.follow(_get(groups, group), is_direct=True, is_certain=True)

    def follow(self, dependencies: Any, *, is_direct: bool, is_certain: bool) -> None:
        for dependency in dependencies if isinstance(dependencies, list) else ():
            if not isinstance(dependency, dict):
                continue
            listed = dependency.get("extra", dependency.get("extras")) or ()
            extras = frozenset(normalize(str(extra)) for extra in listed)
            indexes = [
                index
                for index in self._indexes.get(normalize(str(dependency.get("name", ""))), ())
                if dependency.get("version") in (None, self.lock.packages[index].version)
            ]
            for index in indexes:
                package = self.lock.packages[index]
                forks = package.entry.get("resolution-markers")
                markers = [dependency.get("marker")]
                is_possible, is_sure = self._applies(markers)
                if isinstance(forks, list) and len(self._indexes[package.name]) > 1:
                    in_fork = [self._applies([fork]) for fork in forks]
                    is_possible &= any(possible for possible, _ in in_fork)
                    is_sure &= any(sure for _, sure in in_fork)
                if is_possible:
                    self._reach(index, extras, is_direct, is_certain and is_sure)

    def _reach(self, index: int, extras: frozenset[str], is_direct: bool, is_certain: bool) -> None:
        """Add a package, or what is new about it, and what it requires."""
        package, before = self.lock.packages[index], self.reached.get(index)
        if before is not None:
            after = Locked(
                package,
                before.extras | extras,
                before.is_conditional and not is_certain,
                before.is_transitive and not is_direct,
            )
        else:
            after = Locked(package, extras, not is_certain, not is_direct)
        if after == before:
            return
        self.reached[index] = after
        is_certain, is_direct = not after.is_conditional, package.folder is not None
        self.follow(package.entry.get("dependencies"), is_direct=is_direct, is_certain=is_certain)
        optional = package.entry.get("optional-dependencies", {})
        for extra in after.extras:
            self.follow(_get(optional, extra), is_direct=is_direct, is_certain=is_certain)

    def _conflict(self, match: re.Match[str]) -> str:
        """A marker that says the same as uv's about conflicting extras or groups."""
        is_chosen = match["name"][int(match["length"]) + 1 :] in (
            self._sets.extras if match["kind"] == "extra" else self._sets.groups
        )
        return ALWAYS if is_chosen == (match["operator"] == "==") else NEVER

    def _applies(self, markers: Iterable[object]) -> tuple[bool, bool]:
        """Whether all markers apply to some, and to every machine and Python of the lock."""
        texts = [marker for marker in markers if isinstance(marker, str) and marker]
        if not texts:
            return True, True
        texts = [CONFLICTING.sub(self._conflict, text) for text in texts]
        results = [
            all(_evaluate(text, python, machine, self._sets) for text in texts)
            for python in self._pythons
            for machine in MACHINES
        ]
        return any(results), all(results)


def _get(table: Any, name: str) -> Any:
    """An entry by its normalized name."""
    if not isinstance(table, dict):
        return None
    return next((value for key, value in table.items() if normalize(key) == name), None)


def _pythons(requires: str) -> tuple[str, ...]:
    """The minor versions that a lock allows."""
    return tuple(minor for minor in MINORS if allows_python(requires, minor)) or MINORS


def allows_python(requires: str, minor: str) -> bool:
    """Whether some release of a minor version satisfies `requires-python`."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        specifier = SpecifierSet(requires)
    except InvalidSpecifier:
        return True
    return any(specifier.contains(f"{minor}.{patch}") for patch in range(40))


@cache
def _evaluate(text: str, python: str, machine: str, sets: DependencySets) -> bool:
    environment: dict[str, Any] = {
        "python_version": python,
        "python_full_version": f"{python}.20",
        "implementation_version": f"{python}.20",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "os_name": "posix",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": machine,
        "platform_release": "6.1",
        "platform_version": "",
        "extras": set(sets.extras),
        "dependency_groups": set(sets.groups),
    }
    # Only locks have markers: the parser of these takes longer to import than to use.
    from packaging.markers import (
        InvalidMarker,
        Marker,
        UndefinedComparison,
        UndefinedEnvironmentName,
    )

    try:
        return Marker(text).evaluate(environment, context="lock_file")
    except (InvalidMarker, UndefinedComparison, UndefinedEnvironmentName):
        return True


def form_of(path: Path) -> LockForm | None:
    """The form of a lock by its name; None for another file."""
    if path.name == UV_LOCK:
        return "uv"
    if PYLOCK_NAME.fullmatch(path.name):
        return "pylock"
    return "script" if path.name.endswith(".lock") and is_file(path.with_suffix("")) else None


def lock_of_script(script: Path) -> Path:
    """Where `uv lock --script` writes the lock of a script."""
    return script.with_name(f"{script.name}.lock")


def read_lock(path: Path) -> Lock:
    """Parse a lock. Raises Usage if it is damaged, or newer than what uv reads."""
    form = form_of(path)
    assert form is not None, path
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _invalid(path, 1, str(error), form) from None
    conflict = CONFLICT.search(text)
    if conflict is not None:
        line = text.count("\n", 0, conflict.start()) + 1
        raise _invalid(path, line, "it has conflict markers of git", form)
    try:
        document = parse_toml(text)
    except ValueError as error:
        number = re.search(r"at line (\d+)", str(error))
        raise _invalid(path, int(number[1]) if number else 1, str(error), form) from None
    key = "lock-version" if form == "pylock" else "version"
    _require_format(path, text, key, document.get(key), form)
    listed = document.get("packages" if form == "pylock" else "package", [])
    if not isinstance(listed, list) or not all(
        isinstance(entry, dict) and isinstance(entry.get("name"), str) for entry in listed
    ):
        raise _invalid(path, 1, "a package has no name", form)
    packages = tuple(
        LockedPackage(normalize(entry["name"]), str(entry.get("version", "")), line, entry)
        for entry, line in zip(listed, _lines(text, len(listed)), strict=True)
    )
    return Lock(path, form, document, text, packages)


def _require_format(path: Path, text: str, key: str, value: object, form: LockForm) -> None:
    match = re.search(rf"(?m)^{key}\s*=", text)
    line = text.count("\n", 0, match.start()) + 1 if match else 1
    major = str(value).partition(".")[0]
    if value is None or not major.isdigit():
        raise _invalid(path, line, f"{key} is missing, or no number", form)
    if int(major) > FORMATS[form]:
        raise Usage(
            "Unsupported lock format",
            f"{key} is {value}, and tpuctl's uv reads {FORMATS[form]}",
            where=f"{path}:{line}",
            hint="Upgrade uv, which reads and installs it:\n    pip install --upgrade uv tpuctl",
        )


def _lines(text: str, count: int) -> Iterator[int]:
    """The line of each package's version."""
    starts = [match.end() for match in TABLE.finditer(text)]
    if len(starts) != count:  # written as inline tables
        yield from (1 for _ in range(count))
        return
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        block = text[start:end]
        match = re.search(r"(?m)^version\s*=", block) or re.search(r"(?m)^name\s*=", block)
        yield text.count("\n", 0, start + (match.start() if match else 0)) + 1


def remake(path: Path, form: LockForm) -> str:
    """The command that writes a lock from what it locks."""
    if form == "script":
        return f"uv lock --script {path.with_suffix('').name}"
    return "uv lock" if form == "uv" else f"uv export --format pylock.toml -o {path.name}"


def _invalid(path: Path, line: int, reason: str, form: LockForm) -> Usage:
    return Usage(
        "Invalid lock",
        reason,
        where=f"{path}:{line}",
        hint=f"Restore the file, or write it again:\n    {remake(path, form)}",
    )
