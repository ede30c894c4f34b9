"""`tpuctl local replay` with files as users have them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from tpuctl.cli.main import run
from tpuctl.view.schemas import envelope_schema

# GoogleCloudPlatform/k8s-config-connector@cdb85ecf17,
# pkg/test/resourcefixture/testdata/basic/compute/v1beta1/computenetwork/computenetworkbasic
TEXT = "The resource 'projects/my-project/global/networks/my-network' was not found"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TPUCTL_LOCAL_HOME", str(tmp_path / "local"))
    return tmp_path / "local"


def write_har(file: Path, text: str) -> Path:
    error = {"code": 404, "message": text}
    errors = [{"domain": "global", "message": text, "reason": "notFound"}]
    host = "https://compute.googleapis.com/compute/v1"
    entries = [
        {
            "request": {"method": "GET", "url": f"{host}/projects/my-project/{rest}"},
            "response": {
                "status": 404,
                "headers": [{"name": "content-type", "value": "application/json"}],
                "content": {"text": json.dumps({"error": error | {"errors": errors}})},
            },
        }
        for rest in ("global/networks/my-network", "global/sslPolicies/my-policy")
    ]
    file.write_text(json.dumps({"log": {"entries": entries}}), "utf-8")
    return file


def test_differences_are_listed_and_set_the_exit_code(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alike = write_har(tmp_path / "alike.har", TEXT)
    different = write_har(tmp_path / "different.har", TEXT.replace("was not", "could not be"))

    assert run(["local", "replay", str(alike)]) == 0
    assert "1 of 1 compared call alike (100%)" in capsys.readouterr().out

    assert run(["--json", "local", "replay", str(alike), str(different)]) == 1
    envelope = json.loads(capsys.readouterr().out)
    Draft202012Validator(envelope_schema()).validate(envelope)
    data = envelope["data"]
    assert (data["alike"], data["different"], data["skipped"]) == (1, 1, 2)
    [difference] = [each for call in data["calls"] for each in call["differences"]]
    assert (difference["kind"], difference["local"]) == ("text", TEXT)
    assert {call["skipped"] for call in data["calls"]} == {None, "not emulated"}
    assert not home.exists()  # the user's local cloud is not started


def test_unreadable_files_are_reported_before_anything_is_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alike = write_har(tmp_path / "alike.har", TEXT)
    assert run(["local", "replay", str(alike), str(tmp_path / "absent.har")]) == 2
    printed = capsys.readouterr()
    assert "absent.har" in printed.err
    assert printed.out == ""
    assert run(["local", "replay"]) == 2
