"""Other users of google-cloud-compute in the same program notice nothing of how it was loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from tpuctl.slim import compute_service
compute_service("networks").NetworksClient
assert "google.cloud.compute_v1.services.instances" not in sys.modules  # that was all
from concurrent.futures import ThreadPoolExecutor
from google.cloud import compute_v1
names = ["Instance", "DisksClient", "InstancesClient", "Network"] * 2
with ThreadPoolExecutor(len(names)) as pool:  # each asks while another's asking loads it
    found = list(pool.map(lambda name: getattr(compute_v1, name), names))
assert [one.__name__ for one in found] == names
assert compute_v1.InstancesClient.__name__ == "InstancesClient"
assert compute_v1.Instance is compute_v1.types.Instance
assert compute_v1.NetworksClient is compute_service("networks").NetworksClient
try:
    compute_v1.NoSuchClient
except AttributeError as error:
    assert "NoSuchClient" in str(error)
else:
    raise AssertionError("any name would do")
"""


@pytest.mark.soak
def test_the_whole_package_is_there_once_it_is_asked_for() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=120)
