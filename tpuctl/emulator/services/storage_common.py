"""What the parts of Cloud Storage share: answers, preconditions, checksums, files."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c

from tpuctl.emulator.status import ApiError, invalid, missing
from tpuctl.emulator.text import parse_json

__all__ = [
    "CHUNK",
    "NO_SUCH_BUCKET",
    "Answer",
    "Call",
    "Checksum",
    "Files",
    "Hasher",
    "NotModified",
    "check_conditions",
    "condition_not_met",
    "etag_of",
    "glob_pattern",
    "no_such_object",
    "read_body_json",
]

CHUNK = 256 * 1024
Checksum: Any = google_crc32c.Checksum  # the package has no types

NO_SUCH_BUCKET = "The specified bucket does not exist."
_NAMES = ("GenerationMatch", "GenerationNotMatch", "MetagenerationMatch", "MetagenerationNotMatch")


@dataclass
class Call:
    """One request to the JSON API, however it came: alone or inside a batch."""

    verb: str
    parts: list[str]  # decoded path segments after /storage/v1
    query: Mapping[str, list[str]]
    body: bytes
    base_url: str  # what links in the answer begin with
    email: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def first(self, key: str, default: str = "") -> str:
        return self.query[key][-1] if self.query.get(key) else default

    def number(self, key: str, default: int) -> int:
        text = self.first(key)
        if not text:
            return default
        return parse_number(key, text)

    def json(self) -> dict[str, Any]:
        return read_body_json(self.body)


@dataclass(frozen=True)
class Answer:
    """A JSON answer; None as value is an empty body."""

    value: Any = None
    status: int = 200


class NotModified(Exception):
    """A reading request whose condition says that the caller has it already: 304."""


def parse_number(key: str, text: str) -> int:
    if not text.isascii() or not text.lstrip("-").isdigit() or len(text) > 19:
        raise invalid(f"Invalid value for {key}: '{text}'.", location=("parameter", key))
    return int(text)


def read_body_json(body: bytes) -> dict[str, Any]:
    try:
        value = parse_json(body)
    except ValueError as error:
        raise ApiError("INVALID_ARGUMENT", "Parse Error", reason="parseError") from error
    if not isinstance(value, dict):
        raise ApiError("INVALID_ARGUMENT", "Parse Error", reason="parseError")
    return value


def condition_not_met() -> ApiError:
    return ApiError(
        "FAILED_PRECONDITION",
        "At least one of the pre-conditions you specified did not hold.",
        reason="conditionNotMet",
        http=412,
        location=("header", "If-Match"),
    )


def no_such_object(bucket: str, name: str) -> ApiError:
    return missing(f"No such object: {bucket}/{name}")


def check_conditions(
    query: Mapping[str, list[str]],
    current: tuple[int, int] | None,
    *,
    prefix: str = "if",
    is_read: bool = False,
) -> None:
    """Hold the request's preconditions against (generation, metageneration), None for absent.

    A generation of 0 stands for "there is none". Raises the refusal (412), or NotModified for a
    reading request whose Not-Match condition does not hold.
    """
    generation, metageneration = current or (0, 0)
    for name in _NAMES:
        key = f"{prefix}{name}"
        texts = query.get(key)
        if not texts:
            continue
        wanted = parse_number(key, texts[-1])
        if name.startswith("Meta"):
            actual = metageneration
            holds = current is not None and (actual == wanted)
        else:
            actual = generation
            holds = actual == wanted
        if name.endswith("NotMatch"):
            holds = not holds if current is not None or name == "GenerationNotMatch" else False
            if not holds and is_read:
                raise NotModified
        if not holds:
            raise condition_not_met()


def etag_of(generation: int, metageneration: int) -> str:
    data = generation.to_bytes(8, "big") + metageneration.to_bytes(4, "big")
    return base64.b64encode(data.lstrip(b"\0")).decode()


def glob_pattern(pattern: str) -> re.Pattern[str]:
    """`*` and `?` stay within a path segment, `**` does not."""
    parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    text = re.sub(
        r"\*\*/|\*\*|\*|\?|[^*?]+",
        lambda match: parts.get(match[0]) or re.escape(match[0]),
        pattern,
    )
    return re.compile(text)


class Hasher:
    """MD5 and CRC32C of what flows past."""

    def __init__(self) -> None:
        self.size = 0
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._crc = Checksum()

    def update(self, data: bytes) -> None:
        self.size += len(data)
        self._md5.update(data)
        self._crc.update(data)

    @property
    def md5(self) -> str:
        return base64.b64encode(self._md5.digest()).decode()

    @property
    def crc32c(self) -> str:
        return base64.b64encode(self._crc.digest()).decode()

    def check(self, claims: Mapping[str, Any]) -> None:
        """Refuse when the sender's checksums, in metadata or X-Goog-Hash, are other ones."""
        for name, label, actual in (
            ("crc32c", "CRC32C", self.crc32c),
            ("md5Hash", "MD5", self.md5),
        ):
            claimed = claims.get(name)
            if claimed and claimed != actual:
                raise ApiError(
                    "INVALID_ARGUMENT",
                    f'Provided {label} "{claimed}" doesn\'t match calculated {label} "{actual}".',
                    reason="invalid",
                )


def claims_of(header: str) -> dict[str, str]:
    """The checksums that an X-Goog-Hash header names."""
    found = {}
    for part in header.split(","):
        key, _, value = part.strip().partition("=")
        if key in ("crc32c", "md5"):
            found["crc32c" if key == "crc32c" else "md5Hash"] = value
    return found


class Files:
    """Where objects' bytes lie: files of unguessable names, never changed once they are whole."""

    def __init__(self, home: Path) -> None:
        self.objects = home / "objects"
        self.drafts = home / "uploads"
        for folder in (self.objects, self.drafts):
            folder.mkdir(mode=0o700, exist_ok=True)

    def new_draft(self) -> Path:
        return self.drafts / secrets.token_hex(16)

    def adopt(self, draft: Path) -> str:
        """Make a finished draft an object's file; returns its name."""
        name = secrets.token_hex(16)
        path = self.path(name)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        draft.replace(path)
        return name

    def path(self, file: str) -> Path:
        return self.objects / file[:2] / file

    def open(self, file: str) -> BinaryIO:
        """Its bytes, to be read; they stay readable if the object goes."""
        return self.path(file).open("rb")

    def remove(self, file: str) -> None:
        """Readers that have it open read on."""
        self.path(file).unlink(missing_ok=True)
