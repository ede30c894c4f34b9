"""The blocks of a page, and what the comment above each says of it.

    ```console        its lines after `$ ` are typed, one after another, in the page's own folder;
                      where output is shown, the command has to answer so: `...` or `…` stands
                      for anything, also for lines
    ```python         is compiled, and run where a comment says `file:` and a command starts it
    ```yaml           where its keys are those of a stack file, is loaded as one

A comment right above a block says what cannot be seen in it:

    <!-- needs: google -->     is not run, for the reason that NEEDS has; `tensorflow` is run by
                               the soak alone
    <!-- fails: 1 -->          the last command ends with this code
    <!-- shown: terminal -->   what is shown is what a terminal of 80 columns shows
    <!-- file: train.py -->    the block is what stands in that file of the page's folder

Two comments are for the tests alone, and have their lines within:

    <!-- given: train.py       a file of the page's folder
    <!-- first:                commands that are typed unseen
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["NEEDS", "ROOT", "Block", "Command", "answers", "blocks", "pages"]

ROOT = Path(__file__).resolve().parents[2]
NEEDS = {
    "google": "a project at Google",
    "network": "a package registry",
    "person": "a person at the terminal",
    "gcloud": "Google's own command line",
    "repository": "a checkout of this repository",
    "pipeline": "a service that runs pipelines",
    "time": "minutes or gigabytes; tests of its own run it",
    "tensorflow": "TensorFlow, so that only the soak runs it",
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
    """What is typed, and the lines that the page shows as the answer."""

    text: str
    expected: tuple[str, ...] = ()


@dataclass(frozen=True)
class Block:
    """One block, or what a comment gives or types unseen."""

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
        """The file of the page's folder that it is."""
        return self.marks.get("file", "")

    @property
    def is_of_terminal(self) -> bool:
        """Whether what it shows is what a terminal shows."""
        return self.marks.get("shown") == "terminal"

    @property
    def exit_code(self) -> int:
        return int(self.marks.get("fails", "0"))

    @property
    def commands(self) -> list[Command]:
        """Of a block with language console."""
        found: list[Command] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append(Command(line[2:]))
            elif found and found[-1].text.endswith("\\") and not found[-1].expected:
                found[-1] = Command(f"{found[-1].text}\n{line.removeprefix('> ')}")
            elif found:
                found[-1] = Command(found[-1].text, (*found[-1].expected, line.rstrip()))
            else:
                raise AssertionError(f"{self.where}: a block of commands begins with `$ `")
        return found


def pages() -> list[Path]:
    """Every page that people read, but for the generated ones that have examples alone."""
    candidates = [ROOT / "README.md", ROOT / "README.ko.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in candidates if path.exists()]


def blocks(page: Path) -> list[Block]:
    """All of a page, in order."""
    return list(_blocks(page, page.read_text("utf-8")))


def _blocks(page: Path, text: str) -> Iterator[Block]:
    marks: dict[str, str] = {}
    end = 0
    for token in _TOKEN.finditer(text):
        line = text.count("\n", 0, token.start()) + 1
        if text[end : token.start()].strip():
            assert not marks, f"{page.name}:{line}: a comment stands above no block: {marks}"
        end = token.end()
        if token["key"] is None:
            indent = len(token["indent"])
            body = "".join(line[indent:] for line in token["text"].splitlines(keepends=True))
            yield Block(page, line, token["language"], body, marks)
            marks = {}
        elif token["key"] == "given":
            name, _, body = token["value"].partition("\n")
            yield Block(page, line, "", body, {"file": name.strip()})
        elif token["key"] == "first":
            yield Block(page, line, "console", token["value"].strip("\n"))
        else:
            assert token["key"] in ("needs", "fails", "file", "shown"), (
                f"{page.name}:{line}: {token[0]}"
            )
            marks[token["key"]] = token["value"].strip()
    assert not marks, f"{page.name}: a comment stands above no block: {marks}"


def answers(expected: tuple[str, ...], output: str) -> bool:
    """Whether an output is what a page shows of it; where lines are broken does not matter."""
    parts = _ANYTHING.split(" ".join(" ".join(expected).split()))
    pattern = ".*".join(r"\s*" + re.escape(part.strip()) + r"\s*" for part in parts)
    return re.fullmatch(pattern, " ".join(output.split())) is not None
