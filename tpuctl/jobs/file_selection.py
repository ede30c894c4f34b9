"""Selects the files of a folder to upload.

Everything below the folder, except what git ignores (`.gitignore` files in the folder, below it,
and above it up to the repository's root, `info/exclude`, `core.excludesFile`; but not files that
git tracks), what `.tpuctlignore` files in the same places match, what the stack excludes, and what
never belongs on a worker. What the stack includes is uploaded even if ignored. Files with
credentials are uploaded only if the stack includes them by their own names.

Links within the folder stay links. A link that points outside the folder is rejected unless it is
named by the stack's `include`, or is the script: then its target is uploaded in its place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tpuctl.errors import Usage
from tpuctl.files import is_lfs_pointer
from tpuctl.jobs.repository import Repository, repository_root

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

GIT_IGNORE, OWN_IGNORE = ".gitignore", ".tpuctlignore"  # the latter takes precedence
ALWAYS_EXCLUDED = frozenset(
    {
        ".DS_Store",
        ".git",
        ".hg",
        ".ipynb_checkpoints",
        ".mypy_cache",
        ".nox",
        ".pytest_cache",
        ".ruff_cache",
        ".svn",
        ".tox",
        ".tpuctl",
        "__pycache__",
    }
)
CI_CREDENTIALS = re.compile(r"gha-creds-.*\.json")  # written by google-github-actions/auth
# Where programs keep tokens and passwords, by the ends of paths.
CREDENTIALS = r"""(?:^|/)(?:
        \.env(?:\.(?!(?:example|sample|template|dist|defaults?)$)[^/]+)? | \.envrc
        | [._]netrc | \.git-credentials | \.npmrc | \.pypirc | \.pgpass | \.boto | \.s3cfg
        | \.databrickscfg | \.dockercfg | \.vault-token | kaggle\.json | client_secret[^/]*\.json
        | [^/]+\.ppk | rclone\.conf
        | \.aws/credentials | \.azure/[^/]*tokens?[^/]*\.json | \.cargo/credentials(?:\.toml)?
        | \.config/gcloud(?:/.*)? | \.config/gh/hosts\.yml | \.docker/config\.json
        | \.?huggingface/(?:token|stored_tokens) | \.kube/config | \.streamlit/secrets\.toml
    )$"""

LFS_FILTER = b"filter=lfs"
MAX_NAME_LENGTH = 300  # in messages
SPECIAL = re.compile(r"[*?\[\\]|\s+$")  # in patterns
PLAIN = re.compile(r"[\w./-]+")  # in YAML, without quotes
SURROGATE = re.compile("[\udc80-\udcff]")


class Entry(NamedTuple):
    """A member of the bundle: `kind` is file, folder or link; `target` is a link's target.

    `origin` is the target of the link that was followed to a file or folder outside.
    """

    name: str
    path: Path
    kind: str
    target: str = ""
    origin: str = ""


@dataclass(frozen=True)
class Exclusion:
    """Why a file, or a folder with everything in it, is not uploaded."""

    name: str  # of what the rule matches; an absolute path if it is outside the folder
    source: Path | str  # the file with the rule, or the setting or other reason
    line: int = 0  # of the file
    pattern: str = ""
    remedy: str = ""  # how to upload it anyway; lines
    is_credential: bool = False
    # Whose rule it is, if it is one of git's: what it tracks is uploaded nevertheless.
    repository: Repository | None = field(default=None, compare=False)

    @property
    def rule(self) -> str:
        """The rule in words: `.gitignore:3 (data/)`, `job.exclude (*.csv)`."""
        source = self.source
        if isinstance(source, Path):
            source = min((os.path.relpath(source), str(source)), key=len)
        line = f":{self.line}" if self.line else ""
        return f"{source}{line}" + (f" ({self.pattern})" if self.pattern else "")


class Selection(NamedTuple):
    """The files to upload, and those left out because they hold credentials."""

    entries: tuple[Entry, ...]
    credentials: tuple[str, ...]  # names


@dataclass(frozen=True)
class _IgnoreFile:
    """The patterns of a file, relative to a folder."""

    path: Path
    folder: Path
    lines: tuple[str, ...]
    is_git: bool
    repository: Repository | None  # that it belongs to

    @cached_property
    def _patterns(self) -> GitIgnoreSpec:
        return _patterns([_matchable(line) for line in self.lines])

    def verdict(self, path: Path, is_folder: bool) -> tuple[bool, int] | None:
        """Whether it ignores a path, and the line that decides; None if no line matches."""
        name = path.relative_to(self.folder).as_posix() + ("/" if is_folder else "")
        result = self._patterns.check_file(_matchable(name))
        if result.include is None or result.index is None:
            return None
        return result.include, result.index + 1


class _Scope(NamedTuple):
    """What applies to the contents of a folder."""

    files: tuple[_IgnoreFile, ...] = ()  # later ones take precedence
    repository: Repository | None = None
    exclusion: Exclusion | None = None  # of the folder
    links: tuple[Path, ...] = ()  # folders outside that were entered through links


class FileRules:
    """The rules that decide which files of a folder are uploaded."""

    def __init__(
        self, root: Path, include: Sequence[str] = (), exclude: Sequence[str] = (), script: str = ""
    ) -> None:
        self.root, self._given = root.resolve(), root.absolute()
        self._include, self._exclude = tuple(include), tuple(exclude)
        self._included = _patterns(include) if include else None
        self._excluded = _patterns(exclude) if exclude else None
        self._script = script
        self._rejected: list[Path] = []
        self._credentials: list[str] = []
        self._scopes: dict[Path, tuple[_Scope, Exclusion | None]] = {}

    def select(self) -> Selection:
        """Everything to upload, each folder before its contents, sorted by name.

        Raises Usage for links outside the folder that are not named, and for folders that cannot be
        read.
        """
        self._rejected, self._credentials = [], []
        try:
            entries = tuple(self._visit(self.root, self._top))
        except OSError as error:
            raise unreadable_error(error, self.root) from error
        if self._rejected:
            raise _outside_error(self.root, self._rejected)
        return Selection(entries, tuple(self._credentials))

    def lfs_pointers(self) -> list[str]:
        """The files to upload that are pointers of Git LFS, if a `.gitattributes` file here or
        above in the repository names such files. Raises Usage as `select` does."""
        top = repository_root(self.root)
        folders = [self.root, *self.root.parents] if top is not None else []
        attributes = [path / ".gitattributes" for path in folders if path.is_relative_to(top or "")]
        if not any(path.is_file() and LFS_FILTER in path.read_bytes() for path in attributes):
            return []
        return [
            entry.name
            for entry in self.select().entries
            if entry.kind == "file" and _is_lfs_pointer(entry.path)
        ]

    def exclusion_of(self, path: Path) -> Exclusion | None:
        """Why an existing file or folder with this absolute path is not uploaded; None if it is."""
        if path.is_relative_to(self._given):
            path = self.root / path.relative_to(self._given)
        path = Path(os.path.normpath(path))
        if not path.is_relative_to(self.root):
            path = path.parent.resolve() / path.name
        if not path.is_relative_to(self.root):
            remedy = "Move it into that folder, or run a module of a folder that contains both:\n"
            remedy += "    tpuctl run -m PACKAGE.MODULE"
            return Exclusion(str(path), f"outside of the folder {self.root}", remedy=remedy)
        if path == self.root:
            return None
        scope, above = self._scope_of(path.parent)
        if above is not None and not self._may_hold_files(path.parent, above):
            return above
        return self._exclusion(path, path.is_dir(), scope)

    def _scope_of(self, folder: Path) -> tuple[_Scope, Exclusion | None]:
        """What applies to the contents of a folder, and why itself is not uploaded."""
        if folder == self.root:
            return self._top, None
        if folder not in self._scopes:
            scope, above = self._scope_of(folder.parent)
            if above is None or self._may_hold_files(folder.parent, above):
                above = self._exclusion(folder, True, scope)
                scope = self._enter(folder, scope, above)
            self._scopes[folder] = scope, above
        return self._scopes[folder]

    def _visit(self, folder: Path, scope: _Scope) -> Iterator[Entry]:
        for path in sorted(folder.iterdir(), key=lambda path: path.name):
            name = path.relative_to(self.root).as_posix()
            origin = _origin(self.root, path)
            is_followed = bool(origin) and (
                name == self._script or self._is_included(name) or self._is_included(name + "/")
            )
            is_folder = path.is_dir() and (is_followed or not path.is_symlink())
            exclusion = self._exclusion(path, is_folder, scope)
            is_below_credential = scope.exclusion is not None and scope.exclusion.is_credential
            if exclusion is not None and exclusion.is_credential and not is_below_credential:
                self._credentials.append(name)
            if is_folder:
                if exclusion is not None and not self._may_hold_files(path, exclusion):
                    continue
                links = (*scope.links, path.resolve()) if is_followed else scope.links
                if is_followed and links[-1] in scope.links:  # a cycle
                    self._rejected.append(path)
                    continue
                below = list(self._visit(path, self._enter(path, scope, exclusion, links)))
                if below or exclusion is None:
                    yield Entry(name, path, "folder", origin=origin)
                    yield from below
            elif exclusion is not None:
                continue
            elif origin and not (is_followed and path.is_file()):
                self._rejected.append(path)
            elif path.is_symlink() and not origin:
                yield Entry(name, path, "link", os.path.relpath(_target(path), path.parent))
            elif path.is_file():  # no sockets, no pipes
                yield Entry(name, path, "file", origin=origin)

    def _may_hold_files(self, folder: Path, exclusion: Exclusion) -> bool:
        """Whether to look for files to upload in a folder that is left out."""
        if exclusion.line == 0 and not exclusion.is_credential:
            return False
        repository = exclusion.repository
        return bool(self._include) or (repository is not None and repository.tracks_below(folder))

    def _exclusion(self, path: Path, is_folder: bool, scope: _Scope) -> Exclusion | None:
        name = path.relative_to(self.root).as_posix()
        if path.name in ALWAYS_EXCLUDED:
            return Exclusion(name, f"{path.name} is never uploaded")
        if is_folder and (path / "pyvenv.cfg").exists():
            return Exclusion(name, "virtual environments are never uploaded")
        if CI_CREDENTIALS.fullmatch(path.name):
            return Exclusion(name, "credentials of a CI job are never uploaded")
        match_name = name + "/" if is_folder else name
        pattern = self._excluding_pattern(match_name)
        if pattern:
            return Exclusion(
                name, "job.exclude", pattern=pattern, remedy=f"Remove {pattern} from job.exclude."
            )
        if not self._is_included(match_name):
            above = scope.exclusion
            if above is not None and not _is_tracked(path, above.repository):
                return above
            ignored = self._ignored(path, is_folder, scope)
            if ignored is not None:
                return ignored
        if _is_credential(name) and not self._is_named(name):
            remedy = f"Pass tokens with job.secrets, or add\n    {include_setting([name])}"
            return Exclusion(
                name, "files with credentials are not uploaded", remedy=remedy, is_credential=True
            )
        return None

    def _is_named(self, name: str) -> bool:
        """Whether a file is included by its own name, not by a wildcard or a folder."""
        return any(f"/{name}".endswith(f"/{pattern.strip('/')}") for pattern in self._include) and (
            self._is_included(name)
        )

    def _is_included(self, name: str) -> bool:
        return self._included is not None and self._included.match_file(_matchable(name))

    def _excluding_pattern(self, name: str) -> str:
        """The pattern of `job.exclude` that matches; empty if there is none."""
        if self._excluded is None:
            return ""
        result = self._excluded.check_file(_matchable(name))
        return self._exclude[result.index] if result.include and result.index is not None else ""

    def _ignored(self, path: Path, is_folder: bool, scope: _Scope) -> Exclusion | None:
        """As in git: the deepest ignore file with a pattern that matches the path wins, and what is
        tracked is not ignored."""
        for file in reversed(scope.files):
            verdict = file.verdict(path, is_folder)
            if verdict is None or (
                verdict[0] and file.is_git and _is_tracked(path, file.repository)
            ):
                continue
            is_ignored, line = verdict
            if not is_ignored:
                return None
            name = path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else ""
            return Exclusion(
                name,
                file.path,
                line,
                file.lines[line - 1].strip(),
                f"To upload it, add to the stack file\n    {include_setting([name])}",
                repository=file.repository if file.is_git else None,
            )
        return None

    @cached_property
    def _top(self) -> _Scope:
        """What applies to the folder's contents: also rules of the folders between it and the
        repository's root.

        If the repository ignores the folder itself, they do not apply to its contents: running a
        script from there is intentional.
        """
        top = repository_root(self.root)
        scope = _Scope(repository=Repository(top) if top is not None else None)
        above = (
            [] if top is None else [path for path in self.root.parents if path.is_relative_to(top)]
        )
        inside = [*above[:-1][::-1], self.root]
        for folder, below in zip(reversed(above), inside, strict=True) if above else ():
            scope = self._enter(folder, scope)
            if self._ignored(below, True, scope) is not None:
                scope = _Scope(repository=scope.repository)
                break
        return self._enter(self.root, scope)

    def _enter(
        self,
        folder: Path,
        scope: _Scope,
        exclusion: Exclusion | None = None,
        links: tuple[Path, ...] = (),
    ) -> _Scope:
        """What applies to the contents of a folder below; `exclusion` is its own."""
        files, repository = scope.files, scope.repository
        if (folder / ".git").exists():  # rules of a repository around this one do not apply
            files = tuple(file for file in files if not file.is_git)
            if repository is None or repository.root != folder:
                repository = Repository(folder)
            for path in repository.exclude_files:
                files += _read(path, folder, True, repository)
        files += _read(folder / GIT_IGNORE, folder, True, repository)
        files += _read(folder / OWN_IGNORE, folder, False, repository)
        return _Scope(files, repository, exclusion, links)


def _is_credential(name: str) -> bool:
    # Compiled when first needed, which takes longer than the check of a small script.
    return re.search(CREDENTIALS, name, re.VERBOSE | re.IGNORECASE) is not None


def _is_lfs_pointer(path: Path) -> bool:
    try:
        with path.open("rb") as source:
            return is_lfs_pointer(source, os.fstat(source.fileno()).st_size)
    except OSError:  # `run` reports it
        return False


def _patterns(lines: Sequence[str]) -> GitIgnoreSpec:
    """Patterns at the positions of their lines."""
    from pathspec import GitIgnoreSpec  # which takes longer than the check of a small script

    return GitIgnoreSpec.from_lines(line or "#" for line in lines)  # empty ones would be dropped


def _matchable(text: str) -> str:
    """A text for patterns and names, whose engine may accept no surrogates: they stand for bytes
    that are not valid UTF-8, and become characters for private use."""
    return (
        text if text.isascii() else SURROGATE.sub(lambda match: chr(ord(match[0]) + 0x1B00), text)
    )


def include_setting(names: Iterable[str]) -> str:
    """The line of the stack file that includes these files."""
    patterns = [f"/{SPECIAL.sub(lambda match: chr(92) + match[0], name)}" for name in names]
    quoted = [
        pattern if PLAIN.fullmatch(pattern) else "'" + pattern.replace("'", "''") + "'"
        for pattern in patterns
    ]
    return f"job: {{include: [{', '.join(quoted)}]}}"


def unreadable_error(error: OSError, root: Path) -> Usage:
    """The error for a file or folder below `root` that cannot be read."""
    name = os.path.relpath(os.fsdecode(error.filename or "."), root)
    name = name if len(name) <= MAX_NAME_LENGTH else f"…{name[-MAX_NAME_LENGTH:]}"
    return Usage(
        "Cannot read a file to upload",
        f"{name}: {error.strerror or error}",
        hint="Make it readable or remove it, or exclude it in .tpuctlignore.",
    )


def _is_tracked(path: Path, repository: Repository | None) -> bool:
    return repository is not None and repository.tracks(path)


def _target(link: Path) -> Path:
    """The target of a link, which may not exist."""
    return Path(os.path.normpath(link.parent / link.readlink()))


def _origin(root: Path, path: Path) -> str:
    """The target of a link that points outside the folder; empty for everything else."""
    if not path.is_symlink() or _target(path).is_relative_to(root):
        return ""
    return str(path.readlink())


def _outside_error(root: Path, links: Sequence[Path]) -> Usage:
    names = {path.relative_to(root).as_posix(): str(path.readlink()) for path in links}
    lines = "\n".join(f"    /{name}" for name in names)
    return Usage(
        "Link points outside the folder",
        "; ".join(f"{name} points to {target}" for name, target in names.items()),
        hint="Files outside the folder are uploaded only if named. To include them:\n"
        f"    {include_setting(names)}\nTo exclude them, add to .tpuctlignore:\n{lines}",
    )


def _read(
    path: Path, folder: Path, is_git: bool, repository: Repository | None
) -> tuple[_IgnoreFile, ...]:
    if not path.is_file():
        return ()
    # Editors of Windows write a byte order mark. Git splits lines at line feeds only.
    try:
        text = path.read_text("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise unreadable_error(error, folder) from error
    lines = tuple(line.removesuffix("\r") for line in text.split("\n"))
    if all(not line or line.startswith("#") for line in lines):  # as in most of info/exclude
        return ()
    return (_IgnoreFile(path, folder, lines, is_git, repository),)
