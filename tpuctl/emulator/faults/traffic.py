"""API traffic: the journal of calls, and where faults are applied to them.

async with traffic.carry("google.cloud.tpu.v2.Tpu/GetNode", caller) as call:
    await call.arrive(attributes)  # faults that apply before the server acts
    answer = ...                   # the others apply when the block ends
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tpuctl.emulator.faults.fault import Fault, Faults, is_mutating
from tpuctl.emulator.faults.google_messages import REJECTING_KINDS, fault_error
from tpuctl.emulator.faults.http_exchange import Exchange, Part
from tpuctl.emulator.state.errors import ApiError

MAX_JOURNAL_CALLS = 10_000
_POLL_SECONDS = 0.05
_REJECTING_KINDS = (*REJECTING_KINDS, "drop-request")
_KINDS = (*_REJECTING_KINDS, "drop-response", "hold", "slow", "truncate")

Attributes = Mapping[str, Any]


class ConnectionCut(Exception):
    """The connection must be closed without a response."""


@dataclass(frozen=True)
class Caller:
    """The caller of a request, whether it is still connected, and its HTTP exchange, if any.

    gRPC calls have no exchange, and no bodies to truncate: they share a connection.
    """

    email: str
    is_connected: Callable[[], bool] = field(default=lambda: True, compare=False, repr=False)
    exchange: Exchange | None = field(default=None, compare=False, repr=False)
    scopes: frozenset[str] = frozenset()  # of the token; empty if it is not limited
    user_project: str = ""  # that a gRPC call is billed to, if it names one


@dataclass
class _HeldCall:
    """A request that a `hold` fault blocks."""

    call: Call
    since: float
    go: asyncio.Event = field(default_factory=asyncio.Event)
    is_dropped: bool = False


class Call:
    """One call in progress; `arrive` is awaited once, before the server acts."""

    def __init__(self, traffic: Traffic, method: str, caller: Caller) -> None:
        self.method = method
        self.caller = caller
        self.project = ""
        self.status = "OK"
        self.faults: list[str] = []  # ids of the applied faults
        self.due: list[Fault] = []
        self.attributes: Attributes = {}
        self.is_finished = False
        self.entry: dict[str, Any] | None = None  # in the journal
        self._traffic = traffic

    async def arrive(
        self,
        get_attributes: Callable[[], Attributes],
        *,
        streams: bool = False,
        uploads: bool = False,
    ) -> None:
        """Apply the faults that precede the server's action: ApiError, ConnectionCut, or a wait.

        `get_attributes` is called only when a fault might apply. A response that `streams` cannot
        be held back once it began, so faults that would follow the action are applied now. With
        `uploads` the request body follows; a `truncate` fault applies to it by default.
        """
        self.due = self._traffic.due(self, get_attributes)
        for fault in self.take("hold", where=lambda fault: not fault.get("hold_response")):
            await self._traffic.hold(fault, self)
        for fault in self.take(
            *_REJECTING_KINDS, where=lambda fault: not fault.get("fail_operation"), limit=1
        ):
            self.due = []  # the call ends here: later faults do not apply
            if fault.kind == "drop-request":
                raise ConnectionCut
            raise fault_error(fault.fields, self.attributes)
        self._plan_cut("request", uploads=uploads)
        if streams:
            await self.leave()

    async def leave(self) -> None:
        """Apply the faults that follow the server's action."""
        for fault in self.take("slow"):
            await self._traffic.hold(fault, self, fault.fields["seconds"])
        for fault in self.take("hold"):
            await self._traffic.hold(fault, self)
        if self.take("drop-response", limit=1):
            raise ConnectionCut
        self._plan_cut("response")

    def _plan_cut(self, part: Part, *, uploads: bool = False) -> None:
        """Plan the truncation of a body of this call if a fault asks for it."""
        usual: Part = "request" if uploads else "response"
        for fault in self.due:
            if fault.kind != "truncate" or fault.get("body", usual) != part:
                continue
            self.due = [other for other in self.due if other is not fault]
            exchange, strike = self.caller.exchange, partial(self._strike, fault)
            if exchange is None:
                if strike():
                    raise ConnectionCut
                return
            exchange.plan_cut(part, fault.get("after_bytes"), strike, fault.get("code", ""))
            if part == "request" and not uploads:  # its body is here, but it goes no further
                limit = exchange.limit(part, exchange.received)
                if limit is not None and exchange.trigger(part):
                    raise ConnectionCut
            return

    def _strike(self, fault: Fault) -> bool:
        """Count a use of the fault, even after the call finished; False if it no longer applies."""
        if not self._traffic.faults.can_strike(fault):
            return False
        self.faults.append(fault.id)
        self._traffic.faults.record_use(fault)
        if self.entry is not None:
            self.entry["status"] = "DISCONNECTED"
        return True

    def take(
        self,
        *kinds: str,
        where: Callable[[Fault], bool] = lambda fault: True,
        limit: int | None = None,
    ) -> list[Fault]:
        """Take the due faults of these kinds to apply them now; their uses are counted."""
        matching = [fault for fault in self.due if fault.kind in kinds and where(fault)]
        self.due = [fault for fault in self.due if fault not in matching]
        # Since this call arrived, a fault may have been used up by another call, or removed.
        active = [fault for fault in matching if self._traffic.faults.can_strike(fault)][:limit]
        for fault in active:
            self.faults.append(fault.id)
            self._traffic.faults.record_use(fault)
        return active


_current: ContextVar[Call | None] = ContextVar("call", default=None)


class Traffic:
    """All calls of the local cloud, of every API and transport."""

    def __init__(
        self,
        faults: Faults,
        project_number: Callable[[str], int | None],
        describe: Callable[[str], Mapping[str, str]],
    ) -> None:
        """`describe` returns a method's values for error messages: `service`, `permission`."""
        self.faults = faults
        self._project_number = project_number
        self._describe = describe
        self._journal: deque[dict[str, Any]] = deque(maxlen=MAX_JOURNAL_CALLS)
        self._count = 0
        self._held: dict[str, list[_HeldCall]] = {}

    @contextlib.asynccontextmanager
    async def track(self, method: str, caller: Caller) -> AsyncIterator[Call]:
        """One call, from its arrival to its response. Raises what its body raises, or
        ConnectionCut."""
        call = Call(self, method, caller)
        before = _current.set(call)
        try:
            try:
                yield call
            except ConnectionCut:
                raise
            except Exception as error:
                if call.status == "OK":
                    call.status = error.status if isinstance(error, ApiError) else "INTERNAL"
                await call.leave()
                raise
            await call.leave()
        except ConnectionCut:
            call.status = "DISCONNECTED"
            raise
        except asyncio.CancelledError:
            call.status = "CANCELLED"
            raise
        finally:
            call.is_finished = True
            _current.reset(before)
            self._record(call)

    def due(self, call: Call, get_attributes: Callable[[], Attributes]) -> list[Fault]:
        """The faults that apply to this call, before or after the server acts."""

        def request_attributes() -> Attributes:
            attributes = dict(get_attributes())
            attributes |= {"method": call.method, "caller": call.caller.email}
            attributes |= self._describe(call.method)
            if call.caller.exchange is not None and call.caller.exchange.retry_test:
                attributes["retry_test"] = call.caller.exchange.retry_test
            attributes["project_number"] = self._project_number(
                str(attributes.get("project") or "")
            )
            call.attributes = attributes
            return attributes

        return self.faults.due(_KINDS, request_attributes)

    def caller(self) -> Caller | None:
        """The caller of the current call, from its context."""
        call = _current.get()
        return call.caller if call is not None else None

    def shape_operation(self) -> tuple[float, ApiError | None]:
        """The faults for the operation that the current call starts: its delay and its error.

        The call is found by its context, so handlers need not pass it to where operations start.
        """
        call = _current.get()
        if call is None or call.is_finished:
            return 0.0, None
        seconds = sum(fault.fields["seconds"] for fault in call.take("slow"))
        failing = call.take("error", where=lambda fault: bool(fault.get("fail_operation")), limit=1)
        return seconds, fault_error(failing[0].fields, call.attributes) if failing else None

    # Held requests.

    async def hold(self, fault: Fault, call: Call, seconds: float = math.inf) -> None:
        """Wait for `release`, up to `seconds`. Raises ConnectionCut if the caller disconnects."""
        held_call = _HeldCall(call, time.time())
        self._held.setdefault(fault.id, []).append(held_call)
        try:
            deadline = time.monotonic() + seconds
            while not held_call.go.is_set() and (remaining := deadline - time.monotonic()) > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(held_call.go.wait(), min(remaining, _POLL_SECONDS))
                if not call.caller.is_connected():
                    raise ConnectionCut
            if held_call.is_dropped:
                raise ConnectionCut
        finally:
            self._held[fault.id].remove(held_call)

    def held_calls(self, fault_id: str) -> list[dict[str, Any]]:
        """The requests that a fault holds."""
        return [
            {
                "method": held_call.call.method,
                "caller": held_call.call.caller.email,
                "since": held_call.since,
            }
            for held_call in self._held.get(fault_id, ())
        ]

    def release(self, fault_id: str, *, drop: bool = False) -> int:
        """Continue the requests a fault holds, or drop them; returns how many."""
        held_calls = [
            held_call for held_call in self._held.get(fault_id, ()) if not held_call.go.is_set()
        ]
        for held_call in held_calls:
            held_call.is_dropped = drop
            held_call.go.set()
        return len(held_calls)

    def close(self) -> None:
        """Cut off all held requests, when the server stops."""
        for fault_id in self._held:
            self.release(fault_id, drop=True)

    # The journal.

    def calls(self, since: int = 0) -> dict[str, Any]:
        """The calls answered after number `since`, and the last number of all.

        Numbers begin at 1 with each start of the server, in the order of the answers.
        """
        first = self._count - len(self._journal)
        entries = list(self._journal)[max(0, since - first) :]
        return {"calls": entries, "last": self._count}

    def _record(self, call: Call) -> None:
        self._count += 1
        call.entry = {
            "number": self._count,
            "method": call.method,
            "project": call.project,
            "caller": call.caller.email,
            "status": call.status,
            "mutating": is_mutating(call.method),
            "faults": call.faults,
            "time": time.time(),
        }
        self._journal.append(call.entry)
