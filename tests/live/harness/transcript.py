"""Records the calls of a run for `tpuctl local replay`, so that the file can be published.

A line of JSON per call, in the format of the local cloud's transcripts. gRPC calls are written as
the equivalent HTTP requests. Headers, tokens, the data of objects and of secrets are left out.
Names of people and projects, addresses and numbers are replaced, each by one substitute everywhere,
so that a response still names what an earlier one created.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
from google.protobuf import json_format
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from tests.support.wire_validation import UnconvertibleMessage, as_call, is_known
from tpuctl.cloud.clients import Cloud
from tpuctl.emulator.state.errors import ApiError

assert error_details_pb2 is not None  # registers the details of errors

_OBJECT_DATA = re.compile(r"[?&]alt=media\b|^/(?:resumable/)?upload/|^/download/")

# Fields whose values are secret, or of people or organizations, by key.
_SECRET_KEYS = frozenset(("data", "privateKeyData", "publicKeyData", "contents"))
_PRIVATE_KEYS = {"displayName": "Example", "directoryCustomerId": "C00000000"}
_SSH_KEY = re.compile(r"(?:[\w-]+:)?((?:ssh|ecdsa)-[\w-]+) [A-Za-z0-9+/=]+(?: [^\s\"\\]+)?")
_BILLING_ACCOUNT = re.compile(r"\b[0-9A-F]{6}-[0-9A-F]{6}-[0-9A-F]{6}\b")
_PERSON = re.compile(r"[\w.+-]+@(?!(?:[\w-]+\.)*gserviceaccount\.com)[\w-]+(?:\.[\w-]+)+")
# With the bits of its network, if any: what a firewall rule leaves out is an address, too.
_ADDRESS = re.compile(r"\b((?:\d{1,3}\.){3}\d{1,3})(/\d{1,2})?\b")
_NUMBER = re.compile(r"(?<![\w.-])\d{8,}(?![\w.])|(?<=[-/])\d{10,}(?![\w.])|\b\d{10,}(?=-compute@)")
# The same for everyone: private addresses, the local cloud's, Identity-Aware Proxy's.
_KNOWN_RANGES = tuple(
    map(
        ipaddress.IPv4Network,
        ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "127.0.0.0/8", "35.235.240.0/20"),
    )
)


class Redaction:
    """Replaces what is private, the same text always by the same substitute."""

    def __init__(self, names: Mapping[str, str]) -> None:
        """`names` are the substitutes of private words; longer ones are replaced first."""
        self._names = dict(sorted(names.items(), key=lambda pair: -len(pair[0])))
        self._substitutes: dict[str, dict[str, str]] = {}

    def text(self, text: str) -> str:
        for word, substitute in self._names.items():
            text = text.replace(word, substitute)
        text = _SSH_KEY.sub(r"user:\1 AAAA user", text)
        text = _BILLING_ACCOUNT.sub("000000-000000-000000", text)
        text = _PERSON.sub("user@example.com", text)
        text = _ADDRESS.sub(lambda match: self._address(match[1], match[2] or ""), text)
        return _NUMBER.sub(lambda match: self._number(match[0]), text)

    def content(self, value: Any) -> Any:
        """A request's or response's JSON."""
        if isinstance(value, dict):
            return {self.text(key): self._field(key, inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.content(inner) for inner in value]
        if isinstance(value, str):
            return self.text(value)
        return value

    def _field(self, key: str, value: Any) -> Any:
        if isinstance(value, str) and value:
            if key in _SECRET_KEYS:
                return ""
            if key in _PRIVATE_KEYS:
                return self._names.get(value, _PRIVATE_KEYS[key])
        return self.content(value)

    def _address(self, text: str, bits: str) -> str:
        try:
            network = ipaddress.IPv4Network(text + bits, strict=False)
        except ValueError:
            return text + bits  # a version
        if any(network.subnet_of(block) for block in _KNOWN_RANGES) or text + bits == "0.0.0.0/0":
            return text + bits
        if bits in ("", "/32"):
            return self._substitute("address", text, lambda count: f"203.0.113.{count}") + bits
        return self._substitute("network", text + bits, lambda count: f"198.18.{count}.0/24")

    def _number(self, text: str) -> str:
        """With as many digits."""
        return self._substitute(
            f"number of {len(text)}", text, lambda count: str(10 ** (len(text) - 1) + count)
        )

    def _substitute(self, kind: str, text: str, make: Callable[[int], str]) -> str:
        substitutes = self._substitutes.setdefault(kind, {})
        if text in substitutes.values():
            return text  # a substitute already
        return substitutes.setdefault(text, make(len(substitutes)))


class Transcript:
    """Appends calls to a file as they end."""

    def __init__(self, path: Path, redaction: Redaction) -> None:
        self.path = path
        self._redaction = redaction

    def watch(self, client: Any) -> Any:
        """Record what an official client sends; returns the client to use instead."""
        transport = getattr(client, "transport", None)
        sessions = (
            *(getattr(client, "_http", None), getattr(client, "_session", None)),
            getattr(transport, "_session", None),
        )
        session = next(filter(None, sessions), None)
        if session is not None:
            session.hooks["response"].append(self.add_response)
            return client
        channel = grpc.intercept_channel(transport.grpc_channel, _Interceptor(self))
        return type(client)(transport=type(transport)(channel=channel))

    def add_response(self, response: Any, **options: Any) -> None:
        """A hook of requests."""
        request = response.request
        url = urlsplit(request.url)
        has_data = bool(options.get("stream")) or _OBJECT_DATA.search(f"{url.path}?{url.query}")
        self.write(
            verb=request.method,
            path=url.path,
            query=url.query,
            host=url.hostname or "",
            type=_as_text(request.headers.get("Content-Type")),
            body="" if has_data else _as_text(request.body),
            status=response.status_code,
            answer_type=response.headers.get("Content-Type", ""),
            answer=None if has_data else response.text,
        )

    def add_rpc(self, method: str, request: bytes, answer: bytes, refusal: ApiError | None) -> None:
        """Serialized messages; that of a refused call is empty."""
        if not is_known(method):
            return
        try:
            call = as_call(
                method, base64.b64encode(request).decode(), base64.b64encode(answer).decode()
            )
        except UnconvertibleMessage:
            return
        self.write(
            verb=call.verb,
            path=call.path,
            query=call.query,
            host="",
            type="application/json" if call.body else "",
            body=call.body,
            status=200 if refusal is None else refusal.http,
            answer_type="application/json",
            answer=call.answer if refusal is None else json.dumps(refusal.as_platform()),
            is_rpc=True,
        )

    def write(self, **line: Any) -> None:
        """Append a call, in the format of the local cloud's transcripts."""
        for key in ("path", "query"):
            line[key] = self._redaction.text(line[key])
        for key in ("body", "answer"):
            line[key] = self._redacted_body(line[key])
        text = json.dumps({"kind": "rest", "override": "", "client": "", **line})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")

    def _redacted_body(self, text: str | None) -> str | None:
        if not text:
            return text
        try:
            return json.dumps(self._redaction.content(json.loads(text)))
        except ValueError:
            return self._redaction.text(text)


class RecordingCloud(Cloud):
    """Official clients whose calls are written to a transcript."""

    transcript: Transcript

    def _create(self, name: str) -> Any:
        return self.transcript.watch(super()._create(name))


def _as_text(body: Any) -> str:
    if isinstance(body, bytes):
        return body.decode("utf-8", "replace")
    return body if isinstance(body, str) else ""


class _Interceptor(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        call = continuation(details, request)
        error = call.exception()
        answer = b"" if error is not None else _serialized(call.result())
        refusal = None if error is None else _refusal(error)
        self._transcript.add_rpc(details.method, _serialized(request), answer, refusal)
        return call


def _serialized(message: Any) -> bytes:
    data: bytes = getattr(message, "_pb", message).SerializeToString()
    return data


def _refusal(error: Any) -> ApiError:
    status = rpc_status.from_call(error)
    details = [] if status is None else [_as_json(detail) for detail in status.details]
    return ApiError(error.code().name, error.details() or "", details=details)


def _as_json(detail: Any) -> dict[str, Any]:
    try:
        return dict(json_format.MessageToDict(detail))
    except (TypeError, json_format.Error):  # of an unknown type
        return {"@type": detail.type_url}
