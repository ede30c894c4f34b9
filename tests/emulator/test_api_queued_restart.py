"""A server killed while requests are under way: the next one goes on with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.places import PARENT
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
PATH = f"/v2/{PARENT}"
QUEUED = f"{PATH}/queuedResources/q"


class Process:
    """A server without machines that can be killed; `serve_null.py` says why."""

    def __init__(self, home: Path) -> None:
        program = ROOT / "tests" / "support" / "serve_null.py"
        self.child = subprocess.Popen(
            [sys.executable, str(program), str(home), "quick"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert self.child.stdout is not None
        port, token = self.child.stdout.readline().split()
        self.url = f"http://127.0.0.1:{port}"
        self.session = requests.Session()
        self.session.trust_env = False
        self.session.headers["Authorization"] = f"Bearer {token}"

    def ask(self, verb: str, path: str, body: Any = None) -> Any:
        answer = self.session.request(verb, self.url + path, json=body, timeout=30)
        return {"gone": True} if answer.status_code == 404 else answer.json()

    def wait(self, path: str, check: Callable[[Any], bool]) -> Any:
        seen: list[Any] = []

        def is_so() -> bool:
            seen[:] = [self.ask("GET", path)]
            return check(seen[0])

        return until(is_so, lambda: f"another {path} than {seen}")

    def reach(self, state: str) -> Any:
        return self.wait(QUEUED, lambda found: state_of(found) == state)

    def close(self) -> None:
        self.child.send_signal(signal.SIGKILL)
        self.child.wait(timeout=20)
        assert self.child.stdout is not None
        self.child.stdout.close()
        self.session.close()


def state_of(found: Any) -> str:
    return str(found.get("state", {}).get("state", ""))


def nodes(process: Process) -> dict[str, str]:
    found = process.ask("GET", f"{PATH}/nodes").get("nodes", [])
    return {node["name"].rpartition("/")[2]: node["state"] for node in found}


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[], Process]]:
    running: list[Process] = []

    def make() -> Process:
        """Start the server, the one before killed."""
        if running:
            running.pop().close()
        running.append(Process(tmp_path / "home"))
        return running[-1]

    yield make
    for process in running:
        process.close()


def enable(process: Process) -> None:
    path = "/v1/projects/local-project/services:batchEnable"
    apis = ["tpu.googleapis.com", "compute.googleapis.com"]
    operation = process.ask("POST", path, {"serviceIds": apis})
    process.wait(f"/v1/{operation['name']}", lambda found: bool(found.get("done")))


def request(count: int = 2) -> dict[str, Any]:
    node = {"acceleratorType": "v3-8", "runtimeVersion": "tpu-ubuntu2204-base"}
    spec = {
        "parent": PARENT,
        "multisliceParams": {"nodeCount": count, "nodeIdPrefix": "n"},
        "node": node,
    }
    return {"tpu": {"nodeSpec": [spec]}}


@pytest.mark.soak
def test_requests_go_on_after_a_kill_in_any_state(serve: Any) -> None:
    process = serve()
    enable(process)
    fault = process.ask(
        "POST", "/_local/faults", {"kind": "stockout", "times": "unlimited", "type": "v3-8"}
    )
    process.ask("POST", f"{PATH}/queuedResources?queuedResourceId=q", request())
    assert state_of(process.ask("GET", QUEUED)) == "CREATING"

    process = serve()  # killed while it creates
    process.reach("ACCEPTED")

    process = serve()  # killed when it was accepted
    process.reach("WAITING_FOR_RESOURCES")

    process = serve()  # killed while it waits
    assert state_of(process.ask("GET", QUEUED)) == "WAITING_FOR_RESOURCES"
    assert nodes(process) == {}
    process.ask("DELETE", f"/_local/faults/{fault['id']}")
    process.reach("PROVISIONING")
    process.wait(f"{PATH}/nodes", lambda found: len(found.get("nodes", [])) == 2)
    assert set(nodes(process).values()) == {"CREATING"}

    process = serve()  # killed while it provisions
    process.reach("ACTIVE")
    assert nodes(process) == {"n-0": "READY", "n-1": "READY"}
    process.ask("POST", "/_local/faults", {"kind": "preempt", "node": "n-0"})

    process = serve()  # killed before or after the notice
    process.reach("SUSPENDED")
    assert nodes(process) == {"n-0": "PREEMPTED"}
    process.ask("DELETE", QUEUED)
    assert state_of(process.ask("GET", QUEUED)) == "DELETING"

    process = serve()  # killed while it deletes
    process.wait(QUEUED, lambda found: bool(found.get("gone")))
    assert nodes(process) == {}
