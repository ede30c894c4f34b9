"""Apache Libcloud."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.locations import US_ZONE

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).with_name("libcloud_compute.py")


@pytest.mark.malformed  # a metadata fingerprint "na", an unexpected body
def test_libcloud_creates_and_deletes_instance(
    shell: Any, google: Any, programs: Callable[[str], Path]
) -> None:
    done = shell.run(programs("libcloud") / "python", PROGRAM, shell.project, US_ZONE)
    assert json.loads(done.stdout) == {
        "size": 2048,
        "state": "running",
        "attached": True,
        "nodes": [["libcloud-vm", "RUNNING"]],
        "stopped": True,
        "started": True,
        "detached": True,
        "destroyed": [True, True],
        "left": [],
    }
    assert google.remains() == []
