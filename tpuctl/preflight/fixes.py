"""Fixes for findings: combines their edits, verifies that the result parses, and writes it."""

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

LINES = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|$)")
BREAK = re.compile(r"\r\n|\r|\n")
BREAK_AT_END = re.compile(r"(?:\r\n|\r|\n)\Z")


@dataclass(frozen=True)
class SkippedFix:
    """A finding whose fix is not applied, and the reason."""

    finding: Finding
    reason: str


@dataclass(frozen=True)
class Rewrite:
    """A file before and after its fixes."""

    path: Path
    before: bytes
    after: bytes
    encoding: str


@dataclass(frozen=True)
class Fixes:
    """The rewritten files, the findings that they fix, and the skipped fixes."""

    rewrites: tuple[Rewrite, ...] = ()
    findings: tuple[Finding, ...] = ()
    skipped: tuple[SkippedFix, ...] = ()


@dataclass
class _File:
    """A file and its pending edits."""

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
        """The file's content after the edits, in its encoding and with its line endings.

        Raises ValueError for edits that overlap or do not fit the file.
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
                raise ValueError("its edits overlap")
            pieces += [text[done:begin], BREAK.sub(newline, edit.text)]
            done = end
        return "".join([*pieces, text[done:]]).encode(self.encoding)


def propose(findings: Iterable[Finding]) -> Fixes:
    """Apply the findings' edits in memory; nothing is written.

    The edits of one finding are applied together or not at all: not if they overlap those of an
    earlier finding, and not if Python could not parse the result.
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
    """Replace the file atomically; return why that failed, empty on success.

    Keeps the mode and symbolic links. A file that has changed since it was read is not written.
    """
    path = rewrite.path.resolve()
    try:
        status = path.stat()
        if path.read_bytes() != rewrite.before:
            return "the file has changed since the check"
        if not status.st_mode & 0o222 or not os.access(path, os.W_OK):
            return "the file is read-only"
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as target:
                target.write(rewrite.after)
            Path(draft).chmod(status.st_mode & 0o7777)
            with suppress(OSError):  # without the privilege, the current user owns the file
                os.chown(draft, status.st_uid, status.st_gid)
            Path(draft).replace(path)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise
    except OSError as error:
        return error.strerror or str(error)
    return ""


def diff(rewrite: Rewrite, name: str) -> list[str]:
    """The lines of a unified diff, without line endings."""
    before, after = (
        BREAK.split(BREAK_AT_END.sub("", data.decode(rewrite.encoding)))
        for data in (rewrite.before, rewrite.after)
    )
    lines = difflib.unified_diff(before, after, name, f"{name} (fixed)", lineterm="")
    return list(lines)


def _refusal(finding: Finding, files: dict[Path, _File]) -> str:
    """Why the edits of a finding cannot be applied; empty if they can."""
    try:
        for path in {edit.path for edit in finding.edits}:
            if path not in files:
                files[path] = _File.read(path)
            file = files[path]
            new_edits = [
                edit for edit in finding.edits if edit.path == path and edit not in file.edits
            ]
            if any(_overlap(edit, other) for edit in new_edits for other in file.edits):
                return "it overlaps another fix"
            after = file.after(new_edits)
            if path.suffix != ".txt":
                _require_python(after, file.before)
    except SyntaxError:
        return "the result would not be valid Python"
    except (OSError, ValueError, RecursionError) as error:
        return str(error)
    return ""


def _require_python(after: bytes, before: bytes) -> None:
    """Raise SyntaxError if it does not parse, or if the declared encoding changes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ast.parse(after)
    encodings = {tokenize.detect_encoding(io.BytesIO(data).readline)[0] for data in (after, before)}
    if len(encodings) > 1:
        raise SyntaxError("the encoding changes")


def _overlap(edit: Edit, other: Edit) -> bool:
    """Whether two edits change the same characters or insert at the same position."""
    (begin, end), (first, last) = _span(edit), _span(other)
    if begin == first:
        return True
    return begin < last and first < end


def _span(edit: Edit) -> tuple[tuple[int, int], tuple[int, int]]:
    return (edit.line, edit.column), (edit.end_line, edit.end_column)


def _offset(lines: Sequence[str], starts: Sequence[int], line: int, column: int) -> int:
    if not 1 <= line <= len(lines):
        raise ValueError(f"the file has no line {line}")
    if not 0 <= column <= len(lines[line - 1].rstrip("\r\n")):
        raise ValueError(f"line {line} has no column {column}")
    return starts[line - 1] + column
