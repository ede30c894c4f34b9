"""Google's clients for Node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.locations import US_ZONE

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).with_name("node_clients.js")


@pytest.mark.malformed  # an unexpected empty body
def test_node_clients(shell: Any, google: Any, node_modules: Path) -> None:
    done = shell.run("node", PROGRAM, shell.project, US_ZONE, NODE_PATH=str(node_modules))
    assert json.loads(done.stdout) == {
        "project": shell.project,
        "service": "ENABLED",
        "objects": [["large", 5_000_001], ["multipart", 5], ["resumable", 5]],
        "contents": ["line\r", "line\r"],
        "tpu": "READY",
        "instance": "RUNNING",
    }
    assert google.remains() == []
