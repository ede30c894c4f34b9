"""Events in the bucket reach a receiver at least once and in order, whatever fails."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.callers import Member
from tests.support.http_server import QuietHandler, serving_http
from tests.support.locations import PROJECT
from tests.support.machine_folder import machine_folder
from tests.support.polling import until
from tests.support.projects import numbers
from tests.support.secret_manager import Secrets
from tests.support.supervised_worker import PYTHONS
from tests.support.webhook_receiver import Receiver, receiving
from tpuctl.cloud.server_clock import ServerClock
from tpuctl.flows.machines.notify import ClientStore
from tpuctl.jobs.shipped.notifications import notices, outbox
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.local_cloud.shell_env import environment_for

PREFIX = "tpuctl/notifications/bert"


class Outbox:
    """The outbox of a bucket, and machines that send what is in it to one receiver."""

    def __init__(self, cloud: LocalCloud, name: str, url: str, metadata_host: str) -> None:
        self.owner = Member.owner(cloud)
        self.name = name
        with self.owner.storage() as client:
            self.client = client  # still usable: closing it ends idle connections
            client.create_bucket(name)
        secrets = Secrets(cloud, PROJECT)
        secrets.enable()
        secret = secrets.create(name, f"{url}\n".encode())
        self.store = ClientStore(self.client, name, ServerClock().now)
        self.url = url
        variables = environment_for(cloud, {})
        self.environment = {name: value for name, value in variables.items() if value}
        self.environment["GCE_METADATA_HOST"] = metadata_host
        self.settings: dict[str, Any] = {
            "secret": f"{secret}/versions/latest",
            "on": list(notices.EVENTS),
            "format": "auto",
            "bucket": name,
            "prefix": PREFIX,
            "stack": "bert",
            "project": PROJECT,
            "zone": "us-central1-b",
            "type": "v2-8",
            "hourly": 3.0,
            "now": 1.0,
        }

    def put(self, *ids: str) -> None:
        for event in ids:
            assert outbox.put(self.store, PREFIX, {"id": event, "event": "ended", "job": event})

    def deliver(self) -> outbox.Delivery:
        return outbox.deliver(self.store, PREFIX, lambda event: notices.send(event, self.url))

    def begin(self, **more: Any) -> subprocess.Popen[bytes]:
        """Start the program of a machine's watchdog."""
        (machine_folder() / "network.json").write_text("null")
        process = subprocess.Popen(
            [PYTHONS[-1], "-S", "-I", str(machine_folder() / "bell.py")],
            env={"PATH": os.environ["PATH"], **self.environment},
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps({**self.settings, **more}).encode())
        process.stdin.close()
        process.stdin = None
        return process

    def run(self, **more: Any) -> tuple[int, str]:
        with self.begin(**more) as process:
            _, errors = process.communicate(timeout=60)
            return process.returncode, errors.decode()

    def states(self) -> dict[str, str]:
        _, entries = self.store.entries(PREFIX + "/")
        return {Path(entry.name).stem: entry.state for entry in entries if entry.state}

    def end_wait(self) -> None:
        """Let the next try be due now."""
        self.client.bucket(self.name).blob(f"{PREFIX}/{outbox.LEASE}").delete()

    def content(self) -> bytes:
        blobs = self.client.list_blobs(self.name)
        return b"".join(blob.download_as_bytes() for blob in blobs)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@contextmanager
def metadata_server(token: str) -> Iterator[str]:
    """A metadata server with one account; yields its address."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            body = json.dumps({"access_token": token, "expires_in": 3600}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with serving_http(Handler) as server:
        yield f"127.0.0.1:{server.server_port}"


@pytest.fixture
def box(local_cloud: LocalCloud, receiver: Receiver) -> Iterator[Outbox]:
    with metadata_server(local_cloud.token) as host:
        yield Outbox(local_cloud, f"outbox-{next(numbers)}", receiver.url, host)


def send_here(box: Outbox) -> None:
    box.deliver()


def send_from_machine(box: Outbox) -> None:
    code, _ = box.run()
    assert code == 0


@pytest.fixture(params=[send_here, send_from_machine])
def send(request: pytest.FixtureRequest) -> Callable[[Outbox], None]:
    function: Callable[[Outbox], None] = request.param
    return function


def test_events_are_sent_once_in_order(
    box: Outbox, receiver: Receiver, send: Callable[[Outbox], None]
) -> None:
    box.put("c", "a", "b")
    assert not outbox.put(box.store, PREFIX, {"id": "a", "event": "failed"}), "it was rung before"
    send(box)
    send(box)
    assert receiver.ids == ["c", "a", "b"]
    assert box.states() == dict.fromkeys("abc", "sent, HTTP 200")


@pytest.mark.parametrize("failure", [500, "drop", (429, {"Retry-After": "120"})])
def test_failure_holds_back_later_events(
    box: Outbox, receiver: Receiver, send: Callable[[Outbox], None], failure: Any
) -> None:
    box.put("a", "b")
    receiver.script = [failure]
    send(box)
    assert receiver.ids == ["a"]
    send(box)
    assert receiver.ids == ["a"], "no try is due, for nobody"
    assert box.states() == {}
    box.end_wait()
    send(box)
    assert receiver.ids == ["a", "a", "b"]


def test_waits_grow_and_follow_the_receiver(box: Outbox, receiver: Receiver) -> None:
    box.put("a")
    receiver.script = [500, (503, {"Retry-After": "2"}), (429, {"Retry-After": "120"})]
    delivery = box.deliver()
    assert (delivery.left, delivery.problem) == (1, "HTTP 500")
    assert delivery.wait == outbox.FIRST_DELAY
    assert 0 < box.deliver().wait <= outbox.FIRST_DELAY
    box.end_wait()
    assert box.deliver().wait == outbox.FIRST_DELAY, "longer than the receiver asks for"
    box.end_wait()
    assert box.deliver().wait == 120


def test_refused_event_does_not_block_others(
    box: Outbox, receiver: Receiver, send: Callable[[Outbox], None]
) -> None:
    box.put("a", "b")
    receiver.script = [400]
    send(box)
    assert receiver.ids == ["a", "b"]
    assert box.states() == {"a": "refused, HTTP 400", "b": "sent, HTTP 200"}


def test_damaged_objects_do_not_block_others(
    box: Outbox, receiver: Receiver, send: Callable[[Outbox], None]
) -> None:
    for name in ("broken.json", outbox.LEASE):
        box.store.create(f"{PREFIX}/{name}", b"{", 0)
    box.store.create(f"{PREFIX}/list.json", b"[]", 0)
    box.put("a")
    send(box)
    assert receiver.ids == ["a"]
    assert box.states() == {"a": "sent, HTTP 200", "broken": "dropped", "list": "dropped"}


def test_old_events_are_dropped(
    box: Outbox, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.put("a")
    monkeypatch.setattr(outbox, "MAX_AGE", -5.0)
    box.deliver()
    assert (receiver.ids, box.states()) == ([], {"a": "dropped"})
    monkeypatch.setattr(outbox, "KEPT_SECONDS", -5.0)
    box.deliver()
    assert box.states() == {}


def test_sender_killed_before_mark_sends_again(box: Outbox, receiver: Receiver) -> None:
    box.put("a", "b")
    sender = box.begin()
    receiver.before_answer = sender.kill
    with sender:
        sender.communicate(timeout=60)
    assert (receiver.ids, box.states()) == (["a"], {})
    receiver.before_answer = lambda: None
    assert 0 < box.deliver().wait <= outbox.LEASE_SECONDS, "the lease has to become stale"
    box.end_wait()
    send_from_machine(box)
    assert receiver.ids == ["a", "a", "b"]


def test_concurrent_senders_keep_the_order(box: Outbox, receiver: Receiver) -> None:
    ids = [f"{number:02}" for number in range(8)]
    box.put(*ids)
    receiver.script = [0.1] * len(ids)
    senders = [box.begin() for _ in range(3)]
    for sender in senders:
        with sender:
            sender.communicate(timeout=60)
    until(lambda: box.deliver().left == 0, "everything sent")
    assert receiver.ids == ids


def test_url_is_in_no_object_and_no_output(box: Outbox, receiver: Receiver) -> None:
    box.put("a", "b")
    receiver.script = [400, "drop"]
    _, errors = box.run()
    assert "1 notifications are unsent: no answer" in errors
    assert "secret-token" not in errors
    assert b"secret-token" not in box.content()
    unreadable = {**box.settings, "secret": f"projects/{PROJECT}/secrets/absent/versions/latest"}
    box.end_wait()
    _, errors = box.run(**unreadable)
    assert "the webhook's URL cannot be read: " in errors


def test_machine_rings_once_for_its_creation_and_limit(box: Outbox, receiver: Receiver) -> None:
    created = {"created": 1767225600.0, "now": 1767225600.0 + 7200}
    for more in ({}, {}, {"limit": "it is 2 hours old (limits.max_hours)"}, {"now": 1867225600.0}):
        assert box.run(**{**created, **more})[0] == 0
    while len(receiver.ids) < 2:  # a receiver that was too slow is asked again after some seconds
        time.sleep(1)
        box.run(**created)
    assert receiver.ids == ["20260101000000.granted", "20260101000000.limit"]
    granted, limit = receiver.events
    assert granted["text"] == (
        "Machines are up: v2-8 in us-central1-b (stack bert)\n"
        f"tpuctl --cloud local status --stack bert --project {PROJECT}"
    )
    assert (limit["detail"], limit["cost"]) == ("it is 2 hours old (limits.max_hours)", 6.0)


def test_only_wanted_events_are_rung(box: Outbox, receiver: Receiver) -> None:
    assert box.run(created=1767225600.0, now=1767225600.0, on=["failed"])[0] == 0
    assert receiver.ids == []
