"""Hypothesis without its limits on time, which a busy machine exceeds.

Tests import `given` and `settings` from here.
"""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

__all__ = ["given", "settings"]

# Continuous integration has a profile of its own, which is kept in the rest.
settings.register_profile(
    "unlimited", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("unlimited")
