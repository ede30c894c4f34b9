"""Prerequisites of tests on this computer: without them a test is skipped, or fails under CI."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import NoReturn

import pytest

from tpuctl.interpreters import Interpreter, current, find, or_list
from tpuctl.local_cloud.machine_images import ImageStore

MINORS = [f"3.{minor}" for minor in range(9, 16)]


@functools.cache
def other_interpreter() -> Interpreter:
    """An interpreter of another supported version than the one that runs the tests."""
    other = find([minor for minor in MINORS if minor != current().minor])
    if other is None:
        skip_or_fail(f"no Python other than {current().minor} has venv and ensurepip")
    return other


@functools.cache
def require_python(minor: str) -> None:
    """Continue if the local cloud's machines can have this Python."""
    if ImageStore().choose(None, minor).python != minor:
        skip_or_fail(
            f"no Python {minor} for machines was found on PATH, in pyenv or in uv; install it, for "
            f"example with `uv python install {minor}`"
        )


def require_image(tensorflow: str) -> None:
    """Continue if an image with this TensorFlow exists or can be built."""
    if not _can_run(tensorflow):
        minors = or_list(ImageStore().interpreters(tensorflow))
        skip_or_fail(f"no image with TensorFlow {tensorflow}: Python {minors} not found")


@functools.cache
def _can_run(tensorflow: str) -> bool:
    return ImageStore().can_run(tensorflow)


def empty_image_cache() -> Path:
    """A cache of images that have no packages, whatever their lock is named. Kept between runs."""
    return ImageStore().cache / "empty-images"


def lone_image_cache() -> Path:
    """A cache of images with the running Python only, as of a computer with no other. Kept, too."""
    return ImageStore().cache / "lone-images"


def skip_or_fail(reason: str) -> NoReturn:
    """Skip a test without its prerequisites; fail under CI, where they must exist."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def hide_interpreters(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide all interpreters but the current one, and uv, from the usual locations."""
    for name in ("PATH", "PYENV_ROOT", "UV_PYTHON_INSTALL_DIR"):
        place = folder / name
        place.mkdir(parents=True)
        monkeypatch.setenv(name, str(place))
