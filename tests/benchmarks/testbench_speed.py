"""Requests and bytes a second of the local cloud's storage, beside storage-testbench's.

The same client asks both by turns, over plain connections: what a client library does itself is
not measured.
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

from tests.benchmarks.figures import Figure, local_cloud, sized, skipped
from tests.support import testbench
from tests.support.memory import proportional_memory
from tests.support.places import PROJECT
from tpuctl.emulator.client import server_process

__all__ = ["storage_speed"]

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
    """One of the two, and what was measured of it."""

    url: str
    pid: int
    token: str = ""
    found: dict[str, list[float]] = field(default_factory=dict)

    def connect(self) -> Connection:
        return Connection(self)

    def note(self, what: str, value: float) -> None:
        self.found.setdefault(what, []).append(value)

    def best(self, what: str) -> float:
        return max(self.found[what])


class Connection:
    """One that stays open."""

    def __init__(self, server: Server) -> None:
        self._http = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=120)
        self._headers = {"Authorization": f"Bearer {server.token}"} if server.token else {}

    def ask(self, verb: str, path: str, body: bytes | None = None) -> None:
        """Send the request and read the answer, into the same memory whatever its size."""
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


Ask = Callable[[Connection, int], None]
UPLOAD = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name="
OBJECTS = f"/storage/v1/b/{BUCKET}/o"
DOWNLOAD = f"/download/storage/v1/b/{BUCKET}/o"


def _ask(verb: str, path: str, body: bytes | None = None) -> Ask:
    return lambda connection, number: connection.ask(verb, path.format(number), body)


# What is asked so many times, over so many connections.
RATES: tuple[tuple[str, int, int, Ask], ...] = (
    ("uploads of 1 kB", REQUESTS, 1, _ask("POST", f"{UPLOAD}o-{{}}", SMALL)),
    ("uploads of 1 kB, 8 at once", REQUESTS, 8, _ask("POST", f"{UPLOAD}o-{{}}", SMALL)),
    ("downloads of 1 kB", REQUESTS, 1, _ask("GET", f"{DOWNLOAD}/o-{{}}?alt=media")),
    ("downloads of 1 kB, 8 at once", REQUESTS, 8, _ask("GET", f"{DOWNLOAD}/o-{{}}?alt=media")),
    ("metadata of an object", REQUESTS, 1, _ask("GET", f"{OBJECTS}/o-{{}}")),
    (f"lists of {LISTED}", 5, 1, _ask("GET", f"{OBJECTS}?prefix=o-&maxResults={LISTED}")),
)
BYTES: tuple[tuple[str, Ask], ...] = (
    (f"upload of {MEGABYTES} MB", _ask("POST", f"{UPLOAD}large", LARGE)),
    (f"download of {MEGABYTES} MB", _ask("GET", f"{DOWNLOAD}/large?alt=media")),
)


def rate(server: Server, ask: Ask, count: int, connections: int) -> float:
    """Requests a second."""

    def some(part: int) -> None:
        connection = server.connect()
        for number in range(part, count, connections):
            ask(connection, number)
        connection.close()

    started = time.perf_counter()
    if connections == 1:
        some(0)
    else:
        with ThreadPoolExecutor(connections) as pool:
            list(pool.map(some, range(connections)))
    return count / (time.perf_counter() - started)


def measure(server: Server) -> None:
    """All of it once."""
    for what, count, connections, ask in RATES:
        server.note(what, rate(server, ask, count, connections))
    for what, ask in BYTES:
        server.note(what, MEGABYTES * rate(server, ask, 1, 1))


def started(servers: ExitStack) -> tuple[dict[str, Server], dict[str, tuple[float, int]]]:
    """Both, with the seconds that each took to answer and the memory that it then had."""
    found: dict[str, Server] = {}
    beginnings: dict[str, tuple[float, int]] = {}
    for name in ("local cloud", "testbench"):
        if name == "testbench" and not testbench.checkout():
            continue
        begun = time.perf_counter()
        if name == "local cloud":
            folder = servers.enter_context(local_cloud("instant"))
            cloud = server_process.status(folder / "cloud")
            assert cloud is not None
            server = Server(cloud.url, cloud.pid, cloud.token)
        else:
            server = Server(*servers.enter_context(testbench.running()))
        connection = server.connect()
        connection.ask("GET", f"/storage/v1/b?project={PROJECT}")
        taken = time.perf_counter() - begun
        connection.ask(
            "POST", f"/storage/v1/b?project={PROJECT}", json.dumps({"name": BUCKET}).encode()
        )
        connection.close()
        found[name] = server
        beginnings[name] = (taken, proportional_memory(server.pid))
    return found, beginnings


def storage_speed() -> Iterator[Figure]:
    """Both servers run all the while and are asked by turns; the best of several turns counts."""
    with ExitStack() as stack:
        if testbench.checkout():
            with testbench.running():
                pass  # its environment is made, and its files are in memory
        servers, beginnings = started(stack)
        for _ in range(TURNS):
            for server in servers.values():
                measure(server)
        ours, theirs = servers["local cloud"], servers.get("testbench")
        if theirs is None:
            reason = "TPUCTL_STORAGE_TESTBENCH names no checkout"
            yield skipped("storage beside storage-testbench", reason)
        names = [what for what, *_ in RATES]
        for what in [*names, *(what for what, _ in BYTES)]:
            unit = "/s" if what in names else " MB/s"
            yield _compared(what, unit, ours, theirs)
        yield from _beginnings(beginnings, servers)


def _compared(what: str, unit: str, ours: Server, theirs: Server | None) -> Figure:
    value = f"{ours.best(what):,.0f}{unit}"
    if theirs is None:
        return Figure(what, value)
    ratios = [one / other for one, other in zip(ours.found[what], theirs.found[what], strict=True)]
    ratio = f"{statistics.median(ratios):.1f} × storage-testbench ({theirs.best(what):,.0f}{unit})"
    return Figure(what, value, ratio)


def _beginnings(
    beginnings: dict[str, tuple[float, int]], servers: dict[str, Server]
) -> Iterator[Figure]:
    for name, (seconds, memory) in beginnings.items():
        now = proportional_memory(servers[name].pid)
        yield Figure(
            f"start of the {name}",
            f"{seconds:.2f} s",
            f"{memory / 1e6:.0f} MB of memory, {now / 1e6:.0f} MB after all of this",
        )
