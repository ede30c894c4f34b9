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

from tpuctl.files import private_folder

__all__ = ["RememberedStack", "forget", "history_file", "remember", "remembered_stacks"]

VERSION = 1
MAX_STACKS = 50
MAX_JOBS = 40


class RememberedStack:
    """A stack of one cloud, and its job ids, newest first."""

    def __init__(self, cloud: str, project: str, name: str, jobs: Iterable[str] = ()) -> None:
        self.cloud, self.project, self.name = cloud, project, name
        self.jobs = tuple(dict.fromkeys(jobs))[:MAX_JOBS]

    @property
    def key(self) -> tuple[str, str, str]:
        return self.cloud, self.project, self.name


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
            RememberedStack(str(cloud), str(project), str(name), map(str, jobs))
            for cloud, project, name, jobs in read["stacks"]
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def remember(stacks: Iterable[tuple[str, str, str]], jobs: Sequence[str]) -> None:
    """Remember the stacks (cloud, project, name) and job ids that a command came across."""
    for key in stacks:
        _remember(RememberedStack(*key, jobs))


def forget(cloud: str) -> None:
    """Forget all stacks of this cloud."""
    before = remembered_stacks()
    after = [stack for stack in before if stack.cloud != cloud]
    if len(after) != len(before):
        _write(after)


def _remember(current: RememberedStack) -> None:
    before = remembered_stacks()
    earlier_jobs = next((stack.jobs for stack in before if stack.key == current.key), ())
    now = RememberedStack(
        *current.key, sorted({*current.jobs, *earlier_jobs}, reverse=True)
    )  # ids begin with a date
    if before and before[0].key == now.key and before[0].jobs == now.jobs:
        return
    _write([now, *(stack for stack in before if stack.key != now.key)])


def _write(stacks: list[RememberedStack]) -> None:
    path = history_file()
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    rows = [[*stack.key, list(stack.jobs)] for stack in stacks[:MAX_STACKS]]
    text = json.dumps({"version": VERSION, "stacks": rows}, ensure_ascii=False)
    with suppress(OSError):
        private_folder(path.parent)
        partial.write_text(text, "utf-8")
        partial.replace(path)
