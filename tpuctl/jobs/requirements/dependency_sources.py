"""Where dependencies are from, according to uv, Poetry, PDM, Hatch and Rye; pip reads none of that.

A package of the uploaded folder, a git repository and an address are passed to pip as such. What
pip cannot be given by a requirement is refused: it would install the package of that name on the
public index, which may be a stranger's.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tpuctl.errors import Refused
from tpuctl.files import is_generated_folder

REQUIREMENT = re.compile(
    r"\s*(?P<name>[A-Za-z0-9][\w.-]*)\s*(?P<extras>\[[^\]]*\])?\s*(?P<clauses>[^;@]*?)\s*"
    r"(?P<marker>;.*)?"
)
# The project's folder in a requirement with an address, as PDM and Hatch write it.
IN_PROJECT = re.compile(
    r"\s*[\w.-]+\s*(?P<extras>\[[^\]]*\])?\s*@\s*(?:file:/*)?(?:\$\{PROJECT_ROOT\}|\{root:uri\})/*"
    r"(?P<path>[^\s;#]*)[^;]*(?P<marker>;.*)?"
)
# The tables with indexes of packages, and the setting that an entry is not searched by default.
INDEXES = (
    ("tool.uv.index", lambda entry: entry.get("explicit") is True),
    ("tool.poetry.source", lambda entry: entry.get("priority") == "explicit"),
    ("tool.pdm.source", lambda entry: bool(entry.get("include_packages"))),
    ("tool.rye.sources", lambda entry: False),
)
UV_INDEXES = ("index-url", "extra-index-url", "find-links")
PUBLIC = re.compile(r"https?://(pypi\.org|files\.pythonhosted\.org)(/|$)")
CREDENTIALS = re.compile(r"(?<=://)[^/\s@]*@")


class Source(NamedTuple):
    """What a tool says about one dependency."""

    file: Path
    key: str
    line: int
    value: Any


@dataclass
class DependencySources:
    """Resolves the dependencies of one project, in a folder to upload.

    `has_index` says that the job configures pip's index or uses its own wheels.
    """

    root: Path
    has_index: bool
    _visited: set[Path] = field(default_factory=set)

    def resolve(
        self,
        file: Path,
        document: Mapping[str, Any],
        dependencies: Sequence[str],
        inherited: Mapping[str, Source] | None = None,
    ) -> list[str]:
        """The dependencies as pip requirements, packages of the folder as paths relative to it.
        Raises Refused. `file` has the document."""
        text = file.read_text("utf-8", "replace")
        sources = {**(inherited or {}), **dict(_sources(file, document, text))}
        self._refuse_build_sources(document, sources)
        if dependencies:
            self._refuse_indexes(file, document, text)
        resolved = []
        for dependency in dependencies:
            inside = IN_PROJECT.fullmatch(dependency)
            match = REQUIREMENT.fullmatch(dependency)
            source = sources.get(_normalize(match["name"])) if match else None
            if inside:
                line = _line(text, dependency)
                source = Source(file, "project.dependencies", line, {"path": inside["path"]})
                path = self._path(source, file.parent / inside["path"])
                resolved += self._local(source, path, inside, sources)
            elif source is not None and match is not None:
                resolved += self._resolved(source, dependency, match, sources)
            else:
                resolved.append(dependency)
        return list(dict.fromkeys(resolved))

    def refuse_hidden(self, file: Path, document: Mapping[str, Any]) -> None:
        """Raise Refused for sources of a project whose dependencies only its build backend knows,
        and that the backend does not apply."""
        text = file.read_text("utf-8", "replace")
        self._refuse_indexes(file, document, text)
        for source in dict(_sources(file, document, text)).values():
            is_applied = not source.key.startswith("tool.uv.") and "source" not in _keys(
                source.value
            )
            if not is_applied and not self._is_indexed(source.value):
                hint = "List the dependencies in project.dependencies, or in a requirements file."
                raise _refused(source, "the project's dependencies are dynamic", hint)

    def _resolved(
        self,
        source: Source,
        dependency: str,
        match: re.Match[str],
        sources: Mapping[str, Source],
    ) -> list[str]:
        value = source.value
        if self._is_indexed(value):
            return [dependency]
        if not isinstance(value, dict) or {"marker", "extra", "group", "markers"} & value.keys():
            raise _refused(source, "which source applies depends on the machine", _HINT)
        name, extras, marker = match["name"], match["extras"] or "", match["marker"] or ""
        if "path" in value or "file" in value:
            target = source.file.parent / str(value.get("path") or value.get("file"))
            return self._local(source, self._path(source, target), match, sources)
        if value.get("workspace") is True:
            return self._local(source, self._member(source, name), match, sources)
        if "git" in value or "url" in value:
            address = _git(str(value["git"])) if "git" in value else str(value["url"])
            reference = next((value[key] for key in ("rev", "tag", "branch") if key in value), "")
            address += f"@{reference}" if reference else ""
            folder = value.get("subdirectory")
            address += f"#subdirectory={folder}" if folder else ""
            return [f"{name}{extras} @ {address}" + (f" {marker}" if marker else "")]
        if "index" in value or "source" in value:
            raise _refused(source, "pip cannot be given an index for one package", _INDEX_HINT)
        raise _refused(source, "its form is unknown", _HINT)

    def _is_indexed(self, value: Any) -> bool:
        """Whether it names an index, and pip uses the job's."""
        several = value if isinstance(value, list) else [value]
        return self.has_index and all({"index", "source"} & _keys(source) for source in several)

    def _path(self, source: Source, target: Path) -> Path:
        target = target.resolve()
        if not target.is_relative_to(self.root.resolve()):
            raise _refused(
                source,
                f"{target} is outside the uploaded folder",
                _COPY,
            )
        if not target.exists():
            raise _refused(source, f"{target} does not exist", "Correct the path.")
        return target

    def _member(self, source: Source, name: str) -> Path:
        """The member of a uv workspace with that name."""
        for file in _projects(self.root):
            own_name = _get(_load(file), "project.name")
            if isinstance(own_name, str) and _normalize(own_name) == _normalize(name):
                return file.parent.resolve()
        raise _refused(
            source,
            "the workspace's member is not in the uploaded folder",
            _COPY,
        )

    def _local(
        self, source: Source, target: Path, match: re.Match[str], sources: Mapping[str, Source]
    ) -> list[str]:
        """The requirement of a package in the folder, and those that it needs from elsewhere."""
        path = target.relative_to(self.root.resolve()).as_posix()
        marker = f" {match['marker']}" if match["marker"] else ""
        requirement = f"./{path}{match['extras'] or ''}{marker}"
        file = target / "pyproject.toml"
        if target in self._visited or not file.is_file():
            return [requirement]
        self._visited.add(target)
        document = _load(file)
        project = document.get("project", {})
        if not isinstance(project, dict) or "dependencies" in project.get("dynamic", ()):
            self.refuse_hidden(file, document)
            return [requirement]
        listed = project.get("dependencies", [])
        names = (
            [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
        )
        resolved = self.resolve(file, document, names, sources)
        return [requirement, *(requirement for requirement in resolved if requirement not in names)]

    def _refuse_build_sources(
        self, document: Mapping[str, Any], sources: Mapping[str, Source]
    ) -> None:
        build = document.get("build-system")
        requires = build.get("requires", []) if isinstance(build, dict) else []
        for requirement in requires if isinstance(requires, list) else []:
            match = REQUIREMENT.fullmatch(str(requirement))
            source = sources.get(_normalize(match["name"])) if match else None
            if source is not None and not self._is_indexed(source.value):
                raise _refused(
                    source, "it builds the project, and pip takes it from its index", _HINT
                )

    def _refuse_indexes(self, file: Path, document: Mapping[str, Any], text: str) -> None:
        if self.has_index:
            return
        for key, url in _indexes(document):
            if not PUBLIC.match(url):
                source = Source(file, key, _line(text, url), None)
                raise _refused(source, f"pip would not use {CREDENTIALS.sub('', url)}", _INDEX_HINT)


_HINT = (
    "Let the tool write what pip should install into a requirements file, and use that:\n"
    "    job: {requirements: requirements.txt}"
)
_COPY = "Copy the package into that folder, or run a script in a folder that contains both."
_INDEX_HINT = (
    "Lock the dependencies: a lock names the index of each package:\n"
    "    uv lock\n"
    "Or give pip the index in the stack file, instead of the public one or in addition to it "
    "(with a password, as a secret in job.secrets):\n"
    "    job: {env: {PIP_INDEX_URL: URL}}\n"
    "    job: {env: {PIP_EXTRA_INDEX_URL: URL}}"
)


def _refused(source: Source, reason: str, hint: str) -> Refused:
    return Refused(
        "Source of a dependency is not known to pip",
        f"{source.key}: {reason}. From the public index, pip may install another package of that "
        "name.",
        hint=hint,
        where=f"{source.file}:{source.line}",
    )


def source_line(file: Path, name: str) -> int | None:
    """The line of a project or script that says where a package is from, for uv; None without."""
    text = file.read_text("utf-8", "replace")
    table = "tool.uv.sources"
    pattern = rf"(?m)^[\s#]*(?:\[?{re.escape(table)}\.)?([\"']?)([\w.-]+)\1\s*[\]=]"
    start = max(text.find(table), 0)
    for match in re.compile(pattern).finditer(text, start):
        if _normalize(match[2]) == _normalize(name):
            return text.count("\n", 0, match.start(2)) + 1
    return None


def _sources(file: Path, document: Mapping[str, Any], text: str) -> Iterator[tuple[str, Source]]:
    for table in ("tool.poetry.dependencies", "tool.uv.sources"):
        entries = _get(document, table)
        for name, value in entries.items() if isinstance(entries, dict) else ():
            is_poetry = table.startswith("tool.poetry")
            if is_poetry and not _keys(value) & {"path", "file", "git", "url", "source"}:
                continue
            key = f"{table}.{name}"
            yield _normalize(name), Source(file, key, _key_line(text, table, name), value)


def _indexes(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, is_explicit in INDEXES:
        entries = _get(document, key)
        for entry in entries if isinstance(entries, list) else ():
            url = entry.get("url") if isinstance(entry, dict) else None
            if isinstance(url, str) and not is_explicit(entry):
                yield key, url
    for key in UV_INDEXES:
        value = _get(document, f"tool.uv.{key}")
        for url in value if isinstance(value, list) else [value]:
            if isinstance(url, str):
                yield f"tool.uv.{key}", url


def _projects(root: Path) -> Iterator[Path]:
    """Every pyproject.toml below a folder, without those of virtual environments."""
    for path, folders, files in os.walk(root):
        folders[:] = sorted(
            folder for folder in folders if not is_generated_folder(Path(path, folder))
        )
        if "pyproject.toml" in files:
            yield Path(path, "pyproject.toml")


def _keys(value: Any) -> set[str]:
    """The keys of a source, or of all of several."""
    several = value if isinstance(value, list) else [value]
    return {key for source in several if isinstance(source, dict) for key in source}


def _git(repository: str) -> str:
    """A repository as pip names it, which knows no `user@host:path`."""
    ssh = re.fullmatch(r"([\w.-]+@[\w.-]+):(?!//)(.+)", repository)
    return f"git+ssh://{ssh[1]}/{ssh[2]}" if ssh else f"git+{repository.removeprefix('git+')}"


def _get(document: Mapping[str, Any], key: str) -> Any:
    value: Any = document
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _key_line(text: str, table: str, name: str) -> int:
    """The line of a key in a table, or of the table `[table.name]`."""
    quoted = rf"[\"']?{re.escape(name)}[\"']?"
    pattern = rf"(?m)^\W*{re.escape(table)}\.{quoted}\b|^[\s#]*{quoted}\s*="
    start = max(text.find(f"[{table}"), text.find(f"{table}."), 0)
    match = re.compile(pattern).search(text, start) or re.compile(pattern).search(text)
    return text.count("\n", 0, match.start()) + 1 if match else 1


def _line(text: str, part: str) -> int:
    return text.count("\n", 0, max(text.find(part), 0)) + 1


def _load(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return {}


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()
