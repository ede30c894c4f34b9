"""A mirror of Wikimedia's dumps on loopback, with typical server faults."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.support.http_server import serving_http


@dataclass
class Request:
    """A client's request."""

    path: str
    headers: Mapping[str, str]


@dataclass
class Mirror:
    """The server's files and faults.

    `cuts` are the numbers of body bytes after which the next responses are cut off; `answers` are
    status codes with headers to send instead; `held` pauses a file in the middle of its body until
    it is set.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    has_ranges: bool = True
    tag: str = '"one"'
    body_limits: list[int] = field(default_factory=list)
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    shift: int = 0
    pause: threading.Event | None = None
    requests: list[Request] = field(default_factory=list)
    url: str = ""

    def publish(self, wiki: str, date: str, content: bytes, **changes: Any) -> str:
        """Add a dump of one file at Wikimedia's path; returns the path."""
        name = f"{wiki}-{date}-pages-articles-multistream.xml.bz2"
        facts = {
            "size": len(content),
            "url": f"/{wiki}/{date}/{name}",
            "md5": hashlib.md5(content).hexdigest(),
            "sha1": hashlib.sha1(content).hexdigest(),
        }
        index = {f"{name.replace('.xml', '-index.txt')}": {"size": 1, "sha1": "0"}}
        job = {"status": "done", "updated": "x", "files": {**index, name: {**facts, **changes}}}
        status = {"version": "0.8", "jobs": {"articlesmultistreamdump": job}}
        self.files[f"/{wiki}/{date}/dumpstatus.json"] = json.dumps(status).encode()
        self.files[f"/{wiki}/{date}/{name}"] = content
        dates = sorted({path.split("/")[2] for path in self.files if path.endswith("status.json")})
        links = "".join(f'<a href="{date}/">{date}/</a>\n' for date in dates)
        page = f'<html><a href="../">../</a>\n{links}<a href="latest/">latest/</a></html>'
        self.files[f"/{wiki}/"] = page.encode()
        return f"/{wiki}/{date}/{name}"

    def requests_for(self, ending: str) -> list[Request]:
        """The requests for paths with this suffix."""
        return [request for request in self.requests if request.path.endswith(ending)]


@contextmanager
def serve_mirror(mirror: Mirror) -> Iterator[Mirror]:
    """Serve on loopback, at `mirror.url`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            mirror.requests.append(Request(self.path, dict(self.headers.items())))
            if mirror.answers:
                status, headers = mirror.answers.pop(0)
                self.answer(status, headers, b"")
                return
            content = mirror.files.get(self.path)
            if content is None:
                self.answer(404, {}, b"")
                return
            headers = {"ETag": mirror.tag} if mirror.tag else {}
            start = self.start_of_range(len(content))
            if start is None:
                self.answer(200, headers, content)
            elif start >= len(content):
                self.answer(416, headers, b"")
            else:
                start += mirror.shift
                end = len(content) - 1
                headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
                self.answer(206, headers, content[start:])

        def start_of_range(self, size: int) -> int | None:
            range_header = self.headers.get("Range", "")
            condition = self.headers.get("If-Range", mirror.tag)
            if not mirror.has_ranges or not range_header or condition != mirror.tag:
                return None
            return int(range_header.removeprefix("bytes=").rstrip("-"))

        def answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            is_dump = self.path.endswith(".bz2")
            if is_dump and mirror.pause is not None:
                self.wfile.write(content[: len(content) // 2])
                mirror.pause.wait(60)
                content = content[len(content) // 2 :]
            if is_dump and content and mirror.body_limits:
                content = content[: mirror.body_limits.pop(0)]
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

        def handle(self) -> None:
            with suppress(ConnectionError):  # of a client that was killed
                super().handle()

    with serving_http(Handler) as server:
        mirror.url = f"http://127.0.0.1:{server.server_port}"
        yield mirror
