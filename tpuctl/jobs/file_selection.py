"""Selects the files of a folder to upload.

Everything below the folder, except what `.gitignore` and `.tpuctlignore` files match (in the
folder, below it, and above it up to the repository's root), what the stack excludes, and what
never belongs on a worker. What the stack includes is uploaded even if ignored.

Links within the folder stay links. A link that points outside the folder is rejected unless it is
named by the stack's `include`, or is the script: then its target is uploaded in its place.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from pathspec import GitIgnoreSpec

from tpuctl.errors import Usage

__all__ = ["Entry", "select_files"]

IGNORE_FILES = (".gitignore", ".tpuctlignore")  # the later one takes precedence
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
CREDENTIALS_PATTERN = "gha-creds-*.json"  # credentials written by google-github-actions/auth


@dataclass(frozen=True)
class Entry:
    """A member of the bundle: `kind` is file, folder or link; `target` is a link's target.

    `origin` is the target of the link that was followed to a file or folder outside.
    """

    name: str
    path: Path
    kind: str
    target: str = ""
    origin: str = ""


Links = tuple[Path, ...]  # folders outside that were entered through links
Rules = tuple[tuple[Path, GitIgnoreSpec], ...]  # each spec with the folder it is relative to


def select_files(
    root: Path, include: Sequence[str], exclude: Sequence[str], script: str = ""
) -> Iterator[Entry]:
    """Everything to upload, each folder before its contents, sorted by name.

    Raises Usage, at the end, for links outside the folder that are not named.
    """
    included = GitIgnoreSpec.from_lines(include)
    excluded = GitIgnoreSpec.from_lines(exclude)
    rejected: list[Path] = []

    def visit(folder: Path, rules: Rules, is_ignored: bool, links: Links = ()) -> Iterator[Entry]:
        rules = (*rules, *_read_rules(folder))
        for path in sorted(folder.iterdir(), key=lambda path: path.name):
            name = path.relative_to(root).as_posix()
            origin = _origin(root, path)
            is_followed = bool(origin) and (
                name == script or included.match_file(name) or included.match_file(name + "/")
            )
            is_folder = path.is_dir() and (is_followed or not path.is_symlink())
            match_name = name + "/" if is_folder else name
            if path.name in ALWAYS_EXCLUDED or (is_folder and (path / "pyvenv.cfg").exists()):
                continue
            if fnmatchcase(path.name, CREDENTIALS_PATTERN):
                continue
            if excluded.match_file(match_name):
                continue
            is_excluded = (is_ignored or _is_ignored(path, is_folder, rules)) and not (
                included.match_file(match_name)
            )
            if is_folder:
                if is_excluded and not include:
                    continue
                inner_links = links
                if is_followed:
                    inner_links = (*links, path.resolve())
                    if inner_links[-1] in links:  # a cycle
                        rejected.append(path)
                        continue
                below = list(visit(path, rules, is_excluded, inner_links))
                if below or not is_excluded:
                    yield Entry(name, path, "folder", origin=origin)
                    yield from below
            elif origin and not is_excluded and not (is_followed and path.is_file()):
                rejected.append(path)
            elif not is_excluded and path.is_symlink() and not origin:
                yield Entry(name, path, "link", os.path.relpath(_target(path), path.parent))
            elif not is_excluded and path.is_file():  # no sockets, no pipes
                yield Entry(name, path, "file", origin=origin)

    yield from visit(root, _rules_above(root), False)
    if rejected:
        raise _outside_error(root, rejected)


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
    included = ", ".join(f"/{name}" for name in names)
    return Usage(
        "Link points outside the folder",
        "; ".join(f"{name} points to {target}" for name, target in names.items()),
        hint="Files outside the folder are uploaded only if named. To include them:\n"
        f"    job: {{include: [{included}]}}\nTo exclude them, add to .tpuctlignore:\n{lines}",
    )


def _is_ignored(path: Path, is_folder: bool, rules: Rules) -> bool:
    """As in git: the deepest ignore file with a pattern that matches the path wins."""
    for folder, spec in reversed(rules):
        name = path.relative_to(folder).as_posix() + ("/" if is_folder else "")
        verdict = spec.check_file(name).include
        if verdict is not None:
            return verdict
    return False


def _read_rules(folder: Path) -> Rules:
    rules = []
    for name in IGNORE_FILES:
        file = folder / name
        if file.is_file():
            lines = file.read_text("utf-8", errors="replace").splitlines()
            rules.append((folder, GitIgnoreSpec.from_lines(lines)))
    return tuple(rules)


def _rules_above(root: Path) -> Rules:
    """The rules between the repository's root and the folder; none outside a repository.

    If the repository ignores the folder itself, they do not apply to its contents: running a
    script from there is intentional.
    """
    above: list[Path] = []
    folder = root
    while not (folder / ".git").exists():
        if folder.parent == folder:
            return ()
        folder = folder.parent
        above.append(folder)
    rules = tuple(rule for folder in reversed(above) for rule in _read_rules(folder))
    inside = [root, *above[:-1]]  # below the repository's root
    return (
        ()
        if any(_is_ignored(folder, True, _rules_around(folder, rules)) for folder in inside)
        else rules
    )


def _rules_around(folder: Path, rules: Rules) -> Rules:
    """The rules of the folders above this one."""
    return tuple(rule for rule in rules if folder != rule[0] and folder.is_relative_to(rule[0]))
