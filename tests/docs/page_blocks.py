"""Parses the code blocks of a page, and the comments that tell the tests how to run them.

    ```console        lines after `$ ` are run one after another in a folder for the page; output
                      on the page must match the command's output, where `...` or `…` matches
                      anything, including newlines
    ```python         is compiled; run only if a comment has `file:` and a command runs the file
    ```yaml           is loaded as a stack file if it has a stack file's keys

A comment directly above a block sets its options:

    <!-- needs: google -->     the block is not run; NEEDS has the reasons. `tensorflow` blocks
                               are run by `make soak` only
    <!-- fails: 1 -->          the exit code of the last command
    <!-- shown: terminal -->   the output is that of a terminal with 80 columns
    <!-- file: train.py -->    the block is the content of that file in the page's folder

Two comments contain hidden blocks, which only the tests use:

    <!-- given: train.py       the content of a file in the page's folder
    <!-- first:                commands to run
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NEEDS = {
    "google": "a Google Cloud project",
    "network": "a package registry",
    "person": "a person at the terminal",
    "gcloud": "Google's command line",
    "repository": "a checkout of this repository",
    "recording": "a recording",
    "pipeline": "a service that runs pipelines",
    "time": "minutes or gigabytes; separate tests run it",
    "tensorflow": "TensorFlow, so that only `make soak` runs it",
}
MARKS = ("needs", "fails", "file", "shown")
_TOKEN = re.compile(
    r"^<!--\s*(?P<key>[a-z]+):\s*(?P<value>.*?)-->\s*$"
    r"|^(?P<indent>[ ]*)```(?P<language>[\w-]*)[^\n]*\n(?P<text>.*?)^[ ]*```\s*$",
    re.MULTILINE | re.DOTALL,
)
_ANYTHING = re.compile(r"\.\.\.|…")


@dataclass(frozen=True)
class Command:
    """A command line, and its output according to the page."""

    text: str
    expected: tuple[str, ...] = ()


@dataclass(frozen=True)
class Block:
    """A block of a page, visible or in a comment."""

    page: Path
    line: int
    language: str
    text: str
    marks: dict[str, str] = field(default_factory=dict)

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def needs(self) -> str:
        return self.marks.get("needs", "")

    @property
    def file(self) -> str:
        """The name of the file that has this content, or ""."""
        return self.marks.get("file", "")

    @property
    def is_terminal_output(self) -> bool:
        """Whether its output is that of a terminal."""
        return self.marks.get("shown") == "terminal"

    @property
    def exit_code(self) -> int:
        return int(self.marks.get("fails", "0"))

    @property
    def commands(self) -> list[Command]:
        """The commands of a console block."""
        commands: list[Command] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                commands.append(Command(line[2:]))
            elif commands and commands[-1].text.endswith("\\") and not commands[-1].expected:
                commands[-1] = Command(f"{commands[-1].text}\n{line.removeprefix('> ')}")
            elif commands:
                commands[-1] = Command(commands[-1].text, (*commands[-1].expected, line.rstrip()))
            else:
                raise AssertionError(f"{self.where}: a block of commands begins with `$ `")
        return commands


def pages() -> list[Path]:
    """All pages for users, including those with generated examples."""
    candidates = [ROOT / "README.md", ROOT / "README.ko.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in candidates if path.exists()]


def blocks(page: Path) -> list[Block]:
    """A page's blocks, in order."""
    return list(_blocks(page, page.read_text("utf-8")))


def _blocks(page: Path, text: str) -> Iterator[Block]:
    marks: dict[str, str] = {}
    end = 0
    for token in _TOKEN.finditer(text):
        line = text.count("\n", 0, token.start()) + 1
        if text[end : token.start()].strip():
            assert not marks, f"{page.name}:{line}: a comment is not above a block: {marks}"
        end = token.end()
        if token["key"] is None:
            indent = len(token["indent"])
            content = "".join(line[indent:] for line in token["text"].splitlines(keepends=True))
            yield Block(page, line, token["language"], content, marks)
            marks = {}
        elif token["key"] == "given":
            name, _, content = token["value"].partition("\n")
            yield Block(page, line, "", content, {"file": name.strip()})
        elif token["key"] == "first":
            yield Block(page, line, "console", token["value"].strip("\n"))
        else:
            assert token["key"] in ("needs", "fails", "file", "shown"), (
                f"{page.name}:{line}: {token[0]}"
            )
            marks[token["key"]] = token["value"].strip()
    assert not marks, f"{page.name}: a comment is not above a block: {marks}"


def matches_output(expected: tuple[str, ...], output: str) -> bool:
    """Whether a command's output matches the page, ignoring whitespace and line breaks."""
    parts = _ANYTHING.split(" ".join(" ".join(expected).split()))
    pattern = ".*".join(r"\s*" + re.escape(part.strip()) + r"\s*" for part in parts)
    return re.fullmatch(pattern, " ".join(output.split())) is not None
