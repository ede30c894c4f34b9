"""Processes forked from one that has imported what they need: each starts at once."""

from __future__ import annotations

import multiprocessing

__all__ = ["context", "prepare"]

context = multiprocessing.get_context("forkserver")
_modules: list[str] = []


def prepare(module: str) -> None:
    """Have the process that others are forked from import this module.

    To be called while tests are collected: that process begins with the first that is forked.
    """
    _modules.append(module)
    context.set_forkserver_preload(_modules)
