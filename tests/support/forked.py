"""Processes forked from one that has imported what they need: each starts at once."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

__all__ = ["context", "prepare"]

context = multiprocessing.get_context("forkserver")
_modules: list[str] = []


def prepare(module: str, folder: Path) -> None:
    """Have the process that others are forked from import this module, found in that folder.

    To be called while tests are collected: that process begins with the first that is forked.
    """
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # where it looks, and nowhere else
    _modules.append(module)
    context.set_forkserver_preload(_modules)
