"""The output of jobs and commands on workers: raw bytes, or lines prefixed with the worker."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tpuctl.model.events import CommandOutput, LogChunk

if TYPE_CHECKING:
    from tpuctl.jobs.log_lines import LinePrefixer
    from tpuctl.model.worker_numbering import WorkerNumbering

__all__ = ["Output"]


class Output:
    """Writes to stdout, or to stderr if the command did. Raises an error for a closed pipe.

    After `name_workers`, writes line by line, prefixed with the worker's name.
    """

    def __init__(self, *, all_to_stderr: bool = False) -> None:
        self._all_to_stderr = all_to_stderr
        self._workers = range(0)
        self._names: dict[bool, LinePrefixer] = {}  # of stdout and of stderr
        self.is_at_line_start = True

    def name_workers(self, numbering: WorkerNumbering) -> None:
        from tpuctl.jobs.log_lines import LinePrefixer

        self._workers = range(numbering.workers)
        self._names = {
            is_error: LinePrefixer(self._workers, numbering) for is_error in (False, True)
        }

    def write(self, event: LogChunk | CommandOutput) -> None:
        is_error = isinstance(event, CommandOutput) and event.is_error
        names = self._names.get(is_error)
        self._put(names.feed(event.worker, event.data) if names else event.data, is_error)

    def finish(self) -> None:
        """Write incomplete lines."""
        for is_error, names in self._names.items():
            for worker in self._workers:
                self._put(names.finish(worker), is_error)

    def _put(self, data: bytes, is_error: bool) -> None:
        if not data:
            return
        stream = sys.stderr if is_error or self._all_to_stderr else sys.stdout
        stream.buffer.write(data)
        stream.buffer.flush()
        self.is_at_line_start = data.endswith(b"\n")
