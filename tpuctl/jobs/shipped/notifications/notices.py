"""Notifications as the receivers of webhooks take them, and the request that sends one.

Like the programs that import it, this file is sent to machines as it is: standard library only,
Python 3.8 and later. tpuctl imports it, too, so it imports none of its neighbors. A webhook's URL
is a secret: it is in no error, answer or log.

    Slack         {"text": ...}     docs.slack.dev/messaging (incoming webhooks)
    Google Chat   {"text": ...}     developers.google.com/workspace/chat/quickstart/webhooks
    Discord       {"content": ...}  docs.discord.com/developers/resources/webhook#execute-webhook
    ntfy          text and headers  docs.ntfy.sh/publish
    any other     JSON: all fields, and `text`
"""

from __future__ import annotations

import base64
import json
import re
import threading
import urllib.parse
from email.utils import parsedate_to_datetime

TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from typing import Any

EVENTS = ("granted", "preempted", "recovered", "hung", "ended", "limit", "failed")
FORMATS = ("slack", "discord", "google-chat", "ntfy", "json")
RECEIVERS = {
    "hooks.slack.com": "slack",
    "hooks.slack-gov.com": "slack",
    "discord.com": "discord",
    "discordapp.com": "discord",
    "chat.googleapis.com": "google-chat",
    "ntfy.sh": "ntfy",
}
TIMEOUT = 10.0  # seconds for a whole request
MAX_TEXT = 1800  # characters; Discord accepts 2000
MAX_DETAIL = 400
MAX_NAME = 100
MAX_RETRY_AFTER = 3600.0
RETRIED = (408, 429)  # like every 5xx; other refusals are final
CONTROL_CHARACTERS = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]+"
)
URL = re.compile(r"\bhttps?://\S+")  # may contain a password
HEADLINES = {
    "granted": "Machines are up",
    "preempted": "Job {job} was preempted",
    "recovered": "Job {job} is running again",
    "hung": "Job {job} may hang",
    "ended": "Job {job} succeeded",
    "limit": "Machines are being deleted",
    "failed": "Job {job} failed",
    "test": "Test of notifications",
}
EMOJI = {  # tags of ntfy
    "granted": "green_circle",
    "recovered": "green_circle",
    "ended": "white_check_mark",
    "failed": "x",
    "test": "bell",
}
URGENT = ("preempted", "hung", "limit", "failed")
TEXTS = ("id", "event", "at", "stack", "project", "zone", "job", "detail", "command")


class Request:
    """The headers and body of a POST request."""

    def __init__(self, headers: dict[str, str], body: str | dict[str, Any]) -> None:
        text = body if isinstance(body, str) else json.dumps(body)
        self.headers = {"User-Agent": "tpuctl", **headers}
        self.body = text.encode("utf-8", "replace")


class Answer:
    """What a receiver answered: an HTTP status, or 0 and the problem if it did not."""

    def __init__(self, status: int, problem: str = "", retry_after: float = 0.0) -> None:
        self.status = status
        self.problem = problem
        self.retry_after = retry_after

    @property
    def is_delivered(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_final(self) -> bool:
        """Whether the receiver refused the message, so that no retry would help."""
        is_transient = self.status in RETRIED or self.status >= 500 or self.status == 0
        return not (self.is_delivered or is_transient)

    def describe(self) -> str:
        return f"HTTP {self.status}" if self.status else self.problem


# Messages -----------------------------------------------------------------------------------


def plain(value: object, limit: int = MAX_NAME) -> str:
    """A text of a job or a record on one line, without control characters and URLs."""
    text = " ".join(CONTROL_CHARACTERS.sub(" ", str(value)).split())
    text = URL.sub("(URL)", text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def cleaned(event: dict[str, Any]) -> dict[str, Any]:
    """The known fields of an event; others may have written it."""
    fields: dict[str, Any] = {
        name: plain(event[name], MAX_DETAIL if name in ("detail", "command") else MAX_NAME)
        for name in TEXTS
        if event.get(name)
    }
    for name in ("attempt", "exit_code", "cost"):
        if isinstance(event.get(name), (int, float)):
            fields[name] = event[name]
    return fields


def summary(event: dict[str, Any]) -> str:
    """What happened, in one line."""
    head = headline(event)
    if event.get("detail"):
        head += ": " + event["detail"]
    around = [f"stack {event.get('stack', '')}"]
    if event.get("attempt", 1) != 1:
        around.append(f"attempt {event['attempt']}")
    if event.get("cost") is not None:
        around.append(f"cost about ${event['cost']:.2f}")
    return f"{head} ({', '.join(around)})"


def headline(event: dict[str, Any]) -> str:
    return HEADLINES.get(event.get("event", ""), "News").format(job=event.get("job", ""))


def message(event: dict[str, Any]) -> str:
    """The summary, and the command that shows more in a line of its own."""
    text = summary(event)[:MAX_TEXT]
    return f"{text}\n{event['command']}" if event.get("command") else text


def format_of(url: str, name: str = "auto") -> str:
    """The format of a receiver's messages, by its host unless it is named."""
    if name in FORMATS:
        return name
    host = (urllib.parse.urlsplit(url).hostname or "").lower()
    parents = [host, host.partition(".")[2]]  # such as ptb.discord.com
    return next((RECEIVERS[parent] for parent in parents if parent in RECEIVERS), "json")


def request_for(event: dict[str, Any], format_name: str) -> Request:
    """The request that reports an event to a receiver. Its texts cannot mention users or add
    markup."""
    event = cleaned(event)
    text = message(event)
    as_json = {"Content-Type": "application/json; charset=utf-8"}
    if format_name == "slack":
        for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
            text = text.replace(character, entity)
        return Request(as_json, {"text": text})
    if format_name == "google-chat":  # decodes no entities, and `<users/all>` is a mention
        return Request(as_json, {"text": text.replace("<", "‹").replace(">", "›")})
    if format_name == "discord":
        return Request(as_json, {"content": text, "allowed_mentions": {"parse": []}})
    if format_name == "ntfy":
        kind = event.get("event", "")
        headers = {
            "Title": f"tpuctl: {headline(event)}".encode("ascii", "replace").decode(),
            "Tags": EMOJI.get(kind, "warning"),
            "Priority": "high" if kind in URGENT else "default",
            "Content-Type": "text/plain; charset=utf-8",
        }
        return Request(headers, text)
    return Request(as_json, {**event, "text": text})


# Requests -----------------------------------------------------------------------------------


def url_problem(url: str) -> str:
    """Why a URL cannot be used, without repeating it; "" if it can."""
    try:
        parts = urllib.parse.urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "it is not a URL"
    if not url.isascii() or re.search(r"[\x00-\x20\x7f]", url):
        return "it contains characters that URLs cannot"
    if parts.scheme not in ("http", "https") or not host:
        return "it does not start with https:// and a host"
    if parts.scheme == "http" and not is_loopback(host):
        return "it starts with http://: only https:// keeps it secret"
    return ""


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or re.match(r"127(\.\d+){3}$", host) is not None


def send(event: dict[str, Any], url: str, format_name: str = "auto") -> Answer:
    """Send an event to a webhook, within TIMEOUT, however slow the receiver is."""
    if url_problem(url):
        return Answer(0, f"the webhook's URL cannot be used: {url_problem(url)}")
    request = request_for(event, format_of(url, format_name))
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(post(url, request)), daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    return answers[0] if answers else Answer(0, f"no answer within {TIMEOUT:g} seconds")


def post(url: str, request: Request) -> Answer:
    """Redirects are not followed: the URL is for this receiver only."""
    import urllib.error
    import urllib.request  # takes as long to load as everything else

    class NoRedirects(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    parts = urllib.parse.urlsplit(url)
    headers = dict(request.headers)
    if parts.username is not None:
        pair = ":".join(
            urllib.parse.unquote(part or "") for part in (parts.username, parts.password)
        )
        headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode("ascii")
        url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    handlers: list[Any] = [NoRedirects()]
    if is_loopback(parts.hostname or ""):
        handlers.append(urllib.request.ProxyHandler({}))
    try:
        opener = urllib.request.build_opener(*handlers)
        call = urllib.request.Request(url, request.body, headers, method="POST")
        with opener.open(call, timeout=TIMEOUT) as response:
            return Answer(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, "", retry_after(error.headers))
    except Exception as error:  # whose text might contain the URL
        return Answer(0, problem_of(error))


def problem_of(error: BaseException) -> str:
    reason: Any = getattr(error, "reason", error)  # of a URLError
    if isinstance(reason, TimeoutError) or type(reason).__name__ == "timeout":
        return "no answer in time"
    is_system_error = isinstance(reason, OSError) and reason.strerror and not reason.filename
    return str(reason.strerror) if is_system_error else f"no answer: {type(reason).__name__}"


def retry_after(headers: Any) -> float:
    """Seconds that the receiver asks to wait, at most MAX_RETRY_AFTER; 0 if it does not."""
    value = str(headers.get("Retry-After") or "").strip()
    if re.match(r"\d{1,9}$", value):
        seconds = float(value)
    else:
        try:
            now = parsedate_to_datetime(headers.get("Date"))
            seconds = (parsedate_to_datetime(value) - now).total_seconds()
        except (TypeError, ValueError, IndexError):
            return 0.0
    return min(max(seconds, 0.0), MAX_RETRY_AFTER)
