"""Processes forked from one with preloaded modules: each starts immediately."""

from __future__ import annotations

import multiprocessing

context = multiprocessing.get_context("forkserver")
_modules: list[str] = []


def prepare(module: str) -> None:
    """Preload this module in the fork server.

    Call it while tests are collected: the fork server starts with the first fork.
    """
    _modules.append(module)
    context.set_forkserver_preload(_modules)
