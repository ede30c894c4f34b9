"""The record of methods that the tests call, for the page of what is emulated."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import conftest
from tests.support import method_record
from tests.support.transcripts import Tally, TranscriptValidator

NETWORKS = "compute.v1:compute.networks.list"
NETWORK_COMMANDS = {name: {"commands": {}} for name in ("delete", "describe", "list")}
OTHER_COMMANDS = ("compute networks delete", "compute networks describe")


def tally_of(folder: Path, *, status: int = 200, client: str = "", **others: str) -> Tally:
    line = {
        "kind": "rest",
        "verb": "GET",
        "override": "",
        "path": "/compute/v1/projects/p-1/global/networks",
        "query": "",
        "host": "127.0.0.1",
        "client": client,
        "type": "",
        "body": "",
        "status": status,
        "answer_type": "application/json; charset=UTF-8",
        "answer": '{"kind": "compute#networkList"}',
        **others,
    }
    file = folder / "calls.jsonl"
    file.write_text(json.dumps(line) + "\n", "utf-8")
    validator = TranscriptValidator(file)
    validator.complaints()
    return validator.tally


@pytest.mark.parametrize(
    ("client", "is_googles"),
    [
        ("", False),
        ("python-requests/2.32", False),
        ("gl-python/3.11 rest/2.32 gax/2.25 gapic/1.28", True),
        ("google-cloud-sdk gcloud/528.0.0", True),
    ],
)
def test_methods_called_by_googles_clients_are_counted(
    tmp_path: Path, client: str, is_googles: bool
) -> None:
    tally = tally_of(tmp_path, client=client)
    assert tally.described == {NETWORKS}
    assert tally.called_by_clients == ({NETWORKS} if is_googles else set())


@pytest.mark.parametrize("status", [404, 501])
def test_refused_call_proves_nothing_about_its_response(tmp_path: Path, status: int) -> None:
    assert tally_of(tmp_path, status=status).described == set()


def test_path_of_several_apis_is_the_method_whose_response_it_has(tmp_path: Path) -> None:
    """Cloud KMS has methods with the same paths, and comes first in the list of all methods."""
    name = "projects/p-1/locations/us-central1-b/operations/o"
    node = {"@type": "type.googleapis.com/google.cloud.tpu.v1.Node", "acceleratorType": "v3-8"}
    answer = json.dumps({"name": name, "done": True, "response": node})
    tally = tally_of(tmp_path, path=f"/v1/{name}", answer=answer)
    assert tally.described == {"tpu.v1:tpu.projects.locations.operations.get"}


def test_record_may_not_claim_uncalled_methods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data" / "cli").mkdir(parents=True)
    tree = {"commands": {"compute": {"commands": {"networks": {"commands": NETWORK_COMMANDS}}}}}
    completions = tmp_path / "data" / "cli" / "gcloud_completions.py"
    completions.write_text(f"STATIC_COMPLETION_CLI_TREE = {tree}", "utf-8")
    commands = tmp_path / "commands.json"
    commands.write_text('{"test": [], "soak": ["compute networks list"], "other": []}', "utf-8")
    monkeypatch.setattr(method_record, "METHODS_FILE", tmp_path / "methods.json")
    monkeypatch.setattr(method_record, "GCLOUD_FILE", commands)
    monkeypatch.setattr("shutil.which", lambda _: str(tmp_path / "bin" / "gcloud"))

    def tally(command: str) -> Tally:
        return tally_of(tmp_path, client=f"google-cloud-sdk command/gcloud.{command}")

    listed, described = tally("compute.networks.list"), tally("compute.networks.describe")
    method_record.write(listed, soak=False)
    expected = {"test": ["compute networks list"], "soak": [], "other": [*OTHER_COMMANDS]}
    assert json.loads(commands.read_text("utf-8")) == expected
    method_record.write(described, soak=True)
    expected |= {"soak": ["compute networks describe"], "other": ["compute networks delete"]}
    assert json.loads(commands.read_text("utf-8")) == expected

    assert method_record.uncalled(listed, soak=False) == []
    assert method_record.uncalled(described, soak=True) == []
    assert method_record.uncalled(Tally(), soak=False) == [
        *(f"{NETWORKS} (client)", f"{NETWORKS} (description)", "gcloud compute networks list")
    ]
    assert method_record.uncalled(Tally(), soak=True) == ["gcloud compute networks describe"]
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert method_record.uncalled(Tally(), soak=False) == []


@pytest.mark.parametrize("minutes", [math.inf, -1])
def test_record_is_not_compared_when_tests_were_left_out(
    monkeypatch: pytest.MonkeyPatch, minutes: float
) -> None:
    monkeypatch.setattr(method_record, "uncalled", lambda _, **__: ["gcloud info"])
    monkeypatch.delenv("TPUCTL_WRITE_METHODS", raising=False)
    stash = {conftest._TALLY: Tally(), conftest._DEADLINE: time.monotonic() + 60 * minutes}
    config = SimpleNamespace(
        stash=stash,
        option=SimpleNamespace(markexpr="soak", keyword=""),
        args_source=pytest.Config.ArgsSource.TESTPATHS,
    )
    assert conftest._check_methods(config) == ([] if minutes < 0 else ["gcloud info"])
