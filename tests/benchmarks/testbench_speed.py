"""Requests and bytes per second of the local cloud's storage, compared with storage-testbench's.

The same client queries both alternately, over plain connections: the overhead of a client library
is not measured.
"""

from __future__ import annotations

import http.client
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field

from tests.benchmarks.figures import Figure, cloud_in, local_cloud, sized, skipped
from tests.support import testbench
from tests.support.locations import PROJECT
from tests.support.memory import proportional_memory

BUCKET = "bench-storage"
TURNS = sized(5, 1)
REQUESTS = sized(200, 8)
LISTED = sized(200, 8)
MEGABYTES = sized(64, 1)
SMALL = b"x" * 1000
LARGE = os.urandom(1 << 20) * MEGABYTES
PLAIN = {"Content-Type": "application/octet-stream"}


@dataclass
class Server:
    """One of the two servers, and its measurements."""

    url: str
    pid: int
    token: str = ""
    values: dict[str, list[float]] = field(default_factory=dict)

    def connect(self) -> Connection:
        return Connection(self)

    def note(self, name: str, value: float) -> None:
        self.values.setdefault(name, []).append(value)

    def best(self, name: str) -> float:
        return max(self.values[name])


class Connection:
    """A connection that stays open."""

    def __init__(self, server: Server) -> None:
        self._http = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=120)
        self._headers = {"Authorization": f"Bearer {server.token}"} if server.token else {}

    def request(self, verb: str, path: str, body: bytes | None = None) -> None:
        """Send the request and read the answer, reusing one buffer for any size."""
        kind = {} if body is None else PLAIN
        self._http.request(verb, path, body, self._headers | kind)
        answer = self._http.getresponse()
        buffer = bytearray(1 << 20)
        while answer.readinto(buffer):
            pass
        if answer.status >= 300:
            raise RuntimeError(f"{verb} {path}: {answer.status} {bytes(buffer[:300])!r}")

    def close(self) -> None:
        self._http.close()


Send = Callable[[Connection, int], None]
UPLOAD = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name="
OBJECTS = f"/storage/v1/b/{BUCKET}/o"
DOWNLOAD = f"/download/storage/v1/b/{BUCKET}/o"


def _send(verb: str, path: str, body: bytes | None = None) -> Send:
    return lambda connection, number: connection.request(verb, path.format(number), body)


# Name, number of requests, number of connections, request.
RATES: tuple[tuple[str, int, int, Send], ...] = (
    ("uploads of 1 kB", REQUESTS, 1, _send("POST", f"{UPLOAD}o-{{}}", SMALL)),
    ("uploads of 1 kB, 8 at once", REQUESTS, 8, _send("POST", f"{UPLOAD}o-{{}}", SMALL)),
    ("downloads of 1 kB", REQUESTS, 1, _send("GET", f"{DOWNLOAD}/o-{{}}?alt=media")),
    ("downloads of 1 kB, 8 at once", REQUESTS, 8, _send("GET", f"{DOWNLOAD}/o-{{}}?alt=media")),
    ("metadata of an object", REQUESTS, 1, _send("GET", f"{OBJECTS}/o-{{}}")),
    (f"lists of {LISTED}", 5, 1, _send("GET", f"{OBJECTS}?prefix=o-&maxResults={LISTED}")),
)
BYTES: tuple[tuple[str, Send], ...] = (
    (f"upload of {MEGABYTES} MB", _send("POST", f"{UPLOAD}large", LARGE)),
    (f"download of {MEGABYTES} MB", _send("GET", f"{DOWNLOAD}/large?alt=media")),
)


def rate(server: Server, send: Send, count: int, connections: int) -> float:
    """Return the requests per second."""

    def some(part: int) -> None:
        connection = server.connect()
        for number in range(part, count, connections):
            send(connection, number)
        connection.close()

    started = time.perf_counter()
    if connections == 1:
        some(0)
    else:
        with ThreadPoolExecutor(connections) as pool:
            list(pool.map(some, range(connections)))
    return count / (time.perf_counter() - started)


def measure(server: Server) -> None:
    """Run all measurements once."""
    for name, count, connections, send in RATES:
        server.note(name, rate(server, send, count, connections))
    for name, send in BYTES:
        server.note(name, MEGABYTES * rate(server, send, 1, 1))


def start_servers(servers: ExitStack) -> tuple[dict[str, Server], dict[str, tuple[float, int]]]:
    """Start both; return them with the seconds until each answered and the memory it then used."""
    found: dict[str, Server] = {}
    startups: dict[str, tuple[float, int]] = {}
    for name in ("local cloud", "testbench"):
        if name == "testbench" and not testbench.checkout():
            continue
        begun = time.perf_counter()
        if name == "local cloud":
            folder = servers.enter_context(local_cloud("instant"))
            cloud = cloud_in(folder)
            server = Server(cloud.url, cloud.pid, cloud.token)
        else:
            server = Server(*servers.enter_context(testbench.running()))
        connection = server.connect()
        connection.request("GET", f"/storage/v1/b?project={PROJECT}")
        seconds = time.perf_counter() - begun
        connection.request(
            "POST", f"/storage/v1/b?project={PROJECT}", json.dumps({"name": BUCKET}).encode()
        )
        connection.close()
        found[name] = server
        startups[name] = (seconds, proportional_memory(server.pid))
    return found, startups


def storage_speed() -> Iterator[Figure]:
    """Both servers run throughout and are queried alternately; the best of several turns counts."""
    with ExitStack() as stack:
        if testbench.checkout():
            with testbench.running():
                pass  # creates its environment and caches its files
        servers, startups = start_servers(stack)
        for _ in range(TURNS):
            for server in servers.values():
                measure(server)
        local, other = servers["local cloud"], servers.get("testbench")
        if other is None:
            reason = "TPUCTL_STORAGE_TESTBENCH names no checkout"
            yield skipped("storage compared with storage-testbench", reason)
        names = [name for name, *_ in RATES]
        for name in [*names, *(label for label, _ in BYTES)]:
            unit = "/s" if name in names else " MB/s"
            yield _compared(name, unit, local, other)
        yield from _startup_figures(startups, servers)


def _compared(name: str, unit: str, local: Server, testbench_server: Server | None) -> Figure:
    value = f"{local.best(name):,.0f}{unit}"
    if testbench_server is None:
        return Figure(name, value)
    ratios = [
        first / second
        for first, second in zip(local.values[name], testbench_server.values[name], strict=True)
    ]
    best = f"{testbench_server.best(name):,.0f}{unit}"
    ratio = f"{statistics.median(ratios):.1f} × storage-testbench ({best})"
    return Figure(name, value, ratio)


def _startup_figures(
    beginnings: dict[str, tuple[float, int]], servers: dict[str, Server]
) -> Iterator[Figure]:
    for name, (seconds, memory) in beginnings.items():
        now = proportional_memory(servers[name].pid)
        yield Figure(
            f"start of the {name}",
            f"{seconds:.2f} s",
            f"{memory / 1e6:.0f} MB of memory, {now / 1e6:.0f} MB after all of this",
        )
