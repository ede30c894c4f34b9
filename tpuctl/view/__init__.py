"""Views of events and results: terminal, plain lines, JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpuctl.view.progress.base import View


def choose(*, json: bool, events: bool, quiet: bool, no_color: bool) -> View:
    """The view for these options and this stderr."""
    import os
    import sys

    from tpuctl.view.progress.base import DUMB_TERMINALS

    if json:
        from tpuctl.view.progress.json_lines import JsonLines

        return JsonLines(events=events)
    is_dumb = os.environ.get("TERM", "") in DUMB_TERMINALS
    if quiet or is_dumb or not sys.stderr.isatty():
        from tpuctl.view.progress.plain import Plain

        return Plain(quiet=quiet)
    from tpuctl.view.progress.console import Console

    return Console(no_color=no_color)
