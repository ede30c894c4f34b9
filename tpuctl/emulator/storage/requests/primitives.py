"""Shared parts of Cloud Storage: calls, answers, preconditions, checksums, files."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, unquote

import google_crc32c

from tpuctl.emulator.faults.traffic import Caller
from tpuctl.emulator.state.errors import ApiError, invalid, missing
from tpuctl.emulator.state.text import parse_json

CHUNK = 256 * 1024
_Checksum: Any = google_crc32c.Checksum  # the package has no types

API = "https://www.googleapis.com/storage/v1"  # of links that name a resource
_UNESCAPED = "!$&'()*,:;=@~"  # in such links, besides letters and digits
NO_SUCH_BUCKET = "The specified bucket does not exist."
_GLOB = re.compile(r"\*\*/|\*\*|\\.|\[[!^]?\]?[^\]]*\]|[\s\S]")
_GLOB_PARTS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_CONDITIONS = (
    "GenerationMatch",
    "GenerationNotMatch",
    "MetagenerationMatch",
    "MetagenerationNotMatch",
)


@dataclass
class Call:
    """One request to the JSON API, alone or in a batch."""

    verb: str
    parts: list[str]  # decoded path segments after /storage/v1
    query: Mapping[str, list[str]]
    body: bytes
    base_url: str  # the prefix of links in the response
    caller: Caller
    headers: Mapping[str, str] = field(default_factory=dict)

    def param(self, key: str, default: str = "") -> str:
        return self.query[key][-1] if self.query.get(key) else default

    def number(self, key: str, default: int) -> int:
        text = self.param(key)
        if not text:
            return default
        return parse_number(key, text)

    def flag(self, key: str) -> bool:
        """gcloud spells booleans as Python does."""
        return self.param(key).lower() == "true"

    def json(self) -> dict[str, Any]:
        return read_body_json(self.body)


@dataclass(frozen=True)
class Answer:
    """A JSON answer; None as value is an empty body."""

    value: Any = None
    status: int = 200


class NotModified(Exception):
    """A NotMatch condition was not met: 304."""


def split_path(path: str) -> list[str]:
    """Decoded path segments; slashes in an object's name are escaped, as %2F.

    Empty ones at the end are ignored up to the list of objects: fewer clients write `b/` than
    `o/`, but an object's name may end in a slash.
    """
    parts = path.strip("/").split("/") if not path.startswith("b/") else path.split("/")
    while parts and parts[-1] == "" and len(parts) <= 4:
        parts.pop()
    return [unquote(part) for part in parts]


def parse_number(key: str, text: str) -> int:
    if not text.isascii() or not text.lstrip("-").isdigit() or len(text) > 19:
        raise invalid(f"Invalid value for {key}: '{text}'.", location=("parameter", key))
    return int(text)


def read_body_json(body: bytes) -> dict[str, Any]:
    try:
        value = parse_json(body)
    except ValueError as error:
        raise ApiError("INVALID_ARGUMENT", "Parse Error", reason="parseError") from error
    if value is None:  # of Go's clients, for no resource at all: every copy of rclone
        return {}
    if not isinstance(value, dict):
        raise ApiError("INVALID_ARGUMENT", "Parse Error", reason="parseError")
    return value


def condition_not_met(
    text: str = "At least one of the pre-conditions you specified did not hold.",
) -> ApiError:
    return ApiError(
        "FAILED_PRECONDITION",
        text,
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
    etag: str = "",
) -> None:
    """Check the request's preconditions against (generation, metageneration), None if absent.

    Generation 0 means "does not exist". Raises ApiError (412), or NotModified if a NotMatch
    condition is not met. That applies to writes too, as measured by kmoneil/zig-gcp
    (docs/storage/writing-objects.md) and implemented in storage-testbench.
    """
    generation, metageneration = current or (0, 0)
    for name in _CONDITIONS:
        key = f"{prefix}{name}"
        texts = query.get(key)
        if not texts:
            continue
        expected = parse_number(key, texts[-1])
        is_equal = expected == (metageneration if name.startswith("Meta") else generation)
        if name.endswith("NotMatch"):
            if is_equal:
                raise NotModified
        elif not is_equal:
            raise condition_not_met()
    _check_etags(query, etag)


def _check_etags(query: Mapping[str, list[str]], etag: str) -> None:
    """The If-Match and If-None-Match headers of reads, which were added to the query."""
    for header in ("If-Match", "If-None-Match"):
        texts = query.get(header)
        if not texts or not etag:
            continue
        tags = {text.strip().removeprefix("W/").strip('"') for text in texts[-1].split(",")}
        is_among = etag in tags or "*" in tags
        if header == "If-None-Match" and is_among:
            raise NotModified
        if header == "If-Match" and not is_among:
            raise condition_not_met()


def etag_of(*numbers: int) -> str:
    """An etag in Cloud Storage's format; CAE= is that of a new bucket.

    A serialized protocol buffer: for objects field 1 is the generation and 2 the metageneration,
    for buckets field 1 is the metageneration.
    """
    data = bytearray()
    for index, number in enumerate(numbers, 1):
        data.append(index << 3)
        rest = number
        while rest > 0x7F:
            data.append(rest & 0x7F | 0x80)
            rest >>= 7
        data.append(rest)
    return base64.b64encode(data).decode()


def glob_pattern(pattern: str) -> re.Pattern[str]:
    """A pattern for a glob: `*` and `?` match within a path segment, `**` across; [a-z], [!a],
    {one,two}.

    cloud.google.com/storage/docs/json_api/v1/objects/list#list-objects-and-prefixes-using-glob
    """
    text, depth = "", 0
    for token in _GLOB.findall(pattern):
        if token == "{":
            text, depth = text + "(?:", depth + 1
        elif token == "}" and depth:
            text, depth = text + ")", depth - 1
        elif token == "," and depth:
            text += "|"
        elif token in _GLOB_PARTS:
            text += _GLOB_PARTS[token]
        elif token[0] == "[" and len(token) > 2:
            inner = re.sub(r"([\\\[\]&~|^])", r"\\\1", token[1:-1].lstrip("!^"))
            text += f"[{'^' if token[1] in '!^' else ''}{inner}]"
        else:
            text += re.escape(token[1:] if token[0] == "\\" and len(token) > 1 else token)
    try:
        return re.compile(text)
    except re.error as error:
        where = ("parameter", "matchGlob")
        raise invalid(f"Invalid glob pattern: {pattern}", location=where) from error


class Hasher:
    """Running MD5 and CRC32C of a stream."""

    def __init__(self) -> None:
        self.size = 0
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._crc = _Checksum()

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
        """Raise ApiError if the client's checksums, in metadata or X-Goog-Hash, differ."""
        for name, label, actual in (
            ("crc32c", "CRC32C", self.crc32c),
            ("md5Hash", "MD5 hash", self.md5),
        ):
            claimed = claims.get(name)
            if claimed and claimed != actual:
                raise invalid(
                    f'Provided {label} "{claimed}" doesn\'t match calculated {label} "{actual}".',
                )


def hash_files(files: Iterable[BinaryIO], copy_to: Path | None = None) -> Hasher:
    """The checksums of these files, one after the other, which are copied to another."""
    hasher = Hasher()
    with copy_to.open("wb") if copy_to is not None else nullcontext() as out:
        for file in files:
            while chunk := file.read(4 * CHUNK):
                hasher.update(chunk)
                if out is not None:
                    out.write(chunk)
    return hasher


def claimed_checksums(header: str) -> dict[str, str]:
    """The checksums in an X-Goog-Hash header."""
    checksums = {}
    for part in header.split(","):
        key, _, value = part.strip().partition("=")
        if key in ("crc32c", "md5"):
            checksums["crc32c" if key == "crc32c" else "md5Hash"] = value
    return checksums


class ObjectFiles:
    """The files of objects: with random names, immutable once complete."""

    def __init__(self, home: Path) -> None:
        self.objects = home / "objects"
        self.drafts = home / "uploads"
        for folder in (self.objects, self.drafts):
            folder.mkdir(mode=0o700, exist_ok=True)

    def new_draft(self) -> Path:
        return self.drafts / secrets.token_hex(16)

    def adopt(self, draft: Path, *, keep: bool = False) -> str:
        """Make a complete draft an object's file; returns its name.

        With `keep` the draft stays too, in case a kill interrupts the upload session.
        """
        name = secrets.token_hex(16)
        path = self.path(name)
        move = os.link if keep else os.replace
        try:
            move(draft, path)
        except FileNotFoundError:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            move(draft, path)
        return name

    def path(self, file: str) -> Path:
        return self.objects / file[:2] / file

    def open(self, file: str) -> BinaryIO:
        """Open a file for reading; it stays readable after the object is deleted."""
        return self.path(file).open("rb")

    def remove(self, file: str) -> None:
        """Delete a file; readers that have it open are not affected."""
        self.path(file).unlink(missing_ok=True)


def object_path(bucket: str, name: str) -> str:
    """The path of an object in links: google/go-cloud, blob/gcsblob's TestKeys."""
    return f"b/{bucket}/o/{quote(name, safe=_UNESCAPED)}"
