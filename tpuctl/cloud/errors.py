"""The border: what the official clients raise, turned into our tree. One table, in one place.

Sources: google.api_core.exceptions; the texts and reasons in Google's answers that were seen in
public (see docs/untried.md for what nobody could check).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tpuctl.cloud.classification import classify
from tpuctl.errors import TpuctlError, Transient
from tpuctl.model.known_errors import facts_of

__all__ = ["convert", "from_status", "is_foreign"]


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

# How google.api_core begins the text of a refusal over HTTP (format_http_response_error).
CALLED = re.compile(r"(?:GET|HEAD|POST|PUT|PATCH|DELETE) https?://[^/\s]+([^?\s]*)\S*: ")
REQUEST = re.compile(r"\?[^\s'\")]*requestId=[^\s'\")]*")

UNREACHED = (
    "See whether this machine reaches the internet (a proxy may need HTTPS_PROXY to be set), then\n"
    "    tpuctl doctor"
)


def is_foreign(error: BaseException) -> bool:
    """Whether this is something that the clients raise and `convert` knows."""
    package = type(error).__module__.partition(".")[0]
    return package in ("google", "grpc", "requests") and isinstance(error, Exception)


def convert(error: BaseException, what: str, facts: Mapping[str, str] | None = None) -> TpuctlError:
    """Our error for one of the clients'. Use as `raise convert(error, what) from error`.

    `facts` are what the call was about, as project and zone.
    """
    import google.api_core.exceptions as api
    import google.auth.exceptions as auth
    import requests

    if isinstance(error, auth.DefaultCredentialsError | auth.RefreshError):
        return classify("UNAUTHENTICATED", _first_line(error), what=what)
    if isinstance(error, api.RetryError | auth.TransportError | requests.RequestException):
        return Transient(
            "The cloud could not be reached", f"{what}: {_first_line(error)}", hint=UNREACHED
        )
    if isinstance(error, api.GoogleAPICallError):
        grpc_status = getattr(error, "grpc_status_code", None)
        code = int(error.code) if error.code is not None else 0
        status = grpc_status.name if grpc_status is not None else FROM_HTTP.get(code, "UNKNOWN")
        if code == 409 and grpc_status is None and "ondition" in str(error.message):
            status = "ABORTED"
        if status == "CANCELLED":
            # Nothing here cancels calls: the server gave up on one at its deadline, as it does
            # when it notices before the client (grpc.io/docs/guides/deadlines).
            status = "DEADLINE_EXCEEDED"
        reasons, more = _details(getattr(error, "details", None) or ())
        reasons += [one["reason"] for one in _legacy(error) if one.get("reason")]
        message = str(error.message)
        text = " ".join([_plain(message), *more])
        facts = {**facts_of(message), **(facts or {})}  # as named by addresses, which are not shown
        return classify(status, text, what=what, reasons=reasons, facts=facts)
    if type(error).__name__ in ("DataCorruption", "InvalidResponse"):  # of storage's transfers
        return classify("UNAVAILABLE", _first_line(error), what=what)
    return classify("UNKNOWN", str(error) or type(error).__name__, what=what, facts=facts)


def _plain(text: str) -> str:
    """Google's words alone: without the address that was called, unless there are no words, and
    without the page that its front end answers with when it cannot reach an API."""
    called = CALLED.match(text)
    words = text[called.end() :] if called else text
    _, page, after = words.partition("<!DOCTYPE html")
    title = re.search(r"<title>(.*?)</title>", after, re.DOTALL)
    if page and title is not None:
        words = title[1].replace("!!1", "").strip()
    if called and words.strip() in ("", "unknown error"):
        return f"{called[1]}: {words}".rstrip(": ")
    return words


def _first_line(error: BaseException) -> str:
    return REQUEST.sub("", (str(error) or type(error).__name__).splitlines()[0])


def _legacy(error: Any) -> list[dict[str, Any]]:
    """The older list of errors in a JSON answer."""
    return [one for one in getattr(error, "errors", None) or () if isinstance(one, dict)]


def _details(details: Iterable[Any]) -> tuple[list[str], list[str]]:
    """Reasons, and further text, of the details that we know: messages, or their JSON forms."""
    reasons: list[str] = []
    texts: list[str] = []
    for one in details:
        if isinstance(one, dict):
            kind = str(one.get("@type", "")).rpartition(".")[2]
            reason, violations = one.get("reason"), one.get("violations") or ()
            described = [str(each.get("description", "")) for each in violations]
        else:
            kind = one.DESCRIPTOR.name if hasattr(one, "DESCRIPTOR") else ""
            reason = getattr(one, "reason", None)
            described = [each.description for each in getattr(one, "violations", ())]
        if kind == "QuotaFailure":
            reasons.append(kind)
            texts += described
        elif kind == "ErrorInfo" and reason:
            reasons.append(str(reason))
        elif kind == "RequestInfo":
            number = one.get("requestId") if isinstance(one, dict) else one.request_id
            texts.append(f"(request {number})")
    return reasons, texts


def from_status(status: Any, what: str, facts: Mapping[str, str] | None = None) -> TpuctlError:
    """Our error for the google.rpc.Status that an operation or a request ended with."""
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
    return classify(name, text, what=what, reasons=reasons, has_ended=True, facts=facts)
