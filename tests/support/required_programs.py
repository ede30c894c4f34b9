"""Programs that a test requires on this computer."""

from __future__ import annotations

import os
import shutil

import pytest


def require_programs(*programs: str) -> None:
    """Skip the test if one of these is not installed, and fail it under CI."""
    missing = [name for name in programs if shutil.which(name) is None]
    if missing and os.environ.get("CI") == "true":
        pytest.fail(f"not installed, but required under CI: {', '.join(missing)}")
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


def skip_without(*programs: str) -> None:
    """Skip the test if one of these is not installed, under CI too."""
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
