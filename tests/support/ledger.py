"""A ledger of acknowledged changes, to check that a server has them after a kill and restart.

Each resource has a key, `kind:name`, and a way to read it. An acknowledged change must exist;
one without a response may exist or not, but never partially.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any

import requests

from tests.support.killable_server import KillableServer
from tests.support.locations import PARENT, PROJECT, ZONE
from tests.support.polling import until

BUCKET = "kept"
COMPUTE = f"/compute/v1/projects/{PROJECT}"
COMPUTE_ZONE = f"{COMPUTE}/zones/{ZONE}"
_SECONDS = 20.0
_ABSENT = {"member": False, "guest": False, "api": "DISABLED"}  # None for other kinds
_OBJECTS = f"/storage/v1/b/{BUCKET}/o"
# Where each kind is read, and which part of the answer is compared; None compares only
# existence.
_READERS: dict[str, tuple[str, Callable[[requests.Response], Any] | None]] = {
    "bucket": ("/storage/v1/b/{}", None),
    "object": (f"{_OBJECTS}/{{}}?alt=media", lambda answer: digest(answer.content)),
    "note": (f"{_OBJECTS}/{{}}", lambda answer: answer.json().get("metadata", {}).get("note")),
    "project": ("/v3/projects/{}", lambda answer: answer.json()["state"]),
    "api": (f"/v1/projects/{PROJECT}/services/{{}}", lambda answer: answer.json()["state"]),
    "account": (
        f"/v1/projects/{PROJECT}/serviceAccounts/{{}}@{PROJECT}.iam.gserviceaccount.com",
        None,
    ),
    "role": (f"/v1/projects/{PROJECT}/roles/{{}}", lambda answer: answer.json()["title"]),
    "node": (f"/v2/{PARENT}/nodes/{{}}", lambda answer: answer.json()["state"]),
    "queued": (
        f"/v2/{PARENT}/queuedResources/{{}}",
        lambda answer: answer.json()["state"]["state"],
    ),
    "instance": (f"{COMPUTE_ZONE}/instances/{{}}", lambda answer: answer.json()["status"]),
    "disk": (f"{COMPUTE_ZONE}/disks/{{}}", lambda answer: answer.json()["status"]),
    "firewall": (f"{COMPUTE}/global/firewalls/{{}}", lambda answer: answer.json()["priority"]),
}


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


class Ledger:
    """Makes changes and records their results. Raises requests.RequestException from the call
    during which the server was killed."""

    def __init__(self, server: KillableServer) -> None:
        self.server = server
        self.possible_states: dict[str, set[Any]] = {}  # possible states by key; None for absent
        self.operations: list[str] = []  # paths of acknowledged operations
        self.sessions: dict[str, tuple[str, int]] = {}  # by path: total bytes, acknowledged bytes
        self.calls = 0

    def expected_state(self, key: str) -> Any:
        states = self.possible_states.get(key, {_ABSENT.get(key.partition(":")[0])})
        assert len(states) == 1, (key, states)
        return next(iter(states))

    def change(self, key: str, new: Any, verb: str, path: str, **more: Any) -> Any:
        """Create or change a resource, immediately or by an operation; returns the JSON answer."""
        self.possible_states[key] = {self.expected_state(key), new}
        answer = self.request(verb, path, **more)
        self.possible_states[key] = {new}
        content = answer.json() if answer.content else {}
        operation = operation_path(path, content)
        if operation:
            self.operations.append(operation)
            self.await_operation(operation)
        return content

    def request(self, verb: str, path: str, **more: Any) -> requests.Response:
        answer = self.server.request(verb, path, **more)
        assert answer.ok, (verb, path, answer.status_code, answer.text)
        self.calls += 1
        return answer

    def await_operation(self, operation: str) -> None:
        """Wait for an operation, which must succeed."""

        def ended() -> Any:
            answer = self.server.request("GET", operation)
            assert answer.ok, f"{operation} was acknowledged and is gone: {answer.text}"
            content = answer.json()
            return content if content.get("done") or content.get("status") == "DONE" else None

        result = until(ended, f"the end of {operation}")
        assert "error" not in result, result
        self.operations.remove(operation)

    def read(self, key: str) -> Any:
        kind, _, name = key.partition(":")
        if kind in ("member", "guest"):
            return name in self._members(kind)
        path, look = _READERS[kind]
        answer = self.server.request("GET", path.format(name))
        # A missing project looks like a denied one: 403.
        if answer.status_code == (403 if kind == "project" else 404):
            return None
        assert answer.ok, (key, answer.status_code, answer.text)
        return look(answer) if look is not None else True

    def _members(self, kind: str) -> set[str]:
        policy = self.server.request(*policy_of(kind)).json()
        return {member for binding in policy.get("bindings", ()) for member in binding["members"]}

    # Resumable uploads.

    def begin_upload(self, name: str, total: int) -> str:
        path = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=resumable&name={name}"
        answer = self.request("POST", path, json={})
        address: str = answer.headers["Location"].removeprefix(self.server.url)
        self.sessions[address] = (str(total), 0)
        return address

    def append(self, address: str, data: bytes, first: int, total: int) -> requests.Response:
        header = f"bytes {first}-{first + len(data) - 1}/{total}"
        # Without the usual handling: status 308 is not a redirect here.
        answer = self.server.request(
            "PUT",
            address,
            data=data,
            headers={"Content-Range": header},
            allow_redirects=False,
        )
        assert answer.status_code in (200, 308), answer.text
        self.sessions[address] = (str(total), first + len(data))
        self.calls += 1
        return answer

    def received_bytes(self, address: str) -> int:
        """The received bytes of a session; all of them if it is complete."""
        total, _ = self.sessions[address]
        answer = self.server.request(
            "PUT",
            address,
            headers={"Content-Range": f"bytes */{total}"},
            allow_redirects=False,
        )
        if answer.status_code == 200:
            return int(total)
        assert answer.status_code == 308, answer.text
        return int(answer.headers.get("Range", "bytes=0--1").partition("-")[2]) + 1

    # After a kill.

    def check(self) -> None:
        """Compare the server with the acknowledged changes, and forget uncertain ones."""
        for operation in list(self.operations):
            self.await_operation(operation)
        for key, states in self.possible_states.items():
            until = time.monotonic() + _SECONDS
            while (state := self.read(key)) not in states:
                assert time.monotonic() < until, f"{key} is {state}, and not in {states}"
                time.sleep(0.01)
            self.possible_states[key] = {state}
        for address, (_, had) in self.sessions.items():
            assert self.received_bytes(address) >= had, (
                f"of {had} bytes there are {self.received_bytes(address)}"
            )
        self._check_files()

    def _check_files(self) -> None:
        """Every object has its bytes, including soft-deleted ones, and there are no other files."""
        items = []
        for which in ("", "?softDeleted=true"):
            listed = self.server.request("GET", f"{_OBJECTS}{which}")
            items += listed.json().get("items", []) if listed.ok else []
        files = [path for path in (self.server.home / "objects").rglob("*") if path.is_file()]
        assert len(files) == len(items)
        drafts = list((self.server.home / "uploads").iterdir())
        # One session may have begun without being acknowledged.
        assert len(drafts) <= len(self.sessions) + 1


def policy_of(kind: str) -> tuple[str, str]:
    """How to read the policy that contains the members of a kind."""
    if kind == "guest":
        return "GET", f"/storage/v1/b/{BUCKET}/iam"
    return "POST", f"/v3/projects/{PROJECT}:getIamPolicy"


def operation_path(path: str, content: dict[str, Any]) -> str:
    """The path of the operation in an answer; "" if there is none or it is done."""
    name = str(content.get("name", ""))
    if content.get("kind") == "compute#operation":
        link: str = content["selfLink"]
        return link[link.index("/compute/v1/") :]
    if "operations/" not in name:
        return ""
    version = path.split("/")[1]
    return f"/{version}/{name}"
