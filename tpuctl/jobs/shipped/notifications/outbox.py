"""Events on their way to a webhook: each is an object in the bucket, until long after it was sent.

Like the programs that import it, this file is sent to machines as it is: standard library only,
Python 3.8 and later. tpuctl imports it, too, so it imports none of its neighbors.

An event is created once, even if several processes know of it. Events are sent in the order in
which they were created, by the holder of the lease, and marked afterwards: a sender that ends in
between leaves an event that is sent again. So each arrives at least once, and in order. The lease
also says when to try again. All times are those of the bucket.

    PREFIX/ID.json       an event; its metadata `notification` says what became of it
    PREFIX/lease         {"until": seconds since 1970, "failures": number}
"""

from __future__ import annotations

import contextlib
import json
import time

TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    class Answer(Protocol):
        """As `notices.Answer`."""

        retry_after: float

        @property
        def is_delivered(self) -> bool: ...
        @property
        def is_final(self) -> bool: ...
        def describe(self) -> str: ...

    class Store(Protocol):
        """A bucket."""

        def entries(self, prefix: str) -> tuple[float, list[Entry]]:
            """The bucket's time, and its objects with a prefix."""

        def create(self, name: str, text: bytes, generation: int) -> int | None:
            """Write an object; None unless it has this generation, 0 if it does not exist."""

        def read(self, name: str, generation: int) -> Any:
            """The JSON value of a generation; None if there is none."""

        def mark(self, name: str, state: str) -> None: ...
        def delete(self, name: str) -> None: ...


OTHER_SENDER = "another machine is sending"
STATE = "notification"  # key of the objects' metadata
LEASE = "lease"
LEASE_SECONDS = 60.0  # without renewal; a request takes a sixth of that
RENEWAL_SECONDS = 20.0
FIRST_DELAY, MAX_DELAY = 5.0, 300.0  # seconds until an unsuccessful request is tried again
MAX_WAIT = 3600.0  # that a lease may ask for
MAX_AGE = 7 * 86400.0  # of events that are still sent
KEPT_SECONDS = 30 * 86400.0  # of events that were sent, so that they are not rung again


class Entry:
    """An object: its name, generation, creation, and what became of the event; "" if unsent."""

    def __init__(self, name: str, generation: int, created: float, state: str) -> None:
        self.name = name
        self.generation = generation
        self.created = created
        self.state = state


class Delivery:
    """How many events are left; if any, after how many seconds to try again, and why."""

    def __init__(self, left: int = 0, wait: float = 0.0, problem: str = "") -> None:
        self.left = left
        self.wait = wait
        self.problem = problem  # without the URL


def put(store: Store, prefix: str, event: dict[str, Any]) -> bool:
    """Put an event into the outbox; False if it is there already."""
    name = f"{prefix}/{event['id']}.json"
    return store.create(name, json.dumps(event).encode(), 0) is not None


def deliver(store: Store, prefix: str, send: Callable[[dict[str, Any]], Answer]) -> Delivery:
    """Send what is unsent, oldest first, until a request fails or everything is sent."""
    began = time.monotonic()
    now, entries = store.entries(prefix + "/")
    delete_old(store, prefix, now, entries)
    pending = unsent(prefix, entries)
    if not pending:
        return Delivery()
    lease = Lease(store, prefix, now - began, entries)
    wait = lease.acquire()
    if wait > 0:
        return Delivery(len(pending), wait, OTHER_SENDER)
    pending = unsent(prefix, store.entries(prefix + "/")[1])  # what the last holder has left
    for number, entry in enumerate(pending):
        left = len(pending) - number
        if not lease.is_renewed():
            return Delivery(left, LEASE_SECONDS, OTHER_SENDER)
        is_old = entry.created < now - MAX_AGE
        event = None if is_old else read_object(store, entry.name, entry.generation)
        if event is None:
            store.mark(entry.name, "dropped")
            continue
        answer = send(event)
        if not (answer.is_delivered or answer.is_final):
            return Delivery(left, lease.postpone(answer.retry_after), answer.describe())
        outcome = "sent" if answer.is_delivered else "refused"
        store.mark(entry.name, f"{outcome}, {answer.describe()}")
    lease.release()
    return Delivery()


def read_object(store: Store, name: str, generation: int) -> dict[str, Any] | None:
    """An event or a lease; None if it is damaged, or was deleted."""
    try:
        value = store.read(name, generation)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def unsent(prefix: str, entries: list[Entry]) -> list[Entry]:
    lease = f"{prefix}/{LEASE}"
    pending = [entry for entry in entries if not entry.state and entry.name != lease]
    return sorted(pending, key=lambda entry: (entry.created, entry.name))


def delete_old(store: Store, prefix: str, now: float, entries: list[Entry]) -> None:
    for entry in entries:
        if entry.state and entry.created < now - KEPT_SECONDS:
            store.delete(entry.name)


class Lease:
    """The right to send, which also keeps when the next try is due. `offset` is the bucket's time
    minus the monotonic clock."""

    def __init__(self, store: Store, prefix: str, offset: float, entries: list[Entry]) -> None:
        self.store = store
        self.name = f"{prefix}/{LEASE}"
        self.offset = offset
        generations = (entry.generation for entry in entries if entry.name == self.name)
        self.generation = next(generations, 0)
        self.failures = 0
        self.written_at = 0.0

    def now(self) -> float:
        return self.offset + time.monotonic()

    def acquire(self) -> float:
        """Take the lease; returns the seconds to wait if another has it, or a try is not due."""
        value: dict[str, Any] = {}
        if self.generation:
            value = read_object(self.store, self.name, self.generation) or {}
        wait = 0.0
        # There may be none, or it is damaged.
        with contextlib.suppress(TypeError, LookupError, ValueError, OverflowError):
            wait = float(value["until"]) - self.now()
            self.failures = max(0, int(value["failures"]))
        if 0.0 < wait <= MAX_WAIT:
            return wait
        return 0.0 if self.write(LEASE_SECONDS) else FIRST_DELAY

    def is_renewed(self) -> bool:
        """Whether it is still held, and long enough for another request."""
        if time.monotonic() - self.written_at < RENEWAL_SECONDS:
            return True
        return self.write(LEASE_SECONDS)

    def postpone(self, retry_after: float) -> float:
        """Release it after a failure; returns the seconds after which it can be taken."""
        delay = max(min(FIRST_DELAY * 2.0**self.failures, MAX_DELAY), retry_after)
        self.failures = min(self.failures + 1, 16)
        self.write(delay)
        return delay

    def release(self) -> None:
        self.failures = 0
        self.write(0.0)

    def write(self, seconds: float) -> bool:
        value = {"until": self.now() + seconds, "failures": self.failures}
        generation = self.store.create(self.name, json.dumps(value).encode(), self.generation)
        if generation is None:
            return False
        self.generation, self.written_at = generation, time.monotonic()
        return True
