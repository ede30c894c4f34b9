"""Calls of what the script would call without the hooks."""

from __future__ import annotations

TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def call_script(function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
    """Call a function of the script or of a library in its place.

    An exception whose traceback ends in this file is the script's; in another file of the hooks, it
    is a bug there.
    """
    return function(*arguments, **keywords)
