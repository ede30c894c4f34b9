"""Parses the paths of `tpuctl cp`: local, or on workers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from tpuctl.errors import Usage
from tpuctl.files import exists
from tpuctl.model.workers.worker_numbering import ONE_SLICE, WorkerNumbering

_HOST_PATH = re.compile(r"([^/:]*):(.*)", re.DOTALL)
FORMS = (
    "WORKER:PATH is a path on a worker, relative to its home; :PATH one on all workers,\n"
    "with --all-workers; a local file with a colon in its name is written ./NAME:\n"
    "    tpuctl cp data.txt 0:\n"
    "    tpuctl cp 1:results/log.txt .\n"
    "    tpuctl cp --all-workers settings.json :"
)


@dataclass(frozen=True)
class CopyPath:
    """A path; on workers relative to the user's home."""

    path: str
    is_remote: bool = False
    worker: int | None = None  # None in a remote path: every worker

    def __str__(self) -> str:
        if not self.is_remote:
            return self.path
        return f"{'' if self.worker is None else self.worker}:{self.path}"


@dataclass(frozen=True)
class CopyRequest:
    """A copy between this machine and workers, in one direction."""

    sources: tuple[str, ...]
    target: str
    is_upload: bool
    worker: int | None  # None: every worker


def parse_path(text: str, numbering: WorkerNumbering = ONE_SLICE) -> CopyPath:
    """`0:data` is on worker 0, `:data` on all; with a slash before the colon it is local."""
    match = _HOST_PATH.fullmatch(text)
    if match is None:
        return CopyPath(text)
    worker = numbering.parse(match[1])
    if worker is None and match[1]:
        return CopyPath(text)
    path = match[2].removeprefix("~/")
    path = "" if path == "~" else path
    return CopyPath(path, True, worker)


def parse_copy(
    paths: Sequence[str],
    *,
    all_workers: bool,
    recursive: bool = False,
    numbering: WorkerNumbering = ONE_SLICE,
) -> CopyRequest:
    """Parse the arguments of a copy. Raises Usage if they are ambiguous."""
    if len(paths) < 2:
        raise Usage("Missing target path", "pass a source and a target path", hint=FORMS)
    *sources, target = (parse_path(path, numbering) for path in paths)
    if any(not path.path and not path.is_remote for path in (*sources, target)):
        raise Usage("Empty path", "a local path is empty", hint=FORMS)
    for path in (*sources, target):
        if not path.is_remote and not exists(path.path):
            _refuse_host(path.path, numbering)
    remote = {source.is_remote for source in sources}
    if remote == {target.is_remote}:
        side = "on workers" if target.is_remote else "local"
        listed = " ".join(paths)
        raise Usage(
            "Ambiguous copy direction", f"{listed}: source and target are both {side}", hint=FORMS
        )
    if len(remote) > 1:
        mixed = next(str(source) for source in sources if source.is_remote == target.is_remote)
        raise Usage(
            "Ambiguous copy direction",
            f"{mixed} is on the same side as {target}, the others are not",
            hint=FORMS,
        )
    workers = {path.worker for path in (*sources, target) if path.is_remote}
    if workers == {None} and not all_workers:
        raise _missing_worker(paths, target, recursive=recursive, numbering=numbering)
    worker = _single_worker(workers, numbering, all_workers=all_workers)
    return CopyRequest(
        tuple(source.path for source in sources), target.path, target.is_remote, worker
    )


def _refuse_host(path: str, numbering: WorkerNumbering) -> None:
    """Raise Usage for HOST:PATH: scp would take it for a path on that machine."""
    match = _HOST_PATH.fullmatch(path)
    if match is None:
        return
    if match[1] == f"{numbering.stack}-controller":
        raise Usage(
            "Not a worker",
            f"{match[1]} is the controller; cp copies to and from workers",
            hint="Use scp, which knows it after the first of these:\n"
            f"    tpuctl ssh-config\n    scp FILE {match[1]}:",
        )
    hosts = f", or {numbering.stack}-{numbering.name(0)}" if numbering.stack else ""
    raise Usage(
        "Worker not found",
        f"{path}: {match[1]} is no worker of this stack; they are numbered from "
        f"{numbering.name(0)}{hosts}",
        hint=FORMS,
    )


def _missing_worker(
    paths: Sequence[str], target: CopyPath, *, recursive: bool, numbering: WorkerNumbering
) -> Usage:
    remote = paths[-1] if target.is_remote else paths[0]
    first = numbering.name(0)
    options = ["-r"] if recursive else []
    on_one = [f"{first}{path}" if path.startswith(":") else path for path in paths]
    all_of_them = "to all" if target.is_remote else "from all, into folders worker-N"
    return Usage(
        "Missing worker",
        f"{remote} is a path on all workers, and requires --all-workers",
        hint=f"To copy {'to' if target.is_remote else 'from'} one worker, or {all_of_them}:\n"
        f"    {shlex.join(['tpuctl', 'cp', *options, *on_one])}\n"
        f"    {shlex.join(['tpuctl', 'cp', *options, '--all-workers', *paths])}",
    )


def _single_worker(
    workers: set[int | None], numbering: WorkerNumbering, *, all_workers: bool
) -> int | None:
    if all_workers:
        if workers != {None}:
            (worker,) = sorted(number for number in workers if number is not None)[:1]
            raise Usage(
                "Conflicting options",
                f"{numbering.name(worker)}: selects one worker, --all-workers selects all",
                hint=FORMS,
                where="--all-workers",
            )
        return None
    if None in workers:
        raise Usage("Missing worker", "one of the paths has no worker", hint=FORMS)
    if len(workers) > 1:
        listed = ", ".join(
            numbering.name(number)
            for number in sorted(worker for worker in workers if worker is not None)
        )
        raise Usage(
            "More than one worker", f"workers {listed}", hint="Copy from one worker at a time."
        )
    return next(iter(workers))
