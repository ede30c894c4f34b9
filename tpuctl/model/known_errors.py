"""Known errors, identified by their text: the table in `errors/*.toml`.

For example:

    known_error = table().match_response("NOT_FOUND", "Reservation not found")
    print(known_error.cause, known_error.hint({"project": "my-project"}))
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from itertools import chain
from typing import Any, Literal

__all__ = ["Fault", "KnownError", "Table", "extract_facts", "table"]

Fault = Literal["infrastructure", "failure"]

# Patterns of names in Google's messages, by placeholder; the first matching group counts.
FACTS = {
    "zone": r"\b([a-z]+-[a-z]+\d+-[a-z])\b",
    "region": r"\b([a-z]+-[a-z]+\d+)(?:-[a-z])?\b",
    "type": r"""accelerator[_ ]type['"]?[,:]* ['"]([\w-]+)['"]|accelerator (v\S+) was not found""",
    "service": r"\b([a-z]+\.googleapis\.com)\b",
    "project": r"\bprojects/((?:[a-z][\w-]*\.[\w.-]+:)?[a-z][\w-]+)"
    r"|\bproject[=\s]'?(\d{6,}|[a-z][a-z0-9-]{5,29})\b",
    "account": r'service account "([^"]+)"|\b([\w-]+@[\w.-]+gserviceaccount\.com)',
    "who": r"\bUser: '([^']+)'|(\S+@\S+) does not have storage\.",
    "bucket": r"gs://([a-z0-9][\w.-]+)|storage\.\S+ access to ([a-z0-9][\w-]*\.[\w.-]*\w)",
    "permission": r"[Pp]ermission '([\w.]+)'|Required '([\w.]+)'|not have (storage[\w.]+) access",
    "network": r'on network "([^"]+)"|\bnetworks/([a-z][\w-]*)',
    "constraint": r"\bconstraints?[/ ]'?(?:constraints/)?([a-z]+\.[\w.]+)",
}
PLACEHOLDER = re.compile(r"\{([a-z]+)\}")
OPTIONAL = re.compile(r"\[\[(.*?)\]\]")


@dataclass(frozen=True)
class KnownError:
    """A known error: what happened, why, the fix, and the patterns that identify it."""

    summary: str
    cause: str
    hint_template: str  # with placeholders for facts
    name: str = ""  # empty for an entry of a status
    kind: str = ""
    exception: str = ""  # name of the exception class for an API response
    scope: str = ""
    statuses: Collection[str] = ()
    reasons: Collection[str] = ()
    match: re.Pattern[str] | None = None  # identifies it anywhere
    response: re.Pattern[str] | None = None  # generic text, only for API responses
    lines: re.Pattern[str] | None = None  # for lines of logs and pasted output
    log: re.Pattern[str] | None = None  # for lines of job logs only
    weak: bool = False  # matches only if the text has no other error
    fault: Fault | None = None
    source: str = ""

    def is_line(self, line: str) -> bool:
        """Whether a line of a job's log matches."""
        patterns = (self.match, self.lines, self.log)
        return any(each is not None and each.search(line) is not None for each in patterns)

    def hint(self, facts: Mapping[str, str]) -> str:
        """The hint with placeholders replaced by facts; unknown ones become `ZONE` and the like."""
        values = {**facts}
        if "permission" in values:
            role = table().roles.get(values["permission"].partition(".")[0])
            values |= {"role": role} if role else {}
        if "who" in values:
            is_account = values["who"].endswith("gserviceaccount.com")
            values["member"] = f"{'serviceAccount' if is_account else 'user'}:{values['who']}"

        def optional(match: re.Match[str]) -> str:
            return match[1] if {*PLACEHOLDER.findall(match[1])} <= values.keys() else ""

        text = OPTIONAL.sub(optional, self.hint_template)
        return PLACEHOLDER.sub(lambda match: values.get(match[1]) or match[1].upper(), text)


@dataclass(frozen=True)
class Table:
    kinds: Mapping[str, str]  # titles by kind, in order
    roles: Mapping[str, str]
    errors: tuple[KnownError, ...]
    statuses: tuple[KnownError, ...]  # the last one is the default

    @cached_property
    def signatures(self) -> tuple[KnownError, ...]:
        """The errors that job logs are searched for."""
        return tuple(error for error in self.errors if error.fault is not None)

    def match_response(
        self, status: str, text: str, reasons: Collection[str] = ()
    ) -> KnownError | None:
        """The known error of an API response; None if only its status is known.

        Identifying text takes precedence over reasons, which cover several conditions, and both
        over generic text.
        """
        candidates = [error for error in self.errors if error.exception]
        by_text = (
            error for error in candidates if error.match is not None and error.match.search(text)
        )
        by_reason = (error for error in candidates if not {*error.reasons}.isdisjoint(reasons))
        by_words = (
            error
            for error in candidates
            if error.response is not None
            and status in error.statuses
            and error.response.search(text)
        )
        return next(chain(by_text, by_reason, by_words), None)

    def by_name(self, name: str) -> KnownError:
        return next(error for error in self.errors if error.name == name)

    def by_status(self, status: str) -> KnownError:
        matches = (entry for entry in self.statuses if status in entry.statuses)
        return next(matches, self.statuses[-1])


@cache
def table() -> Table:
    """The table, loaded once, in the order of the files in `index.toml`."""
    folder = files(__package__).joinpath("errors")

    def read(name: str) -> dict[str, Any]:
        return tomllib.loads(folder.joinpath(f"{name}.toml").read_text("utf-8"))

    index = read("index")
    parts = [read(name) for name in index["files"]]
    return Table(
        dict(index["kinds"]),
        index["roles"],
        tuple(_known_error(row) for part in parts for row in part["error"]),
        tuple(_known_error(row) for row in read("statuses")["status"]),
    )


def _known_error(row: Mapping[str, Any]) -> KnownError:
    fields: dict[str, Any] = {**row, "hint_template": row["hint"].strip("\n")}
    del fields["hint"]
    for key in ("match", "response"):
        if key in fields:
            fields[key] = _compile(fields[key])
    for key in ("lines", "log"):
        if key in fields:
            fields[key] = re.compile(fields[key])
    return KnownError(**fields)


def _compile(fragments: str | Sequence[str]) -> re.Pattern[str]:
    """Join patterns; a space matches any whitespace, including line breaks."""
    alternatives = [fragments] if isinstance(fragments, str) else fragments
    return re.compile("|".join(alternatives).replace(" ", r"\s+"), re.IGNORECASE)


def extract_facts(*texts: str, **overrides: str) -> dict[str, str]:
    """Facts named in the texts, by placeholder; nonempty `overrides` take precedence."""
    facts: dict[str, str] = {}
    for name, pattern in FACTS.items():
        for text in texts:
            match = re.search(pattern, text)
            if match is not None:
                facts[name] = next(group for group in match.groups() if group is not None)
                break
    return facts | {name: value for name, value in overrides.items() if value}
