"""Validates a request and its response against Google's discovery documents."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote

from tests.support.discovery_documents import Described, find
from tests.support.error_validation import check_error
from tests.support.value_validation import Complaint, Side, check_schema, check_text
from tpuctl.emulator.wire.discovery.method_list import versioned_name


@dataclass(frozen=True)
class Call:
    """A request with its response, in HTTP terms. `status` 0: no response."""

    verb: str
    path: str  # still percent-encoded, without a token
    query: str = ""
    body: str | None = ""  # None: unknown
    status: int = 200
    answer: str | None = ""
    media: str = "application/json"  # Content-Type of the response
    is_rpc: bool = False
    host: str = ""


@dataclass(frozen=True)
class Verdict:
    """The method of a call ("" if no document has it) and the complaints about it."""

    method: str
    side: str = ""  # "request" or "answer"
    complaints: list[Complaint] = field(default_factory=list)
    versioned: str = ""  # the method's name with its API's version


# Path prefixes that belong to no discovery document.
_UNDESCRIBED = (
    "/_local/",  # the local cloud's own
    "/batch/",  # validated part by part
)
_SESSION = re.compile(r"/(?:resumable/)?upload/storage/v1/b/[^/]+/o/?")
_GIVEN_BY_FRONT = frozenset(("$alt", "$fields", "$prettyPrint", "$userProject"))


def validate_call(call: Call) -> list[Verdict]:
    """A verdict on the request, if it was accepted, and one on the response."""
    if call.path.startswith(_UNDESCRIBED) or _is_xml_host(call):
        return [Verdict("")]
    if _SESSION.fullmatch(call.path) and "upload_id" in parse_qs(call.query):
        return list(_validate_session(call))
    verb = "GET" if call.verb == "HEAD" else call.verb
    methods = find(verb, call.path)
    if not methods:
        return list(_validate_undescribed(call))
    best: list[Verdict] | None = None
    for method, variables in methods:
        api, _, _ = method.id.partition(".")
        versioned = versioned_name(verb, call.path, api) or ""
        verdicts = [
            Verdict(method.id, "request", list(_request(call, method, variables))),
            Verdict(method.id, "answer", list(_answer(call, method)), versioned),
        ]
        if best is None or _weight(verdicts) < _weight(best):
            best = verdicts
    assert best is not None
    return best


def _is_xml_host(call: Call) -> bool:
    """Whether the host is that of Cloud Storage's XML API."""
    host = call.host.partition(":")[0]
    is_json = call.path.startswith(("/storage/v1/", "/upload/", "/resumable/", "/download/"))
    return host.endswith("storage.googleapis.com") and not is_json


def _weight(verdicts: list[Verdict]) -> int:
    return sum(len(each.complaints) for each in verdicts)


def _validate_session(call: Call) -> Iterator[Verdict]:
    """A chunk of a resumable upload: the last one returns the object.

    Errors there are not JSON (measured: the table of storage's cases).
    """
    method, _ = find("POST", call.path)[0]
    complaints = list(_answer(call, method)) if call.status < 400 else []
    yield Verdict(method.id, "answer", complaints)


def _validate_undescribed(call: Call) -> Iterator[Verdict]:
    if call.status < 400 and not _is_xml(call):
        complaint = Complaint("", "no method has this path", f"{call.verb} {call.path}")
        yield Verdict("", "request", [complaint])
    else:
        yield Verdict("")


def _is_xml(call: Call) -> bool:
    """Whether it is Cloud Storage's XML API, `/BUCKET/OBJECT`, which has no document."""
    return re.match(r"/(?:v\d|compute/|storage/|b(?:/|$)|projects/|upload/)", call.path) is None


# Requests.


def _request(call: Call, method: Described, variables: Mapping[str, str]) -> Iterator[Complaint]:
    if not 0 < call.status < 400:
        return  # rejected requests may be invalid
    for name, text in variables.items():
        rule = check_text(_loose(method, method.parameters[name]), text)
        if rule is not None:
            yield Complaint(f"/{name}", rule, text)
    query = parse_qs(call.query, keep_blank_values=True)
    for name, values in query.items():
        parameter = method.parameters.get(name)
        if parameter is None or parameter["location"] != "query":
            parameter = method.document.parameters.get(name)
        if parameter is None:
            if name not in _GIVEN_BY_FRONT:
                yield Complaint(f"?{name}", "unknown parameter", values[-1])
            continue
        if len(values) > 1 and not parameter.get("repeated"):
            yield Complaint(f"?{name}", "repeated", str(values))
        for text in values:
            if name != "alt" and (rule := check_text(parameter, text)) is not None:
                yield Complaint(f"?{name}", rule, text)
    for name, parameter in method.parameters.items():
        if parameter.get("required") and parameter["location"] == "query" and name not in query:
            yield Complaint(f"?{name}", "missing")
    yield from _body(call, method)


def _loose(method: Described, parameter: Mapping[str, Any]) -> Mapping[str, Any]:
    """Ignore path patterns of platform APIs: they were used to find the method."""
    if method.document.is_legacy:
        return parameter
    return {key: value for key, value in parameter.items() if key != "pattern"}


def _body(call: Call, method: Described) -> Iterator[Complaint]:
    if call.body is None:
        return
    if method.request is None:
        if call.body.strip() not in ("", "{}"):
            yield Complaint("", "unexpected body", call.body[:120])
        return
    if method.is_upload and not call.body:
        return  # everything is in the query
    try:
        value = json.loads(call.body or "{}")
    except ValueError:
        yield Complaint("", "not valid JSON", call.body[:120])
        return
    is_partial = call.verb == "PATCH" or method.is_upload
    side = Side(method.id, is_partial=is_partial, has_numbers=_has_numbers(call))
    yield from check_schema(method.document, method.request, value, side)


# Answers.


def _answer(call: Call, method: Described) -> Iterator[Complaint]:
    if call.status == 0 or call.answer is None:
        return
    if call.verb == "HEAD":
        if call.answer:
            yield Complaint("", "body in the response to HEAD", call.answer[:120])
        return
    if call.status >= 400:
        if not (method.document.name == "storage.v1" and _is_media(call)):
            family = "legacy" if method.document.is_legacy else "platform"
            yield from check_error(call.status, call.answer, family)
        return
    if 300 <= call.status < 400:
        if call.answer:
            yield Complaint("", f"a body with {call.status}", call.answer[:120])
        return
    if method.text.get("supportsMediaDownload") and _is_media(call):
        return
    yield from _content(call, method)


def _content(call: Call, method: Described) -> Iterator[Complaint]:
    query = parse_qs(call.query)
    if method.response is None:
        if call.answer:
            yield Complaint("", "unexpected response body", call.answer[:120])
        return
    if method.is_upload and "resumable" in query.get("uploadType", ()) and not call.answer:
        return  # a session: its URL is in a header
    if not call.is_rpc and call.media.partition(";")[0] != "application/json":
        yield Complaint("", "Content-Type is not JSON", call.media)
        return
    try:
        value = json.loads(call.answer or "")
    except ValueError:
        yield Complaint("", "not valid JSON", (call.answer or "")[:120])
        return
    side = Side(
        method.id,
        is_answer=True,
        is_partial="fields" in query or "$fields" in query,
        has_numbers=_has_numbers(call),
    )
    yield from check_schema(method.document, method.response, value, side)


def _has_numbers(call: Call) -> bool:
    """Whether enums are numbers, as official Python clients use in both directions."""
    return "enum-encoding=int" in unquote(call.query)


def _is_media(call: Call) -> bool:
    is_asked = "alt=media" in unquote(call.query).split("&")
    return is_asked or call.path.startswith("/download/")
