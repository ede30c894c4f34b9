"""Graceful interruption: the run saves a checkpoint before it exits.

A run is stopped by a signal, sent by Ctrl-C, `tpuctl stop` or a machine that shuts down, or by a
preemption notice on the metadata server, up to half a minute before the signal
(docs.cloud.google.com/compute/docs/instances/preemptible).
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

__all__ = ["Stop", "listen", "metadata_host", "watch_metadata"]

LONG_POLL_SECONDS = 300.0  # for which the metadata server may delay its response
RETRY_SECONDS = 5.0  # after a failed request


class Stop:
    """The state of a requested stop; a second signal exits immediately."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.deferred = False
        self.is_preempted = False
        self._signaled = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle_signal)

    @property
    def reason(self) -> str:
        """The reason for the stop, or an empty text."""
        if self.is_preempted:
            return "preemption notice"
        return signal.Signals(self.signal).name if self.signal is not None else ""

    def preempt(self) -> None:
        """Stop the run like SIGTERM, which the machine will send soon."""
        self.is_preempted = True
        if self.signal is None:
            self.signal = signal.SIGTERM

    def wait_for_exit_code(self, timeout: float) -> int:
        """Return the exit code; after a preemption notice, wait for the signal first.

        A job that exits before the signal looks like a failed job. `timeout` is in seconds.
        """
        deadline = time.monotonic() + timeout
        # Python calls the signal handler between short waits.
        while self.is_preempted and not self._signaled.is_set() and time.monotonic() < deadline:
            self._signaled.wait(0.2)
        return 128 + (self.signal or signal.SIGTERM)

    def _handle_signal(self, number: int, frame: Any) -> None:
        if not self.deferred or self._signaled.is_set():
            sys.exit(128 + number)
        # No printing: the signal may have interrupted a print.
        self._signaled.set()
        if self.signal is None:
            self.signal = number


def metadata_host(
    environment: Mapping[str, str] = os.environ, vendor: Path = Path("/sys/class/dmi/id/sys_vendor")
) -> str | None:
    """Return the host of this machine's metadata server, or None if it has none."""
    if host := environment.get("GCE_METADATA_HOST"):
        return host
    try:
        return "metadata.google.internal" if "Google" in vendor.read_text("utf-8") else None
    except OSError:
        return None


def watch_metadata(stop: Stop, checkpoints: Checkpoints) -> None:
    """React to notices of the machine's metadata server, if it has one.

    On preemption the run saves and exits. On maintenance it saves and continues, as many machines
    survive it.
    """

    def preempted(value: str) -> None:
        if value == "TRUE":
            stop.preempt()

    def maintained(value: str) -> None:
        if value.endswith("_ON_HOST_MAINTENANCE"):
            checkpoints.request_save(f"maintenance notice, {value}")

    if host := metadata_host():
        for key, callback in (("preempted", preempted), ("maintenance-event", maintained)):
            threading.Thread(target=listen, args=(host, key, callback), daemon=True).start()


def listen(host: str, key: str, callback: Callable[[str], None]) -> None:
    """Pass the value of `instance/KEY`, and every new value, to the callback; never returns.

    The server delays its response until the value changes (cloud.google.com/compute/docs/
    metadata/querying-metadata, wait_for_change), so this costs next to nothing.
    """
    # The metadata server is link-local: a proxy could not reach it.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    last_value, tag = None, "0"  # matches no value, so the first response is immediate
    while True:
        address = (
            f"http://{host}/computeMetadata/v1/instance/{key}"
            f"?wait_for_change=true&timeout_sec={LONG_POLL_SECONDS:.0f}&last_etag={tag}"
        )
        request = urllib.request.Request(address, headers={"Metadata-Flavor": "Google"})
        try:
            with opener.open(request, timeout=LONG_POLL_SECONDS + 60) as answer:
                value, tag = answer.read().decode().strip(), answer.headers.get("ETag", "0")
        except (OSError, ValueError, http.client.HTTPException) as error:
            if (
                isinstance(error, urllib.error.HTTPError)
                and error.code == http.HTTPStatus.NOT_FOUND
            ):
                return  # the server does not have this key
            time.sleep(RETRY_SECONDS)
            continue
        if value != last_value:
            callback(value)
        elif tag == "0":
            time.sleep(RETRY_SECONDS)  # this server does not support wait_for_change
        last_value = value
