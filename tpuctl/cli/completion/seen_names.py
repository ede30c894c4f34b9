"""Names of stacks and jobs that commands came across: what completion may offer at once.

They stand in `names.json` of the cache folder. A Tab never asks the cloud: what no command of
this machine has seen yet is not offered. A file that cannot be read or written is as if it were
empty.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tpuctl.files import private_folder

__all__ = ["SeenStack", "forget", "note", "seen_file", "seen_stacks"]

VERSION = 1
MOST_STACKS = 50
MOST_JOBS = 40


class SeenStack:
    """A stack of one cloud, and the ids of its jobs, the latest first."""

    def __init__(self, cloud: str, project: str, name: str, jobs: Iterable[str] = ()) -> None:
        self.cloud, self.project, self.name = cloud, project, name
        self.jobs = tuple(dict.fromkeys(jobs))[:MOST_JOBS]

    @property
    def key(self) -> tuple[str, str, str]:
        return self.cloud, self.project, self.name


def seen_file() -> Path:
    """Beside all else that can be made again; `TPUCTL_CONFIG_HOME` moves it."""
    if chosen := os.environ.get("TPUCTL_CONFIG_HOME"):
        return Path(chosen).expanduser() / "cache" / "names.json"
    import platformdirs

    return Path(platformdirs.user_cache_dir("tpuctl", appauthor=False)) / "names.json"


def seen_stacks() -> list[SeenStack]:
    """Every stack that is remembered, the latest first."""
    try:
        read = json.loads(seen_file().read_text("utf-8"))
        if read["version"] != VERSION:
            return []
        return [
            SeenStack(str(cloud), str(project), str(name), map(str, jobs))
            for cloud, project, name, jobs in read["stacks"]
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def note(stacks: Iterable[tuple[str, str, str]], command: str, data: Any) -> None:
    """Remember the stacks a command spoke of (cloud, project, name), and the jobs it told of."""
    for key in stacks:
        _remember(SeenStack(*key, _jobs_in(command, data)))


def forget(cloud: str) -> None:
    """Nothing of this cloud is offered any more."""
    before = seen_stacks()
    after = [one for one in before if one.cloud != cloud]
    if len(after) != len(before):
        _write(after)


def _jobs_in(command: str, data: Any) -> list[str]:
    """The ids of the jobs in a command's answer, the latest first."""
    if command == "jobs" and isinstance(data, list):
        found = [one.get("id") for one in data if isinstance(one, dict)]
    elif isinstance(data, dict):
        listed = data.get("jobs")
        found = [data.get("job")]
        found += [one.get("id") for one in listed or () if isinstance(one, dict)]
    else:
        found = []
    return [one for one in found if isinstance(one, str) and one]


def _remember(seen: SeenStack) -> None:
    before = seen_stacks()
    known = next((one.jobs for one in before if one.key == seen.key), ())
    now = SeenStack(*seen.key, sorted({*seen.jobs, *known}, reverse=True))  # ids begin with a date
    if before and before[0].key == now.key and before[0].jobs == now.jobs:
        return
    _write([now, *(one for one in before if one.key != now.key)])


def _write(stacks: list[SeenStack]) -> None:
    path = seen_file()
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    rows = [[*one.key, list(one.jobs)] for one in stacks[:MOST_STACKS]]
    text = json.dumps({"version": VERSION, "stacks": rows}, ensure_ascii=False)
    with suppress(OSError):
        private_folder(path.parent)
        partial.write_text(text, "utf-8")
        partial.replace(path)
