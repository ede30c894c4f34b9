"""What an error text means that somebody pasted, with what mends it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tpuctl.errors import NotFound
from tpuctl.model.known_errors import Fault, facts_of, look_up, table

__all__ = ["Pasted", "explain_text"]

LONGEST_TEXT = 1 << 20  # characters of the end that are looked at
LONGEST_LINE = 200


@dataclass(frozen=True)
class Pasted:
    """What the text means."""

    name: str  # of the known error; empty where only its status is known
    kind: str  # its group, as a title; empty as above
    summary: str
    why: str
    hint: str
    fault: Fault | None  # whose it is where it ends a job
    line: str  # the line of the text that tells it, shortened


def explain_text(text: str, around: Mapping[str, str]) -> Pasted:
    """Raises NotFound for what is not known. `around` is the stack's project, zone and such.

    What the text names goes before what is so of the stack.
    """
    text = text[-LONGEST_TEXT:]
    known = look_up(text)
    if known is None:
        raise NotFound(
            "Not a known error",
            _shortened(text),
            hint="Paste more of it: the whole message, with the lines before. Whether all is well "
            "with the project:\n    tpuctl doctor\nWhy the latest job failed:\n    tpuctl explain",
        )
    lines = [line for line in text.splitlines() if line.strip()]
    telling = next((line for line in lines if look_up(line) == known), lines[0])
    return Pasted(
        known.name,
        table().kinds.get(known.kind, ""),
        known.summary,
        known.why,
        known.hint({**around, **facts_of(telling, text)}),
        known.fault,
        _shortened(telling),
    )


def _shortened(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…"
