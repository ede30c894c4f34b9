"""The transcript of a run: it can be replayed, and contains nothing private."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.live.harness.transcript import RecordingCloud, Redaction, Transcript
from tests.support.projects import serving
from tpuctl.cli.main import run
from tpuctl.cloud.endpoints import Endpoint
from tpuctl.errors import TpuctlError

PRIVATE_PROJECT = "acme-research-7"
PERSON, NUMBER, ADDRESS = "kim@acme.example.org", "834512345678", "8.8.4.4"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMDEFnKcIdC kim@laptop"
TOKEN = "ya29.a0AfH6SMBxyz"


@pytest.fixture
def redaction() -> Redaction:
    return Redaction({PRIVATE_PROJECT: "example-project", "/home/kim": "/home/user"})


@pytest.mark.parametrize(
    ("private", "text"),
    [
        (PRIVATE_PROJECT, f"projects/{PRIVATE_PROJECT}/locations/-"),
        (PERSON, f"user:{PERSON}"),
        (NUMBER, f"{NUMBER}-compute@developer.gserviceaccount.com"),
        (NUMBER, f"projects/{NUMBER}/services/tpu.googleapis.com"),
        ("7781234567890123456", "7781234567890123456"),
        (ADDRESS, f"{ADDRESS}:22"),
        ("0123AB-4567CD-89EF01", "billingAccounts/0123AB-4567CD-89EF01"),
        ("IMDEFnKcIdC", f"kim:{KEY}"),
        ("kim@laptop", f"kim:{KEY}"),
        ("/home/kim", "cannot read /home/kim/train.py"),
    ],
)
def test_private_text_is_replaced(redaction: Redaction, private: str, text: str) -> None:
    assert private not in redaction.text(text)
    assert redaction.text(text) == redaction.text(redaction.text(text)), "a substitute stays"


def test_substitutes_are_consistent(redaction: Redaction) -> None:
    """Responses still name what earlier ones created."""
    first, other = redaction.text(f"a {ADDRESS}"), redaction.text("b 8.8.8.8")
    assert redaction.text(f"c {ADDRESS}")[2:] == first[2:] != other[2:]
    number = redaction.text(NUMBER)
    assert (len(number), number.isdigit()) == (len(NUMBER), True)
    assert redaction.text(f"projects/{NUMBER}") == f"projects/{number}"


def test_public_text_stays(redaction: Redaction) -> None:
    for text in (
        *("10.128.0.0/20", "35.235.240.0/20", "127.0.0.1", "0.0.0.0/0", "v2-alpha-tpuv5-lite"),
        *("2026-11-27T00:40:13.631576706Z", "tpu-ubuntu2204-base", "2.18.0", "65533"),
        "service-account@example-project.iam.gserviceaccount.com",
    ):
        assert redaction.text(text) == text


def test_firewall_rules_do_not_tell_which_addresses_they_leave_out(redaction: Redaction) -> None:
    ranges = ["8.0.0.0/14", "8.4.0.0/15", "8.8.4.5/32"]
    rule = redaction.content({"sourceRanges": ranges})
    assert not {*ranges} & {*rule["sourceRanges"]}
    assert len({*rule["sourceRanges"]}) == len(ranges)


def test_secrets_and_display_names_are_left_out(redaction: Redaction) -> None:
    content = {"payload": {"data": "aHVudGVyMg=="}, "displayName": "ACME Research"}
    text = json.dumps(redaction.content(content))
    assert "aHVudGVyMg" not in text
    assert "ACME" not in text


async def test_calls_of_all_clients_are_recorded_and_replayed_alike(
    tmp_path: Path, redaction: Redaction, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(tmp_path / "local") as server:
        cloud = RecordingCloud(Endpoint("local", server.url, server.token), PRIVATE_PROJECT)
        cloud.transcript = Transcript(tmp_path / "calls.jsonl", redaction)
        await call_apis(cloud)
    lines = [json.loads(line) for line in cloud.transcript.path.read_text("utf-8").splitlines()]
    recorded = {(line["verb"], line["path"]): line for line in reversed(lines)}
    assert {line["status"] for line in lines} >= {200, 403, 404}
    denied = recorded["GET", "/v2/projects/example-project/locations/us-central1-a/nodes"]
    assert json.loads(denied["answer"])["error"]["details"][0]["reason"] == "SERVICE_DISABLED"
    of_objects = [line for line in lines if line["answer"] is None]
    assert [line["path"].split("/")[1] for line in of_objects] == ["upload", "download"]
    assert {line["body"] for line in of_objects} == {""}
    text = cloud.transcript.path.read_text("utf-8")
    for private in (PRIVATE_PROJECT, server.token, "what it stores"):
        assert private not in text

    code = run(["--json", "local", "replay", str(cloud.transcript.path)])
    data = json.loads(capsys.readouterr().out)["data"]
    assert code == 0, data["calls"]
    assert data["alike"] == len(lines) - len(of_objects) - data["skipped"]
    assert data["alike"] >= 8


async def call_apis(cloud: RecordingCloud) -> None:
    """Over gRPC, with Compute Engine's and Cloud Storage's clients, and without a client."""
    project = f"projects/{PRIVATE_PROJECT}"

    async def call(name: str, method: str, *arguments: Any, **fields: Any) -> Any:
        return await cloud.call(name, getattr(cloud.client(name), method), *arguments, **fields)

    await call("projects", "create_project", {"project": {"project_id": PRIVATE_PROJECT}})
    await call("projects", "get_project", {"name": project})
    with contextlib.suppress(TpuctlError):
        await call("tpu", "list_nodes", {"parent": f"{project}/locations/us-central1-a"})
    account = "billingAccounts/010CA1-010CA1-010CA1"
    info = {"name": project, "project_billing_info": {"billing_account_name": account}}
    await call("billing", "update_project_billing_info", info)
    services = ["compute.googleapis.com", "tpu.googleapis.com"]
    request = {"parent": project, "service_ids": services}
    await call("services", "batch_enable_services", request)
    with contextlib.suppress(TpuctlError):
        await call("networks", "get", project=PRIVATE_PROJECT, network="missing")
    await call(
        "networks", "insert_unary", project=PRIVATE_PROJECT, network_resource={"name": "own"}
    )
    await call("tpu", "list_nodes", {"parent": f"{project}/locations/us-central1-a"})
    await call("rest", "call", "GET", "serviceusage", f"/v1/{project}/services/tpu.googleapis.com")
    bucket = cloud.client("storage").bucket("acme-bucket")
    await cloud.call("bucket", bucket.create)
    blob = bucket.blob("secret.txt")
    await cloud.call("object", blob.upload_from_string, "what it stores")
    assert await cloud.call("object", blob.download_as_bytes) == b"what it stores"
    await cloud.call("object", blob.reload)


def test_response_of_a_stream_is_not_read(tmp_path: Path, redaction: Redaction) -> None:
    """The client reads it."""
    transcript = Transcript(tmp_path / "calls.jsonl", redaction)
    response = requests.Response()
    response.status_code = 200
    response.request = requests.Request("GET", f"https://a.googleapis.com/v1/{TOKEN}").prepare()
    transcript.add_response(response, stream=True)
    [line] = transcript.path.read_text("utf-8").splitlines()
    assert json.loads(line)["answer"] is None
