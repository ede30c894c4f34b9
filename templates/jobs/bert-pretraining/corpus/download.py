"""One file over HTTP: resumed where it broke off, checked, and in its place only when whole.

While it comes it is called `….part`; `….part.json` beside it says which file of the server's it
is, so that parts of two files are never put together.
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

BLOCK = 1 << 20  # bytes
TIMEOUT = 60  # seconds without a byte
ATTEMPTS = 6  # in a row that bring nothing new
LONGEST_WAIT = 60.0  # seconds between two attempts
SPARE = 100_000_000  # bytes of the disk that stay free
CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(?:\d+|\*)")
PASSING = (408, 429, 500, 502, 503, 504)

Told = Callable[[int], None]  # bytes that are there


@dataclass(frozen=True)
class Remote:
    """A file on a server: its size in bytes and its checksum, as far as they are published."""

    url: str
    size: int | None = None
    algorithm: str = ""
    checksum: str = ""


@dataclass(frozen=True)
class Client:
    """Speaks to servers under a name; `pause` is the first wait in seconds after a failure."""

    agent: str
    say: Callable[[str], None]
    pause: float = 1.0

    def opened(self, url: str, headers: dict[str, str] | None = None) -> http.client.HTTPResponse:
        request = urllib.request.Request(url, headers={"User-Agent": self.agent, **(headers or {})})
        answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT)
        return answer

    def text(self, url: str) -> str | None:
        """Return a page, or None when there is none."""
        patience = Patience(url, self)
        while True:
            try:
                with self.opened(url) as answer:
                    return answer.read().decode("utf-8", "replace")
            except urllib.error.HTTPError as error:
                if error.code in (404, 410):
                    return None
                patience.failed(error)
            except (OSError, http.client.HTTPException) as error:
                patience.failed(error)


class Patience:
    """Waits after a failure, each time longer; raises JobError when it is over."""

    def __init__(self, url: str, client: Client) -> None:
        self.url = url
        self.client = client
        self.failures = 0

    def failed(self, error: Exception) -> None:
        self.failures += 1
        told = reason(error)
        if self.failures >= ATTEMPTS or not is_passing(error):
            raise JobError(f"cannot fetch {self.url}: {told}{advice(error)}") from error
        seconds = self.client.pause * 2.0 ** (self.failures - 1)
        if isinstance(error, urllib.error.HTTPError):
            asked = error.headers.get("Retry-After", "")
            seconds = max(seconds, float(asked) if asked.isdecimal() else 0.0)
        seconds = min(seconds, LONGEST_WAIT)
        self.client.say(f"fetch: {told}; trying again in {seconds:.0f} s")
        time.sleep(seconds)


def download(remote: Remote, target: Path, client: Client, told: Told) -> None:
    """Bring a file to its place. Raises JobError; what has come is kept for the next attempt,
    unless it turns out to be wrong."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    note = target.with_name(f"{target.name}.part.json")
    patience = Patience(remote.url, client)
    most = 0
    with alone(part) as file:
        while True:
            try:
                receive(remote, file, note, client, told)
                break
            except urllib.error.HTTPError as error:
                if error.code == 416:  # what is there is no part of the server's file
                    file.truncate(0)
                failure: Exception = error
            except (OSError, http.client.HTTPException) as error:
                failure = error
            size = file.seek(0, os.SEEK_END)
            if size > most:
                most = size
                patience.failures = 0
            patience.failed(failure)
        file.flush()
        os.fsync(file.fileno())
        if not is_intact(part, remote):
            part.unlink()
            note.unlink(missing_ok=True)
            raise JobError(
                f"{remote.url} came with another size or {remote.algorithm or 'content'} than "
                "published; nothing of it was kept. Try again, or another --mirror"
            )
        part.replace(target)
        note.unlink(missing_ok=True)


def receive(remote: Remote, file: IO[bytes], note: Path, client: Client, told: Told) -> None:
    """Append what is missing of a file, or write it anew when the server's is another by now."""
    have = file.seek(0, os.SEEK_END)
    if remote.size is not None and have == remote.size:
        return
    known = read_note(note)
    headers = {}
    if have and known.get("url") == remote.url and known.get("validator"):
        headers = {"Range": f"bytes={have}-", "If-Range": known["validator"]}
    with client.opened(remote.url, headers) as answer:
        resumed = CONTENT_RANGE.match(answer.headers.get("Content-Range", ""))
        if answer.status != 206 or resumed is None or int(resumed[1]) != have:
            if answer.status == 206:
                note.unlink(missing_ok=True)
                raise ConnectionError("the server sent another part than it was asked for")
            have = 0
            file.truncate(0)
            file.seek(0)
            validator = strong_validator(answer)
            note.write_text(json.dumps({"url": remote.url, "validator": validator}), "utf-8")
        length = answer.headers.get("Content-Length", "")
        total = have + int(length) if length.isdecimal() else remote.size
        check_room(note.parent, max(total or 0, remote.size or 0) - have)
        while block := answer.read(BLOCK):
            append(file, block, note.parent)
            have += len(block)
            told(have)
        if total is not None and have < total:
            raise ConnectionError(f"the connection broke off after {megabytes(have)}")


def strong_validator(answer: http.client.HTTPResponse) -> str:
    """Return what If-Range can ask for (RFC 9110, 13.1.5): no weak entity tag."""
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
            f"cannot write to {folder}{full or f': {error.strerror}'}; what has come is kept, and "
            "the next run goes on from there"
        ) from error


def check_room(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < size + SPARE:
        raise JobError(
            f"{folder} has {megabytes(free)} free; {megabytes(size)} are to come, and "
            f"{megabytes(SPARE)} should stay free"
        )


@contextmanager
def alone(part: Path) -> Iterator[IO[bytes]]:
    """Open a part for reading and appending, unless another process has it open so."""
    with part.open("ab", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise JobError(f"another process is fetching {part}") from error
        yield file


def is_intact(path: Path, remote: Remote) -> bool:
    """Tell whether a file is what was published, as far as that says."""
    if remote.size is not None and path.stat().st_size != remote.size:
        return False
    if not remote.checksum:
        return True
    with path.open("rb") as file:
        return hashlib.file_digest(file, remote.algorithm).hexdigest() == remote.checksum


def is_passing(error: Exception) -> bool:
    if isinstance(error, urllib.error.HTTPError):
        return error.code in (*PASSING, 416)
    return not isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError)


def reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"{error.code} {error.reason}"
    told = getattr(error, "reason", None) or error
    return getattr(told, "strerror", None) or str(told) or type(told).__name__


def advice(error: Exception) -> str:
    # https://foundation.wikimedia.org/wiki/Policy:User-Agent_policy
    if isinstance(error, urllib.error.HTTPError) and error.code in (403, 429):
        return "; servers may want to know who asks: name an address or web page with --contact"
    return ""
