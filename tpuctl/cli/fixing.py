"""Rewrites that `check --fix` proposes: shown, confirmed and made."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpuctl.cli.state import State

if TYPE_CHECKING:
    from tpuctl.preflight.findings import Report
    from tpuctl.preflight.fixes import Fixes
    from tpuctl.view.findings import Paper

__all__ = ["fix_once"]


def fix_once(state: State, report: Report) -> bool:
    """Make what can be made of a report's rewrites; whether any file was changed by it.

    Shows the differences on stderr and asks, unless --yes. Raises Usage where nobody can answer.
    """
    from tpuctl.errors import Diagnostic
    from tpuctl.model.events import Note, Warned
    from tpuctl.preflight.fixes import propose, write
    from tpuctl.preflight.submit_gate import shown_path

    fixes = propose(report.findings)
    if not fixes.rewrites:
        for left in fixes.left:
            where = f"{shown_path(left.finding.path)}:{left.finding.line}"
            detail = f"{left.finding.code}: {left.why}"
            state.view.on(
                Warned(
                    Diagnostic(
                        "Not fixed",
                        detail,
                        where=where,
                        hint="Change it by hand; what the rule asks for:\n"
                        f"    tpuctl check --explain {left.finding.code}",
                    )
                )
            )
        return False
    if not state.yes:
        if not state.json:
            for line in _difference_lines(fixes, _stderr(state)):
                print(line, file=sys.stderr)
        count = len(fixes.rewrites)
        state.confirm(f"Change {count} file{'s' * (count != 1)}?")
    has_changed = False
    for rewrite in fixes.rewrites:
        name = shown_path(rewrite.path)
        why = write(rewrite)
        if why:
            state.view.on(
                Warned(
                    Diagnostic(
                        "Not fixed",
                        why,
                        where=name,
                        hint="Make the file writable, or change it by hand as the check tells:\n"
                        "    tpuctl check",
                    )
                )
            )
            continue
        has_changed = True
        codes = sorted({one.code for one in fixes.findings if one.path == rewrite.path})
        state.view.on(Note(f"Changed {name}: {', '.join(codes)}"))
    return has_changed


def _difference_lines(fixes: Fixes, paper: Paper) -> Iterator[str]:
    from tpuctl.preflight.fixes import difference
    from tpuctl.preflight.submit_gate import shown_path
    from tpuctl.view.wrapping import plain

    colors = {"+": "32", "-": "31", "@": "36"}
    for rewrite in fixes.rewrites:
        for line in difference(rewrite, shown_path(rewrite.path)):
            color = colors.get(line[:1], "")
            yield paper.colored(plain(line), color) if color else plain(line)


def _stderr(state: State) -> Paper:
    from tpuctl.view.findings import Paper

    return Paper.of(sys.stderr, no_color=state.no_color)
