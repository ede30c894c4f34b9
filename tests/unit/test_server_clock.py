"""Google's time, from the Date headers of responses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
import requests

from tests.support.http_server import QuietHandler, serving_http
from tpuctl.cloud.server_clock import ServerClock


def clock_after(*dates: str) -> ServerClock:
    """The clock after responses with these Date headers."""
    remaining = iter(dates)

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self.send_response_only(200)
            if date := next(remaining):
                self.send_header("Date", date)
            self.send_header("Content-Length", "0")
            self.end_headers()

    clock = ServerClock()
    with serving_http(Handler) as server, requests.Session() as session:
        session.trust_env = False
        clock.listen(session)
        for _ in dates:
            assert session.get(f"http://127.0.0.1:{server.server_port}/").ok
    return clock


def date(hours: float) -> str:
    """A Date header that is so much later than now."""
    return format_datetime(datetime.now(UTC) + timedelta(hours=hours), usegmt=True)


@pytest.mark.parametrize(
    ("hours", "text"), [(-2, "2 h ahead of"), (49, "2 d 1 h behind"), (24 * 365, "365 d behind")]
)
def test_wrong_clock_is_corrected_and_reported(hours: float, text: str) -> None:
    clock = clock_after(date(hours))
    assert abs(clock.now() - datetime.now(UTC) - timedelta(hours=hours)) < timedelta(seconds=3)
    assert clock.warning is not None
    assert f"clock is {text} Google's" in clock.warning.detail


@pytest.mark.parametrize(
    ("dates", "is_known"),
    [
        ([], False),
        ([0.0], True),
        ([2 / 3600], True),
        (["", "yesterday", "Thu, 99 Jan 2026 00:00:00 GMT"], False),
        ([-2.0, 0.0], True),  # it has been set
    ],
)
def test_clock_is_right_without_evidence_of_the_contrary(
    dates: list[str | float], is_known: bool
) -> None:
    clock = clock_after(*(each if isinstance(each, str) else date(each) for each in dates))
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=0.5)
    assert clock.warning is None
    assert clock.is_known is is_known
