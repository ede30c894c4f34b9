"""Names of stacks and jobs that commands came across: what completion may offer at once.

They stand in `names.json` of the cache folder. A Tab never asks the cloud: what no command of
this machine has seen yet is not offered. A file that cannot be read or written is as if it were
empty.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tpuctl.files import private_folder

VERSION = 1
MAX_STACKS = 50
MAX_JOBS = 40


class RememberedStack(NamedTuple):
    """A stack of one cloud, and its job ids, newest first."""

    cloud: str
    project: str
    name: str
    jobs: tuple[str, ...]


def history_file() -> Path:
    """The file in the user's cache folder; `TPUCTL_CONFIG_HOME` overrides it."""
    if config_home := os.environ.get("TPUCTL_CONFIG_HOME"):
        return Path(config_home).expanduser() / "cache" / "names.json"
    import platformdirs

    return Path(platformdirs.user_cache_dir("tpuctl", appauthor=False)) / "names.json"


def remembered_stacks() -> list[RememberedStack]:
    """All remembered stacks, newest first."""
    try:
        read = json.loads(history_file().read_text("utf-8"))
        if read["version"] != VERSION:
            return []
        return [
            RememberedStack(str(cloud), str(project), str(name), tuple(map(str, jobs)))
            for cloud, project, name, jobs in read["stacks"]
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def remember(stacks: Iterable[tuple[str, str, str]], jobs: Sequence[str]) -> None:
    """Remember the stacks (cloud, project, name) and job ids that a command came across."""
    for key in stacks:
        before = remembered_stacks()
        earlier = (job for stack in before if stack[:3] == key for job in stack.jobs)
        newest = tuple(sorted({*jobs, *earlier}, reverse=True)[:MAX_JOBS])  # ids begin with a date
        after = [RememberedStack(*key, newest), *(stack for stack in before if stack[:3] != key)]
        if after != before:
            _write(after)


def forget(cloud: str) -> None:
    """Forget all stacks of this cloud."""
    before = remembered_stacks()
    after = [stack for stack in before if stack.cloud != cloud]
    if len(after) != len(before):
        _write(after)


def _write(stacks: list[RememberedStack]) -> None:
    path = history_file()
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    history = {"version": VERSION, "stacks": stacks[:MAX_STACKS]}
    with suppress(OSError):
        private_folder(path.parent)
        partial.write_text(json.dumps(history, ensure_ascii=False), "utf-8")
        partial.replace(path)
