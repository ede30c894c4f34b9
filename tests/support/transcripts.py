"""Reads transcripts of local clouds, and validates every line."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from email.parser import BytesParser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.call_validation import Call, Verdict, validate_call
from tests.support.error_validation import check_status
from tests.support.known_deviations import is_allowed
from tests.support.wire_validation import UnconvertibleMessage, as_call, is_known

_START = b'{"kind": '  # never within a line: quotes in texts are escaped
SIDES = ("request", "answer")
_NAMES = ("methods", "described", "called_by_clients", "gcloud_commands")
_GOOGLE_CLIENT = re.compile(
    r"(?i)gccl/|gapic/|gdcl/|google-cloud-sdk|gcloud|google-api-python-client"
)
_GCLOUD_COMMAND = re.compile(r"command/gcloud\.(?!gslibshim)(\S+)")  # that is gsutil


@dataclass
class Tally:
    """The number of validated calls, of one test process or of all."""

    calls: int = 0
    distinct: int = 0  # of each process
    seconds: float = 0.0
    methods: set[str] = field(default_factory=set)
    described: set[str] = field(default_factory=set)  # with their API's version, as `tpu.v2:tpu.…`
    called_by_clients: set[str] = field(default_factory=set)  # of Google
    gcloud_commands: set[str] = field(default_factory=set)  # as `compute tpus tpu-vm list`

    def __str__(self) -> str:
        return (
            f"Validated against Google's documents: {self.calls:,} calls of {len(self.methods)} "
            f"methods ({self.distinct:,} different ones) in {self.seconds:.1f} s."
        )

    def add(self, plain: Mapping[str, Any]) -> None:
        """Add the `plain` counts of another process."""
        self.calls += plain["calls"]
        self.distinct += plain["distinct"]
        self.seconds += plain["seconds"]
        for name in _NAMES:
            getattr(self, name).update(plain[name])

    def plain(self) -> dict[str, Any]:
        """The counts in types that can be sent between processes."""
        return vars(self) | {name: sorted(getattr(self, name)) for name in _NAMES}


@dataclass
class TranscriptValidator:
    """Continues reading where it stopped; identical lines are validated once."""

    path: Path
    tally: Tally = field(default_factory=Tally)
    _offset: int = 0
    _known: set[int] = field(default_factory=set)

    def complaints(self, sides: Collection[str] = SIDES) -> list[str]:
        """New complaints about these sides since the last call, without duplicates."""
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            return []
        if size == self._offset:
            return []
        begin = time.perf_counter()
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]  # the last line may be incomplete
        self._offset += len(whole)
        found: dict[str, None] = {}
        for line in whole.split(b"\n")[:-1]:
            # A server killed while writing leaves a partial line; the next server appends to it.
            start = line.rfind(_START)
            if start >= 0:
                self._validate(line[start:], found, sides)
        self.tally.seconds += time.perf_counter() - begin
        return list(found)

    def _validate(self, line: bytes, complaints: dict[str, None], sides: Collection[str]) -> None:
        self.tally.calls += 1
        key = hash(line)
        if key in self._known:
            return
        self._known.add(key)
        self.tally.distinct += 1
        content = json.loads(line)
        client = content.get("client", "")
        is_client = _GOOGLE_CLIENT.search(client) is not None
        if _is_success(content) and (command := _GCLOUD_COMMAND.search(client)):
            self.tally.gcloud_commands.add(command[1].replace(".", " "))
        for verdict in validate_line(content):
            if verdict.method and verdict.side == "answer":
                self.tally.methods.add(verdict.method)
            if verdict.versioned and _is_success(content):
                self.tally.described.add(verdict.versioned)
                if is_client:
                    self.tally.called_by_clients.add(verdict.versioned)
            if verdict.side in sides:
                complaints |= dict.fromkeys(_messages(verdict))


def _is_success(line: Mapping[str, Any]) -> bool:
    status: int = line["status"]
    return status == 0 if line["kind"] == "rpc" else 200 <= status < 300


def validate_lines(text: bytes, sides: Collection[str] = SIDES) -> list[str]:
    """The complaints about these lines of a transcript, without duplicates."""
    found: dict[str, None] = {}
    for line in text.splitlines():
        for verdict in validate_line(json.loads(line)):
            if verdict.side in sides:
                found |= dict.fromkeys(_messages(verdict))
    return list(found)


def validate_line(line: Mapping[str, Any]) -> Iterator[Verdict]:
    """The verdicts on one line of a transcript."""
    if line["kind"] == "rpc":
        yield from _validate_rpc(line)
        return
    for call in calls_of(line):
        yield from validate_call(call)


def _validate_rpc(line: Mapping[str, Any]) -> Iterator[Verdict]:
    if line["status"]:
        yield Verdict(line["method"], "answer", list(check_status(line["status"])))
        return
    if not is_known(line["method"]):
        return
    try:
        call = as_call(line["method"], line["body"], line["answer"])
    except UnconvertibleMessage as problem:
        yield Verdict(line["method"], "request", [problem.complaint])
        return
    if not call.path.startswith("/v2/projects/_/"):  # Storage Control's, which has no description
        yield from validate_call(call)


def calls_of(line: Mapping[str, Any]) -> Iterator[Call]:
    """The HTTP calls in a line: one, or the parts of a batch."""
    override = line["override"].upper().replace("HEAD", "GET")
    verb = line["verb"] if line["verb"] == "HEAD" else override or line["verb"]
    whole = Call(
        verb=verb,
        path=line["path"],
        query=line["query"],
        body=line["body"],
        status=line["status"],
        answer=line["answer"],
        media=line["answer_type"],
        host=line.get("host", ""),
    )
    if not line["path"].startswith("/batch/") or not 0 < line["status"] < 400:
        yield whole
        return
    request_parts = _parts(line["type"], line["body"])
    answers = _parts(line["answer_type"], line["answer"])
    assert len(request_parts) == len(answers), (
        "batch with different numbers of requests and responses"
    )
    for (first, body), (status, answer) in zip(request_parts, answers, strict=True):
        verb, target = first.split(" ")[:2]
        url = urlsplit(target)
        head, _, text = answer.partition("\n\n")
        media = re.search(r"(?im)^content-type:\s*(.*)$", head)
        yield Call(
            verb=verb,
            path=url.path,
            query=url.query,
            body=body.partition("\n\n")[2].strip(),
            status=int(status.split(" ")[1]),
            answer=text.strip(),
            media=media[1] if media else "",
        )


def _parts(media: str, body: str | None) -> list[tuple[str, str]]:
    """The first line and the rest of each part."""
    head = f"Content-Type: {media}\r\nMIME-Version: 1.0\r\n\r\n"
    message = BytesParser().parsebytes((head + (body or "")).encode())
    parts = []
    for part in message.get_payload():
        assert isinstance(part, Message)
        content = part.get_payload(decode=True)
        assert isinstance(content, bytes)
        first, _, rest = content.decode().replace("\r\n", "\n").lstrip().partition("\n")
        parts.append((first, rest if rest.startswith("\n") else "\n" + rest))
    return parts


def _messages(verdict: Verdict) -> Iterator[str]:
    for complaint in verdict.complaints:
        if not is_allowed(verdict.method, verdict.side, complaint):
            yield f"{verdict.method or 'no method'}, {verdict.side}: {complaint}"
