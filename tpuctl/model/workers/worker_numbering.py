"""How the workers of a stack are named: by number, or as SLICE.WORKER if it has several slices."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tpuctl.errors import Usage

_WORKER = re.compile(r"(?:worker-?)?([0-9]{1,6}(?:\.[0-9]{1,6})?)")


@dataclass(frozen=True)
class WorkerNumbering:
    """Numbers go from 0 through all slices, each of which has the same number of workers.

    >>> WorkerNumbering(workers=8, slices=2).name(5)
    '1.1'
    """

    workers: int = 1
    slices: int = 1
    stack: str = field(default="", compare=False)  # its hosts are STACK-0, …; empty: no hosts

    @property
    def workers_per_slice(self) -> int:
        return self.workers // self.slices

    def slice_of(self, worker: int) -> int | None:
        """The worker's slice; None in a stack of one slice."""
        return worker // self.workers_per_slice if self.slices > 1 else None

    def name(self, worker: int) -> str:
        """The worker as users see it."""
        if self.slices == 1:
            return str(worker)
        return ".".join(map(str, divmod(worker, self.workers_per_slice)))

    def parse(self, text: str) -> int | None:
        """The number of the worker in `5`, `1.1`, `worker5` or `worker-1.1`; None for other text.

        Also of its host for ssh, `STACK-5`. Raises Usage for a slice, or a worker of a slice, that
        the stack does not have.
        """
        match = _WORKER.fullmatch(text.removeprefix(f"{self.stack}-") if self.stack else text)
        return self.number(match[1]) if match else None

    def number(self, name: str) -> int:
        """The number of the worker `5` or `1.1`."""
        in_slice, _, worker = name.rpartition(".")
        if not in_slice:
            return int(worker)
        if self.slices == 1:
            raise _not_found(
                f"{name} is worker {worker} of slice {in_slice}; the stack has one slice"
            )
        if int(in_slice) >= self.slices or int(worker) >= self.workers_per_slice:
            last = self.name(self.workers - 1)
            raise _not_found(f"the stack has workers 0.0 to {last}, not {name}")
        return int(in_slice) * self.workers_per_slice + int(worker)


ONE_SLICE = WorkerNumbering()  # numbers any workers


def _not_found(detail: str) -> Usage:
    return Usage("Worker not found", detail, hint="List the workers:\n    tpuctl status")
