"""The git repository that contains a folder: its root, remote and branch, read from its files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

SECTION = re.compile(r'\[remote "([^"]+)"\]')
URL = re.compile(r"\s*url\s*=\s*(\S+)")
REMOTE = re.compile(
    r"(?:(?:https?|ssh|git)://(?:[^@/]+@)?([\w.-]+)(?::\d+)?/|(?:[^@/\s]+@)([\w.-]+):)"
    r"([\w.~-]+(?:/[\w.~-]+)+)/?"
)
# Branch names that need no quoting in shell commands.
BRANCH = re.compile(r"ref: refs/heads/([\w./@+=#,-]+)\n?")


@dataclass(frozen=True)
class Checkout:
    """`inside` is the folder's POSIX path relative to the root; empty for the root itself."""

    root: Path
    inside: str = ""
    host: str = ""  # such as github.com; empty if unknown
    repository: str = ""  # such as owner/name
    branch: str = ""


def checkout_of(folder: Path) -> Checkout:
    """The repository that contains the folder; without one, the folder itself as the root."""
    folder = folder.resolve()
    for root in (folder, *folder.parents):
        if (root / ".git").exists():
            inside = folder.relative_to(root).as_posix()
            host, repository = _remote(root / ".git" / "config")
            branch = BRANCH.fullmatch(_read(root / ".git" / "HEAD"))
            return Checkout(
                root,
                "" if inside == "." else inside,
                host,
                repository,
                branch[1] if branch is not None else "",
            )
    return Checkout(folder)


def _remote(config: Path) -> tuple[str, str]:
    """Host and path of the remote `origin`, otherwise of the first remote."""
    name, urls = "", dict[str, str]()
    for line in _read(config).splitlines():
        section = SECTION.match(line.strip())
        if line.strip().startswith("["):
            name = section[1] if section is not None else ""
        elif name and (url := URL.match(line)):
            urls.setdefault(name, url[1])
    remote_url = urls.get("origin") or next(iter(urls.values()), "")
    match = REMOTE.fullmatch(remote_url)
    if match is None:
        return "", ""
    return match[1] or match[2], match[3].removesuffix(".git")


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace")
    except OSError:  # in a worktree .git is a file
        return ""
