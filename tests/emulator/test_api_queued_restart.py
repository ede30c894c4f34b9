"""A server killed during queued requests: the next server resumes them."""

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

from tests.support.locations import PARENT
from tests.support.polling import until

ROOT = Path(__file__).parents[2]
PATH = f"/v2/{PARENT}"
QUEUED = f"{PATH}/queuedResources/q"


class Process:
    """A server without machines that can be killed; see `serve_null.py`."""

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

    def send(self, verb: str, path: str, body: Any = None) -> Any:
        answer = self.session.request(verb, self.url + path, json=body, timeout=60)
        return {"gone": True} if answer.status_code == 404 else answer.json()

    def wait(self, path: str, check: Callable[[Any], bool]) -> Any:
        last_response: list[Any] = []

        def is_so() -> bool:
            last_response[:] = [self.send("GET", path)]
            return check(last_response[0])

        return until(is_so, lambda: f"{path} to change from {last_response}")

    def reach(self, state: str) -> Any:
        return self.wait(QUEUED, lambda resource: state_of(resource) == state)

    def close(self) -> None:
        self.child.send_signal(signal.SIGKILL)
        self.child.wait(timeout=60)
        assert self.child.stdout is not None
        self.child.stdout.close()
        self.session.close()


def state_of(resource: Any) -> str:
    return str(resource.get("state", {}).get("state", ""))


def nodes(process: Process) -> dict[str, str]:
    node_list = process.send("GET", f"{PATH}/nodes").get("nodes", [])
    return {node["name"].rpartition("/")[2]: node["state"] for node in node_list}


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[], Process]]:
    running: list[Process] = []

    def make() -> Process:
        """Start the server, after killing the previous one."""
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
    operation = process.send("POST", path, {"serviceIds": apis})
    process.wait(f"/v1/{operation['name']}", lambda operation: bool(operation.get("done")))


def request(count: int = 2) -> dict[str, Any]:
    node = {"acceleratorType": "v3-8", "runtimeVersion": "tpu-ubuntu2204-base"}
    spec = {
        "parent": PARENT,
        "multisliceParams": {"nodeCount": count, "nodeIdPrefix": "n"},
        "node": node,
    }
    return {"tpu": {"nodeSpec": [spec]}}


@pytest.mark.soak
def test_queued_resource_resumes_after_kill_in_any_state(serve: Any) -> None:
    process = serve()
    enable(process)
    fault = process.send(
        "POST", "/_local/faults", {"kind": "stockout", "times": "unlimited", "type": "v3-8"}
    )
    process.send("POST", f"{PATH}/queuedResources?queuedResourceId=q", request())
    assert state_of(process.send("GET", QUEUED)) == "CREATING"

    process = serve()  # killed while creating
    process.reach("ACCEPTED")

    process = serve()  # killed when accepted
    process.reach("WAITING_FOR_RESOURCES")

    process = serve()  # killed while waiting
    assert state_of(process.send("GET", QUEUED)) == "WAITING_FOR_RESOURCES"
    assert nodes(process) == {}
    process.send("DELETE", f"/_local/faults/{fault['id']}")
    process.reach("PROVISIONING")
    process.wait(f"{PATH}/nodes", lambda response: len(response.get("nodes", [])) == 2)
    assert set(nodes(process).values()) == {"CREATING"}

    process = serve()  # killed while provisioning
    process.reach("ACTIVE")
    assert nodes(process) == {"n-0": "READY", "n-1": "READY"}
    process.send("POST", "/_local/faults", {"kind": "preempt", "node": "n-0"})

    process = serve()  # killed before or after the notice
    process.reach("SUSPENDED")
    assert nodes(process) == {"n-0": "PREEMPTED"}
    process.send("DELETE", QUEUED)
    assert state_of(process.send("GET", QUEUED)) == "DELETING"

    process = serve()  # killed while deleting
    process.wait(QUEUED, lambda response: bool(response.get("gone")))
    assert nodes(process) == {}
