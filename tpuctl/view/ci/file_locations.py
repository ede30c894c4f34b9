"""Paths and URIs of files relative to the repository, for programs on other machines."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote


def base_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The checkout of GitHub or GitLab if it contains this folder, else this folder."""
    here = Path.cwd()
    workspace = environment.get("GITHUB_WORKSPACE") or environment.get("CI_PROJECT_DIR")
    if workspace and here.is_relative_to(Path(workspace).absolute()):
        return Path(workspace).absolute()
    return here


def relative_to(base: Path, path: Path) -> str:
    """With slashes; the whole path if it is not below the folder."""
    whole = Path(os.path.abspath(path))  # noqa: PTH100 - links are not followed
    return (whole.relative_to(base) if whole.is_relative_to(base) else whole).as_posix()


def uri(base: Path, path: Path) -> str:
    """The same as an RFC 3986 reference, with undecodable bytes escaped."""
    relative = relative_to(base, path)
    quoted = quote(os.fsencode(relative), safe="/~")
    return f"file://{quoted}" if relative.startswith("/") else quoted
