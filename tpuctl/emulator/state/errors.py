"""API errors, and the forms in which Google's APIs return them: JSON and gRPC status."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

# By google.rpc.Code name: its number and HTTP status, from google/rpc/code.proto.
CODES: Mapping[str, tuple[int, int]] = {
    "CANCELLED": (1, 499),
    "UNKNOWN": (2, 500),
    "INVALID_ARGUMENT": (3, 400),
    "DEADLINE_EXCEEDED": (4, 504),
    "NOT_FOUND": (5, 404),
    "ALREADY_EXISTS": (6, 409),
    "PERMISSION_DENIED": (7, 403),
    "RESOURCE_EXHAUSTED": (8, 429),
    "FAILED_PRECONDITION": (9, 400),
    "ABORTED": (10, 409),
    "OUT_OF_RANGE": (11, 400),
    "UNIMPLEMENTED": (12, 501),
    "INTERNAL": (13, 500),
    "UNAVAILABLE": (14, 503),
    "DATA_LOSS": (15, 500),
    "UNAUTHENTICATED": (16, 401),
}

# The default `reason` in the legacy `errors` list, by status.
_REASONS: Mapping[str, str] = {
    "INVALID_ARGUMENT": "invalid",
    "NOT_FOUND": "notFound",
    "ALREADY_EXISTS": "alreadyExists",
    "PERMISSION_DENIED": "forbidden",
    "RESOURCE_EXHAUSTED": "rateLimitExceeded",
    "FAILED_PRECONDITION": "failedPrecondition",
    "ABORTED": "conflict",
    "UNAUTHENTICATED": "authError",
    "UNAVAILABLE": "backendError",
    "UNIMPLEMENTED": "notImplemented",
}


# Reasons that platform APIs use in that list instead: Terraform's Google provider, which sends
# `alt=json`, prints it after the message ("googleapi: Error 400: …, badRequest").
_PLATFORM_REASONS = {"invalid": "badRequest"}


class ApiError(Exception):
    """An error response: `status` is a google.rpc.Code name, `details` are JSON with `@type`."""

    def __init__(
        self,
        status: str,
        message: str,
        *,
        reason: str = "",
        domain: str = "global",
        details: Sequence[Mapping[str, Any]] = (),
        http: int = 0,
        location: tuple[str, str] | None = None,
        is_page: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason or _REASONS.get(status, "backendError")
        self.domain = domain
        self.details = tuple(details)
        self.number, mapped = CODES[status]
        self.http = http or mapped
        self.location = location  # (locationType, location) of the legacy APIs
        self.is_page = is_page  # from Google's front end, which returns an HTML page over HTTP

    def as_platform(self) -> dict[str, Any]:
        """The form of platform APIs (TPU, projects, services, IAM)."""
        error: dict[str, Any] = {
            "code": self.http,
            "message": self.message,
            "status": self.status,
        }
        if self.details:
            error["details"] = list(self.details)
        return {"error": error}

    def as_both(self) -> dict[str, Any]:
        """The form of some platform APIs for requests with `alt=json`: with the legacy list of
        `errors`."""
        platform, legacy = self.as_platform()["error"], self.as_legacy()["error"]
        for entry in legacy["errors"]:
            entry["reason"] = _PLATFORM_REASONS.get(entry["reason"], entry["reason"])
        return {"error": {**platform, "errors": legacy["errors"]}}

    def as_legacy(self) -> dict[str, Any]:
        """The form of Compute Engine and Cloud Storage, with its list of `errors`."""
        entry: dict[str, Any] = {
            "message": self.message,
            "domain": self.domain,
            "reason": self.reason,
        }
        if self.location:
            entry["locationType"], entry["location"] = self.location
        error: dict[str, Any] = {"code": self.http, "message": self.message, "errors": [entry]}
        if self.details:
            error["status"] = self.status
            error["details"] = list(self.details)
        return {"error": error}

    def as_json(self, family: str) -> bytes:
        """`family` is "platform", "legacy" or "both"."""
        shapes = {"platform": self.as_platform, "legacy": self.as_legacy, "both": self.as_both}
        return json.dumps(shapes[family](), indent=2).encode()

    def as_status(self) -> Any:
        """The google.rpc.Status message, details packed."""
        from google.protobuf import json_format
        from google.rpc import error_details_pb2, status_pb2  # the first for its descriptors

        assert error_details_pb2 is not None
        status = status_pb2.Status(code=self.number, message=self.message)
        for detail in self.details:
            json_format.ParseDict(dict(detail), status.details.add())
        return status

    def as_trailers(self) -> tuple[tuple[str, bytes], ...]:
        """gRPC trailing metadata with the details, if any."""
        if not self.details:
            return ()
        return (("grpc-status-details-bin", self.as_status().SerializeToString()),)


def error_detail(kind: str, **fields: Any) -> dict[str, Any]:
    """A detail of an error, as `error_detail("ResourceInfo", resourceName=name)`."""
    return {"@type": f"type.googleapis.com/google.rpc.{kind}", **fields}


def error_info(reason: str, domain: str, **metadata: str) -> dict[str, Any]:
    """The detail that programs recognize an error by."""
    info = error_detail("ErrorInfo", reason=reason, domain=domain)
    return info | ({"metadata": metadata} if metadata else {})


def invalid(message: str, **more: Any) -> ApiError:
    return ApiError("INVALID_ARGUMENT", message, **more)


def missing(message: str, **more: Any) -> ApiError:
    return ApiError("NOT_FOUND", message, **more)


def internal(bug: Exception) -> ApiError:
    """An unexpected exception: a bug of the local cloud, which must not look like Google's.

    `http` is for operations of Compute Engine, whose errors have an HTTP status.
    """
    return ApiError(
        "INTERNAL",
        f"Bug in the local cloud, not in Google's service: {bug!r}. "
        "Its traceback is in the local cloud's server.log.",
        details=[error_info("LOCAL_CLOUD_BUG", "tpuctl", http="500")],
    )


def unimplemented(method: str) -> ApiError:
    """The error for a method that is not emulated; clients never retry it."""
    return ApiError("UNIMPLEMENTED", f"{method} is not implemented by the local cloud.")


def unsupported_field(field: str) -> ApiError:
    """The error for a field that is not emulated: it is not dropped in silence."""
    return ApiError("UNIMPLEMENTED", f"The field {field} is not implemented by the local cloud.")
