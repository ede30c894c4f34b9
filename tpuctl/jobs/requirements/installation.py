"""Reads the dependencies of a job from its folder, before the upload."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tpuctl.errors import Usage
from tpuctl.jobs.requirements.dependency_sources import DependencySources
from tpuctl.model.jobs.installation import Installation
from tpuctl.model.scripts.script_metadata import read_script_metadata
from tpuctl.model.stack.schema import JobSection

AUTO = "auto"
REQUIREMENTS, PROJECT, WHEELS = "requirements.txt", "pyproject.toml", "wheels"
# Variables that tell pip where packages are.
INDEX_VARIABLES = frozenset(
    {"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_CONFIG_FILE"}
)
EXTRAS = re.compile(r"(?P<path>.*?)\s*\[(?P<extras>[^\[\]]*)\]")


def read_installation(job: JobSection, folder: Path, script: Path | None = None) -> Installation:
    """The dependencies according to the stack file, the uploaded folder, and the metadata in the
    script (PEP 723). Raises Usage, or Refused for sources that pip does not know.

    A file that the stack file names must exist, except requirements.txt, the usual one.
    """
    wheels = _wheels(job.wheels, folder)
    has_index = wheels is not None or bool(INDEX_VARIABLES & {*job.env, *job.secrets})
    sources = DependencySources(folder, has_index)
    installation = Installation(wheels=wheels, setup=job.setup)
    requirements = job.requirements
    if requirements is None:
        return installation
    packages = _script_dependencies(script, sources)
    installation = installation.model_copy(update={"packages": packages})
    if requirements == AUTO:
        requirements = next(
            (candidate for candidate in (REQUIREMENTS, PROJECT) if (folder / candidate).is_file()),
            None,
        )
    if requirements is None:
        return installation
    match = EXTRAS.fullmatch(requirements)
    name = match["path"] if match else requirements
    path = _inside(folder, name, "job.requirements")
    extras = [extra.strip() for extra in match["extras"].split(",")] if match else []
    if not path.is_file():
        if name == REQUIREMENTS:
            return installation
        raise _not_found(f"job.requirements: {name} not found in {folder}", "job.requirements")
    if path.name == PROJECT:
        return installation.model_copy(update=_project_fields(path, name, extras, sources))
    if extras:
        detail = f"job.requirements: {name} is a requirements file, which has no extras"
        raise Usage(
            "Extras require a pyproject.toml",
            detail,
            where="job.requirements",
            hint="Use the project instead, or remove the extras:\n"
            "    job: {requirements: pyproject.toml}",
        )
    return installation.model_copy(update={"requirements": name})


def _script_dependencies(script: Path | None, sources: DependencySources) -> tuple[str, ...]:
    metadata = read_script_metadata(script)
    if metadata is None or script is None:
        return ()
    listed = _strings(metadata.document.get("dependencies", []), "dependencies", script)
    return tuple(sources.resolve(script, metadata.document, listed))


def named_files(job: JobSection, installation: Installation) -> tuple[str, ...]:
    """Patterns of files named in the stack file, which are uploaded even if ignored."""
    patterns = []
    if job.requirements not in (AUTO, REQUIREMENTS) and installation.requirements:
        patterns.append(f"/{installation.requirements}")
    if job.wheels != AUTO and installation.wheels:
        patterns.append(f"/{installation.wheels}/*.whl")
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
    path: Path, name: str, extras: Sequence[str], sources: DependencySources
) -> dict[str, Any]:
    """The fields of an Installation that come from a pyproject.toml.

    If its dependencies are not listed in `project`, only the build backend knows them: then pip
    installs the project itself.
    """
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _invalid(str(error), path) from None
    project = document.get("project")
    is_package = "build-system" in document
    folder = Path(name).parent.as_posix()
    if not isinstance(project, dict):
        if extras:
            raise _unknown_extra(path, extras[0], ())
        if not is_package:
            return {}
        sources.refuse_hidden(path, document)
        return {"dependencies": (f"./{folder}",)}
    dynamic = _strings(project.get("dynamic", []), "project.dynamic", path)
    if {"dependencies", "optional-dependencies"} & set(dynamic):
        sources.refuse_hidden(path, document)
        suffix = f"[{','.join(extras)}]" if extras else ""
        return {"dependencies": (f"./{folder}{suffix}",)}
    dependencies = _strings(project.get("dependencies", []), "project.dependencies", path)
    optional = project.get("optional-dependencies", {})
    if not isinstance(optional, dict):
        raise _invalid("project.optional-dependencies is not a table", path)
    for extra in extras:
        own_name = _normalize(str(project.get("name", "")))
        dependencies += _expand_extra(extra, optional, own_name, path, ())
    unique = tuple(sources.resolve(path, document, dependencies))
    return {"dependencies": unique, "project": folder if is_package else None}


def _expand_extra(
    extra: str, optional: dict[str, Any], project: str, path: Path, parents: Sequence[str]
) -> list[str]:
    """The requirements of an extra; extras of the same project in it are expanded."""
    by_name = {_normalize(name): requirements for name, requirements in optional.items()}
    if _normalize(extra) not in by_name:
        raise _unknown_extra(path, extra, tuple(optional))
    if _normalize(extra) in parents:
        return []
    requirements, parents = [], (*parents, _normalize(extra))
    key = f"project.optional-dependencies.{extra}"
    for requirement in _strings(by_name[_normalize(extra)], key, path):
        match = EXTRAS.fullmatch(requirement)
        if match and _normalize(match["path"]) == project:
            for name in [name.strip() for name in match["extras"].split(",")]:
                requirements += _expand_extra(name, optional, project, path, parents)
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


def _unknown_extra(path: Path, extra: str, available: Sequence[str]) -> Usage:
    listed = ", ".join(available) or "none"
    detail = f"{path.name} has no extra {extra!r}; it has {listed}"
    return Usage(
        "Unknown extra",
        detail,
        where="job.requirements",
        hint=f"Use one of these in job.requirements: {listed}.",
    )


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
