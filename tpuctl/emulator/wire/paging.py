"""Pagination, with page tokens that stay valid while the list changes."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tpuctl.emulator.state.errors import invalid

T = TypeVar("T")


def write_token(last: str) -> str:
    return base64.urlsafe_b64encode(last.encode()).decode().rstrip("=")


def read_token(token: str) -> str:
    try:
        padded = token + "=" * (-len(token) % 4)
        return base64.b64decode(padded.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise invalid(f"Invalid page token: {token!r}.") from error


def name_of(row: Any) -> str:
    """The name of a message, of a stored row, or of a row that is its name."""
    if isinstance(row, str):
        return row
    return str(row["name"] if isinstance(row, Mapping) else row.name)


def requested_page(
    request: Any,
    rows: Sequence[T],
    key: Callable[[T], str] = name_of,
    *,
    default_size: int = 0,
    max_size: int = 1000,
) -> tuple[list[T], str]:
    """`page` of the size and with the token of a request."""
    size = request.page_size or default_size
    return page(rows, size, request.page_token, key, max_size=max_size)


def page(
    rows: Sequence[T], size: int, token: str, key: Callable[[T], str], *, max_size: int = 1000
) -> tuple[list[T], str]:
    """The rows after the token's row, and the token of the next page or ''.

    `rows` is in its final order. If the token's row was deleted, the page starts with the next
    greater key, so callers that delete listed rows miss none, provided rows are ordered by key.
    """
    if size < 0:
        raise invalid("page_size must not be negative.")
    start = 0
    if token:
        last = read_token(token)
        keys = [key(row) for row in rows]
        later = (place for place, row_key in enumerate(keys) if row_key > last)
        start = keys.index(last) + 1 if last in keys else next(later, len(rows))
    count = min(size or max_size, max_size)
    page_rows = list(rows[start : start + count])
    more = start + count < len(rows)
    return page_rows, write_token(key(page_rows[-1])) if page_rows and more else ""
