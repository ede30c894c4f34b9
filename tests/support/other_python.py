"""An interpreter of another version than the one that runs the tests."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import NoReturn

import pytest

from tpuctl.interpreters import Interpreter, find, own

__all__ = ["absent", "hide_interpreters", "other_interpreter"]

MINORS = [f"3.{minor}" for minor in range(9, 16)]


@functools.cache
def other_interpreter() -> Interpreter:
    """One that machines could have. Where there is none: skipped, and under CI failed."""
    other = find([minor for minor in MINORS if minor != own().minor])
    if other is None:
        absent(f"there is no Python but {own().minor} here, with venv and ensurepip")
    return other


def absent(reason: str) -> NoReturn:
    """Skip what needs something that is not here; fail under CI, where it has to be."""
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def hide_interpreters(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no interpreter but our own, and no uv, for whoever looks where users have them."""
    for name in ("PATH", "PYENV_ROOT", "UV_PYTHON_INSTALL_DIR"):
        place = folder / name
        place.mkdir(parents=True)
        monkeypatch.setenv(name, str(place))
