"""The certificates that all of Google's clients trust."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpuctl.cloud.ca_bundle import VARIABLES, share_ca_bundle
from tpuctl.errors import Usage


@pytest.mark.parametrize("name", VARIABLES)
def test_one_variable_is_enough(tmp_path: Path, name: str) -> None:
    bundle = tmp_path / "company.pem"
    bundle.touch()
    environment = {name: str(bundle)}
    share_ca_bundle(environment)
    assert environment == dict.fromkeys(VARIABLES, str(bundle))


def test_what_is_set_stays(tmp_path: Path) -> None:
    first, second = tmp_path / "first.pem", tmp_path / "second.pem"
    for file in (first, second):
        file.touch()
    environment = {"SSL_CERT_FILE": str(first), "REQUESTS_CA_BUNDLE": str(second)}
    share_ca_bundle(environment)
    assert environment["REQUESTS_CA_BUNDLE"] == str(second)
    folder = {"REQUESTS_CA_BUNDLE": str(tmp_path)}
    share_ca_bundle(folder)
    assert folder == {"REQUESTS_CA_BUNDLE": str(tmp_path)}
    share_ca_bundle(empty := {"SSL_CERT_FILE": ""})
    assert empty == {"SSL_CERT_FILE": ""}


def test_missing_file_is_reported_by_its_variable(tmp_path: Path) -> None:
    with pytest.raises(Usage, match="does not exist") as raised:
        share_ca_bundle({"REQUESTS_CA_BUNDLE": str(tmp_path / "gone.pem")})
    assert raised.value.diagnostics[0].where == "REQUESTS_CA_BUNDLE"
