"""Error texts seen in public are explained correctly, and never wrongly when truncated.

`seen_texts.toml` has them with their sources and meanings. Texts of other programs, and of
conditions that are not in the table (`foreign_texts.toml`), have no explanation.
"""

from __future__ import annotations

import functools
import random
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tpuctl.errors import NotFound
from tpuctl.model.troubleshooting.known_errors import table
from tpuctl.model.troubleshooting.pasted_error import explain_text

pytestmark = pytest.mark.long

HERE = Path(__file__).parent


def texts(name: str) -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = tomllib.loads((HERE / name).read_text("utf-8"))["text"]
    return read


SEEN, FOREIGN = texts("seen_texts.toml"), texts("foreign_texts.toml")
# They say no more than a part of a text proves.
GENERAL = {error.name for error in table().errors if error.general}
SOME = 40  # texts that `make test` draws
WIDTHS = (80, 100, 120)  # of terminals, which wrap lines in the middle of words


@functools.cache  # several tests wrap the same texts
def explained(text: str) -> str | None:
    """The name of the explained error; None if unknown."""
    try:
        return explain_text(text, {}).name
    except NotFound as error:
        assert error.diagnostics[0].hint, "every explanation has a hint"
        return None


def name_of(row: dict[str, Any]) -> str:
    return f"{row['known']}-{row['source'][:30]}"


def cut(text: str) -> Iterator[str]:
    """The rest of a text cut off by a terminal, the end of a log or an e-mail."""
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


@pytest.mark.parametrize("row", SEEN, ids=name_of)
def test_seen_text_is_recognized(row: dict[str, Any]) -> None:
    assert explained(row["text"]) == row["known"]
    assert explained(f"me@laptop:~$ something\n{row['text']}\n") == row["known"]


def wrongly_explained(rows: list[dict[str, Any]]) -> list[tuple[str, str | None, str]]:
    """Source, explanation and text of parts, and of wrapped texts, that are explained wrongly."""
    return [
        (row["source"], name, part)
        for row in rows
        for part in [*cut(row["text"]), *(wrapped(row["text"], width) for width in WIDTHS)]
        if (name := explained(part)) not in {None, row["known"], *row.get("cut", ()), *GENERAL}
    ]


def recognized_when_wrapped(rows: list[dict[str, Any]]) -> float:
    """The share of wrapped texts that are explained."""
    matches = [
        explained(wrapped(row["text"], width)) == row["known"] for row in rows for width in WIDTHS
    ]
    return sum(matches) / len(matches)


def test_sampled_parts_of_texts_are_never_explained_wrongly() -> None:
    assert wrongly_explained(random.sample(SEEN, SOME)) == []


@pytest.mark.soak
def test_parts_of_texts_are_never_explained_wrongly() -> None:
    assert wrongly_explained(SEEN) == []


def test_sampled_wrapped_texts_are_mostly_recognized() -> None:
    assert recognized_when_wrapped(random.sample(SEEN, SOME)) > 0.8


@pytest.mark.soak
def test_wrapped_texts_are_mostly_recognized() -> None:
    assert recognized_when_wrapped(SEEN) > 0.9


@pytest.mark.parametrize("row", FOREIGN, ids=lambda row: row["source"])
def test_other_texts_are_unknown(row: dict[str, Any]) -> None:
    for part in (row["text"], *cut(row["text"])):
        assert explained(part) is None, part


def test_survived_errors_do_not_count() -> None:
    survived = 'Traceback (most recent call last):\n  File "a.py", line 2, in retry\n{}\n'
    end = 'Traceback (most recent call last):\n  File "b.py", line 9, in <module>\n{}\n'
    full = survived.format("OSError: [Errno 28] No space left on device")
    assert explained(full + "retrying elsewhere\n" + end.format("ValueError: x")) is None
    passed_on = "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated"
    assert explained(full + end.format(passed_on)) == "other-failed", "only the last lines count"
    busy = survived.format("RuntimeError: open(/dev/vfio/1): Device or resource busy")
    assert explained(busy + end.format("ValueError: x")) is None
    assert explained(busy + end.format(passed_on)) == "chips-busy", (
        "the last exception was raised from it"
    )


def test_weak_match_counts_only_without_other_errors() -> None:
    remark = "WARNING:root:Defaulting to PJRT_DEVICE=CPU\n"
    assert explained(remark) == "torch-on-cpu"
    assert explained(remark + "step 1 loss 2.3\n") == "torch-on-cpu"
    assert explained(remark + "ValueError: something never seen\n") is None
    assert explained(remark + "ERROR: (gcloud.x) something never seen\n") is None


def test_general_error_counts_only_if_no_other_matches() -> None:
    traceback = 'Traceback (most recent call last):\n  File "a.py", line 2, in step\n{}\n'
    missing = "KeyError: 'x'"
    assert explained(missing) == "missing-key"
    assert explained(traceback.format(missing)) == "missing-key"
    assert explained(f"MemoryError\n{missing}\n") == "host-memory", "although it is not the last"
    survived = traceback.format(missing) + "retrying\n"
    assert explained(survived + traceback.format("Hungry: never seen")) is None
    passed_on = "torch.multiprocessing.spawn.ProcessRaisedException: process 0 terminated"
    assert explained(missing + traceback.format(passed_on)) == "missing-key", "not its report"


@pytest.mark.parametrize(
    "part", ["Error: ", "TypeError: shape ", "ValueError: dtype expected ", "AttributeError: x: "]
)
def test_general_patterns_are_fast_for_any_line(part: str) -> None:
    """A pattern that is not bounded would take minutes for these."""
    table().match_general([part * 50_000])


def wrongly_rejected(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Errors and texts that the error's pattern finds, but that lack its required words."""
    return [
        (error.name, row["text"])
        for row in rows
        for error in table().errors
        if error.match is not None
        and error.match.search(row["text"]) is not None
        and error.find(row["text"], row["text"].lower()) is None
    ]


def test_required_words_reject_no_sampled_text_that_a_pattern_finds() -> None:
    assert wrongly_rejected(random.sample(SEEN, SOME)) == []


@pytest.mark.soak
def test_required_words_reject_no_text_that_a_pattern_finds() -> None:
    assert wrongly_rejected(SEEN) == []


def test_response_compiles_only_patterns_that_may_match() -> None:
    table.cache_clear()
    try:
        errors = table().errors
        missing = "The resource 'projects/p/global/networks/n' was not found"
        known_error = table().match_response("NOT_FOUND", missing)
        assert known_error is not None and known_error.name == "network-missing"
        compiled = {error.name for error in errors if "match" in vars(error)}
        assert {"clock", "perimeter", "libtpu-lock"}.isdisjoint(compiled)
    finally:
        table.cache_clear()
