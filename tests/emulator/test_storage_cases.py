"""The local cloud behaves as in the table of Cloud Storage's behavior."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.oauth2.credentials import Credentials

from tests.support.projects import serving
from tests.support.storage_cases import Case, Server, load, run


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("cases") / "local") as cloud:
        headers = {"Authorization": f"Bearer {cloud.token}"}
        yield Server(cloud.url, Credentials(token=cloud.token), headers)


@pytest.mark.parametrize("case", load(), ids=lambda case: case.name)
def test_case(case: Case, server: Server) -> None:
    run(case, server)
