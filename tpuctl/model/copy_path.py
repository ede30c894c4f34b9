"""The sides of a copy as they are typed: a path here, or one on workers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tpuctl.errors import Usage

__all__ = ["FORMS", "CopyPath", "CopyRequest", "parse_copy", "parse_path", "parse_worker"]

WORKER = r"(?:worker-?)?([0-9]{1,6})"
_NUMBER = re.compile(WORKER)
_PATH = re.compile(rf"(?:{WORKER})?:(.*)", re.DOTALL)
FORMS = (
    "A path on a worker is written WORKER:PATH, a path on all of them :PATH:\n"
    "    tpuctl cp data.txt 0:\n"
    "    tpuctl cp 1:results/log.txt .\n"
    "    tpuctl cp --all-workers settings.json :"
)


@dataclass(frozen=True)
class CopyPath:
    """A path, relative to the user's home where it is on workers."""

    path: str
    is_remote: bool = False
    worker: int | None = None  # None of a remote path: on every worker

    def __str__(self) -> str:
        if not self.is_remote:
            return self.path
        return f"{'' if self.worker is None else self.worker}:{self.path}"


@dataclass(frozen=True)
class CopyRequest:
    """A copy between this machine and workers, in one of the two directions."""

    sources: tuple[str, ...]
    target: str
    is_upload: bool
    worker: int | None  # None: every worker


def parse_worker(text: str) -> int | None:
    """The number of `3`, `worker3` or `worker-3`; None of anything else."""
    match = _NUMBER.fullmatch(text)
    return int(match[1]) if match else None


def parse_path(text: str) -> CopyPath:
    """`0:data` is on worker 0, `:data` on all; what has a slash before the colon is here."""
    match = _PATH.fullmatch(text)
    if match is None:
        return CopyPath(text)
    path = match[2].removeprefix("~/")
    path = "" if path == "~" else path
    return CopyPath(path, True, int(match[1]) if match[1] else None)


def parse_copy(paths: Sequence[str], *, all_workers: bool) -> CopyRequest:
    """What a command line asks to copy. Raises Usage where it does not say that clearly."""
    if len(paths) < 2:
        raise Usage("Nothing to copy to", "two paths are needed, from and to", hint=FORMS)
    *sources, target = (parse_path(path) for path in paths)
    if any(not path.path and not path.is_remote for path in (*sources, target)):
        raise Usage("Empty path", "a path here has no letters", hint=FORMS)
    remote = {source.is_remote for source in sources}
    if remote == {target.is_remote}:
        where = "both sides are on workers" if target.is_remote else "neither side is on a worker"
        listed = " ".join(paths)
        raise Usage("Unclear what to copy where", f"{listed}: {where}", hint=FORMS)
    if len(remote) > 1:
        mixed = next(str(source) for source in sources if source.is_remote == target.is_remote)
        raise Usage(
            "Unclear what to copy where",
            f"{mixed} is on the same side as {target}, the others are not",
            hint=FORMS,
        )
    workers = {path.worker for path in (*sources, target) if path.is_remote}
    worker = _single_worker(workers, all_workers=all_workers)
    return CopyRequest(
        tuple(source.path for source in sources), target.path, target.is_remote, worker
    )


def _single_worker(workers: set[int | None], *, all_workers: bool) -> int | None:
    if all_workers:
        if workers != {None}:
            (worker,) = sorted(number for number in workers if number is not None)[:1]
            raise Usage(
                "Options contradict",
                f"{worker}: names one worker, --all-workers all of them",
                hint=FORMS,
                where="--all-workers",
            )
        return None
    if None in workers:
        raise Usage("No worker named", "before the colon stands no worker", hint=FORMS)
    if len(workers) > 1:
        listed = ", ".join(
            str(number) for number in sorted(one for one in workers if one is not None)
        )
        raise Usage(
            "Several workers named", f"workers {listed}", hint="Copy from one after the other."
        )
    return next(iter(workers))
