"""What the check found, as a linter tells it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TextIO

from tpuctl.preflight.findings import Finding, Report, Severity
from tpuctl.preflight.submit_gate import count_text, display_path
from tpuctl.view.source_lines import Sources
from tpuctl.view.text_wrapping import columns, cut, plain, wrapped

__all__ = ["Paper", "report_lines"]

INDENT = "    "
COLORS = {Severity.error: "1;31", Severity.cost: "33", Severity.risk: "36"}


@dataclass(frozen=True)
class Paper:
    """What it is written on."""

    is_terminal: bool = False
    has_color: bool = False
    width: int = 80

    @classmethod
    def of(cls, stream: TextIO, *, no_color: bool = False) -> Paper:
        """NO_COLOR and a terminal that is said to be dumb count as well."""
        if not stream.isatty():
            return cls()
        is_plain = no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        return cls(True, not is_plain, max(shutil.get_terminal_size().columns, 20))

    def colored(self, text: str, color: str) -> str:
        return f"\x1b[{color}m{text}\x1b[0m" if self.has_color else text


def report_lines(report: Report, what: str, paper: Paper, fix: str = "") -> Iterator[str]:
    """All of it. `what` says for what was checked, `fix` is the command that makes rewrites.

    On a terminal each finding comes with its line of the source.
    """
    sources = Sources()
    for one in report.findings:
        yield from _finding_lines(one, sources, paper)
        if paper.is_terminal:
            yield ""
    for remark in report.remarks:
        head = f"{plain(display_path(remark.path))}:{remark.line} note  "
        yield head + _fitted(remark.text, paper, columns(head))
    yield from _summary(report, what, paper, fix)


def _summary(report: Report, what: str, paper: Paper, fix: str) -> Iterator[str]:
    files = f"{len(report.files)} file{'s' * (len(report.files) != 1)}"
    silenced = f", {report.silenced} silenced" if report.silenced else ""
    text = f"{count_text(report) or 'Nothing found'} in {files}{silenced}, checked for {what}."
    yield _fitted(text, paper, 0, indent="")
    fixable = sum(bool(one.edits) for one in report.findings)
    if fixable and fix:
        yield f"{fixable} can be fixed:\n{INDENT}{fix}"


def _finding_lines(one: Finding, sources: Sources, paper: Paper) -> Iterator[str]:
    where = f"{plain(display_path(one.path))}:{one.line}:{one.column + 1}"
    word = f"{one.severity.value:<5}"
    used = columns(f"{where} {one.code} {word} ")
    head = f"{paper.colored(where, '1')} {one.code} {paper.colored(word, COLORS[one.severity])} "
    yield head + _fitted(one.message, paper, used)
    if paper.is_terminal:
        yield from _source_lines(one, sources, paper)
    label = "help: "
    for text in one.hint.splitlines():
        is_code = text.startswith(" ")
        shown = plain(text) if is_code else _fitted(text, paper, len(INDENT) + len(label), 10)
        yield INDENT + paper.colored(label + shown, "32")
        label = " " * len(label)


def _source_lines(one: Finding, sources: Sources, paper: Paper) -> Iterator[str]:
    text = sources.line(one.path, one.line)
    if text is None or not text.strip():
        return
    shown, begin = plain(text), len(plain(text[: one.column]))
    stripped = len(shown) - len(shown.lstrip())
    removed = min(stripped, begin)
    number = f"{one.line:>6}"
    shown, column = cut(shown[removed:].rstrip(), begin - removed, paper.width - 9)
    yield f"{number} | {shown}"
    yield f"{'':6} | {' ' * column}{paper.colored('^', COLORS[one.severity])}"


def _fitted(text: str, paper: Paper, used: int, by: int = 4, indent: str | None = None) -> str:
    """In one line for programs; on a terminal broken between words."""
    text = plain(" ".join(text.split()))
    if not paper.is_terminal:
        return text
    return wrapped(text, paper.width, used=used, indent=" " * by if indent is None else indent)
