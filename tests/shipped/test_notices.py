"""Notifications in the formats of their receivers, and what a receiver can answer."""

from __future__ import annotations

import json
from email.message import Message
from typing import Any

import pytest

from tests.support.webhook_receiver import receiving
from tpuctl.jobs.shipped.notifications import notices

EVENT = {
    "id": "20260101-000000-acorn.2.end",
    "event": "failed",
    "at": "2026-01-01T00:10:00+00:00",
    "stack": "bert",
    "project": "my-project",
    "zone": "us-central1-b",
    "job": "20260101-000000-acorn",
    "attempt": 2,
    "exit_code": 3,
    "cost": 1.5,
    "detail": "the script failed with exit code 3",
    "command": "tpuctl explain 20260101-000000-acorn --stack bert --project my-project",
}
TEXT = (
    "Job 20260101-000000-acorn failed: the script failed with exit code 3 "
    "(stack bert, attempt 2, cost about $1.50)\n"
    "tpuctl explain 20260101-000000-acorn --stack bert --project my-project"
)


def body(event: dict[str, Any], format_name: str) -> Any:
    return json.loads(notices.request_for(event, format_name).body)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://hooks.slack.com/services/T0/B0/x", "slack"),
        ("https://discord.com/api/webhooks/1/x", "discord"),
        ("https://ptb.discord.com/api/webhooks/1/x", "discord"),
        ("https://chat.googleapis.com/v1/spaces/S/messages?key=k&token=t", "google-chat"),
        ("https://ntfy.sh/topic", "ntfy"),
        ("https://hooks.slack.com.example.com/x", "json"),
        ("https://example.com/discord.com", "json"),
    ],
)
def test_format_follows_host(url: str, expected: str) -> None:
    assert notices.format_of(url) == expected
    assert notices.format_of(url, "ntfy") == "ntfy"


def test_receivers_get_their_fields() -> None:
    assert body(EVENT, "slack") == {"text": TEXT}
    assert body(EVENT, "google-chat") == {"text": TEXT}
    assert body(EVENT, "discord") == {"content": TEXT, "allowed_mentions": {"parse": []}}
    assert body(EVENT, "json") == {**EVENT, "text": TEXT}
    request = notices.request_for(EVENT, "ntfy")
    assert request.body.decode() == TEXT
    assert request.headers["Title"] == "tpuctl: Job 20260101-000000-acorn failed"
    assert (request.headers["Priority"], request.headers["Tags"]) == ("high", "x")


def test_texts_mention_nobody() -> None:
    event = {**EVENT, "detail": "<!channel> & <users/all> @everyone"}
    assert "&lt;!channel&gt; &amp; &lt;users/all&gt;" in body(event, "slack")["text"]
    assert "<" not in body(event, "google-chat")["text"]
    assert body(event, "discord")["allowed_mentions"] == {"parse": []}


def test_texts_are_bounded_and_plain() -> None:
    hostile = dict.fromkeys(notices.TEXTS, "\x1b[31m\r\nX-Header: y\u202e" + "é" * 5000)
    for format_name in notices.FORMATS:
        request = notices.request_for({**hostile, "event": "failed"}, format_name)
        assert all(value.isascii() for value in request.headers.values())
        assert not any(
            character in value for value in request.headers.values() for character in "\r\n"
        )
        assert "\x1b" not in request.body.decode()
    assert len(body({**hostile, "event": "failed"}, "discord")["content"]) <= 2000
    private = {**EVENT, "detail": "no wheel at https://user:word@example.com/simple?token=t"}
    assert b"word" not in notices.request_for(private, "json").body


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hooks.slack.com/x",
        "ftp://example.com/x",
        "http://example.com/x",
        "http://127.0.0.1.example.com/x",
        "https://example.com:port/x",
        "https://example.com/a b",
        "https://example.com/\n",
        "https://exämple.com/",
    ],
)
def test_unusable_urls_are_not_repeated(url: str) -> None:
    answer = notices.send(EVENT, url)
    assert answer.problem.startswith("the webhook's URL cannot be used: it ")
    assert not url or url not in answer.problem


@pytest.mark.parametrize(
    "url", ["https://ntfy.sh/topic", "http://127.0.0.1:8000/", "http://localhost/"]
)
def test_usable_urls(url: str) -> None:
    assert notices.url_problem(url) == ""


@pytest.mark.parametrize(
    ("status", "is_delivered", "is_final"),
    [
        (200, True, False),
        (204, True, False),
        (302, False, True),
        (400, False, True),
        (404, False, True),
        (408, False, False),
        (429, False, False),
        (500, False, False),
        (0, False, False),
    ],
)
def test_answers(status: int, is_delivered: bool, is_final: bool) -> None:
    answer = notices.Answer(status)
    assert (answer.is_delivered, answer.is_final) == (is_delivered, is_final)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        ("Thu, 01 Jan 2026 00:00:30 GMT", 30.0),
        ("Thu, 01 Jan 2025 00:00:30 GMT", 0.0),
        ("999999999", 3600.0),
        ("soon", 0.0),
        ("-1", 0.0),
        ("", 0.0),
    ],
)
def test_retry_after(value: str, seconds: float) -> None:
    headers = Message()
    headers["Retry-After"] = value
    headers["Date"] = "Thu, 01 Jan 2026 00:00:00 GMT"
    assert notices.retry_after(headers) == seconds


def test_redirects_are_not_followed() -> None:
    with receiving() as other, receiving() as receiver:
        receiver.script = [(307, {"Location": other.url})]
        answer = notices.send(EVENT, receiver.url)
        assert (answer.status, answer.is_final, other.bodies) == (307, True, [])


def test_password_of_url_is_a_header() -> None:
    with receiving() as receiver:
        url = receiver.url.replace("http://", "http://user:pass%20word@")
        assert notices.send(EVENT, url).is_delivered
        assert receiver.headers[0]["Authorization"] == "Basic dXNlcjpwYXNzIHdvcmQ="
        assert receiver.paths == ["/hook/secret-token"]


def test_slow_receiver_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "TIMEOUT", 0.3)
    with receiving() as receiver:
        receiver.script = [1.0]
        assert notices.send(EVENT, receiver.url).describe().startswith("no answer")


def test_errors_do_not_contain_the_url() -> None:
    with receiving() as receiver:
        receiver.script = ["drop"]
        dropped = notices.send(EVENT, receiver.url)
    refused = notices.send(EVENT, receiver.url)
    assert refused.problem == "Connection refused"
    assert not dropped.is_final
    assert "secret-token" not in dropped.problem
