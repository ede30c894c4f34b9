"""Findings of the check, in the style of a linter."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import NamedTuple, TextIO

from rich.cells import cell_len

from tpuctl.preflight.findings import Finding, Report, Severity
from tpuctl.preflight.submit_gate import count_text, display_path
from tpuctl.units import counted
from tpuctl.view.checks.source_lines import Sources
from tpuctl.view.terminal.text_wrapping import cut, plain, wrap

INDENT = "    "
COLORS = {Severity.error: "1;31", Severity.cost: "33", Severity.risk: "36"}


class TextOutput(NamedTuple):
    """The output's width and colors."""

    is_terminal: bool = False
    has_color: bool = False
    width: int = 80

    @classmethod
    def of(cls, stream: TextIO, *, no_color: bool = False) -> TextOutput:
        """Respects NO_COLOR and TERM=dumb."""
        if not stream.isatty():
            return cls()
        is_plain = no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        return cls(True, not is_plain, max(shutil.get_terminal_size().columns, 20))

    def colored(self, text: str, color: str) -> str:
        return f"\x1b[{color}m{text}\x1b[0m" if self.has_color else text

    def wrapped(self, text: str, used: int, indent: int = len(INDENT)) -> str:
        """One line for programs; wrapped on a terminal, from column `used`."""
        text = plain(" ".join(text.split()))
        return wrap(text, self.width, used=used, indent=" " * indent) if self.is_terminal else text


def report_lines(
    report: Report, target: str, paper: TextOutput, fix: str = "", *, has_summary: bool = True
) -> Iterator[str]:
    """The whole report. `target` is what was checked for, `fix` the command that applies fixes.

    On a terminal, each finding is followed by its source line.
    """
    sources = Sources()
    for finding in report.findings:
        yield from _finding_lines(finding, sources, paper)
        if paper.is_terminal:
            yield ""
    for note in report.notes:
        head = f"{plain(display_path(note.path))}:{note.line} note  "
        yield head + paper.wrapped(note.message, cell_len(head))
    if has_summary:
        yield from _summary(report, target, paper, fix)


def _summary(report: Report, target: str, paper: TextOutput, fix: str) -> Iterator[str]:
    files = counted(len(report.files), "file")
    suppressed = f", {report.suppressed} suppressed" if report.suppressed else ""
    text = f"{count_text(report) or 'Nothing found'} in {files}{suppressed}, checked for {target}."
    yield paper.wrapped(text, 0, 0)
    fixable = sum(bool(finding.edits) for finding in report.findings)
    if fixable and fix:
        yield f"{fixable} can be fixed:\n{INDENT}{fix}"


def _finding_lines(finding: Finding, sources: Sources, paper: TextOutput) -> Iterator[str]:
    where = f"{plain(display_path(finding.path))}:{finding.line}:{finding.column + 1}"
    word = f"{finding.severity.value:<5}"
    used = cell_len(f"{where} {finding.code} {word} ")
    colored_word = paper.colored(word, COLORS[finding.severity])
    head = f"{paper.colored(where, '1')} {finding.code} {colored_word} "
    yield head + paper.wrapped(finding.message, used)
    if paper.is_terminal:
        yield from _source_lines(finding, sources, paper)
    yield from hint_lines(finding.hint, paper)


def hint_lines(hint: str, paper: TextOutput) -> Iterator[str]:
    """The help below a finding; lines of code in it stay whole."""
    label = "help: "
    for text in hint.splitlines():
        is_code = text.startswith(" ")
        line = plain(text) if is_code else paper.wrapped(text, len(INDENT) + len(label), 10)
        yield INDENT + paper.colored(label + line, "32")
        label = " " * len(label)


def _source_lines(finding: Finding, sources: Sources, paper: TextOutput) -> Iterator[str]:
    text = sources.line(finding.path, finding.line)
    if text is None or not text.strip():
        return
    source, begin = plain(text), len(plain(text[: finding.column]))
    stripped = len(source) - len(source.lstrip())
    removed = min(stripped, begin)
    number = f"{finding.line:>6}"
    source, column = cut(source[removed:].rstrip(), begin - removed, paper.width - 9)
    yield f"{number} | {source}"
    yield f"{'':6} | {' ' * column}{paper.colored('^', COLORS[finding.severity])}"
