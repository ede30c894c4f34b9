"""Texts of errors as people met them are explained rightly, whole; cut, never wrongly.

`seen_texts.toml` has them with their sources and what they mean. Texts of other programs, and of
what is not in the table, are explained by nothing.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tpuctl.errors import NotFound
from tpuctl.model.pasted import explain_text

HERE = Path(__file__).parent
SEEN: list[dict[str, Any]] = tomllib.loads((HERE / "seen_texts.toml").read_text("utf-8"))["text"]
WIDTHS = (80, 100, 120)  # of terminals, which break lines in the middle of a word


def explained(text: str) -> str | None:
    """The name of what it means; None where that is not known."""
    try:
        return explain_text(text, {}).name
    except NotFound as error:
        assert error.diagnostics[0].hint, "where to look"
        return None


def named(row: dict[str, Any]) -> str:
    return f"{row['known']}-{row['source'][:30]}"


def cut(text: str) -> Iterator[str]:
    """What is left where a terminal, a log's end or a mail cuts it."""
    lines = text.strip("\n").split("\n")
    for place in range(1, len(lines)):
        yield "\n".join(lines[place:])
        yield "\n".join(lines[:place])
    for part in (0.25, 0.5, 0.75):
        yield text[: int(len(text) * part)]
        yield text[int(len(text) * part) :]


def wrapped(text: str, width: int) -> str:
    lines = (
        line[at : at + width]
        for line in text.split("\n")
        for at in range(0, max(len(line), 1), width)
    )
    return "\n".join(lines)


@pytest.mark.parametrize("row", SEEN, ids=named)
def test_a_text_is_known_as_it_was_seen(row: dict[str, Any]) -> None:
    assert explained(row["text"]) == row["known"]
    assert explained(f"me@laptop:~$ something\n{row['text']}\n") == row["known"]


@pytest.mark.parametrize("row", SEEN, ids=named)
def test_a_text_that_is_cut_is_never_explained_wrongly(row: dict[str, Any]) -> None:
    rightly = {None, row["known"], *row.get("cut", ())}
    wrong = {(part, explained(part)) for part in cut(row["text"])}
    assert not [(name, part) for part, name in wrong if name not in rightly]
    for width in WIDTHS:
        assert explained(wrapped(row["text"], width)) in rightly, width


def test_a_text_that_is_wrapped_is_mostly_still_known() -> None:
    known = [
        explained(wrapped(row["text"], width)) == row["known"] for row in SEEN for width in WIDTHS
    ]
    assert sum(known) / len(known) > 0.9
