"""Translates between a recording's names and ids and those of the local cloud.

Identifiers are learned by reading a recorded response beside the local one: operation names, ids,
etags, generations. Placeholders such as `${networkID}`, which recorders write over names, get a
valid name when a request first uses them.
"""

from __future__ import annotations

import re
from typing import Any

_PLACEHOLDER = re.compile(r"\$\{(\w+)\}")
_LEARNED_KEYS = re.compile(
    r"(?i)name|id|etag|(label)?fingerprint|generation|metageneration|uniqueId|projectNumber|target"
    r"|nextPageToken|selfLink|oauth2ClientId|email|targetLink|number|project(id)?|consumer|parent"
)
_SPLIT = re.compile(r"([/:@?&=]+)")


class Identifiers:
    """Both directions: `to_local` for requests, `to_recorded` for responses."""

    def __init__(self) -> None:
        self._local: dict[str, str] = {}  # by recorded text
        self._by_key: dict[tuple[str, str], str] = {}  # by key of a field and recorded value
        self._is_fixed: set[str] = set()  # not learned: assigned by a request
        self._lost: set[str] = set()  # of responses that the local cloud did not give

    def assign(self, recorded: str, local: str) -> None:
        """Translate this text from now on, whatever responses contain."""
        self._local[recorded] = local
        self._is_fixed.add(recorded)

    def rename(self, recorded: str, local: str) -> None:
        """Give a placeholder that recorders wrote over several names its next one."""
        self._local[recorded] = local

    def lose(self, recorded: Any) -> None:
        """The local cloud did not answer as recorded: its identifiers cannot be used."""
        name = str(recorded.get("name", "")) if isinstance(recorded, dict) else ""
        if _is_identifier(last := name.rpartition("/")[2]) and last not in self._is_fixed:
            self._lost.add(last)

    def is_lost(self, text: str) -> bool:
        """Whether a request refers to a response that the local cloud did not give."""
        return any(name in text for name in self._lost)

    def to_local(self, text: str) -> str:
        """A request's text with local names and ids."""
        for name in dict.fromkeys(_PLACEHOLDER.findall(text)):
            placeholder = f"${{{name}}}"
            if placeholder not in self._local:
                self.assign(placeholder, f"{_as_name(name)}{len(self._local)}")
        for recorded in sorted(self._local, key=len, reverse=True):
            if recorded in text:
                text = _replace(text, recorded, self._local[recorded])
        return text

    def value_to_local(self, key: str, value: str) -> str:
        """A field's value or a parameter's: as learned for this key, else as text."""
        if value.startswith(("organizations/", "folders/")) and key == "id":
            value = value.partition("/")[2]  # of a parent, as some recorders write over its number
        is_learned = "${" not in value and (key, value) in self._by_key
        return self._by_key[key, value] if is_learned else self.to_local(value)

    def to_recorded(self, text: str) -> str:
        """A local response's text with the recording's names and ids."""
        pairs = {local: recorded for recorded, local in self._local.items() if len(local) > 3}
        for local in sorted(pairs, key=len, reverse=True):
            if local in text and pairs[local].startswith("${"):
                text = text.replace(local, pairs[local])
            elif local in text:
                text = _replace(text, local, pairs[local])
        return text

    def learn(self, recorded: Any, local: Any, key: str = "") -> None:
        """Learn the identifiers of two responses to the same request."""
        if isinstance(recorded, dict) and isinstance(local, dict):
            for name in recorded.keys() & local.keys():
                self.learn(recorded[name], local[name], name)
        elif isinstance(recorded, list) and isinstance(local, list):
            for first, other in zip(recorded, local, strict=False):
                if len(recorded) == len(local):
                    self.learn(first, other, key)
        elif (
            isinstance(recorded, str)
            and isinstance(local, str)
            and recorded != local
            and _LEARNED_KEYS.fullmatch(key)
        ):
            self._by_key[key, recorded] = local
            self._learn_parts(_SPLIT.split(recorded), _SPLIT.split(local))

    def _learn_parts(self, recorded: list[str], local: list[str]) -> None:
        if len(recorded) != len(local):
            return
        for first, other in zip(recorded, local, strict=True):
            if first != other and _is_identifier(first) and first not in self._is_fixed:
                self._local[first] = other
                self._lost.discard(first)


def _replace(text: str, old: str, new: str) -> str:
    """Replace whole words only, so that ids within longer ids stay."""
    if old.startswith("$"):
        return text.replace(old, new)
    return re.sub(rf"(?<![A-Za-z0-9]){re.escape(old)}(?![A-Za-z0-9])", lambda _: new, text)


def _is_identifier(text: str) -> bool:
    if re.fullmatch(r"0+", text):  # written over every id
        return False
    return bool(re.fullmatch(r"\d{6,}|operation-.*|\$\{\w+\}|[\w.=-]*\d[\w.=-]{7,}", text))


def _as_name(placeholder: str) -> str:
    """Valid for every kind of resource: lower-case letters."""
    return re.sub(r"[^a-z]", "", placeholder.lower()).removesuffix("id")[:20]
