"""The border: what the official clients raise, turned into our tree. One table, in one place.

Sources: google.api_core.exceptions; the texts and reasons in Google's answers that were seen in
public (see docs/untried.md for what nobody could check).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from tpuctl.errors import (
    Conflict,
    Denied,
    NoCapacity,
    NotFound,
    OperationFailed,
    QuotaExceeded,
    TpuctlError,
    Transient,
    Unreachable,
    Usage,
)

__all__ = ["ApiDisabled", "classify", "convert", "is_foreign"]


class ApiDisabled(Denied):
    """The API is not enabled in the project: nothing of its kind can exist there."""


CAPACITY = re.compile(
    r"no more capacity|ZONE_RESOURCE_POOL_EXHAUSTED|insufficient (reserved )?capacity"
    r"|insufficientCapacity|not enough resources|stockout",
    re.IGNORECASE,
)
QUOTA = re.compile(r"quota", re.IGNORECASE)
DISABLED = re.compile(r"has not been used in project|it is disabled", re.IGNORECASE)
# Compute's own words: the first of a request, the second of an operation.
OUT_OF_QUOTA = frozenset({"quotaExceeded", "QUOTA_EXCEEDED"})
NOT_READY = "resourceNotReady"  # with status 400, of what was made a moment ago
EID = re.compile(r"\s*\[EID: 0x[0-9a-f.]+\]")

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


def classify(status: str, message: str, *, what: str, reasons: Iterable[str] = ()) -> TpuctlError:
    """One of our errors for a canonical status, Google's text and the reasons in its details."""
    text = f"{what}: {EID.sub('', message).strip()}"
    if "SERVICE_DISABLED" in reasons or (status == "PERMISSION_DENIED" and DISABLED.search(text)):
        return ApiDisabled("API not enabled", text, hint="Enable it with\n    tpuctl up")
    if CAPACITY.search(message):
        return NoCapacity(
            "No capacity", text, hint="Try another zone, spot capacity, or again later."
        )
    if OUT_OF_QUOTA & {*reasons} or (status == "RESOURCE_EXHAUSTED" and QUOTA.search(message)):
        return QuotaExceeded(
            "Quota exceeded", text, hint="Ask for more in the Cloud console, or use less."
        )
    if status == "RESOURCE_EXHAUSTED":
        return Transient("Too many requests", text)
    if status == "PERMISSION_DENIED":
        return Denied("Permission denied", text, hint="Ask the project's owner for that role.")
    if status == "UNAUTHENTICATED":
        return Denied(
            "Not signed in", text, hint="Sign in with\n    gcloud auth application-default login"
        )
    if status == "FAILED_PRECONDITION" and "illing" in message:
        return Denied("Billing is not enabled", text, hint="Link a billing account to the project.")
    if status == "NOT_FOUND":
        return NotFound("Not found", text)
    if status in ("ALREADY_EXISTS", "ABORTED", "FAILED_PRECONDITION"):
        return Conflict("Conflict", text)
    if status in ("UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED") or NOT_READY in reasons:
        return Transient("The cloud did not answer properly", text)
    if status == "UNIMPLEMENTED":
        return Unreachable("The cloud does not offer this", text)
    if status == "INVALID_ARGUMENT":
        return Usage("The cloud refused the request", text)
    return OperationFailed("The cloud reported an error", text)


def is_foreign(error: BaseException) -> bool:
    """Whether this is something that the clients raise and `convert` knows."""
    package = type(error).__module__.partition(".")[0]
    return package in ("google", "grpc", "requests") and isinstance(error, Exception)


def convert(error: BaseException, what: str) -> TpuctlError:
    """Our error for one of the clients'. Use as `raise convert(error, what) from error`."""
    import google.api_core.exceptions as api
    import google.auth.exceptions as auth
    import requests

    if isinstance(error, auth.DefaultCredentialsError | auth.RefreshError):
        return Denied(
            "Not signed in",
            f"{what}: {_first_line(error)}",
            hint="Sign in with\n    gcloud auth application-default login\n"
            "or rehearse without an account: --cloud local",
        )
    if isinstance(error, api.RetryError | auth.TransportError | requests.RequestException):
        return Transient("The cloud could not be reached", f"{what}: {_first_line(error)}")
    if isinstance(error, api.GoogleAPICallError):
        grpc_status = getattr(error, "grpc_status_code", None)
        code = int(error.code) if error.code is not None else 0
        status = grpc_status.name if grpc_status is not None else FROM_HTTP.get(code, "UNKNOWN")
        if code == 409 and grpc_status is None and "ondition" in str(error.message):
            status = "ABORTED"
        return classify(status, str(error.message), what=what, reasons=_reasons(error))
    if type(error).__name__ in ("DataCorruption", "InvalidResponse"):  # of storage's transfers
        return Transient("The cloud did not answer properly", f"{what}: {_first_line(error)}")
    return OperationFailed("The cloud reported an error", f"{what}: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _reasons(error: Any) -> list[str]:
    found = [error.reason] if getattr(error, "reason", None) else []
    for entry in getattr(error, "errors", None) or ():
        if isinstance(entry, dict) and entry.get("reason"):
            found.append(str(entry["reason"]))
    return found
