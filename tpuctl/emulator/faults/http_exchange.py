"""One HTTP exchange as faults see it: either of its bodies may be truncated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from aiohttp import web

Part = Literal["request", "response"]

_POLL_SECONDS = 0.01
_MAX_WAIT_SECONDS = 5.0  # for a client that does not read the response


@dataclass(frozen=True)
class _PlannedCut:
    after: int | None
    strike: Callable[[], bool]
    code: str = ""  # for connections that can report why they end


@dataclass
class Exchange:
    """Planned by the call that a request belongs to, and consulted while bodies are streamed.

    A body is truncated after a number of bytes, or in its middle. A shorter body passes whole, and
    the fault is not used.
    """

    received: int = 0  # bytes of the request body read before its call was known
    retry_test: str = ""  # the test whose planned failures apply
    offset: int = 0  # bytes of an upload that earlier requests sent: retry tests count all
    _plans: dict[Part, _PlannedCut] = field(default_factory=dict)

    def plan_cut(
        self, part: Part, after: int | None, strike: Callable[[], bool], code: str = ""
    ) -> None:
        """Plan a truncation. `strike` is called when it is reached: it counts the use, or returns
        False if the fault no longer applies."""
        self._plans.setdefault(part, _PlannedCut(after, strike, code))

    def code(self, part: Part) -> str:
        """The code to report when the connection is cut; "" to just close it."""
        plan = self._plans.get(part)
        return plan.code if plan is not None else ""

    def limit(self, part: Part, size: int | None) -> int | None:
        """How many bytes of a body of that size may pass; None for all of them.

        Without a known size, the middle of a body is its first byte.
        """
        plan = self._plans.get(part)
        if plan is None or size == 0:
            return None
        limit = plan.after
        if limit is None:
            limit = 1 if size is None else size // 2
        elif part == "request" and self.retry_test:
            limit = max(limit - self.offset, 0)
        return limit if size is None or limit < size else None

    def trigger(self, part: Part) -> bool:
        """Apply the planned cut, now that it is reached; False if the fault no longer applies."""
        return self._plans.pop(part).strike()


class TruncatedResponse(web.StreamResponse):
    """The first bytes of a response, after which the connection is closed."""

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
    """Close the connection once its write buffer is flushed."""
    transport = request.transport
    if not isinstance(transport, asyncio.Transport):
        return
    waited = 0.0
    while transport.get_write_buffer_size() and waited < _MAX_WAIT_SECONDS:
        await asyncio.sleep(_POLL_SECONDS)
        waited += _POLL_SECONDS
    transport.close()
