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
from google.cloud import compute_v1
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
