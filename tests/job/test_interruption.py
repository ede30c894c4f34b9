"""Preemption and maintenance notices of the metadata server, and signals."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.http_server import QuietHandler

JOB = Path(__file__).resolve().parents[2] / "templates" / "jobs" / "bert-pretraining"
ROOT = "/computeMetadata/v1/instance/"
# Like pretrain.py: trains until it is stopped, saves, and exits.
PROGRAM = """
import sys, time
from machine import Stop, watch_metadata

def request_save(reason):
    sys.stdout.write(f"save: {reason}\\n"); sys.stdout.flush()

stop = Stop()
stop.deferred = True
watch_metadata(stop, request_save)
print("training", flush=True)
while not stop.reason:
    time.sleep(0.02)
print("saving after", stop.reason, flush=True)
time.sleep(float(sys.argv[2]))
sys.exit(stop.wait_for_exit_code(float(sys.argv[1])))
"""


class Metadata:
    """A metadata server that delays responses until a value changes, like Google's."""

    def __init__(self) -> None:
        self.values = {"preempted": "FALSE", "maintenance-event": "NONE"}
        self.changed = threading.Condition()
        self.requests: list[str] = []
        metadata = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                where = urlsplit(self.path)
                key, query = where.path.removeprefix(ROOT), parse_qs(where.query)
                if self.headers["Metadata-Flavor"] != "Google" or key not in metadata.values:
                    self.send_error(404)
                    return
                with metadata.changed:
                    metadata.requests.append(key)
                    metadata.changed.notify_all()
                    while query["last_etag"] == [str(hash(metadata.values[key]))]:
                        metadata.changed.wait()
                    value = metadata.values[key]
                self.send_response(200)
                self.send_header("ETag", str(hash(value)))
                self.end_headers()
                self.wfile.write(value.encode())

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.block_on_close = False
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server.server_port}"

    def set(self, key: str, value: str) -> None:
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def until_asked(self, key: str, times: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.requests.count(key) >= times, 30)

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    server = Metadata()
    yield server
    server.close()


@pytest.fixture
def start(job_environment: dict[str, str]) -> Iterator[Any]:
    processes: list[subprocess.Popen[str]] = []

    def start(host: str, patience: float, saving: float = 0.1) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(patience), str(saving)],
            env={**job_environment, "PYTHONPATH": str(JOB), "GCE_METADATA_HOST": host},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "training\n"
        return process

    yield start
    for process in processes:
        with process:
            process.kill()


def test_preemption_notice_saves_once_and_exits_on_signal(metadata: Metadata, start: Any) -> None:
    process = start(metadata.host, 60)
    metadata.set("preempted", "TRUE")
    assert process.stdout.readline() == "saving after preemption notice\n"
    assert process.poll() is None, "tpuctl would report an early exit as a failed job"
    process.send_signal(signal.SIGTERM)
    rest, errors = process.communicate(timeout=30)
    assert (process.returncode, rest, errors) == (143, "", "")


def test_preemption_notice_without_signal_times_out(metadata: Metadata, start: Any) -> None:
    process = start(metadata.host, 0.3)
    metadata.set("preempted", "TRUE")
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (143, "")


def test_maintenance_notice_saves_and_continues(metadata: Metadata, start: Any) -> None:
    process = start(metadata.host, 60)
    metadata.until_asked("maintenance-event", 2)
    for times, value in enumerate(
        ("TERMINATE_ON_HOST_MAINTENANCE", "NONE", "MIGRATE_ON_HOST_MAINTENANCE"), 3
    ):
        metadata.set("maintenance-event", value)
        metadata.until_asked("maintenance-event", times)
    assert process.stdout.readline() == "save: maintenance notice, TERMINATE_ON_HOST_MAINTENANCE\n"
    assert process.stdout.readline() == "save: maintenance notice, MIGRATE_ON_HOST_MAINTENANCE\n"
    process.send_signal(signal.SIGTERM)
    rest, errors = process.communicate(timeout=30)
    assert (process.returncode, rest, errors) == (143, "saving after SIGTERM\n", "")


def test_second_signal_exits_immediately(metadata: Metadata, start: Any) -> None:
    process = start(metadata.host, 60, saving=60)
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "saving after SIGTERM\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "")


def test_signal_after_notice_does_not_interrupt_save(metadata: Metadata, start: Any) -> None:
    process = start(metadata.host, 60, saving=0.5)
    metadata.set("preempted", "TRUE")
    assert process.stdout.readline() == "saving after preemption notice\n"
    process.send_signal(signal.SIGTERM)
    process.stdout.read()
    assert process.wait(30) == 143


def test_metadata_host_only_on_google_machines(job: SimpleNamespace, tmp_path: Path) -> None:
    vendor = tmp_path / "sys_vendor"
    host = job.machine.metadata_host
    assert host({}, vendor) is None
    vendor.write_text("QEMU\n")
    assert host({}, vendor) is None
    vendor.write_text("Google\n")
    assert host({}, vendor) == "metadata.google.internal"
    assert host({"GCE_METADATA_HOST": "127.0.0.1:80"}, vendor) == "127.0.0.1:80"


def test_listen_stops_when_key_is_not_found(job: SimpleNamespace, metadata: Metadata) -> None:
    notices: list[str] = []
    listening = threading.Thread(
        target=job.machine.listen, args=(metadata.host, "unknown", notices.append), daemon=True
    )
    listening.start()
    listening.join(30)
    assert not listening.is_alive()
    assert notices == []
