"""Comments that suppress rules: `# tpuctl: ignore[TPU101]`, `# tpuctl: ignore-file[TPU501]`.

The first applies to a statement, at the end of its first or last line or of the finding's line;
the second to the whole file, before the first statement. Without codes they apply to all rules.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tpuctl.preflight.analysis.program.source import Module
from tpuctl.preflight.findings import CheckNote, Finding
from tpuctl.preflight.rules import RULES, matching_codes
from tpuctl.spelling import nearest

MARK = "tpuctl:"
COMMENT = re.compile(r"#\s*tpuctl:\s*(?P<word>[A-Za-z][\w-]*)?\s*(?P<rest>\[[^\]#]*\]?)?")
WORDS = ("ignore", "ignore-file")


@dataclass
class Suppressions:
    """The suppressed rules of one file, and notes about invalid comments."""

    whole_file: set[str] = field(default_factory=set)
    by_line: dict[int, set[str]] = field(default_factory=dict)
    notes: list[CheckNote] = field(default_factory=list)
    module: Module | None = None

    @classmethod
    def from_module(cls, module: Module) -> Suppressions:
        """Read the comments of a Python file, ignoring strings."""
        suppressions = cls(module=module)
        if MARK in module.text:
            suppressions._read(module.path, _comments(module.text), _first_statement(module.tree))
        return suppressions

    @classmethod
    def from_file(cls, path: Path) -> Suppressions:
        """Read another file with `#` comments, such as requirements.txt."""
        suppressions = cls()
        try:
            text = path.read_text("utf-8", "replace")
        except OSError:
            return suppressions
        lines = enumerate(text.splitlines(), 1)
        marked = ((number, line[line.find("#") :], False) for number, line in lines if MARK in line)
        suppressions._read(path, marked, 0)
        return suppressions

    def covers(self, finding: Finding) -> bool:
        if finding.code in self.whole_file:
            return True
        if not self.by_line:
            return False
        lines = {finding.line, *self._ends_around(finding.line)}
        return any(finding.code in self.by_line.get(line, ()) for line in lines)

    def _read(self, path: Path, comments: Iterator[tuple[int, str, bool]], first: int) -> None:
        """`first` is the line of the first statement; 0 if there is none."""
        for line, comment, is_alone in comments:
            for match in COMMENT.finditer(comment):
                word, rest = match["word"] or "", match["rest"]
                codes, problem = _parse(word, rest)
                if word == "ignore-file" and line > first > 0:
                    codes, problem = set(), problem or f"{MARK} {word} must come before any code"
                # After another comment it is about that line, such as one of script metadata.
                elif word == "ignore" and is_alone and match.start() == 0:
                    problem = problem or f"{MARK} {word} must be at the end of a line of code"
                    codes = set()
                if problem:
                    ending = "" if codes else "; no rule is suppressed"
                    self.notes.append(CheckNote(path, line, problem + ending))
                if word == "ignore-file":
                    self.whole_file |= codes
                elif codes:
                    self.by_line.setdefault(line, set()).update(codes)

    def _ends_around(self, line: int) -> tuple[int, ...]:
        """The first and last lines of the innermost statement around a line."""
        if self.module is None:
            return ()
        spans = _spans(self.module)
        return max((span for span in spans if span[0] <= line <= span[1]), default=())


def _parse(word: str, rest: str | None) -> tuple[set[str], str]:
    """The suppressed codes, and the problem with the comment, if any."""
    if word not in WORDS:
        is_meant = rest is not None or bool(nearest(word, WORDS, 1))
        return set(), f"unknown comment {MARK} {word}".rstrip() if is_meant else ""
    if rest is None:
        return set(RULES), ""
    if not rest.endswith("]"):
        return set(), f"missing ] in {MARK} {word}"
    words = [selector for selector in re.split(r"[\s,]+", rest[1:-1]) if selector]
    if not words:
        return set(), f"{MARK} {word}[] names no rule"
    codes: set[str] = set()
    unknown = []
    for selector in words:
        matched = matching_codes(selector)
        codes |= matched
        if not matched:
            like = nearest(selector, (rule.name for rule in RULES.values()), 1)
            unknown.append(f"{selector} (did you mean {like[0]}?)" if like else selector)
    return codes, f"unknown rule {', '.join(unknown)}" if unknown else ""


def _comments(text: str) -> Iterator[tuple[int, str, bool]]:
    """Line, text, and whether the comment is alone on its line, for each comment."""
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT and MARK in token.string:
                yield token.start[0], token.string, not token.line[: token.start[1]].strip()
    except (tokenize.TokenError, SyntaxError):  # the parser accepts more than the tokenizer
        return


def _first_statement(tree: ast.Module) -> int:
    """The line of the first statement after the docstring; 0 if there is none."""
    body = tree.body[1:] if ast.get_docstring(tree, clean=False) is not None else tree.body
    return min((_first_line(statement) for statement in body), default=0)


def _spans(module: Module) -> Iterator[tuple[int, int]]:
    """First and last lines of all statements; for compound statements, of the header."""
    for statement in ast.walk(module.tree):
        if isinstance(statement, ast.stmt):
            inner = getattr(statement, "body", None) or getattr(statement, "cases", None)
            last = statement.end_lineno or statement.lineno
            if inner:
                first = inner[0].pattern if isinstance(inner[0], ast.match_case) else inner[0]
                last = max(_first_line(first) - 1, statement.lineno)
                while last > statement.lineno and not _has_code(module.lines[last - 1]):
                    last -= 1
            yield _first_line(statement), last


def _has_code(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _first_line(statement: ast.AST) -> int:
    lines: list[int] = [decorator.lineno for decorator in getattr(statement, "decorator_list", [])]
    return min([getattr(statement, "lineno", 1), *lines])
