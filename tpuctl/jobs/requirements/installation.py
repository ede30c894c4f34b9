"""Reads the dependencies of a job from its folder, before the upload."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tpuctl.errors import Usage
from tpuctl.files import is_file
from tpuctl.jobs.requirements.dependency_sources import DependencySources
from tpuctl.jobs.requirements.foreign_locks import refuse_foreign
from tpuctl.jobs.requirements.locks import (
    files_of_lock,
    read_locked,
    refuse_member,
    refuse_passwords_in_script,
)
from tpuctl.jobs.requirements.passwords import refuse_passwords
from tpuctl.model.jobs.installation import Installation
from tpuctl.model.scripts.dependency_sets import choose_sets, normalize, split_setting
from tpuctl.model.scripts.lock_files import form_of, lock_of_script
from tpuctl.model.scripts.requirement_files import (
    PROJECT,
    REQUIREMENTS,
    included_files,
    usual_file,
)
from tpuctl.model.scripts.script_metadata import read_script_metadata
from tpuctl.model.stack.schema import JobSection

AUTO = "auto"
WHEELS = "wheels"
# Variables that tell pip where packages are.
INDEX_VARIABLES = frozenset(
    {"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_CONFIG_FILE"}
)


def read_installation(job: JobSection, folder: Path, script: Path | None = None) -> Installation:
    """The dependencies according to the stack file, the uploaded folder, and the metadata in the
    script (PEP 723).

    Raises Usage, or Refused for sources that pip does not know, locks that cannot be obeyed, and
    passwords. A file that the stack file names must exist, except requirements.txt, the usual one.
    """
    wheels = _wheels(job.wheels, folder)
    has_index = wheels is not None or bool(INDEX_VARIABLES & {*job.env, *job.secrets})
    sources = DependencySources(folder, has_index)
    installation = Installation(wheels=wheels, setup=job.setup)
    requirements = job.requirements
    if requirements is None:
        return installation
    if requirements != AUTO:
        return _of_setting(requirements, installation, sources, script)
    if script is not None and _has_dependencies(script):
        lock = lock_of_script(script)
        if is_file(lock):
            return _locked(installation, lock, [], folder)
        return _with_script(installation, script, sources)
    name = usual_file(folder)
    if name is None:
        if wheels is None and job.setup is None:
            refuse_foreign(folder, is_alone=True)
        return installation
    installation = _of_file(folder / name, name, [], installation, sources)
    if name == PROJECT:
        refuse_member(folder)
        is_alone = not installation.has_packages
        if not is_alone or job.setup is None:
            refuse_foreign(folder, is_alone=is_alone)
    return installation


def _of_setting(
    setting: str,
    installation: Installation,
    sources: DependencySources,
    script: Path | None,
) -> Installation:
    """What a stack file names; and what the script's metadata lists, unless that is a lock."""
    name, names = split_setting(setting)
    folder = sources.root
    path = _inside(folder, name, "job.requirements")
    if form_of(path) is None and script is not None and _has_dependencies(script):
        installation = _with_script(installation, script, sources)
    if not path.is_file():
        if name == REQUIREMENTS:
            return installation
        raise _not_found(f"job.requirements: {name} not found in {folder}", "job.requirements")
    return _of_file(path, name, names, installation, sources)


def _of_file(
    path: Path,
    name: str,
    names: Sequence[str],
    installation: Installation,
    sources: DependencySources,
) -> Installation:
    if form_of(path) is not None:
        return _locked(installation, path, names, sources.root)
    if path.name == PROJECT:
        refuse_passwords(path)
        return installation.model_copy(update=_project_fields(path, name, names, sources))
    if names:
        detail = f"job.requirements: {name} is a requirements file, which has no extras"
        raise Usage(
            "Extras require a pyproject.toml",
            detail,
            where="job.requirements",
            hint="Use the project instead, or remove the extras:\n"
            "    job: {requirements: pyproject.toml}",
        )
    for file in included_files(sources.root, name):
        refuse_passwords(file.path)
    return installation.model_copy(update={"requirements": name})


def _locked(
    installation: Installation, path: Path, names: Sequence[str], folder: Path
) -> Installation:
    locked = read_locked(path, names, folder)
    return installation.model_copy(update=locked._asdict())


def _has_dependencies(script: Path) -> bool:
    metadata = read_script_metadata(script)
    return metadata is not None and metadata.has_dependencies


def _with_script(
    installation: Installation, script: Path, sources: DependencySources
) -> Installation:
    metadata = read_script_metadata(script)
    assert metadata is not None
    refuse_passwords_in_script(script)
    listed = _strings(metadata.document.get("dependencies", []), "dependencies", script)
    packages = tuple(sources.resolve(script, metadata.document, listed))
    return installation.model_copy(update={"packages": packages})


def named_files(job: JobSection, installation: Installation) -> tuple[str, ...]:
    """Patterns of files that the installation needs, which are uploaded even if ignored: those
    named in the stack file, and those that uv reads with a lock."""
    patterns = []
    if job.requirements not in (AUTO, REQUIREMENTS) and installation.requirements:
        patterns.append(f"/{installation.requirements}")
    if job.wheels != AUTO and installation.wheels:
        patterns.append(f"/{installation.wheels}/*.whl")
    if installation.lock is not None:
        files = files_of_lock(installation.lock, installation.members)
        patterns += (f"/{file}" for file in files)
    return tuple(patterns)


def _wheels(setting: str | None, folder: Path) -> str | None:
    if setting is None:
        return None
    name = (WHEELS if setting == AUTO else setting).rstrip("/")
    if any(_inside(folder, name, "job.wheels").glob("*.whl")):
        return name
    if setting == AUTO:
        return None
    raise _not_found(f"job.wheels: no wheels in {folder / name}", "job.wheels")


def _inside(folder: Path, name: str, key: str) -> Path:
    path = Path(name)
    if path.is_absolute() or ".." in path.parts:
        detail = f"{key}: {name} is outside the uploaded folder"
        raise Usage(
            "Path outside the uploaded folder",
            detail,
            where=key,
            hint="Copy it into that folder, and use its path relative to that folder.",
        )
    return folder / path


def _not_found(detail: str, key: str) -> Usage:
    return Usage(
        "No such file", detail, hint="Paths are relative to the uploaded folder.", where=key
    )


# pyproject.toml -----------------------------------------------------------------------------


def _project_fields(
    path: Path, name: str, names: Sequence[str], sources: DependencySources
) -> dict[str, Any]:
    """The fields of an Installation that come from a pyproject.toml, with the extras and dependency
    groups of these names.

    If its dependencies are not listed in `project`, only the build backend knows them: then pip
    installs the project itself.
    """
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _invalid(str(error), path) from None
    project = document.get("project")
    groups = document.get("dependency-groups", {})
    if not isinstance(groups, dict):
        raise _invalid("dependency-groups is not a table", path)
    is_package = "build-system" in document
    folder = Path(name).parent.as_posix()
    optional = project.get("optional-dependencies", {}) if isinstance(project, dict) else {}
    if not isinstance(optional, dict):
        raise _invalid("project.optional-dependencies is not a table", path)
    dynamic = (
        set(_strings(project.get("dynamic", []), "project.dynamic", path))
        if isinstance(project, dict)
        else set()
    )
    hidden = "optional-dependencies" in dynamic
    unlisted = [extra for extra in names if hidden and normalize(extra) not in _normalized(groups)]
    listed = [extra for extra in names if extra not in unlisted]
    sets = choose_sets(listed, optional, groups, path.name)
    of_groups = [
        requirement for group in sets.groups for requirement in _group(group, groups, path, ())
    ]
    if not isinstance(project, dict):
        if is_package:
            sources.refuse_hidden(path, document)
        packages = (f"./{folder}",) if is_package else ()
        return {"dependencies": (*packages, *sources.resolve(path, document, of_groups))}
    if {"dependencies", "optional-dependencies"} & dynamic:
        sources.refuse_hidden(path, document)
        extras = [*unlisted, *sets.extras]
        suffix = f"[{','.join(extras)}]" if extras else ""
        resolved = sources.resolve(path, document, of_groups)
        return {"dependencies": (f"./{folder}{suffix}", *resolved)}
    dependencies = _strings(project.get("dependencies", []), "project.dependencies", path)
    for extra in sets.extras:
        own_name = normalize(str(project.get("name", "")))
        dependencies += _expand_extra(extra, optional, own_name, path, ())
    unique = tuple(sources.resolve(path, document, [*dependencies, *of_groups]))
    return {"dependencies": unique, "project": folder if is_package else None}


def _normalized(names: Iterable[str]) -> set[str]:
    return {normalize(name) for name in names}


def _group(group: str, groups: dict[str, Any], path: Path, parents: Sequence[str]) -> list[str]:
    """The requirements of a dependency group, and of those that it includes (PEP 735)."""
    by_name = {normalize(name): entries for name, entries in groups.items()}
    entries = by_name.get(group)
    if not isinstance(entries, list):
        problem = "is not a list" if group in by_name else "does not exist"
        raise _invalid(f"dependency-groups.{group} {problem}", path)
    if group in parents:
        raise _invalid(f"dependency-groups.{group} includes itself", path)
    requirements = list[str]()
    for entry in entries:
        included = entry.get("include-group") if isinstance(entry, dict) else None
        if isinstance(included, str):
            requirements += _group(normalize(included), groups, path, (*parents, group))
        else:
            requirements += _strings([entry], f"dependency-groups.{group}", path)
    return requirements


def _expand_extra(
    extra: str, optional: dict[str, Any], project: str, path: Path, parents: Sequence[str]
) -> list[str]:
    """The requirements of an extra; extras of the same project in it are expanded."""
    by_name = {normalize(name): requirements for name, requirements in optional.items()}
    if normalize(extra) not in by_name:
        choose_sets([extra], optional, (), path.name)
    if normalize(extra) in parents:
        return []
    requirements, parents = list[str](), (*parents, normalize(extra))
    key = f"project.optional-dependencies.{extra}"
    for requirement in _strings(by_name[normalize(extra)], key, path):
        name, names = split_setting(requirement)
        if names and normalize(name) == project:
            for other in names:
                requirements += _expand_extra(other, optional, project, path, parents)
        else:
            requirements.append(requirement)
    return requirements


def _strings(value: Any, key: str, path: Path) -> list[str]:
    """A list of requirements. Options are rejected, since they would be passed to pip."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _invalid(f"{key} is not a list of strings", path)
    for item in value:
        if not item.strip() or item.startswith("-"):
            raise _invalid(f"{key}: {item!r} is not a valid requirement", path)
    return list(value)


def _invalid(detail: str, path: Path) -> Usage:
    return Usage(
        "Invalid pyproject.toml" if path.name == PROJECT else "Invalid script metadata",
        detail,
        where=str(path),
        hint="Fix the file, or use a requirements file instead:\n"
        "    job: {requirements: requirements.txt}",
    )
