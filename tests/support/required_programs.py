"""Programs that a test needs of this computer."""

from __future__ import annotations

import os
import shutil

import pytest

__all__ = ["require_programs"]


def require_programs(*programs: str) -> None:
    """Skip the test where one of these is not installed, and fail it in CI."""
    missing = [name for name in programs if shutil.which(name) is None]
    if missing and os.environ.get("CI") == "true":
        pytest.fail(f"not here, and in CI they must be: {', '.join(missing)}")
    if missing:
        pytest.skip(f"not here: {', '.join(missing)}")
