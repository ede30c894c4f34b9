"""The watchdog on a machine whose clock is wrong, or is set while it runs.

Like Google's servers, the fake server here sends the time with each response.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_server import QuietHandler, serving_http
from tpuctl.jobs.shipped.watchdog import watchdog

HOUR, MONTH = 3600.0, 30 * 24 * 3600.0
TIME = time.time


class Google(QuietHandler):
    """Metadata, the TPU, and the guest attributes of a peer, which are queried by POST."""

    created = ""
    active = 0.0
    ahead: float | None = 0.0  # None: without a Date header

    def do_GET(self) -> None:
        value = {"queryValue": {"items": [{"key": "last-active", "value": str(self.active)}]}}
        responses: dict[str, Any] = {
            "/node": {"createTime": self.created, "state": "READY"},
            "/node:getGuestAttributes": {"guestAttributes": [value]},
            "/zone/instances?filter=labels": {"items": [{"name": "tpu-a1"}]},
            "/zone/instances/tpu-a1/getGuestAttributes?queryPath=tpuctl/": value,
            "/zone/instances/me": {"creationTimestamp": self.created, "status": "RUNNING"},
        }
        response = responses.get(self.path, {"access_token": "x"})
        text = json.dumps(response).encode()
        if self.path.endswith("/instance/name"):
            text = b"me"
        self.send_response_only(200)
        if self.ahead is not None:
            self.send_header("Date", formatdate(TIME() + self.ahead, usegmt=True))
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Google]]:
    class Fresh(Google): ...

    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serving_http(Fresh) as server:
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{server.server_port}")
        yield Fresh


def shift_clock(monkeypatch: pytest.MonkeyPatch, ahead: float) -> None:
    monkeypatch.setattr(watchdog.time, "time", lambda: TIME() + ahead)


def make_watchdog(folder: Path, **limits: Any) -> watchdog.Watchdog:
    result = watchdog.Watchdog(str(folder), None)
    url = f"http://{result.cloud.host}/node"
    result.config = {"tpu": url, "peers": [f"{url}:getGuestAttributes"], "reason": "old", **limits}
    result.cloud.metadata(watchdog.CONFIG)
    return result


def timestamp(ago: float) -> str:
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
    google.created = timestamp(age)
    shift_clock(monkeypatch, ahead)
    assert make_watchdog(tmp_path, max_seconds=HOUR).reason() == because


@pytest.mark.parametrize("ahead", [-MONTH, MONTH])
def test_later_clock_change_has_no_effect(
    google: type[Google], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    google.created, google.ahead = timestamp(HOUR / 2), None  # no Date corrects the clock
    watchdog = make_watchdog(tmp_path, max_seconds=HOUR, idle_seconds=HOUR)
    before = watchdog.clock.now()
    shift_clock(monkeypatch, ahead)
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
    google.created, google.active = timestamp(9 * HOUR), TIME() - ago
    shift_clock(monkeypatch, ahead)
    watchdog = make_watchdog(tmp_path, idle_seconds=HOUR)
    watchdog.active -= 2 * HOUR
    assert bool(watchdog.reason()) == is_idle
    assert watchdog.last_active() == pytest.approx(TIME() - min(ago, 2 * HOUR), abs=60)


@pytest.mark.parametrize(("ago", "is_idle"), [(HOUR / 2, False), (2 * HOUR, True)])
def test_activity_on_instances_counts(
    google: type[Google], tmp_path: Path, ago: float, is_idle: bool
) -> None:
    """Of Compute Engine, where only the list of machines tells their names."""
    google.created, google.active = timestamp(9 * HOUR), TIME() - ago
    watchdog = make_watchdog(tmp_path, idle_seconds=HOUR)
    zone = f"http://{watchdog.cloud.host}/zone"
    watchdog.config["tpu"] = f"{zone}/instances/{{instance}}"
    watchdog.config["peers"] = [f"{zone}/instances?filter=labels"]
    watchdog.active -= 2 * HOUR
    assert bool(watchdog.reason()) == is_idle


@pytest.mark.parametrize(("age", "because"), [(HOUR / 2, ""), (2 * HOUR, "old")])
def test_age_of_instance_counts_from_its_creation(
    google: type[Google], tmp_path: Path, age: float, because: str
) -> None:
    google.created = timestamp(age)
    watchdog = make_watchdog(tmp_path, max_seconds=HOUR)
    watchdog.config["tpu"] = f"http://{watchdog.cloud.host}/zone/instances/{{instance}}"
    assert watchdog.reason() == because


@pytest.mark.parametrize("date", ["", "yesterday", "Sat, 99 Nov 2026 07:00:00 GMT"])
def test_invalid_date_does_not_stop_watchdog(date: str) -> None:
    clock = watchdog.Clock()
    before = clock.now()
    clock.synchronize(date)
    assert clock.now() - before < HOUR
