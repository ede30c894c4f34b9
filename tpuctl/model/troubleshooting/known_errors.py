"""Known errors, identified by their text: the table in `errors/*.toml`.

For example:

    known_error = table().match_response("NOT_FOUND", "Reservation not found")
    print(known_error.cause, known_error.hint({"project": "my-project"}))
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from itertools import chain
from typing import Any, Literal

Fault = Literal["infrastructure", "failure"]

# Patterns of names in Google's messages, by placeholder; the first matching group counts.
FACTS = {
    "zone": r"\b([a-z]+-[a-z]+\d+-[a-z])\b",
    "region": r"\b([a-z]+-[a-z]+\d+)(?:-[a-z])?\b",
    "type": r"""accelerator[_ ]type['"]?[,:]* ['"]([\w-]+)['"]|accelerator (v\S+) was not found"""
    r'''|AcceleratorType" cannot be "([\w-]+)"''',
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
MAX_GENERAL_LINE = 500  # characters of a line that general patterns are searched in
PLACEHOLDER = re.compile(r"\{([a-z]+)\}")
OPTIONAL = re.compile(r"\[\[(.*?)\]\]")
# To find a word that every match of a regular expression contains.
NOT_LITERAL = re.compile(r"\\.|\[[^\]]*\]")  # escapes and character classes
INNER_GROUP = re.compile(r"\([^()]*\)")
REQUIRED_WORD = re.compile(r"[a-z]{3,}(?![a-z?*{])", re.IGNORECASE)


@dataclass(frozen=True)
class KnownError:
    """A known error: what happened, why, the fix, and the patterns that identify it.

    Compiling the patterns of all errors takes longer than a request, so each one is compiled on
    first use.
    """

    summary: str
    cause: str
    hint_template: str  # with placeholders for facts
    name: str = ""  # empty for an entry of a status
    kind: str = ""
    exception: str = ""  # name of the exception class for an API response
    scope: str = ""
    statuses: Collection[str] = ()
    reasons: Collection[str] = ()
    match_fragments: Sequence[str] = ()
    response_fragments: Sequence[str] = ()
    lines_pattern: str = ""
    log_pattern: str = ""
    weak: bool = False  # matches only if the text has no other error
    general: bool = False  # of any program: matches only if no other entry does
    fault: Fault | None = None
    needs_chips: bool = False  # a machine without chips is at fault, if the script may need them
    source: str = ""

    @cached_property
    def match(self) -> re.Pattern[str] | None:
        """Identifies the error anywhere."""
        return _join(self.match_fragments)

    @cached_property
    def response(self) -> re.Pattern[str] | None:
        """Generic text, only for API responses."""
        return _join(self.response_fragments)

    @cached_property
    def lines(self) -> re.Pattern[str] | None:
        """For lines of logs and pasted output."""
        return re.compile(self.lines_pattern) if self.lines_pattern else None

    @cached_property
    def log(self) -> re.Pattern[str] | None:
        """For lines of job logs only."""
        return re.compile(self.log_pattern) if self.log_pattern else None

    @cached_property
    def _required_words(self) -> frozenset[str]:
        """Words of which any text that `match` finds contains one; "" is in every text."""
        return frozenset(_required_word(fragment) for fragment in self.match_fragments)

    def find(self, text: str, lowered: str) -> re.Match[str] | None:
        """What `match` finds in a text; `lowered` is the text in lower case.

        Texts without any of the required words are rejected without compiling the pattern.
        """
        if self.match_fragments and any(word in lowered for word in self._required_words):
            return self.match.search(text) if self.match is not None else None
        return None

    def is_line(self, line: str) -> bool:
        """Whether a line of a job's log matches."""
        patterns = (self.match, self.lines, self.log)
        return any(pattern is not None and pattern.search(line) is not None for pattern in patterns)

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

    def match_general(self, lines: Iterable[str]) -> tuple[KnownError, str] | None:
        """The general error of a program's final lines, best first, and its line.

        Weak ones, of lines that only pass on another error, count only if no other matches.
        """
        candidates = [line[:MAX_GENERAL_LINE] for line in lines]
        for weak in (False, True):
            errors = [error for error in self.errors if error.general and error.weak is weak]
            for line in candidates:
                for error in errors:
                    if error.is_line(line):
                        return error, line.strip()
        return None

    def match_response(
        self, status: str, text: str, reasons: Collection[str] = ()
    ) -> KnownError | None:
        """The known error of an API response; None if only its status is known.

        Identifying text takes precedence over reasons, which cover several conditions, and both
        over generic text.
        """
        candidates = [error for error in self.errors if error.exception]
        lowered = text.lower()
        by_text = (error for error in candidates if error.find(text, lowered) is not None)
        by_reason = (error for error in candidates if not {*error.reasons}.isdisjoint(reasons))
        by_words = (
            error
            for error in candidates
            if status in error.statuses
            and error.response is not None
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
        fragments = fields.pop(key, ())
        fields[f"{key}_fragments"] = [fragments] if isinstance(fragments, str) else fragments
    for key in ("lines", "log"):
        fields[f"{key}_pattern"] = fields.pop(key, "")
    return KnownError(**fields)


def _join(fragments: Sequence[str]) -> re.Pattern[str] | None:
    """The pattern of all fragments; a space matches any whitespace, including line breaks, and an
    optional one also none."""
    if not fragments:
        return None
    pattern = "|".join(fragments).replace(" ?", r"\s*").replace(" ", r"\s+")
    return re.compile(pattern, re.IGNORECASE)


def _required_word(fragment: str) -> str:
    """A word that each match of a regular expression contains, in lower case; empty if unknown."""
    literal, groups = NOT_LITERAL.sub(".", fragment), 1
    while groups:
        literal, groups = INNER_GROUP.subn(".", literal)
    if "|" in literal:  # alternatives
        return ""
    return max(REQUIRED_WORD.findall(literal), key=len, default="").lower()


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
