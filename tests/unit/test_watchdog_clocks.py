"""The watch on a machine whose own clock is wrong, or is set while it watches.

The server here answers as Google's do in what matters: each answer says what time it is.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tpuctl.jobs.shipped import watchdog

HOUR, MONTH = 3600.0, 30 * 24 * 3600.0
TIME = time.time


class Google(BaseHTTPRequestHandler):
    """Metadata, the TPU, and what a peer says of itself; POST too, which asks for the last."""

    created = ""
    busy = 0.0
    ahead: float | None = 0.0  # None: without a Date

    def do_GET(self) -> None:
        answers: dict[str, Any] = {
            "/node": {"createTime": self.created, "state": "READY"},
            "/node:getGuestAttributes": {
                "guestAttributes": [
                    {"queryValue": {"items": [{"key": "last-active", "value": str(self.busy)}]}}
                ]
            },
        }
        answer = answers.get(self.path, {"access_token": "x"})
        text = json.dumps(answer).encode()
        self.send_response_only(200)
        if self.ahead is not None:
            self.send_header("Date", formatdate(TIME() + self.ahead, usegmt=True))
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Google]]:
    class Fresh(Google): ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Fresh)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{server.server_port}")
    yield Fresh
    server.shutdown()
    thread.join()
    server.server_close()


def wrong_clock(monkeypatch: pytest.MonkeyPatch, ahead: float) -> None:
    monkeypatch.setattr(watchdog.time, "time", lambda: TIME() + ahead)


def watching(folder: Path, **orders: Any) -> watchdog.Watchdog:
    made = watchdog.Watchdog(str(folder), None)
    url = f"http://{made.cloud.host}/node"
    made.config = {"tpu": url, "peers": [f"{url}:getGuestAttributes"], "reason": "old", **orders}
    made.cloud.metadata(watchdog.CONFIG)
    return made


def moment(ago: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(TIME() - ago))


@pytest.mark.parametrize("ahead", [-MONTH, 0.0, MONTH])
@pytest.mark.parametrize(("age", "because"), [(HOUR / 2, ""), (2 * HOUR, "old")])
def test_age_uses_googles_clock(
    google: type[Google],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ahead: float,
    age: float,
    because: str,
) -> None:
    google.created = moment(age)
    wrong_clock(monkeypatch, ahead)
    assert watching(tmp_path, max_seconds=HOUR).reason() == because


@pytest.mark.parametrize("ahead", [-MONTH, MONTH])
def test_later_clock_change_has_no_effect(
    google: type[Google], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    google.created, google.ahead = moment(HOUR / 2), None  # it is not corrected
    watchdog = watching(tmp_path, max_seconds=HOUR, idle_seconds=HOUR)
    before = watchdog.clock.now()
    wrong_clock(monkeypatch, ahead)
    assert 0 <= watchdog.clock.now() - before < HOUR / 4
    assert watchdog.reason() == ""
    watchdog.active -= 2 * HOUR
    assert "limits.idle" in watchdog.reason()


@pytest.mark.parametrize("ahead", [-MONTH, 0.0, MONTH])
@pytest.mark.parametrize(("ago", "is_idle"), [(HOUR / 2, False), (2 * HOUR, True)])
def test_peer_activity_counts_from_its_time(
    google: type[Google],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ahead: float,
    ago: float,
    is_idle: bool,
) -> None:
    google.created, google.busy = moment(9 * HOUR), TIME() - ago
    wrong_clock(monkeypatch, ahead)
    watchdog = watching(tmp_path, idle_seconds=HOUR)
    watchdog.active -= 2 * HOUR
    assert bool(watchdog.reason()) == is_idle
    assert watchdog.last_active() == pytest.approx(TIME() - min(ago, 2 * HOUR), abs=60)


@pytest.mark.parametrize("date", ["", "yesterday", "Sat, 99 Nov 2026 07:00:00 GMT"])
def test_invalid_date_does_not_stop_watchdog(date: str) -> None:
    clock = watchdog.Clock()
    before = clock.now()
    clock.synchronize(date)
    assert clock.now() - before < HOUR
