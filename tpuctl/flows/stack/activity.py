"""Report what goes on with a stack to its bucket, and read it from there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from tpuctl.cloud.caller_identity import acting_user
from tpuctl.cloud.objects import ObjectStore
from tpuctl.errors import TpuctlError
from tpuctl.flows.context import Context
from tpuctl.model.events import Event, WarningIssued
from tpuctl.model.status.activity import Activity, activity_name, activity_of
from tpuctl.model.text.record_parsing import parse_record

SECONDS = 10.0  # between two reports: each write is charged, some cents a day


@asynccontextmanager
async def reported(context: Context) -> AsyncIterator[Context]:
    """A context whose events are reported until the exit; an error is kept there, to be read."""
    report = _Report(context)
    keeping = asyncio.ensure_future(report.keep())
    try:
        yield replace(context, emit=report.emit)
    except TpuctlError as error:
        report.text = activity_of(WarningIssued(error.diagnostics[0]))
        await _stopped(keeping)
        await report.write()
        raise
    await _stopped(keeping)
    with suppress(TpuctlError):
        await context.store.delete(activity_name(context.stack.name))


async def _stopped(task: asyncio.Future[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


class _Report:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._changed = asyncio.Event()
        self.text = ""

    def emit(self, event: Event) -> None:
        if text := activity_of(event):
            self.text = text
            self._changed.set()
        self._context.emit(event)

    async def keep(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self.write()
            await self._context.clock.sleep(SECONDS)

    async def write(self) -> None:
        context = self._context
        by, at = acting_user(context.cloud), context.cloud.server_clock.now()
        activity = Activity(by=by, at=at, text=self.text)
        with suppress(TpuctlError):
            text = activity.model_dump_json().encode()
            await context.store.put_bytes(activity_name(context.stack.name), text)


async def read_activity(store: ObjectStore, stack: str) -> Activity | None:
    """What goes on with a stack; None if nothing, or if it cannot be read."""
    name = activity_name(stack)
    try:
        return parse_record(Activity, await store.get_bytes(name), store.uri(name))
    except TpuctlError:
        return None
