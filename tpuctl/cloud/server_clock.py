"""Google's time, which a computer with a wrong clock does not have."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from tpuctl.errors import Diagnostic
from tpuctl.units import format_duration

# Date headers have whole seconds, and responses take a moment to arrive.
PRECISION = timedelta(seconds=5)
# From here on it is reported. Google rejects tokens that are signed five minutes off.
REPORTED = timedelta(minutes=1)


class ServerClock:
    """The time of Google's servers, from the Date headers of responses over HTTP.

    Before the first response it is this computer's time.
    """

    def __init__(self) -> None:
        self.is_known = False  # whether there was a response
        self._ahead = timedelta()

    def listen(self, session: Any) -> None:
        """Read the Date header of each response of a `requests` session."""
        session.hooks["response"].append(self._read_date)

    def now(self) -> datetime:
        return datetime.now(UTC) - self._ahead

    @property
    def warning(self) -> Diagnostic | None:
        """What is wrong with this computer's clock; None if it is right or was not compared."""
        if abs(self._ahead) < REPORTED:
            return None
        direction = "ahead of" if self._ahead > timedelta() else "behind"
        minutes = round(abs(self._ahead) / timedelta(minutes=1))
        return Diagnostic(
            "Clock is wrong",
            f"this computer's clock is {format_duration(minutes * 60)} "
            f"{direction} Google's. Jobs and costs go by Google's; credentials may be rejected",
            hint="Synchronize it, for example:\n    sudo timedatectl set-ntp true",
        )

    def _read_date(self, response: Any, *_: Any, **__: Any) -> None:
        try:
            date = parsedate_to_datetime(response.headers.get("Date") or "")
            ahead = datetime.now(UTC) - date.astimezone(UTC)
        except (TypeError, ValueError, OverflowError):  # missing or invalid
            return
        self.is_known = True
        self._ahead = ahead if abs(ahead) > PRECISION else timedelta()
