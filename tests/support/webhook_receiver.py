"""A receiver of webhooks on loopback, which answers as told."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.http_server import QuietHandler, serving_http

# What a receiver does with a request: an HTTP status, its headers, "drop", or seconds to wait.
Behavior = int | float | str | tuple[int, dict[str, str]]


class Receiver:
    """Requests in the order of their arrival. The first behave as in `script`, the rest succeed."""

    def __init__(self) -> None:
        self.address = ""  # host and port
        self.url = ""
        self.script: list[Behavior] = []
        self.before_answer: Callable[[], None] = lambda: None
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body in self.bodies]

    @property
    def ids(self) -> list[str]:
        return [event["id"] for event in self.events]


@contextmanager
def receiving(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            receiver.paths.append(self.path)
            receiver.headers.append(dict(self.headers))
            body = self.rfile.read(int(self.headers["Content-Length"]))
            behavior = receiver.script.pop(0) if receiver.script else 200
            receiver.bodies.append(body)
            receiver.before_answer()
            if behavior == "drop":
                self.close_connection = True
                return
            if isinstance(behavior, float):
                time.sleep(behavior)
                behavior = 200
            status, headers = behavior if isinstance(behavior, tuple) else (int(behavior), {})
            try:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()
            except OSError:  # the sender has given up
                self.close_connection = True

    with serving_http(Handler, tls) as server:
        receiver.address = f"127.0.0.1:{server.server_port}"
        receiver.url = f"http://{receiver.address}/hook/secret-token"
        yield receiver
