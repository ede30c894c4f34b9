"""What tests need of the computer: a test is skipped if it is missing, and fails under CI."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import NoReturn

import pytest

from tpuctl.emulator.machines.images import ImageStore
from tpuctl.interpreters import Interpreter, current, find, or_list

__all__ = ["hide_interpreters", "other_interpreter", "require_image", "skip_or_fail"]

MINORS = [f"3.{minor}" for minor in range(9, 16)]


@functools.cache
def other_interpreter() -> Interpreter:
    """One of another version than runs the tests, which machines could have."""
    other = find([minor for minor in MINORS if minor != current().minor])
    if other is None:
        skip_or_fail(f"there is no Python but {current().minor} here, with venv and ensurepip")
    return other


def require_image(tensorflow: str) -> None:
    """Go on where an image with this TensorFlow is made or could be."""
    if not _can_run(tensorflow):
        minors = or_list(ImageStore().interpreters(tensorflow))
        skip_or_fail(f"no image with TensorFlow {tensorflow}: there is no Python {minors} here")


@functools.cache
def _can_run(tensorflow: str) -> bool:
    return ImageStore().can_run(tensorflow)


def skip_or_fail(reason: str) -> NoReturn:
    """Skip what needs something that is not here; fail under CI, where it has to be."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def hide_interpreters(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide all interpreters but the current one, and uv, from the usual locations."""
    for name in ("PATH", "PYENV_ROOT", "UV_PYTHON_INSTALL_DIR"):
        place = folder / name
        place.mkdir(parents=True)
        monkeypatch.setenv(name, str(place))
