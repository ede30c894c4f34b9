"""What this machine is asked to do, by signals and by its metadata server. Needs no TensorFlow.

A run is stopped by a signal, sent by Ctrl-C, `tpuctl stop` or a machine that shuts down, or by a
preemption notice on the metadata server, up to half a minute before the signal
(docs.cloud.google.com/compute/docs/instances/preemptible). It saves a checkpoint and exits.
"""

import http.client
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

LONG_POLL_SECONDS = 300.0  # for which the metadata server may delay its response
RETRY_SECONDS = 5.0  # after a failed request


class Stop:
    """The state of a requested stop; a second signal exits immediately."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.deferred = self.is_preempted = False
        self._signaled = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle_signal)

    @property
    def reason(self) -> str:
        """The reason for the stop, or an empty text."""
        if self.is_preempted:
            return "preemption notice"
        return signal.Signals(self.signal).name if self.signal is not None else ""

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
        self.signal = self.signal or number


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


def read_metadata(host: str, key: str, timeout: float) -> tuple[str, str]:
    """Return the value of `instance/KEY` and its ETag."""
    address = f"http://{host}/computeMetadata/v1/instance/{key}"
    request = urllib.request.Request(address, headers={"Metadata-Flavor": "Google"})
    # The metadata server is link-local: a proxy could not reach it.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=timeout) as answer:
        return answer.read().decode("utf-8").strip(), answer.headers.get("ETag", "0")


def slice_type(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the slice's type from the local cloud's metadata server, or None without one."""
    host = environment.get("GCE_METADATA_HOST")
    try:
        return read_metadata(host, "attributes/accelerator-type", 2.0)[0] or None if host else None
    except (OSError, ValueError, http.client.HTTPException):
        return None


def watch_metadata(stop: Stop, request_save: Callable[[str], None]) -> None:
    """React to notices of the machine's metadata server, if it has one.

    On preemption the run saves and exits; on maintenance, which many machines survive, it saves.
    """

    def preempted(value: str) -> None:
        if value == "TRUE":
            stop.is_preempted = True
            stop.signal = stop.signal or signal.SIGTERM  # which the machine will send soon

    def maintained(value: str) -> None:
        if value.endswith("_ON_HOST_MAINTENANCE"):
            request_save(f"maintenance notice, {value}")

    if host := metadata_host():
        for key, callback in (("preempted", preempted), ("maintenance-event", maintained)):
            threading.Thread(target=listen, args=(host, key, callback), daemon=True).start()


def listen(host: str, key: str, callback: Callable[[str], None]) -> None:
    """Pass the value of `instance/KEY`, and every new value, to the callback.

    The server delays its response until the value changes (cloud.google.com/compute/docs/
    metadata/querying-metadata). Returns only if the server does not have the key.
    """
    last_value, tag = None, "0"  # matches no value, so the first response is immediate
    while True:
        query = f"wait_for_change=true&timeout_sec={LONG_POLL_SECONDS:.0f}&last_etag={tag}"
        try:
            value, tag = read_metadata(host, f"{key}?{query}", LONG_POLL_SECONDS + 60)
        except (OSError, ValueError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code == 404:
                return
            time.sleep(RETRY_SECONDS)
            continue
        if value != last_value:
            callback(value)
        last_value = value
