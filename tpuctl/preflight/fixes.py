"""The rewrites that findings bring along: put together, judged by the parser, written."""

from __future__ import annotations

import ast
import difflib
import io
import os
import re
import tempfile
import tokenize
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tpuctl.preflight.findings import Edit, Finding

__all__ = ["Fixes", "Rewrite", "SkippedFix", "diff", "propose", "write"]

LINES = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|$)")
BREAK = re.compile(r"\r\n|\r|\n")
BREAK_AT_END = re.compile(r"(?:\r\n|\r|\n)\Z")


@dataclass(frozen=True)
class SkippedFix:
    """A finding whose rewrite is not made, and why not."""

    finding: Finding
    reason: str


@dataclass(frozen=True)
class Rewrite:
    """One file as it is and as it would be."""

    path: Path
    before: bytes
    after: bytes
    encoding: str


@dataclass(frozen=True)
class Fixes:
    """What would be written, for which findings, and what is left alone."""

    rewrites: tuple[Rewrite, ...] = ()
    findings: tuple[Finding, ...] = ()
    skipped: tuple[SkippedFix, ...] = ()


@dataclass
class _File:
    """A file, and what is to be done to it."""

    path: Path
    before: bytes
    encoding: str
    edits: list[Edit] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> _File:
        data = path.read_bytes()
        is_python = path.suffix != ".txt"
        encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0] if is_python else "utf-8"
        return cls(path, data, encoding)

    def after(self, more: Iterable[Edit] = ()) -> bytes:
        """With the edits, in the file's own encoding and with its line ends.

        Raises ValueError where that cannot be.
        """
        text = self.before.decode(self.encoding)
        lines = LINES.findall(text)
        newline = next((match[0] for match in BREAK.finditer(text)), "\n")
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line))
        pieces = []
        done = 0
        for edit in sorted({*self.edits, *more}, key=_span):
            begin = _offset(lines, starts, edit.line, edit.column)
            end = _offset(lines, starts, edit.end_line, edit.end_column)
            if not done <= begin <= end:
                raise ValueError("its pieces overlap")
            pieces += [text[done:begin], BREAK.sub(newline, edit.text)]
            done = end
        return "".join([*pieces, text[done:]]).encode(self.encoding)


def propose(findings: Iterable[Finding]) -> Fixes:
    """What the findings' edits make of their files; nothing is written.

    The edits of one finding are made together or not at all: not where they meet those of an
    earlier one, and not where Python could not parse what comes of it.
    """
    files: dict[Path, _File] = {}
    applied: list[Finding] = []
    skipped: list[SkippedFix] = []
    for finding in findings:
        if not finding.edits:
            continue
        reason = _refusal(finding, files)
        if reason:
            skipped.append(SkippedFix(finding, reason))
            continue
        applied.append(finding)
        for edit in finding.edits:
            if edit not in files[edit.path].edits:
                files[edit.path].edits.append(edit)
    rewrites = [
        Rewrite(file.path, file.before, after, file.encoding)
        for file in files.values()
        if (after := file.after()) != file.before
    ]
    return Fixes(tuple(rewrites), tuple(applied), tuple(skipped))


def write(rewrite: Rewrite) -> str:
    """Put the new text into its file's place, in one step; why not, where it cannot be.

    The mode stays, and so does a symbolic link. A file that was changed meanwhile is left alone.
    """
    path = rewrite.path.resolve()
    try:
        status = path.stat()
        if path.read_bytes() != rewrite.before:
            return "it was changed meanwhile"
        if not status.st_mode & 0o222 or not os.access(path, os.W_OK):
            return "it may not be written"
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as target:
                target.write(rewrite.after)
            Path(draft).chmod(status.st_mode & 0o7777)
            with suppress(OSError):  # another's file: it becomes that of who asked for the change
                os.chown(draft, status.st_uid, status.st_gid)
            Path(draft).replace(path)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise
    except OSError as error:
        return error.strerror or str(error)
    return ""


def diff(rewrite: Rewrite, name: str) -> list[str]:
    """As `diff -u` shows it, a line each, without line ends."""
    before, after = (
        BREAK.split(BREAK_AT_END.sub("", data.decode(rewrite.encoding)))
        for data in (rewrite.before, rewrite.after)
    )
    lines = difflib.unified_diff(before, after, name, f"{name} (fixed)", lineterm="")
    return list(lines)


def _refusal(finding: Finding, files: dict[Path, _File]) -> str:
    """Why the edits of a finding cannot be made; empty where they can."""
    try:
        for path in {edit.path for edit in finding.edits}:
            if path not in files:
                files[path] = _File.read(path)
            file = files[path]
            fresh = [edit for edit in finding.edits if edit.path == path and edit not in file.edits]
            if any(_meet(edit, other) for edit in fresh for other in file.edits):
                return "another one changes the same place"
            after = file.after(fresh)
            if path.suffix != ".txt":
                _require_python(after, file.before)
    except SyntaxError:
        return "what comes of it is not Python"
    except (OSError, ValueError, RecursionError) as error:
        return str(error)
    return ""


def _require_python(after: bytes, before: bytes) -> None:
    """Raise SyntaxError unless it parses, or for a change that loses the file's encoding."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ast.parse(after)
    encodings = {tokenize.detect_encoding(io.BytesIO(data).readline)[0] for data in (after, before)}
    if len(encodings) > 1:
        raise SyntaxError("another encoding")


def _meet(edit: Edit, other: Edit) -> bool:
    """Whether two edits touch the same characters, or put something at the same place."""
    (begin, end), (first, last) = _span(edit), _span(other)
    if begin == first:
        return True
    return begin < last and first < end


def _span(edit: Edit) -> tuple[tuple[int, int], tuple[int, int]]:
    return (edit.line, edit.column), (edit.end_line, edit.end_column)


def _offset(lines: Sequence[str], starts: Sequence[int], line: int, column: int) -> int:
    if not 1 <= line <= len(lines):
        raise ValueError(f"there is no line {line}")
    if not 0 <= column <= len(lines[line - 1].rstrip("\r\n")):
        raise ValueError(f"line {line} has no column {column}")
    return starts[line - 1] + column
