"""A server killed at any point keeps acknowledged changes and resumes pending operations."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.killable_server import KillableServer
from tests.support.ledger import (
    BUCKET,
    COMPUTE,
    COMPUTE_ZONE,
    Ledger,
    digest,
    policy_of,
)
from tests.support.locations import PARENT, PROJECT

SAMPLE = 1  # kill point of each part in the suite; `make soak` tries all of them
CHUNK = 256 * 1024
UPLOAD = f"/upload/storage/v1/b/{BUCKET}/o"
OBJECTS = f"/storage/v1/b/{BUCKET}/o"
INSTANCE = {
    "name": "vm",
    "machineType": "zones/europe-west4-a/machineTypes/n1-standard-1",
    "disks": [
        {
            "boot": True,
            "autoDelete": True,
            "initializeParams": {
                "sourceImage": "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts"
            },
        }
    ],
    "networkInterfaces": [{"network": "global/networks/default"}],
}
NODE = {"acceleratorType": "v3-8", "runtimeVersion": "tpu-ubuntu2204-base"}


def upload(ledger: Ledger, name: str, data: bytes) -> None:
    path = f"{UPLOAD}?uploadType=media&name={name}"
    ledger.change(f"object:{name}", digest(data), "POST", path, data=data)


def objects(ledger: Ledger) -> None:
    ledger.change(
        f"bucket:{BUCKET}", True, "POST", f"/storage/v1/b?project={PROJECT}", json={"name": BUCKET}
    )
    upload(ledger, "a", b"first")
    upload(ledger, "a", b"second")
    upload(ledger, "b", b"gone soon")
    ledger.change("object:b", None, "DELETE", f"{OBJECTS}/b")
    copied = ledger.expected_state("object:a")
    ledger.change("object:c", copied, "POST", f"{OBJECTS}/a/rewriteTo/b/{BUCKET}/o/c")
    sources = {"sourceObjects": [{"name": "a"}, {"name": "c"}]}
    both = digest(b"secondsecond")
    ledger.change("object:d", both, "POST", f"{OBJECTS}/d/compose", json=sources)
    ledger.change("note:d", "kept", "PATCH", f"{OBJECTS}/d", json={"metadata": {"note": "kept"}})


def resumable(ledger: Ledger) -> None:
    """Overwrites an existing object: until the last chunk is acknowledged it may be either."""
    data = random.Random("resumable").randbytes(3 * CHUNK)
    for name in ("a", "new"):
        address = ledger.begin_upload(name, len(data))
        for first in range(0, len(data), CHUNK):
            is_last = first + CHUNK == len(data)
            if is_last:
                ledger.possible_states[f"object:{name}"] = {
                    ledger.expected_state(f"object:{name}"),
                    digest(data),
                }
            ledger.append(address, data[first : first + CHUNK], first, len(data))
        ledger.possible_states[f"object:{name}"] = {digest(data)}


def policies(ledger: Ledger) -> None:
    setters = {
        "member": ("POST", f"/v3/projects/{PROJECT}:setIamPolicy"),
        "guest": ("PUT", f"/storage/v1/b/{BUCKET}/iam"),
    }
    for kind, (verb, path) in setters.items():
        for member in ("user:ann@example.com", "user:bob@example.com"):
            policy = ledger.request(*policy_of(kind)).json()
            role = "roles/viewer" if kind == "member" else "roles/storage.objectViewer"
            policy.setdefault("bindings", []).append({"role": role, "members": [member]})
            body = {"policy": policy} if kind == "member" else policy
            ledger.change(f"{kind}:{member}", True, verb, path, json=body)


def projects(ledger: Ledger) -> None:
    body = {"projectId": "another-one"}
    ledger.change("project:another-one", "ACTIVE", "POST", "/v3/projects", json=body)
    path = f"/v1/projects/{PROJECT}/services"
    for api in ("compute", "tpu", "iam"):
        name = f"{api}.googleapis.com"
        ledger.change(f"api:{name}", "ENABLED", "POST", f"{path}/{name}:enable", json={})


def identities(ledger: Ledger) -> None:
    path = f"/v1/projects/{PROJECT}"
    account = {"accountId": "worker"}
    ledger.change("account:worker", True, "POST", f"{path}/serviceAccounts", json=account)
    permissions = {"includedPermissions": ["tpu.nodes.get"], "stage": "GA"}
    role = {"roleId": "looker", "role": {"title": "Looker", **permissions}}
    ledger.change("role:looker", "Looker", "POST", f"{path}/roles", json=role)


def machines(ledger: Ledger) -> None:
    rule = {"name": "rule", "network": "global/networks/default", "priority": 7}
    rule |= {"allowed": [{"IPProtocol": "tcp"}]}
    ledger.change("firewall:rule", 7, "POST", f"{COMPUTE}/global/firewalls", json=rule)
    disk = {"name": "data", "sizeGb": "20"}
    ledger.change("disk:data", "READY", "POST", f"{COMPUTE_ZONE}/disks", json=disk)
    ledger.change("instance:vm", "RUNNING", "POST", f"{COMPUTE_ZONE}/instances", json=INSTANCE)
    nodes = f"/v2/{PARENT}/nodes"
    ledger.change("node:n", "READY", "POST", f"{nodes}?nodeId=n", json=NODE)
    ledger.change("node:n", "STOPPED", "POST", f"{nodes}/n:stop", json={})
    ledger.change("node:n", "READY", "POST", f"{nodes}/n:start", json={})
    queued = f"/v2/{PARENT}/queuedResources"
    spec = {"tpu": {"nodeSpec": [{"parent": PARENT, "nodeId": "q", "node": NODE}]}}
    ledger.change("queued:q", "ACTIVE", "POST", f"{queued}?queuedResourceId=q", json=spec)


def removals(ledger: Ledger) -> None:
    ledger.change("node:n", None, "DELETE", f"/v2/{PARENT}/nodes/n")
    ledger.change("queued:q", None, "DELETE", f"/v2/{PARENT}/queuedResources/q?force=true")
    ledger.change("instance:vm", None, "DELETE", f"{COMPUTE_ZONE}/instances/vm")
    ledger.change("disk:data", None, "DELETE", f"{COMPUTE_ZONE}/disks/data")


PARTS: tuple[Callable[[Ledger], None], ...] = (
    *(objects, resumable, policies, projects, identities, machines, removals),
)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., KillableServer]]:
    servers: list[KillableServer] = []

    def make(name: str, pace: str = "instant") -> KillableServer:
        servers.append(KillableServer(tmp_path / name, pace))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


def walk(server: KillableServer, kill_at: int) -> Ledger:
    """Make all the calls, or those until the server is killed."""
    ledger = Ledger(server)
    try:
        if server.start(kill_at):
            for part in PARTS:
                part(ledger)
        else:
            server.wait()
    except requests.RequestException:
        server.wait()
    return ledger


def kill_points(serve: Any) -> list[int]:
    """The kill points at which all calls of each part are answered."""
    server = serve("kill_points")
    ledger = Ledger(server)
    assert server.start()
    ends = []
    for part in PARTS:
        part(ledger)
        ends.append(server.crash_points.value)
    ledger.check()
    assert ledger.calls > 40
    return ends


def killed_at(serve: Any, kill_point: int) -> None:
    server = serve(f"at-{kill_point}")
    ledger = walk(server, kill_point)
    if server.is_alive:  # this run polled less often
        server.kill()
    for next_kill in (kill_point % 16 + 1, 0):  # killed again during recovery, then not
        if server.start(next_kill):
            try:
                ledger.check()
            except requests.RequestException:
                server.wait()
        else:
            server.wait()
    assert server.is_alive
    server.close()


def test_state_survives_kills_at_sampled_points(serve: Any) -> None:
    choice = random.Random("moments")
    first = 1
    for last in kill_points(serve):
        for kill_point in choice.sample(range(first, last), SAMPLE):
            killed_at(serve, kill_point)
        first = last


@pytest.mark.soak
def test_state_survives_kill_at_every_point(serve: Any) -> None:
    for kill_point in range(1, kill_points(serve)[-1]):
        killed_at(serve, kill_point)
