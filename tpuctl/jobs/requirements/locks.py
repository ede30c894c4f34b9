"""Locks are obeyed: what a job installs of one, and checks with uv before the upload.

uv reads the locks; nothing is resolved, and nothing asks an index.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from tpuctl.errors import Diagnostic, Refused, Usage
from tpuctl.files import is_file
from tpuctl.jobs.requirements.dependency_sources import source_line
from tpuctl.jobs.requirements.passwords import refuse_passwords
from tpuctl.jobs.requirements.uv_program import UvFailed, find_uv, run_uv
from tpuctl.model.jobs.installation import LockFile
from tpuctl.model.scripts.dependency_sets import choose_sets, normalize
from tpuctl.model.scripts.lock_files import (
    LOCAL,
    UV_LOCK,
    Lock,
    LockedPackage,
    LockForm,
    allows_python,
    read_lock,
    remake,
)
from tpuctl.model.scripts.script_metadata import read_script_metadata

PROJECT = "pyproject.toml"
ARCHIVES = (".whl", ".tar.gz", ".zip")
# Platforms of the images, Ubuntu 22.04 and later, as uv names them.
PLATFORMS = {"x86_64": "x86_64-manylinux_2_35", "aarch64": "aarch64-manylinux_2_35"}
NO_DOWNLOADS = {"UV_PYTHON_DOWNLOADS": "never"}
# What uv logs before it resolves a lock again. An index that it misses, and the other settings, may
# be those of this computer: they are no difference between a lock and its project.
MISMATCH = re.compile(r"(?:despite existing|Ignoring existing) lockfile due to (?P<reason>.*)")
OF_THE_COMPUTER = re.compile(r"missing (?:remote|local) index|`--|change in (?:fork|resolution)")
NO_WHEEL = re.compile(
    r"Package `(?P<name>[^`]+)` can't be installed because it (?:is marked as `--no-build` but )?"
)


class LockedInstallation(NamedTuple):
    """The fields of an Installation that come from a lock."""

    lock: LockFile
    members: tuple[str, ...]
    project: str | None


def read_locked(path: Path, names: Sequence[str], folder: Path) -> LockedInstallation:
    """What a job in a folder installs of its lock, with the extras and groups of these names.
    Raises Usage or Refused for a lock that cannot be obeyed."""
    lock = read_lock(path)
    if lock.form == "uv" and not is_file(path.with_name(PROJECT)):
        raise Usage(
            "Lock without its project",
            f"{path.name} locks the dependencies of a {PROJECT}, which is not beside it",
            where=str(path),
            hint="Copy the project into the uploaded folder, or set another file:\n"
            "    job: {requirements: requirements.txt}",
        )
    if lock.form == "script" and names:
        raise _no_extras(path)
    sets = choose_sets(names, *lock.available, path.name)
    _refuse_passwords(lock)
    project, members = None, list[str]()
    for locked in lock.installed(sets):
        package = locked.package
        local = package.folder or package.source.get("path")
        if local is None:
            _require_local_index(lock, package, folder)
            continue
        name = _uploaded(lock, package, str(local), folder)
        if package is lock.root:
            project = name if package.is_built else None
        elif package.is_built or package.folder is None:
            members.append(name)
    _require_current(lock)
    name = Path(os.path.relpath(path, folder)).as_posix()
    script = name.removesuffix(".lock") if lock.form == "script" else ""
    file = LockFile(
        path=name, form=lock.form, script=script, extras=sets.extras, groups=sets.groups
    )
    return LockedInstallation(file, tuple(dict.fromkeys(members)), project)


def files_of_lock(lock: LockFile, members: Sequence[str]) -> Iterator[str]:
    """Patterns of the files that uv reads with a lock, relative to the folder: the lock, the script
    or the project, and the packages of the folder."""
    yield lock.path
    if lock.script:
        yield lock.script
    elif lock.form == "uv":
        yield PurePosixPath(lock.path).with_name(PROJECT).as_posix()
    for member in members:
        if member.endswith(ARCHIVES):
            yield member
        else:
            yield f"{member}/{PROJECT}"
            yield f"{member}/**/*.py"


def _no_extras(path: Path) -> Usage:
    return Usage(
        "Extras require a pyproject.toml",
        f"job.requirements: {path.name} is a script's lock, which has no extras",
        where="job.requirements",
        hint=f"Remove the extras:\n    job: {{requirements: {path.name}}}",
    )


# Packages of the folder ------------------------------------------------------------------------


def _uploaded(lock: Lock, package: LockedPackage, local: str, folder: Path) -> str:
    """A package of the folder, by its path in the upload. Raises Refused if it is elsewhere."""
    target, root = (lock.path.parent / local).resolve(), folder.resolve()
    if not target.is_relative_to(root):
        raise Refused(
            "Package outside the uploaded folder",
            f"{lock.path.name} locks {package.name} to {target}, which is not uploaded",
            where=_source_place(lock, package),
            hint="Copy the package into that folder, or run a script in a folder that contains "
            "both.",
        )
    if not target.exists():
        raise Refused(
            "Locked package is missing",
            f"{lock.path.name} locks {package.name} to {local}, which does not exist",
            where=_source_place(lock, package),
            hint=f"Correct the path, and lock again:\n    {remake(lock.path, lock.form)}",
        )
    return target.relative_to(root).as_posix()


def _require_local_index(lock: Lock, package: LockedPackage, folder: Path) -> None:
    """Refuse a package of a folder of wheels that is not uploaded."""
    registry = package.source.get("registry")
    if isinstance(registry, str) and "://" not in registry:
        _uploaded(lock, package, registry, folder)


def _source_place(lock: Lock, package: LockedPackage) -> str:
    """Where the source of a package is declared; in the lock, if not beside it."""
    if lock.form == "uv":
        file = lock.path.with_name(PROJECT)
        line = source_line(file, package.name)
    elif lock.form == "script":
        file = lock.path.with_suffix("")
        line = source_line(file, package.name)
    else:
        line = None
    return f"{file}:{line}" if line is not None else f"{lock.path}:{package.line}"


def refuse_member(folder: Path) -> None:
    """Raise Refused if a folder is a member of a uv workspace, whose lock is above it and so is
    not uploaded: the job would install other versions."""
    target = folder.resolve()
    for parent in target.parents:
        if not is_file(parent / UV_LOCK) or not is_file(parent / PROJECT):
            continue
        lock = read_lock(parent / UV_LOCK)
        for package in lock.members:
            if (parent / (package.folder or "")).resolve() == target and parent != target:
                path = target.relative_to(parent).as_posix()
                raise Refused(
                    "Lock outside the uploaded folder",
                    f"{package.name} is locked by {lock.path}, which is not uploaded",
                    where=f"{folder / PROJECT}:1",
                    hint="Run the script from the workspace's folder, as a command, so that all "
                    "of it is uploaded:\n"
                    f"    (cd {parent} && tpuctl run -- python {path}/SCRIPT)\n"
                    "Or set that the job installs the newest versions that the project allows:\n"
                    "    job: {requirements: pyproject.toml}",
                )


def _refuse_passwords(lock: Lock) -> None:
    refuse_passwords(lock.path)
    if lock.form == "script":
        refuse_passwords_in_script(lock.path.with_suffix(""))
    for package in lock.packages:
        file = lock.path.parent / (package.folder or "") / PROJECT
        if package.folder is not None and is_file(file):
            refuse_passwords(file)
    if lock.form == "uv":
        refuse_passwords(lock.path.with_name(PROJECT))


def refuse_passwords_in_script(script: Path) -> None:
    """Raise Refused for a password in a script's metadata."""
    metadata = read_script_metadata(script)
    if metadata is None:
        return
    lines = script.read_text("utf-8-sig").split("\n")
    block = list(enumerate(lines, 1))[metadata.line :]
    end = next((n for n, (_, text) in enumerate(block) if not text.startswith("#")), len(block))
    refuse_passwords(script, block[:end])


# Does it match? --------------------------------------------------------------------------------


def _require_current(lock: Lock) -> None:
    """Refuse a lock that does not match its project or script. Says nothing if uv cannot tell."""
    if lock.form == "pylock":
        return
    stale, matches = next(_stale(lock), None), _matches(lock.path, lock.form, _content(lock))
    if matches is True or (matches is None and stale is None):
        return
    locked = PROJECT if lock.form == "uv" else lock.path.with_suffix("").name
    where, reason = stale or (f"{lock.path}:1", f"it was written for another {locked}")
    raise Usage(
        "Lock does not match",
        f"{lock.path.name} does not match {locked}: {reason}",
        where=where,
        hint=f"Lock again:\n    {remake(lock.path, lock.form)}",
    )


def _content(lock: Lock) -> tuple[str, ...]:
    """What uv compares: a lock, and the files that it was written for."""
    folders = [package.folder for package in lock.packages if package.folder is not None]
    files = [lock.path.parent / folder / PROJECT for folder in (".", *folders)]
    if lock.form == "script":
        files.append(lock.path.with_suffix(""))
    return (lock.text, *(_read(file) for file in files if is_file(file)))


@lru_cache(maxsize=8)  # a command reads a job's dependencies several times
def _matches(path: Path, form: LockForm, _: tuple[str, ...]) -> bool | None:
    """Whether a lock of this content matches, as uv finds without an index; None if it cannot
    tell."""
    if find_uv() is None:
        return None
    script = ("--script", path.with_suffix("").name) if form == "script" else ()
    arguments = ("lock", "--check", "--offline", *script, "--verbose")
    for python in (("--python", sys.executable), ()):  # ours, or else one that the project allows
        try:
            run_uv([*arguments, *python], cwd=path.parent, variables=NO_DOWNLOADS)
        except UvFailed as error:
            reason = MISMATCH.search(error.output)
            if reason is not None:
                return None if OF_THE_COMPUTER.match(reason["reason"]) else False
        else:
            return True
    return None


def _stale(lock: Lock) -> Iterator[tuple[str, str]]:
    """The first requirements that a lock does not have, or has besides, with their places."""
    if lock.form == "script":
        script = lock.path.with_suffix("")
        metadata = read_script_metadata(script)
        if metadata is not None:
            listed = lock.manifest.get("requirements", [])
            yield from _compared(lock, script, metadata.dependencies, listed, "")
        return
    for package in lock.packages:
        file = lock.path.parent / (package.folder or "") / PROJECT
        if package.folder is None or not is_file(file) or "metadata" not in package.entry:
            continue
        document = _document(file)
        project = document.get("project")
        dynamic = project.get("dynamic", ()) if isinstance(project, dict) else ()
        if not isinstance(project, dict) or {"dependencies", "optional-dependencies"} & {*dynamic}:
            continue
        optional = project.get("optional-dependencies", {})
        requirements = [*_texts(project.get("dependencies"))]
        for texts in optional.values() if isinstance(optional, dict) else ():
            requirements += _texts(texts)
        listed = package.entry["metadata"].get("requires-dist", [])
        yield from _compared(lock, file, requirements, listed, package.name)


def _compared(
    lock: Lock, file: Path, requirements: Sequence[str], listed: Any, name: str
) -> Iterator[tuple[str, str]]:
    """Differences between requirements as declared in a file, and as a lock repeats them."""
    locked = [entry for entry in listed if isinstance(entry, dict)]
    names = set[str]()
    for text in requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            return
        key = normalize(requirement.name)
        names.add(key)
        is_locked = any(_is_same(requirement, entry) for entry in locked)
        if key != name and requirement.marker is None and not is_locked:
            line = next((n for n, line in enumerate(_read(file).split("\n"), 1) if text in line), 1)
            yield f"{file}:{line}", f"{text} is not in the lock"
    for entry in locked:
        key = normalize(str(entry.get("name", "")))
        if key not in names and key != name:
            yield f"{file}:1", f"{key} is in the lock, and no longer required"


def _is_same(requirement: Requirement, entry: Mapping[str, Any]) -> bool:
    extras = {normalize(extra) for extra in entry.get("extras", ())}
    if normalize(str(entry.get("name", ""))) != normalize(requirement.name):
        return False
    if {normalize(extra) for extra in requirement.extras} != extras:
        return False
    if requirement.url or {*LOCAL, "git", "url", "path"} & entry.keys():
        return True
    try:
        return SpecifierSet(str(entry.get("specifier", ""))) == requirement.specifier
    except InvalidSpecifier:
        return True


def _texts(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def _document(file: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(_read(file))
    except tomllib.TOMLDecodeError:
        return {}


def _read(file: Path) -> str:
    return file.read_text("utf-8-sig", "replace")


# Can it be installed? --------------------------------------------------------------------------


def installable(lock: LockFile, folder: Path, minor: str, platform: str) -> bool:
    """Whether a lock can be installed without building what has wheels for other Pythons:
    `installable(lock, folder, "3.12", "x86_64")`."""
    return lock_problem(lock, folder, minor, platform, may_build=False) is None


def lock_problem(
    lock: LockFile, folder: Path, minor: str, platform: str, *, may_build: bool = True
) -> Diagnostic | None:
    """Why a lock cannot be installed by a Python ("3.12") on an architecture, or a platform as uv
    names it; None if it can, or if uv cannot tell.

    A package without a wheel for them `may_build` from its source. One without any wheel is always
    built. Raises Usage for an invalid lock, and if there is no uv.
    """
    path = folder / lock.path
    content = read_lock(path)
    if not allows_python(content.requires_python, minor):
        return Diagnostic(
            "Lock is for another Python",
            f"{path.name} requires Python {content.requires_python}, and the job has Python "
            f"{minor}",
            "Set a Python that the lock allows, or auto:\n    job: {python: auto}",
            f"{path}:{content.line('requires-python')}",
        )
    with tempfile.TemporaryDirectory(prefix="tpuctl-lock-") as scratch:
        try:
            exported = _exported(lock, content, Path(scratch))
        except UvFailed as error:
            return _unreadable(content, error.output)
        try:
            _dry_run(lock, content, exported, minor, PLATFORMS.get(platform, platform), may_build)
        except UvFailed as error:
            return _explained(content, error.output, minor, platform)
    return None


def _exported(lock: LockFile, content: Lock, scratch: Path) -> Path:
    """A lock as pylock.toml, without the Python that it requires: uv would compare that with the
    interpreter that it runs on. Raises UvFailed."""
    exported = scratch / "pylock.toml"
    text = content.text
    folder = content.path.parent.resolve()
    if content.form == "pylock":
        for entry in folder.iterdir():  # it may name files by relative paths
            if entry.name != exported.name:
                (scratch / entry.name).symlink_to(entry)
    else:
        text = run_uv(export_arguments(lock), cwd=folder, variables=NO_DOWNLOADS)
    exported.write_text(re.sub(r"(?m)^requires-python\s*=.*$", "", text), "utf-8")
    return exported


def _dry_run(
    lock: LockFile, content: Lock, exported: Path, minor: str, platform: str, may_build: bool
) -> None:
    """Let uv choose the files to install. Raises UvFailed."""
    arguments = [
        *("pip", "install", "--dry-run", "--offline", "--no-cache", "--no-config"),
        *("--preview-features", "pylock", "--python", sys.executable),
        *("--target", str(exported.with_name("target"))),
        *("--python-platform", platform, "--python-version", minor),
        *("--requirements", str(exported)),
    ]
    if content.form == "pylock":
        arguments += [f"--extra={extra}" for extra in lock.extras]
        arguments += [f"--group={group}" for group in lock.groups]
    if not may_build:
        names = sorted({package.name for package in content.packages if package.has_wheels})
        arguments += [f"--only-binary={name}" for name in names]
    run_uv(arguments, cwd=exported.parent, variables=NO_DOWNLOADS)


def export_arguments(file: LockFile) -> list[str]:
    """The arguments with which uv writes a lock as pylock.toml to stdout, without the packages of
    the folder, which are built. It runs in the lock's folder."""
    of_script = ["--script", Path(file.script).name]
    return [
        *("export", "--frozen", "--offline", "--quiet", "--no-header", "--format", "pylock.toml"),
        *("--no-emit-local", "--no-default-groups"),
        *(of_script if file.script else ["--no-emit-workspace"]),
        *(f"--extra={extra}" for extra in file.extras),
        *(f"--group={group}" for group in file.groups),
        *("--python", sys.executable),
    ]


def _explained(lock: Lock, text: str, minor: str, platform: str) -> Diagnostic | None:
    """What uv's message about a lock means; None if it says nothing about the lock."""
    command = remake(lock.path, lock.form)
    if "target environment is not supported" in text:
        key = "environments" if lock.form == "pylock" else "supported-markers"
        return Diagnostic(
            "Lock is for other platforms",
            f"{lock.path.name} was not written for Linux on {platform}",
            f"Add Linux to tool.uv.environments, and lock again:\n    {command}",
            f"{lock.path}:{lock.line(key)}",
        )
    match = NO_WHEEL.search(text)
    if match is not None:
        name = normalize(match["name"])
        package = next((package for package in lock.packages if package.name == name), None)
        version, line = (package.version, package.line) if package is not None else ("", 1)
        return Diagnostic(
            "Lock has no wheel for the worker",
            f"{name} {version}: {lock.path.name} has neither a wheel for Python {minor} and "
            f"{platform}, nor its source",
            f"Require a release that has one, or set job.python, and lock again:\n    {command}",
            f"{lock.path}:{line}",
        )
    return None


def _unreadable(lock: Lock, text: str) -> Diagnostic:
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    reason = next((line for line in lines if line.startswith("error:")), "uv cannot read it")
    if "incompatible with the declared conflicts" in reason:
        return Diagnostic(
            "Extras cannot be installed together",
            reason.removeprefix("error:").strip(),
            "Set fewer of them in job.requirements:\n"
            f"    job: {{requirements: '{lock.path.name}[NAME]'}}",
            "job.requirements",
        )
    return Diagnostic(
        "Invalid lock",
        reason.removeprefix("error:").strip(),
        f"Lock again:\n    {remake(lock.path, lock.form)}",
        f"{lock.path}:1",
    )
