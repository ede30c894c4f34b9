"""Whether a failure means that nobody is signed in any more, as when a token has expired."""

from __future__ import annotations

__all__ = ["is_signed_out"]

UNAUTHENTICATED = (401, "UNAUTHENTICATED")


def is_signed_out(error: BaseException) -> bool:
    """Of an error, or of any that it comes from: Google refused the credentials, or they could
    not be renewed. What they do not permit is another matter."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        status = getattr(getattr(one, "grpc_status_code", None), "name", None)
        if status in UNAUTHENTICATED or _code(one) in UNAUTHENTICATED:
            return True
        if type(one).__module__ == "google.auth.exceptions" and "Refresh" in type(one).__name__:
            return True
        one = one.__cause__ or one.__context__
    return False


def _code(error: BaseException) -> object:
    """The HTTP status, where it is an error of a call; `int` turns an enumeration into a number."""
    code = getattr(error, "code", None)
    try:
        return int(code) if code is not None and not callable(code) else None
    except (TypeError, ValueError):
        return None
