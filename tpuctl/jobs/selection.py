"""Which files of a folder are shipped.

Everything below the folder, but for what `.gitignore` and `.tpuctlignore` files name (in the
folder, below it, and above it up to the repository's root), what the stack excludes, and what
never belongs on a worker. What the stack includes is shipped though ignored.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from pathspec import GitIgnoreSpec

from tpuctl.errors import Usage

__all__ = ["Entry", "selected"]

IGNORE_FILES = (".gitignore", ".tpuctlignore")  # the later one has the last word
NEVER = frozenset(
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
NEVER_LIKE = "gha-creds-*.json"  # google-github-actions/auth leaves the key to the project so


@dataclass(frozen=True)
class Entry:
    """One member: `kind` is file, folder or link; `target` is where a link points."""

    name: str
    path: Path
    kind: str
    target: str = ""


Rules = tuple[tuple[Path, GitIgnoreSpec], ...]  # each spec with the folder it is relative to


def selected(root: Path, include: Sequence[str], exclude: Sequence[str]) -> Iterator[Entry]:
    """Everything to ship, each folder before what is in it, sorted by name."""
    wanted = GitIgnoreSpec.from_lines(include)
    unwanted = GitIgnoreSpec.from_lines(exclude)

    def visit(folder: Path, rules: Rules, is_ignored: bool) -> Iterator[Entry]:
        rules = (*rules, *_rules_of(folder))
        for path in sorted(folder.iterdir(), key=lambda path: path.name):
            name = path.relative_to(root).as_posix()
            is_folder = path.is_dir() and not path.is_symlink()
            spelled = name + "/" if is_folder else name
            if path.name in NEVER or (is_folder and (path / "pyvenv.cfg").exists()):
                continue
            if fnmatchcase(path.name, NEVER_LIKE):
                continue
            if unwanted.match_file(spelled):
                continue
            hidden = (is_ignored or _is_ignored(path, is_folder, rules)) and not (
                wanted.match_file(spelled)
            )
            if is_folder:
                if hidden and not include:
                    continue
                below = list(visit(path, rules, hidden))
                if below or not hidden:
                    yield Entry(name, path, "folder")
                    yield from below
            elif not hidden:
                entry = _entry(root, name, path)
                if entry is not None:
                    yield entry

    yield from visit(root, _rules_above(root), False)


def _entry(root: Path, name: str, path: Path) -> Entry | None:
    """A file or link; a link out of the folder becomes what it points to."""
    if not path.is_symlink():
        return Entry(name, path, "file") if path.is_file() else None  # no sockets, no pipes
    target = Path(os.path.normpath(path.parent / path.readlink()))
    if target.is_relative_to(root):
        return Entry(name, path, "link", os.path.relpath(target, path.parent))
    if path.is_file():
        return Entry(name, path, "file")
    raise Usage(
        "Link leaves the folder to ship",
        f"{name} points to {path.readlink()}",
        hint=f"Copy what it points to, or leave it out in .tpuctlignore:\n    /{name}",
    )


def _is_ignored(path: Path, is_folder: bool, rules: Rules) -> bool:
    """As git decides: the deepest ignore file that says anything about the path wins."""
    for folder, spec in reversed(rules):
        name = path.relative_to(folder).as_posix() + ("/" if is_folder else "")
        verdict = spec.check_file(name).include
        if verdict is not None:
            return verdict
    return False


def _rules_of(folder: Path) -> Rules:
    found = []
    for name in IGNORE_FILES:
        file = folder / name
        if file.is_file():
            lines = file.read_text("utf-8", errors="replace").splitlines()
            found.append((folder, GitIgnoreSpec.from_lines(lines)))
    return tuple(found)


def _rules_above(root: Path) -> Rules:
    """Ignore files between the repository's root and the folder; none outside a repository.

    A repository that ignores the folder itself has nothing to say about what is in it: whoever
    runs a script from there means it.
    """
    above: list[Path] = []
    folder = root
    while not (folder / ".git").exists():
        if folder.parent == folder:
            return ()
        folder = folder.parent
        above.append(folder)
    rules = tuple(rule for folder in reversed(above) for rule in _rules_of(folder))
    inside = [root, *above[:-1]]  # below the repository's root
    return (
        ()
        if any(_is_ignored(folder, True, _outside(folder, rules)) for folder in inside)
        else rules
    )


def _outside(folder: Path, rules: Rules) -> Rules:
    """The rules of the folders around this one."""
    return tuple(rule for rule in rules if folder != rule[0] and folder.is_relative_to(rule[0]))
