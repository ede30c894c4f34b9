"""Carries a job's bundle from the bucket to a worker, and its log and record back.

Like `supervisor.py`, which starts it, this file is sent to workers as it is and runs there as
`python3 -S -I courier.py COMMAND FOLDER`: standard library only, Python 3.8 and later. It is a
process of its own, so that no network trouble ever reaches the job or its supervision; the two
speak through files of the attempt's folder.

    fetch    bundle named by spec.json -> ~/.tpuctl/bundles/<sha256>.tar.gz -> code
    mirror   log, record.json -> bucket while they change; end.json of the bucket -> folder;
             ends with 0 once a final record is in the bucket
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import json
import os
import shutil
import sys
import tarfile
import time
import traceback
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

__all__ = ["main"]

ENDED = ("succeeded", "failed", "stopped", "timed_out", "lost")
STORAGE = "https://storage.googleapis.com"
CHUNK = 8 * 1024 * 1024  # most bytes of log held in memory
TICK = 0.25


class Failure(Exception):
    """The bundle cannot be had."""


class Bucket:
    """The few requests to Cloud Storage that are needed, with the machine's own account."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.opener = urllib.request.build_opener()  # honours https_proxy and SSL_CERT_FILE
        self.direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self.token = ""
        self.expires = 0.0

    def authorization(self) -> str:
        if time.monotonic() >= self.expires:
            host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
            path = "computeMetadata/v1/instance/service-accounts/default/token"
            request = urllib.request.Request(f"http://{host}/{path}")
            request.add_header("Metadata-Flavor", "Google")
            with self.direct.open(request, timeout=10) as answer:
                grant = json.load(answer)
            self.token = grant["access_token"]
            self.expires = time.monotonic() + float(grant.get("expires_in", 300)) - 60
        return "Bearer " + self.token

    def open(self, method: str, path: str, body: bytes | None = None, **query: Any) -> Any:
        url = f"{STORAGE}{path}?{urllib.parse.urlencode(query)}"
        request = urllib.request.Request(url, data=body, method=method)
        request.add_header("Authorization", self.authorization())
        if body is not None:
            is_media = path.startswith("/upload/")
            kind = "application/octet-stream" if is_media else "application/json"
            request.add_header("Content-Type", kind)
        return self.opener.open(request, timeout=60)

    def call(self, method: str, path: str, body: bytes | None = None, **query: Any) -> Any:
        with self.open(method, path, body, **query) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def object(self, name: str) -> str:
        return "/storage/v1/b/{}/o/{}".format(self.name, urllib.parse.quote(name, safe=""))

    def stat(self, name: str) -> tuple[int, int]:
        """Size and generation; (0, 0) when the object is not there."""
        found = unless_missing(lambda: self.call("GET", self.object(name)))
        return (int(found["size"]), int(found["generation"])) if found else (0, 0)

    def read(self, name: str) -> Any:
        """A JSON object's value; None when the object is not there."""
        return unless_missing(lambda: self.call("GET", self.object(name), alt="media"))

    def put(self, name: str, body: bytes, **query: Any) -> int:
        """Upload and return the new generation."""
        path = f"/upload/storage/v1/b/{self.name}/o"
        answer = self.call("POST", path, body, uploadType="media", name=name, **query)
        return int(answer["generation"])

    def join(self, name: str, generation: int, part: str, part_generation: int) -> int:
        """Append one object to another on the server and return the new generation."""
        sources = [
            {"name": name, "generation": str(generation)},
            {"name": part, "generation": str(part_generation)},
        ]
        wanted = {
            "sourceObjects": sources,
            "destination": {"contentType": "application/octet-stream"},
        }
        path = self.object(name) + "/compose"
        answer = self.call("POST", path, json.dumps(wanted).encode(), ifGenerationMatch=generation)
        return int(answer["generation"])

    def delete(self, name: str) -> None:
        unless_missing(lambda: self.call("DELETE", self.object(name)))


def unless_missing(get: Callable[[], Any]) -> Any:
    try:
        return get()
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise


class Mirror:
    """Keeps the bucket's copy of one attempt on one worker.

    Each turn uploads what the log gained and appends it on the server, so that the cost does not
    grow with the log. The copy is always a prefix of the log: after any failure its size says
    where to go on. A record goes up after the log it speaks of.
    """

    def __init__(self, folder: str, spec: dict[str, Any]) -> None:
        self.folder = folder
        self.bucket = Bucket(spec["bucket"])
        self.prefix = spec["prefix"]
        self.name = f"{self.prefix}/worker-{spec['worker']}"
        self.interval = float(spec.get("sync_seconds", 5))
        self.sent: dict[str, Any] | None = None
        self.copy: tuple[int, int] | None = None  # length and generation, None when not known
        self.is_complete = False

    def run(self) -> None:
        """Mirror until a final record is in the bucket, or the supervisor is gone."""
        supervisor = os.getppid()
        due, delay = 0.0, 1.0
        while not self.is_complete and os.getppid() == supervisor:
            record = load(self.folder, "record.json")
            is_news = record != self.sent and delay == 1.0
            if record is None or not (is_news or time.monotonic() >= due):
                time.sleep(TICK)
                continue
            try:
                self.turn(record)
                delay = 1.0
                due = time.monotonic() + self.interval
            except Exception:
                traceback.print_exc()
                self.copy = None
                delay = min(delay * 2, 30.0)
                due = time.monotonic() + delay

    def turn(self, record: dict[str, Any]) -> None:
        self.append(os.path.getsize(os.path.join(self.folder, "log")))
        has_ended = record["state"] in ENDED
        if record != self.sent:
            if has_ended and record["state"] != "succeeded" and record["first_cause"] != "worker":
                self.tell_the_others(record)
            self.bucket.put(self.name + ".json", json.dumps(record).encode())
            self.sent = record
            self.is_complete = has_ended
        end = None if self.is_complete else self.bucket.read(self.prefix + "/end.json")
        if end is not None:
            save(self.folder, "end.json", end)

    def append(self, size: int) -> None:
        log, part = self.name + ".log", self.name + ".part"
        length, generation = self.copy or self.bucket.stat(log)
        was_joined = False
        self.copy = None  # not known until the answers are in
        with open(os.path.join(self.folder, "log"), "rb") as source:
            source.seek(length)
            while length < size:
                piece = source.read(min(CHUNK, size - length))
                if generation == 0:
                    generation = self.bucket.put(log, piece, ifGenerationMatch=0)
                else:
                    added = self.bucket.put(part, piece)
                    generation = self.bucket.join(log, generation, part, added)
                    was_joined = True
                length += len(piece)
        self.copy = (length, generation)
        if was_joined:
            self.bucket.delete(part)

    def tell_the_others(self, record: dict[str, Any]) -> None:
        """The first worker to fail names itself; whoever comes later finds the name taken."""
        try:
            name = self.prefix + "/end.json"
            self.bucket.put(name, json.dumps(record).encode(), ifGenerationMatch=0)
        except urllib.error.HTTPError as error:
            if error.code != 412:
                raise


def fetch(spec: dict[str, Any]) -> str:
    """The bundle's file, verified: put here over SSH, fetched before, or fetched now."""
    digest, name = spec["bundle"]["sha256"], spec["bundle"].get("name")
    path = os.path.expanduser(f"~/.tpuctl/bundles/{digest}.tar.gz")
    if os.path.exists(path):
        return path
    if not name:
        raise Failure(f"{path} was not put on this machine")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.getpid()}"
    bucket = Bucket(spec["bucket"])
    for delay in (1, 2, 4, 8, 0):
        try:
            seen = download(bucket, name, temporary)
        except (OSError, http.client.HTTPException) as error:
            trouble = f"cannot fetch gs://{bucket.name}/{name}: {error}"
        else:
            if seen == digest:
                os.replace(temporary, path)
                return path
            trouble = f"gs://{bucket.name}/{name} arrived damaged"
        time.sleep(delay)
    raise Failure(trouble)


def download(bucket: Bucket, name: str, path: str) -> str:
    """Write an object to a file and return its SHA-256."""
    seen = hashlib.sha256()
    with bucket.open("GET", bucket.object(name), alt="media") as source:
        with open(path, "wb", opener=private) as target:
            for piece in iter(lambda: source.read(1 << 20), b""):
                seen.update(piece)
                target.write(piece)
    return seen.hexdigest()


def unpack(archive: str, target: str) -> None:
    """Unpack a bundle; anything that would land or point outside of it is an error."""
    partial = target + ".part"
    shutil.rmtree(partial, ignore_errors=True)
    os.makedirs(partial)
    trusted: Any = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                inside = member.name
                if member.issym():
                    inside = os.path.join(os.path.dirname(member.name), member.linkname)
                elif not (member.isfile() or member.isdir()):
                    raise Failure(f"{member.name} is neither file, folder nor link")
                for path in (member.name, inside):
                    normal = os.path.normpath(path)
                    if os.path.isabs(normal) or normal.split(os.sep)[0] == os.pardir:
                        raise Failure(f"{member.name} leaves the bundle")
                tar.extract(member, partial, **trusted)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise Failure(f"cannot unpack it: {error}") from error
    os.rename(partial, target)


def load(folder: str, name: str) -> dict[str, Any] | None:
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as source:
            value: dict[str, Any] = json.load(source)
            return value
    except FileNotFoundError:
        return None


def save(folder: str, name: str, value: dict[str, Any]) -> None:
    temporary = os.path.join(folder, f".{name}.{os.getpid()}")
    with open(temporary, "w", encoding="utf-8", opener=private) as target:
        json.dump(value, target)
    os.replace(temporary, os.path.join(folder, name))


def private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def main(arguments: list[str]) -> int:
    command, folder = arguments
    spec = load(folder, "spec.json")
    assert spec is not None
    if command == "fetch":
        code = os.path.join(folder, "code")
        try:
            if not os.path.isdir(code):
                unpack(fetch(spec), code)
        except Failure as failure:
            print(failure)
            return 1
        return 0
    # The courier of a supervisor that was killed may be in the middle of a turn.
    lock = os.open(os.path.join(folder, "courier.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    mirror = Mirror(folder, spec)
    mirror.run()
    return 0 if mirror.is_complete else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
