"""Converts the exceptions of the official clients to TpuctlError.

Sources: google.api_core.exceptions; texts and reasons of Google's answers seen in public
(docs/untried.md lists what could not be verified).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from tpuctl.cloud.classification import classify
from tpuctl.errors import TpuctlError, Transient
from tpuctl.model.text.redaction import without_keys
from tpuctl.model.troubleshooting.known_errors import extract_facts

# Canonical gRPC codes, as google.rpc.Code numbers them.
NAMES = {
    3: "INVALID_ARGUMENT",
    4: "DEADLINE_EXCEEDED",
    5: "NOT_FOUND",
    6: "ALREADY_EXISTS",
    7: "PERMISSION_DENIED",
    8: "RESOURCE_EXHAUSTED",
    9: "FAILED_PRECONDITION",
    10: "ABORTED",
    12: "UNIMPLEMENTED",
    13: "INTERNAL",
    14: "UNAVAILABLE",
    16: "UNAUTHENTICATED",
}
FROM_HTTP = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "ALREADY_EXISTS",
    412: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}

# Prefix that google.api_core gives to HTTP errors (format_http_response_error).
REQUEST_PREFIX = re.compile(r"(?:GET|HEAD|POST|PUT|PATCH|DELETE) https?://[^/\s]+([^?\s]*)\S*: ")
REQUEST_ID = re.compile(r"\?[^\s'\")]*requestId=[^\s'\")]*")

UNREACHABLE_HINT = (
    "Check this machine's internet access (behind a proxy, set HTTPS_PROXY), then run\n"
    "    tpuctl doctor"
)


def is_foreign(error: BaseException) -> bool:
    """Whether the clients raised it, so that `convert` can convert it."""
    package = type(error).__module__.partition(".")[0]
    return package in ("google", "grpc", "requests") and isinstance(error, Exception)


def convert(
    error: BaseException, subject: str, facts: Mapping[str, str] | None = None
) -> TpuctlError:
    """The TpuctlError for a client's exception: `raise convert(error, subject) from error`.

    `facts` name what the call was about (project, zone, …).
    """
    import google.api_core.exceptions as api
    import google.auth.exceptions as auth
    import requests

    if isinstance(error, auth.DefaultCredentialsError | auth.RefreshError):
        return classify("UNAUTHENTICATED", without_keys(_first_line(error)), subject=subject)
    if isinstance(error, api.RetryError | auth.TransportError | requests.RequestException):
        return Transient(
            "Cannot reach the cloud",
            f"{subject}: {_first_line(error)}",
            hint=UNREACHABLE_HINT,
        )
    if isinstance(error, api.GoogleAPICallError):
        grpc_status = getattr(error, "grpc_status_code", None)
        code = int(error.code) if error.code is not None else 0
        status = grpc_status.name if grpc_status is not None else FROM_HTTP.get(code, "UNKNOWN")
        if code == 409 and grpc_status is None and "ondition" in str(error.message):
            status = "ABORTED"
        if status == "CANCELLED":
            # We never cancel calls: the server did at the deadline, before the client noticed
            # (grpc.io/docs/guides/deadlines).
            status = "DEADLINE_EXCEEDED"
        reasons, more = _details(getattr(error, "details", None) or ())
        reasons += [
            legacy_error["reason"]
            for legacy_error in _legacy_errors(error)
            if legacy_error.get("reason")
        ]
        message = str(error.message)
        text = " ".join([_message_text(message), *more])
        facts = {**extract_facts(message), **(facts or {})}  # from URLs, which are not shown
        return classify(status, text, subject=subject, reasons=reasons, facts=facts)
    if type(error).__name__ in ("DataCorruption", "InvalidResponse"):  # from storage transfers
        return classify("UNAVAILABLE", _first_line(error), subject=subject)
    return classify("UNKNOWN", str(error) or type(error).__name__, subject=subject, facts=facts)


def _message_text(text: str) -> str:
    """The message without the request URL (unless there is no message), without the JSON around it
    that Cloud Storage returns to an upload, and without the HTML page that Google's front end
    returns when it cannot reach an API."""
    prefix = REQUEST_PREFIX.match(text)
    words = text[prefix.end() :] if prefix else text
    if words.startswith("{"):
        with suppress(ValueError, KeyError, TypeError):
            words = str(json.JSONDecoder().raw_decode(words)[0]["error"]["message"])
    _, page, after = words.partition("<!DOCTYPE html")
    title = re.search(r"<title>(.*?)</title>", after, re.DOTALL)
    if page and title is not None:
        words = title[1].replace("!!1", "").strip()
    if prefix and words.strip() in ("", "unknown error"):
        return f"{prefix[1]}: {words}".rstrip(": ")
    return words


def _first_line(error: BaseException) -> str:
    return REQUEST_ID.sub("", (str(error) or type(error).__name__).splitlines()[0])


def _legacy_errors(error: Any) -> list[dict[str, Any]]:
    """The legacy `errors` list of a JSON response."""
    return [entry for entry in getattr(error, "errors", None) or () if isinstance(entry, dict)]


def _details(details: Iterable[Any]) -> tuple[list[str], list[str]]:
    """Reasons and additional text from known error details (messages, or their JSON form)."""
    reasons: list[str] = []
    texts: list[str] = []
    for detail in details:
        if isinstance(detail, dict):
            kind = str(detail.get("@type", "")).rpartition(".")[2]
            reason, violations = detail.get("reason"), detail.get("violations") or ()
            described = [str(violation.get("description", "")) for violation in violations]
        else:
            kind = detail.DESCRIPTOR.name if hasattr(detail, "DESCRIPTOR") else ""
            reason = getattr(detail, "reason", None)
            described = [violation.description for violation in getattr(detail, "violations", ())]
        if kind == "QuotaFailure":
            reasons.append(kind)
            texts += described
        elif kind == "ErrorInfo" and reason:
            reasons.append(str(reason))
        elif kind == "RequestInfo":
            number = detail.get("requestId") if isinstance(detail, dict) else detail.request_id
            texts.append(f"(request {number})")
    return reasons, texts


def from_status(status: Any, subject: str, facts: Mapping[str, str] | None = None) -> TpuctlError:
    """The TpuctlError for the google.rpc.Status of a failed operation or request."""
    from google.rpc import error_details_pb2

    details = error_details_pb2
    kinds = (details.ErrorInfo, details.QuotaFailure, details.RequestInfo)
    unpacked = []
    for packed in status.details:
        for kind in kinds:
            message = kind()
            if packed.Is(message.DESCRIPTOR):
                packed.Unpack(message)
                unpacked.append(message)
    reasons, more = _details(unpacked)
    name = NAMES.get(status.code, "UNKNOWN")
    text = " ".join([status.message, *more])
    return classify(name, text, subject=subject, reasons=reasons, has_ended=True, facts=facts)
