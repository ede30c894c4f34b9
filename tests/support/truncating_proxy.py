"""A proxy to a server that cuts one connection in the middle of a request."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType
from urllib.parse import urlsplit


class TruncatingProxy:
    """Forwards connections to a server; the first that sends more than N bytes is cut.

    with TruncatingProxy("http://127.0.0.1:8080", 300_000) as cutter:
        upload_to(cutter.url)
    assert cutter.cuts == 1
    """

    def __init__(self, url: str, after: int) -> None:
        target = urlsplit(url)
        assert target.hostname is not None and target.port is not None
        self._target = (target.hostname, target.port)
        self._after = after
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}{target.path}"
        self.cuts = 0
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> TruncatingProxy:
        self._threads[0].start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _close(self._listener)
        for each in list(self._open):
            _close(each)
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            self._open += [near, far]
            for work in ((near, far, True), (far, near, False)):
                thread = threading.Thread(target=self._pass, args=work, daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pass(self, source: socket.socket, target: socket.socket, counts: bool) -> None:
        passed = 0
        try:
            while data := source.recv(65_536):
                if counts and self._is_due(passed + len(data)):
                    target.sendall(data[: self._after - passed])
                    # Closed with a reset, as by a faulty middlebox.
                    linger = struct.pack("ii", 1, 0)
                    source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    return
                target.sendall(data)
                passed += len(data)
        except OSError:
            pass
        finally:
            _close(target)
            source.close()

    def _is_due(self, passed: int) -> bool:
        with self._lock:
            if self.cuts or passed <= self._after:
                return False
            self.cuts = 1
            return True


def _close(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
