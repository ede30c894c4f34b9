"""What came of earlier requests for TPUs: which zone granted them, and which refused.

This computer remembers them in a file. If it cannot be read or written, it is as if it were empty:
nothing depends on it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from tpuctl.catalog import Api
from tpuctl.files import private_folder, read_file, state_home
from tpuctl.model.text.record_parsing import Count, Moment, Name, Seconds, Text
from tpuctl.units import format_duration

VERSION = 1
MAX_ATTEMPTS = 1000  # per cloud
MAX_FILE_BYTES = 16 << 20
LOCK_SECONDS = 10.0


@dataclass(frozen=True)
class CapacityAttempt:
    """A request for the nodes of a stack in one zone, and its end."""

    time: Moment  # of the end
    zone: Name
    type: Name
    capacity: Name
    seconds: Seconds  # from the request to its end
    error: Text = ""  # why it was refused; empty if it was granted
    nodes: Count = 1
    api: Api = "tpu"


@dataclass(frozen=True)
class ZoneHistory:
    """The attempts to get a type with one capacity in one zone from one API, oldest first."""

    capacity: str
    api: Api
    attempts: Sequence[CapacityAttempt]

    @property
    def granted(self) -> CapacityAttempt | None:
        """The last attempt that was granted."""
        return next((attempt for attempt in reversed(self.attempts) if not attempt.error), None)

    @property
    def refusals(self) -> Sequence[CapacityAttempt]:
        """The refused attempts since then."""
        last = -1 if self.granted is None else self.attempts.index(self.granted)
        return self.attempts[last + 1 :]

    @property
    def refused(self) -> CapacityAttempt | None:
        """The last of them."""
        return self.refusals[-1] if self.refusals else None

    @property
    def refused_since(self) -> int:
        return len(self.refusals)

    def text(self, now: datetime | None = None) -> str:
        """`spot: granted 2 d ago after 4 min, refused 3 times since`."""
        now = now or datetime.now(UTC)
        granted, refused = self.granted, self.refused
        parts = []
        if granted is not None:
            parts.append(f"granted {_age(granted, now)} after {format_duration(granted.seconds)}")
        if refused is not None:
            times = "once" if self.refused_since == 1 else f"{self.refused_since} times"
            when = f"{times}, last {_age(refused, now)}" if granted is None else f"{times} since"
            parts.append(f"refused {when} ({refused.error})")
        seller = "" if self.api == "tpu" else " through Compute Engine"
        return f"{self.capacity}{seller}: {', '.join(parts)}"


def _age(attempt: CapacityAttempt, now: datetime) -> str:
    return f"{format_duration(max(0.0, (now - attempt.time).total_seconds()))} ago"


def merge_attempts(
    *histories: Iterable[CapacityAttempt], limit: int
) -> tuple[CapacityAttempt, ...]:
    """The last `limit` attempts of several histories, each once, oldest first."""
    every = {attempt for history in histories for attempt in history}
    return tuple(sorted(every, key=lambda attempt: (attempt.time, attempt.zone))[-limit:])


def zone_histories(
    attempts: Iterable[CapacityAttempt], type_name: str
) -> dict[str, list[ZoneHistory]]:
    """By zone, the history of a type with each capacity that was requested from each API."""
    groups: dict[str, dict[tuple[str, Api], list[CapacityAttempt]]] = {}
    for attempt in sorted(attempts, key=lambda attempt: attempt.time):
        if attempt.type == type_name:
            in_zone = groups.setdefault(attempt.zone, {})
            in_zone.setdefault((attempt.capacity, attempt.api), []).append(attempt)
    return {
        zone: [ZoneHistory(*key, group) for key, group in sorted(in_zone.items())]
        for zone, in_zone in groups.items()
    }


def history_file() -> Path:
    """The file in the user's state folder."""
    return state_home() / "capacity.json"


def read_attempts(cloud: str) -> tuple[CapacityAttempt, ...]:
    """The remembered attempts on a cloud (`google` or `local`), oldest first."""
    return _read().get(cloud, ())


def remember_attempts(cloud: str, attempts: Iterable[CapacityAttempt]) -> None:
    """Add attempts on a cloud to this computer's history."""
    from filelock import FileLock

    path = history_file()
    with suppress(OSError):
        private_folder(path.parent)
        with FileLock(path.with_suffix(".lock"), timeout=LOCK_SECONDS, mode=0o600):
            before = _read()
            after = merge_attempts(before.get(cloud, ()), attempts, limit=MAX_ATTEMPTS)
            clouds = {
                name: [_row(attempt) for attempt in history]
                for name, history in {**before, cloud: after}.items()
            }
            partial = path.with_name(f".{path.name}.{os.getpid()}")
            partial.write_text(json.dumps({"version": VERSION, "clouds": clouds}), "utf-8")
            partial.replace(path)


def _read() -> dict[str, tuple[CapacityAttempt, ...]]:
    try:
        contents = json.loads(read_file(history_file(), MAX_FILE_BYTES))
        if contents["version"] != VERSION:
            return {}
        from pydantic import TypeAdapter

        attempts = TypeAdapter(dict[str, tuple[CapacityAttempt, ...]])
        return attempts.validate_python(contents["clouds"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return {}


def _row(attempt: CapacityAttempt) -> dict[str, object]:
    return {**asdict(attempt), "time": attempt.time.isoformat()}
