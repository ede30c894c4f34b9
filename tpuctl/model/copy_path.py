"""The sides of a copy as they are typed: a path here, or one on workers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tpuctl.errors import Usage

__all__ = ["FORMS", "Copying", "Place", "copying", "place", "worker_number"]

WORKER = r"(?:worker-?)?([0-9]{1,6})"
_NUMBER = re.compile(WORKER)
_PLACE = re.compile(rf"(?:{WORKER})?:(.*)", re.DOTALL)
FORMS = (
    "A path on a worker is written WORKER:PATH, a path on all of them :PATH:\n"
    "    tpuctl cp data.txt 0:\n"
    "    tpuctl cp 1:results/log.txt .\n"
    "    tpuctl cp --all-workers settings.json :"
)


@dataclass(frozen=True)
class Place:
    """A path, relative to the user's home where it is on workers."""

    path: str
    is_remote: bool = False
    worker: int | None = None  # None of a remote path: on every worker

    def __str__(self) -> str:
        if not self.is_remote:
            return self.path
        return f"{'' if self.worker is None else self.worker}:{self.path}"


@dataclass(frozen=True)
class Copying:
    """A copy between this machine and workers, in one of the two directions."""

    sources: tuple[str, ...]
    target: str
    is_upload: bool
    worker: int | None  # None: every worker


def worker_number(text: str) -> int | None:
    """The number of `3`, `worker3` or `worker-3`; None of anything else."""
    match = _NUMBER.fullmatch(text)
    return int(match[1]) if match else None


def place(text: str) -> Place:
    """`0:data` is on worker 0, `:data` on all; what has a slash before the colon is here."""
    match = _PLACE.fullmatch(text)
    if match is None:
        return Place(text)
    path = match[2].removeprefix("~/")
    path = "" if path == "~" else path
    return Place(path, True, int(match[1]) if match[1] else None)


def copying(paths: Sequence[str], *, all_workers: bool) -> Copying:
    """What a command line asks to copy. Raises Usage where it does not say that clearly."""
    if len(paths) < 2:
        raise Usage("Nothing to copy to", "two paths are needed, from and to", hint=FORMS)
    *sources, target = (place(one) for one in paths)
    if any(not one.path and not one.is_remote for one in (*sources, target)):
        raise Usage("Empty path", "a path here has no letters", hint=FORMS)
    remote = {one.is_remote for one in sources}
    if remote == {target.is_remote}:
        where = "both sides are on workers" if target.is_remote else "neither side is on a worker"
        listed = " ".join(paths)
        raise Usage("Unclear what to copy where", f"{listed}: {where}", hint=FORMS)
    if len(remote) > 1:
        mixed = next(str(one) for one in sources if one.is_remote == target.is_remote)
        raise Usage(
            "Unclear what to copy where",
            f"{mixed} is on the same side as {target}, the others are not",
            hint=FORMS,
        )
    named = {one.worker for one in (*sources, target) if one.is_remote}
    worker = _one_worker(named, all_workers=all_workers)
    return Copying(tuple(one.path for one in sources), target.path, target.is_remote, worker)


def _one_worker(named: set[int | None], *, all_workers: bool) -> int | None:
    if all_workers:
        if named != {None}:
            (worker,) = sorted(one for one in named if one is not None)[:1]
            raise Usage(
                "Options contradict",
                f"{worker}: names one worker, --all-workers all of them",
                hint=FORMS,
                where="--all-workers",
            )
        return None
    if None in named:
        raise Usage("No worker named", "before the colon stands no worker", hint=FORMS)
    if len(named) > 1:
        listed = ", ".join(str(one) for one in sorted(one for one in named if one is not None))
        raise Usage(
            "Several workers named", f"workers {listed}", hint="Copy from one after the other."
        )
    return next(iter(named))
