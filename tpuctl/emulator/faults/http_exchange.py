"""One HTTP exchange as faults see it: both its bodies, either of which may be cut in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from aiohttp import web

__all__ = ["Exchange", "Part", "TruncatedResponse", "hang_up"]

Part = Literal["request", "answer"]

_POLL_SECONDS = 0.01
_MAX_WAIT_SECONDS = 5.0  # for a client that does not read what it was sent


@dataclass(frozen=True)
class _PlannedCut:
    after: int | None
    strike: Callable[[], bool]
    code: str = ""  # of a connection that can say why it ends


@dataclass
class Exchange:
    """Filled in by the call that a request turns out to be; read where bodies pass.

    A body is cut after so many bytes, or in its middle. One that is no longer than that passes
    whole, and the fault has not struck.
    """

    received: int = 0  # bytes of a request's body that was read before its call was known
    _plans: dict[Part, _PlannedCut] = field(default_factory=dict)

    def plan_cut(
        self, part: Part, after: int | None, strike: Callable[[], bool], code: str = ""
    ) -> None:
        """Have a body cut. `strike` is asked at the place: it counts, or says that it is over."""
        self._plans.setdefault(part, _PlannedCut(after, strike, code))

    def code(self, part: Part) -> str:
        """What a connection is to say when it is cut; nothing where it just ends."""
        plan = self._plans.get(part)
        return plan.code if plan is not None else ""

    def limit(self, part: Part, size: int | None) -> int | None:
        """How many bytes of a body of that size may pass; None for all of them.

        Of a body whose size nobody knows, half of it is its first byte.
        """
        plan = self._plans.get(part)
        if plan is None or size == 0:
            return None
        limit = plan.after
        if limit is None:
            limit = 1 if size is None else size // 2
        return limit if size is None or limit < size else None

    def trigger(self, part: Part) -> bool:
        """Whether the cut happens, now that its place is reached."""
        return self._plans.pop(part).strike()


class TruncatedResponse(web.StreamResponse):
    """The first bytes of an answer that announced more, and then the end of the connection."""

    def __init__(self, whole: web.Response, count: int) -> None:
        assert isinstance(whole.body, bytes)
        super().__init__(status=whole.status, headers=whole.headers)
        self.headers["Content-Length"] = str(len(whole.body))
        self._first = whole.body[:count]

    async def prepare(self, request: web.BaseRequest) -> None:
        await super().prepare(request)
        await self.write(self._first)
        await hang_up(request)
        raise ConnectionResetError


async def hang_up(request: web.BaseRequest) -> None:
    """End the connection once what was written has left."""
    transport = request.transport
    if not isinstance(transport, asyncio.Transport):
        return
    waited = 0.0
    while transport.get_write_buffer_size() and waited < _MAX_WAIT_SECONDS:
        await asyncio.sleep(_POLL_SECONDS)
        waited += _POLL_SECONDS
    transport.close()
