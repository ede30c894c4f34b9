"""A public emulator of Cloud Storage, to be asked the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.auth.credentials import AnonymousCredentials

from tests.support.storage_cases import Server
from tests.support.testbench import checkout, running


@pytest.fixture(scope="session")
def testbench() -> Iterator[Server]:
    """googleapis/storage-testbench, from the checkout that TPUCTL_STORAGE_TESTBENCH names."""
    if not checkout():
        pytest.skip("TPUCTL_STORAGE_TESTBENCH names no checkout of googleapis/storage-testbench")
    with running() as (url, _):
        yield Server(url, AnonymousCredentials(), has_google_messages=False)
