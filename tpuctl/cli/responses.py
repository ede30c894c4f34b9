"""Modules of response models, imported when one is first used: pydantic takes a while to load."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpuctl.view.responses import catalog, checks, ci, export, jobs, local, machines, stacks

__all__ = ["catalog", "checks", "ci", "export", "jobs", "local", "machines", "stacks"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"tpuctl.view.responses.{name}")
