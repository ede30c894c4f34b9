"""Detects failures caused by missing or expired credentials."""

from __future__ import annotations

UNAUTHENTICATED = (401, "UNAUTHENTICATED")


def is_signed_out(error: BaseException) -> bool:
    """Whether the error, or a cause of it, says that Google rejected the credentials or that they
    could not be refreshed. Missing permissions do not count."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        status = getattr(getattr(current, "grpc_status_code", None), "name", None)
        if status in UNAUTHENTICATED or _code(current) in UNAUTHENTICATED:
            return True
        if (
            type(current).__module__ == "google.auth.exceptions"
            and "Refresh" in type(current).__name__
        ):
            return True
        current = current.__cause__ or current.__context__
    return False


def _code(error: BaseException) -> object:
    """The HTTP status of an API error; `int` converts enum members."""
    code = getattr(error, "code", None)
    try:
        return int(code) if code is not None and not callable(code) else None
    except (TypeError, ValueError):
        return None
