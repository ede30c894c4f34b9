"""Downloads one file over HTTP: resumable, verified, and renamed into place when complete.

A partial download is called `….part`; `….part.json` next to it records the URL and validator, so
parts of two different files are never combined.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import http.client
import json
import os
import re
import shutil
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from corpus.progress import megabytes
from errors import JobError

__all__ = ["Client", "Remote", "download", "is_intact"]

BLOCK_BYTES = 1 << 20  # bytes
TIMEOUT = 60  # seconds without a byte
ATTEMPTS = 6  # in a row without progress
MAX_WAIT = 60.0  # seconds between two attempts
RESERVED_BYTES = 100_000_000  # disk space that stays free
CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(?:\d+|\*)")
RETRYABLE_STATUSES = (408, 429, 500, 502, 503, 504)

OnProgress = Callable[[int], None]  # bytes downloaded so far


@dataclass(frozen=True)
class Remote:
    """A file on a server, with its size in bytes and its checksum if they are published."""

    url: str
    size: int | None = None
    algorithm: str = ""
    checksum: str = ""


@dataclass(frozen=True)
class Client:
    """An HTTP client with a User-Agent; `pause` is the first retry delay in seconds."""

    agent: str
    log: Callable[[str], None]
    pause: float = 1.0

    def open(self, url: str, headers: dict[str, str] | None = None) -> http.client.HTTPResponse:
        request = urllib.request.Request(url, headers={"User-Agent": self.agent, **(headers or {})})
        answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT)
        return answer

    def text(self, url: str) -> str | None:
        """Return a page, or None if it does not exist."""
        retry = Retry(url, self)
        while True:
            try:
                with self.open(url) as answer:
                    return answer.read().decode("utf-8", "replace")
            except urllib.error.HTTPError as error:
                if error.code in (404, 410):
                    return None
                retry.wait_or_raise(error)
            except (OSError, http.client.HTTPException) as error:
                retry.wait_or_raise(error)


class Retry:
    """Exponential backoff after failures; raises JobError when attempts run out."""

    def __init__(self, url: str, client: Client) -> None:
        self.url = url
        self.client = client
        self.failures = 0

    def wait_or_raise(self, error: Exception) -> None:
        self.failures += 1
        text = reason(error)
        if self.failures >= ATTEMPTS or not is_retryable(error):
            raise JobError(f"cannot fetch {self.url}: {text}{advice(error)}") from error
        seconds = self.client.pause * 2.0 ** (self.failures - 1)
        if isinstance(error, urllib.error.HTTPError):
            retry_after = error.headers.get("Retry-After", "")
            seconds = max(seconds, float(retry_after) if retry_after.isdecimal() else 0.0)
        seconds = min(seconds, MAX_WAIT)
        self.client.log(f"fetch: {text}; retrying in {seconds:.0f} s")
        time.sleep(seconds)


def download(remote: Remote, target: Path, client: Client, on_progress: OnProgress) -> None:
    """Download a file to `target`. Raises JobError; the partial download is kept for the next
    attempt, unless its size or checksum is wrong."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    note = target.with_name(f"{target.name}.part.json")
    retry = Retry(remote.url, client)
    largest_size = 0
    with locked(part) as file:
        while True:
            try:
                receive(remote, file, note, client, on_progress)
                break
            except urllib.error.HTTPError as error:
                if error.code == 416:  # the local part does not belong to the server's file
                    file.truncate(0)
                failure: Exception = error
            except (OSError, http.client.HTTPException) as error:
                failure = error
            size = file.seek(0, os.SEEK_END)
            if size > largest_size:
                largest_size = size
                retry.failures = 0
            retry.wait_or_raise(failure)
        file.flush()
        os.fsync(file.fileno())
        if not is_intact(part, remote):
            part.unlink()
            note.unlink(missing_ok=True)
            raise JobError(
                f"the size or {remote.algorithm or 'content'} of {remote.url} differs from the "
                "published one; the download was deleted. Retry, or use another --mirror"
            )
        part.replace(target)
        note.unlink(missing_ok=True)


def receive(
    remote: Remote, file: IO[bytes], note: Path, client: Client, on_progress: OnProgress
) -> None:
    """Append the missing part of a file, or start over if the server's file has changed."""
    size = file.seek(0, os.SEEK_END)
    if remote.size is not None and size == remote.size:
        return
    note_content = read_note(note)
    headers = {}
    if size and note_content.get("url") == remote.url and note_content.get("validator"):
        headers = {"Range": f"bytes={size}-", "If-Range": note_content["validator"]}
    with client.open(remote.url, headers) as answer:
        resumed = CONTENT_RANGE.match(answer.headers.get("Content-Range", ""))
        if answer.status != 206 or resumed is None or int(resumed[1]) != size:
            if answer.status == 206:
                note.unlink(missing_ok=True)
                raise ConnectionError("the server sent a different range than requested")
            size = 0
            file.truncate(0)
            file.seek(0)
            validator = strong_validator(answer)
            note.write_text(json.dumps({"url": remote.url, "validator": validator}), "utf-8")
        length = answer.headers.get("Content-Length", "")
        total = size + int(length) if length.isdecimal() else remote.size
        check_free_space(note.parent, max(total or 0, remote.size or 0) - size)
        while block := answer.read(BLOCK_BYTES):
            append(file, block, note.parent)
            size += len(block)
            on_progress(size)
        if total is not None and size < total:
            raise ConnectionError(f"connection lost after {megabytes(size)}")


def strong_validator(answer: http.client.HTTPResponse) -> str:
    """Return a validator that If-Range accepts (RFC 9110, 13.1.5): no weak entity tag."""
    tag = answer.headers.get("ETag", "")
    if tag and not tag.startswith("W/"):
        return str(tag)
    return str(answer.headers.get("Last-Modified", ""))


def read_note(note: Path) -> dict[str, str]:
    try:
        value = json.loads(note.read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def append(file: IO[bytes], block: bytes, folder: Path) -> None:
    try:
        file.write(block)
    except OSError as error:
        full = " is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise JobError(
            f"cannot write to {folder}{full or f': {error.strerror}'}; the partial download is "
            "kept, and the next run resumes it"
        ) from error


def check_free_space(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < size + RESERVED_BYTES:
        raise JobError(
            f"not enough space in {folder}: {megabytes(free)} free, {megabytes(size)} to download, "
            f"{megabytes(RESERVED_BYTES)} to stay free"
        )


@contextmanager
def locked(part: Path) -> Iterator[IO[bytes]]:
    """Open a partial download for appending, with an exclusive lock."""
    with part.open("ab", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise JobError(f"another process is fetching {part}") from error
        yield file


def is_intact(path: Path, remote: Remote) -> bool:
    """Whether a file has the published size and checksum, if any."""
    if remote.size is not None and path.stat().st_size != remote.size:
        return False
    if not remote.checksum:
        return True
    with path.open("rb") as file:
        return hashlib.file_digest(file, remote.algorithm).hexdigest() == remote.checksum


def is_retryable(error: Exception) -> bool:
    if isinstance(error, urllib.error.HTTPError):
        return error.code in (*RETRYABLE_STATUSES, 416)
    return not isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError)


def reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"{error.code} {error.reason}"
    cause = getattr(error, "reason", None) or error
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__


def advice(error: Exception) -> str:
    # https://foundation.wikimedia.org/wiki/Policy:User-Agent_policy
    if isinstance(error, urllib.error.HTTPError) and error.code in (403, 429):
        return (
            "; the server may require a contact: pass an email address or web page with --contact"
        )
    return ""
