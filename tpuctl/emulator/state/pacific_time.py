"""Times as Compute Engine writes them: in US Pacific time, whatever the zone of the resource."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone

_STANDARD, _DAYLIGHT = timezone(timedelta(hours=-8)), timezone(timedelta(hours=-7))


def pacific_text(seconds: float | None = None) -> str:
    """A Unix timestamp, by default now, as `2024-04-24T18:53:57.119-07:00`.

    The rule of daylight saving time since 2007 is here because not every computer has the database
    of time zones: from the second Sunday of March to the first of November, at 2 o'clock.
    """
    moment = datetime.fromtimestamp(time.time() if seconds is None else seconds, UTC)
    begin = _sunday(moment.year, 3, second=True).replace(hour=10)  # 2:00 standard time
    end = _sunday(moment.year, 11).replace(hour=9)  # 2:00 daylight time
    zone = _DAYLIGHT if begin <= moment < end else _STANDARD
    return moment.astimezone(zone).isoformat(timespec="milliseconds")


def _sunday(year: int, month: int, *, second: bool = False) -> datetime:
    first = datetime(year, month, 1, tzinfo=UTC)
    return first + timedelta(days=(6 - first.weekday()) % 7 + 7 * second)
