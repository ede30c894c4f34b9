"""Finds the byte offset at which a part of a worker's log begins.

From the machine, otherwise from the bucket's copy. An offset lets the caller resume reading after
a dropped connection as usual.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from tpuctl.errors import NotFound, Unreachable
from tpuctl.jobs.launch import supervisor_command
from tpuctl.jobs.logs import Store
from tpuctl.jobs.shipped.logs.logindex import BLOCK_BYTES, LastLines, LogTimestamps, line_start
from tpuctl.model.jobs.job import JobRecord
from tpuctl.model.logs.log_range import LogRange
from tpuctl.model.text.record_parsing import ByteCount, parse_answer
from tpuctl.remote.transport import Transport


async def first_byte(
    part: LogRange, record: JobRecord, worker: int, transport: Transport | None, store: Store
) -> int:
    """The offset in the worker's log at which the part begins.

    Raises Unreachable only if neither the machine nor the bucket responds.
    """
    if part.has_offset:
        return part.offset
    copy = _Copy(record, worker, store)
    options = [] if part.lines is None else ["--lines", str(part.lines)]
    if part.since is not None:
        options += ["--since", str(part.since.timestamp())]
    if transport is not None:
        try:
            result = await transport.run(supervisor_command(record, "locate", *options))
        except Unreachable:
            pass
        else:
            if result.exit_code == 0:
                position = parse_answer(LogPosition, result.stdout, f"worker {transport.name}")
                return await copy.last_lines(position.offset, position.more, position.earliest)
    earliest = 0 if part.since is None else await copy.since(part.since.timestamp())
    if part.lines is None:
        return earliest
    return await copy.last_lines(await copy.size(), part.lines, earliest)


class LogPosition(BaseModel):
    """What `supervisor.py locate` answers: where the lines begin that the machine has."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    offset: ByteCount
    more: ByteCount = 0  # lines before the offset that only the bucket has
    earliest: ByteCount = 0


class _Copy:
    """The bucket's copy of one log."""

    def __init__(self, record: JobRecord, worker: int, store: Store) -> None:
        self._log = record.log_name(worker)
        self._store = store

    async def size(self) -> int:
        info = await self._store.stat(self._log)
        return 0 if info is None else info.size

    async def last_lines(self, end: int, lines: int, earliest: int) -> int:
        """The offset of the last lines before byte `end`, at least `earliest`."""
        search = LastLines(end, lines, earliest=earliest)
        while not search.is_over:
            search.feed(await self._read(search.begin, search.length))
        return search.begins_at

    async def since(self, timestamp: float) -> int:
        """The offset of the first line written since a timestamp."""
        name = self._log.removesuffix(".log") + ".timestamps"
        try:
            text = await self._store.get_bytes(name)
        except NotFound:
            return 0
        offset = min(LogTimestamps(text).length_at(timestamp), await self.size())
        begin = max(0, offset - BLOCK_BYTES)
        return line_start(await self._read(begin, offset - begin + 1), begin, offset)

    async def _read(self, begin: int, length: int) -> bytes:
        try:
            return await self._store.read_range(self._log, begin, length)
        except NotFound:
            return b""
