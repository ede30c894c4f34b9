"""When a run is asked to end: it goes on to a place where it can be taken up again.

Two things ask. A signal does, as Ctrl-C, `tpuctl stop` and a machine that goes down send it. And
Google says on the machine's metadata server that it will take the machine away, up to half a
minute before the signal (docs.cloud.google.com/compute/docs/instances/preemptible).
"""

from __future__ import annotations

import http.client
import os
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from training.checkpoints import Checkpoints

__all__ = ["Stop", "listen", "metadata_host", "watch"]

PATIENCE = 300.0  # seconds for which the metadata server is asked to hold an answer back
PAUSE = 5.0  # seconds before it is asked again after it could not answer


class Stop:
    """Remembers what asked the run to end; a second signal ends it at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.deferred = False
        self.is_noticed = False  # the machine will be taken away
        self._told = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._asked)

    @property
    def reason(self) -> str:
        """What asked, in words; nothing when nothing has."""
        if self.is_noticed:
            return "preemption notice"
        return signal.Signals(self.signal).name if self.signal is not None else ""

    def notice(self) -> None:
        """End the run as SIGTERM would: the machine will send it in a moment."""
        self.is_noticed = True
        if self.signal is None:
            self.signal = signal.SIGTERM

    def leave(self, patience: float) -> int:
        """Return the exit code, after a notice not before the signal that follows it.

        A job that ended before would look to those who watch it like one that failed by itself.
        Not for ever, though: `patience` is in seconds.
        """
        deadline = time.monotonic() + patience
        # In short waits, between which Python calls the signal's handler.
        while self.is_noticed and not self._told.is_set() and time.monotonic() < deadline:
            self._told.wait(0.2)
        return 128 + (self.signal or signal.SIGTERM)

    def _asked(self, number: int, frame: Any) -> None:
        if not self.deferred or self._told.is_set():
            sys.exit(128 + number)
        # Nothing is printed here: the signal may have come in the middle of a print.
        self._told.set()
        if self.signal is None:
            self.signal = number


def metadata_host(
    environment: Mapping[str, str] = os.environ, vendor: Path = Path("/sys/class/dmi/id/sys_vendor")
) -> str | None:
    """Return where this machine's metadata server is, or None where there is none to ask."""
    if host := environment.get("GCE_METADATA_HOST"):
        return host
    try:
        return "metadata.google.internal" if "Google" in vendor.read_text("utf-8") else None
    except OSError:
        return None


def watch(stop: Stop, checkpoints: Checkpoints) -> None:
    """Let notices of the machine's metadata server have an effect, where there is one.

    A machine that will be taken away: the run saves and ends. One that will be maintained: it
    saves and goes on, for many a machine lives through that.
    """

    def preempted(value: str) -> None:
        if value == "TRUE":
            stop.notice()

    def maintained(value: str) -> None:
        if value.endswith("_ON_HOST_MAINTENANCE"):
            checkpoints.ask(f"maintenance notice, {value}")

    if host := metadata_host():
        for key, heard in (("preempted", preempted), ("maintenance-event", maintained)):
            threading.Thread(target=listen, args=(host, key, heard), daemon=True).start()


def listen(host: str, key: str, heard: Callable[[str], None]) -> None:
    """Hand over the value of `instance/KEY`, then each other value as it comes, without end.

    The server holds its answer back until there is another value (cloud.google.com/compute/docs/
    metadata/querying-metadata, wait_for_change), so this costs next to nothing.
    """
    # The metadata server is on the machine's own link: a proxy could not reach it.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    seen, tag = None, "0"  # which no value has, so the first answer comes at once
    while True:
        address = (
            f"http://{host}/computeMetadata/v1/instance/{key}"
            f"?wait_for_change=true&timeout_sec={PATIENCE:.0f}&last_etag={tag}"
        )
        asked = urllib.request.Request(address, headers={"Metadata-Flavor": "Google"})
        try:
            with opener.open(asked, timeout=PATIENCE + 60) as answer:
                value, tag = answer.read().decode().strip(), answer.headers.get("ETag", "0")
        except (OSError, ValueError, http.client.HTTPException) as error:
            if (
                isinstance(error, urllib.error.HTTPError)
                and error.code == http.HTTPStatus.NOT_FOUND
            ):
                return  # there is no such key here
            time.sleep(PAUSE)
            continue
        if value != seen:
            heard(value)
        elif tag == "0":
            time.sleep(PAUSE)  # this server does not hold answers back
        seen = value
