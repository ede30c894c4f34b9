"""The git repository around a folder: the files that it tracks, and its rules for ignoring files.

Git reads more than the `.gitignore` files: `info/exclude`, which worktrees share and each
submodule has, and the user's `core.excludesFile`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

TIMEOUT_SECONDS = 60.0
# Git also answers in repositories of other users, such as those mounted into a container, since
# it runs no program that the repository names.
SAFE_OPTIONS = ("-c", "safe.directory=*", "-c", "core.fsmonitor=false")
USER_VARIABLES = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM")


def repository_root(folder: Path) -> Path | None:
    """The root of the repository that contains a folder, which may be the folder itself."""
    return next((path for path in (folder, *folder.parents) if (path / ".git").exists()), None)


class Repository:
    """The repository with this root. Without a working git, it tracks nothing."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def tracks(self, path: Path) -> bool:
        """Whether a file, or the folder of a submodule, is in git's index."""
        return path.relative_to(self.root).as_posix() in self._tracked

    def tracks_below(self, folder: Path) -> bool:
        """Whether a folder contains tracked files."""
        return folder.relative_to(self.root).as_posix() in self._tracked_folders

    @cached_property
    def _tracked(self) -> frozenset[str]:
        return frozenset(os.fsdecode(self._git("ls-files", "-z")).split("\0")) - {""}

    @cached_property
    def _tracked_folders(self) -> frozenset[str]:
        folders: set[str] = set()
        for name in self._tracked:
            while (name := name.rpartition("/")[0]) and name not in folders:
                folders.add(name)
        return frozenset(folders)

    @property
    def exclude_files(self) -> Iterator[Path]:
        """Ignore files besides `.gitignore`; later ones take precedence."""
        configured = os.fsdecode(self._git("config", "--path", "--get", "core.excludesFile"))
        config_home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111
        default = os.path.join(config_home, "git", "ignore")  # noqa: PTH118
        yield self.root / (configured or default).removesuffix("\n")
        yield self._common_folder / "info" / "exclude"

    @property
    def _common_folder(self) -> Path:
        """The folder that worktrees share: `.git`, unless that is a file (gitrepository-layout)."""
        folder = self.root / ".git"
        try:
            if folder.is_file():
                link = folder.read_text("utf-8", "surrogateescape")
                folder = self.root / link.removeprefix("gitdir:").strip()
            return folder / (folder / "commondir").read_text("utf-8", "surrogateescape").strip()
        except OSError:
            return folder

    def _git(self, *arguments: str) -> bytes:
        # A hook of git runs its programs with variables that name another repository or index.
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("GIT_") or name in USER_VARIABLES
        }
        try:
            return subprocess.run(
                ["git", *SAFE_OPTIONS, *arguments],
                cwd=self.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=TIMEOUT_SECONDS,
                check=True,
            ).stdout
        except (OSError, subprocess.SubprocessError):
            return b""
