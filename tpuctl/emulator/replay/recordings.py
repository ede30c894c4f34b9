"""Reads recordings of HTTP calls: HAR, VCR cassettes, config-connector logs, httpreplay files,
transcripts of tpuctl, and tables of facts.

Every format becomes a list of `RecordedCall`. Calls that are not HTTP are left out.
"""

from __future__ import annotations

import base64
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from tpuctl.emulator.wire.discovery.method_list import method_name, versioned_name
from tpuctl.errors import Usage

_MASKED_TEXT = b"fake error message"  # written by config-connector over every error's body
_SEPARATOR = re.compile(r"^---\s*$", re.MULTILINE)
_REQUEST_LINE = re.compile(r"(GET|HEAD|POST|PUT|PATCH|DELETE) (https?://\S+)")
_STATUS_LINE = re.compile(r"^(\d{3}) [A-Za-z ]+$|^HTTP/[\d.]+ (\d{3})\b.*$", re.MULTILINE)


@dataclass(frozen=True)
class RecordedCall:
    """One request and Google's response to it."""

    where: str  # place in the file, for people
    verb: str
    url: str
    status: int
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case, as below
    body: bytes = b""
    answer_headers: Mapping[str, str] = field(default_factory=dict)
    answer: bytes = b""
    expected: Mapping[str, Any] | None = None  # of a table of facts, instead of the answer
    has_all_fields: bool = True  # False: the recorder removed fields, their absence says nothing
    is_rpc: bool = False  # fields with default values are left out

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def path(self) -> str:
        return urlsplit(self.url).path

    @property
    def method(self) -> str:
        """Its name, such as `compute.networks.get`; "" if it is none of the emulated APIs."""
        return method_name(self.verb, self.path, self.host.partition(".")[0]) or ""

    @property
    def content(self) -> Any:
        """The request's JSON object or list, else None."""
        return json_content(self.body)

    @property
    def answer_content(self) -> Any:
        """The response's JSON object or list, else None."""
        return json_content(self.answer)

    @property
    def is_read(self) -> bool:
        """Whether the response shows what there is, with what the recording did not create."""
        return self.verb == "GET" or self.path.endswith("IamPolicy")

    @property
    def is_of_storage(self) -> bool:
        """Whether the response is Cloud Storage's, of which headers are compared, too."""
        return any(name.startswith("x-guploader") for name in self.answer_headers)

    @property
    def is_masked(self) -> bool:
        """Whether the recorder removed the text of the error."""
        return self.answer.strip() == _MASKED_TEXT


@dataclass(frozen=True)
class Recording:
    """A file's calls in their order."""

    path: Path
    format: str  # as shown to users
    calls: tuple[RecordedCall, ...]


def json_content(data: bytes) -> Any:
    """The JSON object or list in the data, else None."""
    if data.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        return json.loads(data)
    except ValueError:
        return None


def read_recording(path: Path) -> Recording:
    """Raises Usage if the file cannot be read or is in none of the formats."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise Usage(
            "Cannot read the recording",
            f"{path}: {error.strerror}",
            hint="Pass a file that exists and that you may read.",
        ) from error
    except UnicodeDecodeError as error:
        raise _unknown_format(path) from error
    try:
        name, calls = _read(text, path.suffix)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, yaml.YAMLError) as error:
        raise Usage(
            "Malformed recording",
            f"{path}: {type(error).__name__}: {error}",
            hint="Record it again; the format was recognized, but not the content.",
        ) from error
    if name == "":
        raise _unknown_format(path)
    return Recording(path, name, tuple(calls))


def _unknown_format(path: Path) -> Usage:
    return Usage(
        "Unknown format of recording",
        str(path),
        hint="Supported: HAR, VCR cassette (YAML), config-connector http log, httpreplay, "
        "and transcripts of tpuctl.",
    )


def _read(text: str, suffix: str) -> tuple[str, list[RecordedCall]]:
    """The format's name, or "" if it is unknown, and the calls."""
    start = text.lstrip()
    if suffix == ".toml":
        return "facts", list(_read_facts(tomllib.loads(text)))
    if start.startswith('{"kind": '):
        return "transcript", list(_read_transcript(text))
    if start.startswith("{"):
        document = json.loads(text)
        if "log" in document:
            return "HAR", list(_read_har(document))
        return (
            ("httpreplay", list(_read_httpreplay(document))) if "Entries" in document else ("", [])
        )
    if _REQUEST_LINE.match(start):
        return "config-connector log", list(_read_http_log(text))
    document = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    if isinstance(document, dict) and {"interactions", "http_interactions"} & document.keys():
        return "VCR cassette", list(_read_cassette(document))
    return "", []


def _read_facts(document: Mapping[str, Any]) -> Iterator[RecordedCall]:
    """A table of facts: the request, and of the response what the recording proves."""
    for number, row in enumerate(document["call"], 1):
        verb, _, url = row["request"].partition(" ")
        body = row.get("body", "")
        yield RecordedCall(
            where=row.get("situation", f"call {number}"),
            verb=verb,
            url=url,
            status=row["status"],
            headers={name.lower(): value for name, value in row.get("headers", {}).items()},
            body=body.encode(),
            answer=json.dumps(_nested(row.get("constants", {}))).encode(),
            expected=row,
            has_all_fields=False,
        )


def _nested(constants: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of a response, from values by path; those in lists are left out."""
    content: dict[str, Any] = {}
    for path, value in constants.items():
        *parents, last = path.split(".")
        place = content
        for name in parents:
            place = place.setdefault(name, {})
        if "[]" not in path:
            place[last] = value
    return content


def _read_transcript(text: str) -> Iterator[RecordedCall]:
    for number, line in enumerate(text.splitlines(), 1):
        entry = json.loads(line) if line.startswith('{"kind": "rest"') else None
        if entry is None or entry["status"] == 0 or entry["answer"] is None:
            continue
        query = f"?{entry['query']}" if entry["query"] else ""
        headers = {"content-type": entry["type"]} if entry["type"] else {}
        if entry["override"]:
            headers["x-http-method-override"] = entry["override"]
        host = entry["host"]
        if not host.endswith(".googleapis.com"):  # a local cloud, or a call over gRPC
            name = versioned_name(entry["verb"], entry["path"])
            host = f"{name.partition('.')[0]}.googleapis.com" if name else host
        yield RecordedCall(
            where=f"line {number}",
            verb=entry["verb"],
            url=f"https://{host}{entry['path']}{query}",
            status=entry["status"],
            headers=headers,
            body=(entry["body"] or "").encode(),
            answer_headers={"content-type": entry["answer_type"]},
            answer=entry["answer"].encode(),
            is_rpc=entry.get("is_rpc", False),
        )


def _read_har(document: Mapping[str, Any]) -> Iterator[RecordedCall]:
    for number, entry in enumerate(document["log"]["entries"], 1):
        request, response = entry["request"], entry["response"]
        posted, content = request.get("postData") or {}, response.get("content") or {}
        is_encoded = content.get("encoding") == "base64"
        text = content.get("text") or ""
        yield RecordedCall(
            where=f"entry {number}",
            verb=request["method"],
            url=request["url"],
            status=response["status"],
            headers=_named(request.get("headers", ())),
            body=(posted.get("text") or "").encode(),
            answer_headers=_named(response.get("headers", ())),
            answer=base64.b64decode(text) if is_encoded else text.encode(),
        )


def _named(pairs: Any) -> dict[str, str]:
    return {pair["name"].lower(): pair["value"] for pair in pairs}


def _read_cassette(document: Mapping[str, Any]) -> Iterator[RecordedCall]:
    """Cassettes of go-vcr, VCR.py and VCR for Ruby, which differ in the names of fields."""
    interactions = document.get("interactions") or document.get("http_interactions") or ()
    for number, interaction in enumerate(interactions, 1):
        request, response = interaction["request"], interaction["response"]
        status = response.get("code") or response["status"]["code"]
        yield RecordedCall(
            where=f"interaction {number}",
            verb=request["method"].upper(),
            url=request.get("url") or request["uri"],
            status=int(status),
            headers=_joined(request.get("headers")),
            body=_content(request.get("body")),
            answer_headers=_joined(response.get("headers")),
            answer=_content(response.get("body")),
        )


def _content(body: Any) -> bytes:
    if isinstance(body, dict):
        if "base64_string" in body:
            return base64.b64decode(body["base64_string"])
        body = body.get("string")
    if body is None:
        return b""
    return body if isinstance(body, bytes) else str(body).encode()


def _joined(headers: Mapping[str, Any] | None) -> dict[str, str]:
    return {
        name.lower(): ", ".join(map(str, values)) if isinstance(values, list) else str(values)
        for name, values in (headers or {}).items()
    }


def _read_httpreplay(document: Mapping[str, Any]) -> Iterator[RecordedCall]:
    """The format of httpreplay, of Google's Go clients."""
    for number, entry in enumerate(document["Entries"] or (), 1):
        request, response = entry["Request"], entry["Response"]
        parts = [base64.b64decode(part) for part in request.get("BodyParts") or ()]
        headers = _joined(request.get("Header"))
        media = request.get("MediaType") or ""
        call = RecordedCall(
            where=f"entry {number}",
            verb=request["Method"],
            url=request["URL"],
            status=response["StatusCode"],
            headers=headers,
            answer_headers=_joined(response.get("Header")),
            answer=base64.b64decode(response.get("Body") or ""),
        )
        if media.startswith("multipart/"):
            typed, body = _multipart(media, headers, parts)
            yield replace(call, headers=typed, body=body)
        else:
            typed = {**headers, "content-type": media} if media else headers
            yield replace(call, headers=typed, body=b"".join(parts))


def _multipart(
    media: str, headers: Mapping[str, str], parts: list[bytes]
) -> tuple[dict[str, str], bytes]:
    """Headers and body from the parts, metadata and data, of which the recorder kept no headers."""
    boundary = "boundary-of-a-replayed-upload"
    metadata, data = parts
    declared = json.loads(metadata).get("contentType")
    heads = ("Content-Type: application/json\r\n", f"Content-Type: {declared}\r\n")
    body = b"".join(
        f"--{boundary}\r\n{head}\r\n".encode() + part + b"\r\n"
        for head, part in zip(heads if declared else (heads[0], ""), (metadata, data), strict=True)
    )
    typed = {**headers, "content-type": f"{media}; boundary={boundary}"}
    return typed, body + f"--{boundary}--\r\n".encode()


def _read_http_log(text: str) -> Iterator[RecordedCall]:
    """A log of config-connector: requests and responses as text, with fields left out."""
    for number, section in enumerate(_SEPARATOR.split(text), 1):
        begin = _REQUEST_LINE.match(section.lstrip())
        if begin is None:
            continue  # gRPC
        rest = section.lstrip()[begin.end() :]
        response = _STATUS_LINE.search(rest)
        if response is None:
            continue
        headers, body = _split_message(rest[: response.start()])
        answer_headers, answer = _split_message(rest[response.end() :])
        yield RecordedCall(
            where=f"call {number}",
            verb=begin[1],
            url=begin[2],
            status=int(response[1] or response[2]),
            headers=headers,
            body=body,
            answer_headers=answer_headers,
            answer=answer,
            has_all_fields=False,
        )


def _split_message(text: str) -> tuple[dict[str, str], bytes]:
    head, _, body = text.lstrip("\n").partition("\n\n")
    headers: dict[str, str] = {}
    for line in head.splitlines():
        name, colon, value = line.partition(": ")
        if not colon:
            return {}, text.strip().encode()  # a message without headers
        headers[name.lower()] = value
    return headers, body.strip().encode()
