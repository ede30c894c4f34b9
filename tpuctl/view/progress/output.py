"""The output of jobs and commands on workers: raw bytes, or lines prefixed with the worker."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from tpuctl.model.events import CommandOutput, LogChunk
from tpuctl.model.text.terminal_text import JobOutputFilter

if TYPE_CHECKING:
    from tpuctl.jobs.log_lines import LinePrefixer
    from tpuctl.model.workers.worker_numbering import WorkerNumbering


class Output:
    """Writes to stdout, or to stderr if the command did. Raises an error for a closed pipe.

    A terminal gets colors, but no other escape sequences; files and pipes get every byte.

    After `name_workers`, writes line by line, prefixed with the worker's name.
    """

    def __init__(self, *, all_to_stderr: bool = False) -> None:
        self._all_to_stderr = all_to_stderr
        self._workers = range(0)
        self._names: dict[bool, LinePrefixer] = {}  # of stdout and of stderr
        self._filters: dict[bool, JobOutputFilter] = {}  # of terminals
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
        for is_error, output_filter in self._filters.items():
            self._write(output_filter.finish(), is_error)

    def _put(self, data: bytes, is_error: bool) -> None:
        if self._stream(is_error).isatty():
            data = self._filters.setdefault(is_error, JobOutputFilter()).feed(data)
        self._write(data, is_error)

    def _stream(self, is_error: bool) -> TextIO:
        return sys.stderr if is_error or self._all_to_stderr else sys.stdout

    def _write(self, data: bytes, is_error: bool) -> None:
        if not data:
            return
        stream = self._stream(is_error)
        stream.buffer.write(data)
        stream.buffer.flush()
        self.is_at_line_start = data.endswith(b"\n")
