"""Delays that begin at a stored time, and so outlast restarts and changes of the clock.

A clock that is set back to before a delay began would prolong it by as much: for hours, where
seconds are meant. Such a delay is over.
"""

from __future__ import annotations

import time


def is_over(since: float, until: float) -> bool:
    """Whether the delay from `since` to `until` is over."""
    return not since <= time.time() < until


def remaining(since: float, until: float) -> float:
    """The seconds that are left of the delay from `since` to `until`."""
    return 0.0 if is_over(since, until) else until - time.time()
