"""The one table of errors that are known by their words: `known_errors.toml`, read and filled in.

For example:

    found = look_up("Reservation not found")
    print(found.summary, found.why, found.hint({"project": "my-project"}))
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, Literal

from tpuctl.model.last_words import last_words

__all__ = ["Fault", "Known", "Table", "facts_of", "look_up", "table"]

Fault = Literal["infrastructure", "failure"]

# What texts of Google's name, by what a hint calls it; the first group that matched counts.
FACTS = {
    "zone": r"\b([a-z]+-[a-z]+\d+-[a-z])\b",
    "region": r"\b([a-z]+-[a-z]+\d+)(?:-[a-z])?\b",
    "type": r"""accelerator[_ ]type['"]?[,:]* ['"]([\w-]+)['"]|accelerator (v\S+) was not found""",
    "service": r"\b([a-z]+\.googleapis\.com)\b",
    "project": r"\bprojects/([a-z][\w:.-]+)|\bproject[=\s]'?(\d{6,}|[a-z][a-z0-9-]{5,29})\b",
    "account": r'service account "([^"]+)"|\b([\w-]+@[\w.-]+gserviceaccount\.com)',
    "who": r"\bUser: '([^']+)'|(\S+@\S+) does not have storage\.",
    "bucket": r"gs://([a-z0-9][\w.-]+)|storage\.\S+ access to ([a-z0-9][\w-]*\.[\w.-]*\w)",
    "permission": r"[Pp]ermission '([\w.]+)'|Required '([\w.]+)'|not have (storage[\w.]+) access",
    "network": r'on network "([^"]+)"|\bnetworks/([a-z][\w-]*)',
    "constraint": r"\bconstraints?[/ ]'?(?:constraints/)?([a-z]+\.[\w.]+)",
}
PLACE = re.compile(r"\{([a-z]+)\}")
OPTIONAL = re.compile(r"\[\[(.*?)\]\]")
# Statuses as they stand in a text that somebody pasted: a number of HTTP's, or a name.
STATUS = re.compile(r"\b([A-Z]{4,}(?:_[A-Z]+)+|INTERNAL|ABORTED|UNAVAILABLE|UNIMPLEMENTED)\b")
HTTP = re.compile(r"(?:\b[Ee]rror:? |HTTP(?: status)? |^|\()(4\d\d|5\d\d)\b")
OF_HTTP = {
    "400": ("INVALID_ARGUMENT", "FAILED_PRECONDITION"),
    "401": ("UNAUTHENTICATED",),
    "403": ("PERMISSION_DENIED",),
    "404": ("NOT_FOUND",),
    "409": ("ALREADY_EXISTS", "ABORTED"),
    "412": ("FAILED_PRECONDITION",),
    "429": ("RESOURCE_EXHAUSTED",),
    "500": ("INTERNAL",),
    "501": ("UNIMPLEMENTED",),
    "502": ("UNAVAILABLE",),
    "503": ("UNAVAILABLE",),
    "504": ("DEADLINE_EXCEEDED",),
}


@dataclass(frozen=True)
class Known:
    """One entry: what happened, why, and what mends it, with how it is recognised."""

    summary: str
    why: str
    mending: str  # the hint, with places for facts
    name: str = ""  # empty of what is known by its status alone
    kind: str = ""
    raised: str = ""  # the class of error that an answer becomes, by its name
    scope: str = ""
    statuses: Collection[str] = ()
    reasons: Collection[str] = ()
    answers: re.Pattern[str] | None = None
    lines: re.Pattern[str] | None = None
    fault: Fault | None = None
    told: re.Pattern[str] | None = None
    source: str = ""

    def is_answer(self, status: str, text: str, reasons: Collection[str] = ()) -> bool:
        """Whether an API that answers so means this."""
        if not {*self.reasons}.isdisjoint(reasons):
            return True
        if self.answers is None or (self.statuses and status not in self.statuses):
            return False
        return self.answers.search(text) is not None

    def hint(self, facts: Mapping[str, str]) -> str:
        """What mends it, with these facts in their places; `ZONE` and such for those unknown."""
        known = {**facts}
        if "permission" in known:
            role = table().roles.get(known["permission"].partition(".")[0])
            known |= {"role": role} if role else {}
        if "who" in known:
            is_account = known["who"].endswith("gserviceaccount.com")
            known["member"] = f"{'serviceAccount' if is_account else 'user'}:{known['who']}"

        def optional(found: re.Match[str]) -> str:
            return found[1] if {*PLACE.findall(found[1])} <= known.keys() else ""

        text = OPTIONAL.sub(optional, self.mending)
        return PLACE.sub(lambda found: known.get(found[1]) or found[1].upper(), text)


@dataclass(frozen=True)
class Table:
    kinds: Mapping[str, str]  # titles, in order
    roles: Mapping[str, str]
    errors: tuple[Known, ...]
    statuses: tuple[Known, ...]  # the last one for whatever there is else

    @cached_property
    def signatures(self) -> tuple[Known, ...]:
        """What a line of a job's log gives away."""
        return tuple(one for one in self.errors if one.lines is not None)

    def answer(self, status: str, text: str, reasons: Collection[str] = ()) -> Known | None:
        """What an API's answer means; None where only its status tells."""
        found = (one for one in self.errors if one.raised)
        return next((one for one in found if one.is_answer(status, text, reasons)), None)

    def named(self, name: str) -> Known:
        return next(one for one in self.errors if one.name == name)

    def of_status(self, status: str) -> Known:
        found = (one for one in self.statuses if status in one.statuses)
        return next(found, self.statuses[-1])


@cache
def table() -> Table:
    """The whole table, read once."""
    read = tomllib.loads(files(__package__).joinpath("known_errors.toml").read_text("utf-8"))
    return Table(
        dict(read["kinds"]),
        read["roles"],
        tuple(_known(one) for one in read["error"]),
        tuple(_known(one) for one in read["status"]),
    )


def _known(row: Mapping[str, Any]) -> Known:
    fields: dict[str, Any] = {**row, "mending": row["hint"].strip("\n")}
    del fields["hint"]
    for key in ("answers", "lines", "told"):
        if key in fields:
            fields[key] = re.compile(fields[key], re.IGNORECASE if key == "answers" else 0)
    return Known(**fields)


def facts_of(*texts: str, **known: str) -> dict[str, str]:
    """What the texts name, as hints call it; `known` goes before, where it is not empty."""
    found: dict[str, str] = {}
    for name, pattern in FACTS.items():
        for text in texts:
            match = re.search(pattern, text)
            if match is not None:
                found[name] = next(group for group in match.groups() if group is not None)
                break
    return found | {name: value for name, value in known.items() if value}


def look_up(text: str) -> Known | None:
    """What a text means that somebody pasted: an answer, a message of a program, or a log.

    None where nothing in it is known, not even the status of a refusal.
    """
    statuses = {name for name in STATUS.findall(text) if table().of_status(name).statuses}
    for number in HTTP.findall(text):
        statuses |= {*OF_HTTP.get(number, ())}
    answers = [one for one in table().errors if one.raised]
    for one in answers:
        if any(one.is_answer(status, text) for status in statuses or {""}):
            return one
    words = {*STATUS.findall(text)}
    for one in table().errors:
        if (one.told is not None and one.told.search(text)) or not words.isdisjoint(one.reasons):
            return one
    for line in [*last_words(text.encode(errors="replace")), *text.splitlines()]:
        for one in table().signatures:
            if one.lines is not None and one.lines.search(line):
                return one
    for one in answers:  # nothing told its status, or people's words for it
        if any(one.is_answer(status, text) for status in one.statuses):
            return one
    return table().of_status(min(statuses)) if statuses else None
