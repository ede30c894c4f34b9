"""Noticing, while a stack is brought up, that somebody else takes it down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from tpuctl.cloud.clients import Cloud
from tpuctl.errors import TpuctlError
from tpuctl.model.events import Emit, Event, Outcome, StepFinished
from tpuctl.model.stack import Stack
from tpuctl.resources.bucket import Bucket
from tpuctl.resources.stack_record import Contents, Record

__all__ = ["Meanwhile", "TakenDown"]

T = TypeVar("T")
LOOK_SECONDS = 5.0


class TakenDown(Exception):
    """A `down` began after the work that was to be done."""


class Meanwhile:
    """Whether the stack was taken down since `begin`: its record counts that.

    Nothing but the project and its APIs is made before the bucket, so whoever takes a stack down
    finds a bucket to say so in.
    """

    def __init__(self, stack: Stack, cloud: Cloud, emit: Emit) -> None:
        self._bucket = Bucket(stack, cloud)
        self._record = Record(stack, cloud)
        self._emit = emit
        self._before: Contents | None = None
        self._has_record = self._has_bucket = False

    async def begin(self) -> None:
        self._before = await self._record.read()
        self._has_record = self._before is not None

    def emit(self, event: Event) -> None:
        """Pass an event on, and learn from it that the bucket is there."""
        if isinstance(event, StepFinished) and event.address == self._bucket.address:
            self._has_bucket = event.outcome in (Outcome.DONE, Outcome.UNCHANGED)
        self._emit(event)

    async def work(self, work: Coroutine[Any, Any, T]) -> T:
        """Await it. Raises TakenDown, the work cancelled, once there was a `down` beside it."""
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({task}, timeout=LOOK_SECONDS))[0]:
                if await self._quietly(self._was_counted):
                    raise TakenDown
            if task.exception() is not None:
                if await self._quietly(self._was_counted) or await self._quietly(self._lost_bucket):
                    raise TakenDown from task.exception()
            elif await self._was_counted() or not self._has_record:
                raise TakenDown  # the record was written on the way: it went with its bucket
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task

    async def _was_counted(self) -> bool:
        now = await self._record.read()
        if now is None:
            was_there, self._has_record = self._has_record, False
            return was_there
        self._has_record = True
        return now.downs != (self._before.downs if self._before is not None else 0)

    async def _lost_bucket(self) -> bool:
        return self._has_bucket and await self._bucket.observe() is None

    async def _quietly(self, look: Callable[[], Awaitable[bool]]) -> bool:
        """A look that fails tells nothing: the work itself goes on, or tells its own failure."""
        try:
            return await look()
        except TpuctlError:
            return False
