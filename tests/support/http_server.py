"""A small HTTP server in a thread of the test's process."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

POLL = 0.01  # seconds until it stops; by default half a second


class QuietHandler(BaseHTTPRequestHandler):
    """A handler that does not log requests."""

    def log_message(self, *_: object) -> None: ...


@contextmanager
def serving_http(
    handler: Callable[..., BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None
) -> Iterator[ThreadingHTTPServer]:
    """Serve requests on a free port of loopback until the end of the block."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(POLL,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
