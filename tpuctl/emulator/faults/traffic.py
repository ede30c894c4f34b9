"""What passes through the APIs: a journal of the calls, and the place where faults strike them.

async with traffic.carry("google.cloud.tpu.v2.Tpu/GetNode", caller) as call:
    await call.arrive(facts)      # faults that strike before anything is done
    answer = ...                  # those that strike afterwards do so when the block ends
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

__all__ = ["Call", "Caller", "ConnectionCut", "Traffic"]

MAX_JOURNAL_CALLS = 10_000
_POLL_SECONDS = 0.05
_REJECTING_KINDS = (*REJECTING_KINDS, "dropped")
_KINDS = (*_REJECTING_KINDS, "lost", "hold", "slow", "cut")

Attributes = Mapping[str, Any]


class ConnectionCut(Exception):
    """The connection is to end here, without an answer."""


@dataclass(frozen=True)
class Caller:
    """Who sent a request, whether they still wait for the answer, and over what, if that is HTTP.

    Without an exchange there are no bodies to be cut: many calls share the connection.
    """

    email: str
    is_connected: Callable[[], bool] = field(default=lambda: True, compare=False, repr=False)
    exchange: Exchange | None = field(default=None, compare=False, repr=False)
    scopes: frozenset[str] = frozenset()  # what the token is limited to; none where it is not


@dataclass
class _HeldCall:
    """A request that waits inside a `hold`."""

    call: Call
    since: float
    go: asyncio.Event = field(default_factory=asyncio.Event)
    is_dropped: bool = False


class Call:
    """One call on its way; `arrive` is awaited once, before the server acts."""

    def __init__(self, traffic: Traffic, method: str, caller: Caller) -> None:
        self.method = method
        self.caller = caller
        self.project = ""
        self.status = "OK"
        self.faults: list[str] = []  # ids of those that struck it
        self.due: list[Fault] = []
        self.attributes: Attributes = {}
        self.is_finished = False
        self.entry: dict[str, Any] | None = None  # of the journal
        self._traffic = traffic

    async def arrive(
        self,
        get_attributes: Callable[[], Attributes],
        *,
        streams: bool = False,
        uploads: bool = False,
    ) -> None:
        """Let the faults strike that come before the server acts: ApiError, Cut, or a wait.

        `facts` is asked only when a fault might apply. An answer that `streams` cannot be held
        back once it began: what would strike after the server acted strikes now. A call that
        `uploads` has its body still to come, and that is what a cut means there.
        """
        self.due = self._traffic.due(self, get_attributes)
        for fault in self.take("hold", where=lambda fault: not fault.get("after")):
            await self._traffic.hold(fault, self)
        for fault in self.take(
            *_REJECTING_KINDS, where=lambda fault: not fault.get("operation"), limit=1
        ):
            self.due = []  # what would strike later does not: the call ends here
            if fault.kind == "dropped":
                raise ConnectionCut
            raise fault_error(fault.fields, self.attributes)
        self._plan_cut("request", uploads=uploads)
        if streams:
            await self.leave()

    async def leave(self) -> None:
        """Let the faults strike that come after the server acted."""
        for fault in self.take("slow"):
            await self._traffic.hold(fault, self, fault.fields["seconds"])
        for fault in self.take("hold"):
            await self._traffic.hold(fault, self)
        if self.take("lost", limit=1):
            raise ConnectionCut
        self._plan_cut("answer")

    def _plan_cut(self, part: Part, *, uploads: bool = False) -> None:
        """Have a body of this call cut in the middle, where a fault wants that."""
        usual: Part = "request" if uploads else "answer"
        for fault in self.due:
            if fault.kind != "cut" or fault.get("of", usual) != part:
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
        """Count that a fault struck, perhaps when the call is over already; False if it may not."""
        if not self._traffic.faults.can_strike(fault):
            return False
        self.faults.append(fault.id)
        self._traffic.faults.record_use(fault)
        if self.entry is not None:
            self.entry["status"] = "CUT"
        return True

    def take(
        self,
        *kinds: str,
        where: Callable[[Fault], bool] = lambda fault: True,
        limit: int | None = None,
    ) -> list[Fault]:
        """The due faults of these kinds, their uses counted: they strike now."""
        matching = [fault for fault in self.due if fault.kind in kinds and where(fault)]
        self.due = [fault for fault in self.due if fault not in matching]
        # Another call may have used one up, or somebody removed it, since this call arrived.
        active = [fault for fault in matching if self._traffic.faults.can_strike(fault)][:limit]
        for fault in active:
            self.faults.append(fault.id)
            self._traffic.faults.record_use(fault)
        return active


_current: ContextVar[Call | None] = ContextVar("call", default=None)


class Traffic:
    """All calls of the local cloud, whichever API and transport they are of."""

    def __init__(
        self,
        faults: Faults,
        project_number: Callable[[str], int | None],
        describe: Callable[[str], Mapping[str, str]],
    ) -> None:
        """`describe` tells what texts of faults say of a method: its `service`, a `permission`."""
        self.faults = faults
        self._project_number = project_number
        self._describe = describe
        self._journal: deque[dict[str, Any]] = deque(maxlen=MAX_JOURNAL_CALLS)
        self._count = 0
        self._held: dict[str, list[_HeldCall]] = {}

    @contextlib.asynccontextmanager
    async def track(self, method: str, caller: Caller) -> AsyncIterator[Call]:
        """One call, from its arrival to its answer. Raises what its body raises, or Cut."""
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
            call.status = "CUT"
            raise
        except asyncio.CancelledError:
            call.status = "CANCELLED"
            raise
        finally:
            call.is_finished = True
            _current.reset(before)
            self._record(call)

    def due(self, call: Call, get_attributes: Callable[[], Attributes]) -> list[Fault]:
        """The faults that strike this call, before or after the server acts."""

        def request_attributes() -> Attributes:
            attributes = dict(get_attributes())
            attributes |= {"method": call.method, "caller": call.caller.email}
            attributes |= self._describe(call.method)
            attributes["project_number"] = self._project_number(
                str(attributes.get("project") or "")
            )
            call.attributes = attributes
            return attributes

        return self.faults.due(_KINDS, request_attributes)

    def caller(self) -> Caller | None:
        """Whose call this is being asked in, found by its context."""
        call = _current.get()
        return call.caller if call is not None else None

    def shape_operation(self) -> tuple[float, ApiError | None]:
        """What faults do to the operation that the present call begins.

        Seconds that it takes longer, and what it fails with. Found by the context in which it is
        asked, so that no handler has to pass its call on to where operations begin.
        """
        call = _current.get()
        if call is None or call.is_finished:
            return 0.0, None
        seconds = sum(fault.fields["seconds"] for fault in call.take("slow"))
        failing = call.take("error", where=lambda fault: bool(fault.get("operation")), limit=1)
        return seconds, fault_error(failing[0].fields, call.attributes) if failing else None

    # Held requests.

    async def hold(self, fault: Fault, call: Call, seconds: float = math.inf) -> None:
        """Wait until somebody lets the call go on, or so long. Cut if its caller goes away."""
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

    def waiting(self, fault_id: str) -> list[dict[str, Any]]:
        """The requests that a fault holds."""
        return [
            {
                "method": held_call.call.method,
                "caller": held_call.call.caller.email,
                "since": held_call.since,
            }
            for held_call in self._held.get(fault_id, ())
        ]

    def release(self, fault_id: str, *, act: bool = True) -> int:
        """Let go what a fault holds, or without `act` cut it off; returns how many that was."""
        held_calls = [
            held_call for held_call in self._held.get(fault_id, ()) if not held_call.go.is_set()
        ]
        for held_call in held_calls:
            held_call.is_dropped = not act
            held_call.go.set()
        return len(held_calls)

    def close(self) -> None:
        """Cut off all that is held: the server is ending."""
        for fault_id in self._held:
            self.release(fault_id, act=False)

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
