"""Calls of what the script would call without its observation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["call_script"]


def call_script(function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
    """Call a function of the script or of a library in its place.

    An exception whose traceback ends in this file is the script's; in another file of this folder,
    it is a bug of the observation.
    """
    return function(*arguments, **keywords)
