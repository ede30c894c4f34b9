"""`tpuctl local fault` and `tpuctl local set` with a running local cloud."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tpuctl.cli.main import run
from tpuctl.local_cloud import remote_control, server_process

NODES = "/v2/projects/local-project/locations/us-central1-b/nodes"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cloud") / "local"
    patch = pytest.MonkeyPatch()
    patch.setenv("TPUCTL_LOCAL_HOME", str(folder))
    yield folder
    server_process.stop(folder)
    patch.undo()


@pytest.fixture
def cloud(home: Path) -> Iterator[server_process.LocalCloud]:
    """A local cloud without faults and changed settings."""
    cloud = server_process.start(home, ssh="high")
    yield cloud
    running = server_process.status(home)
    if running is not None:
        remote_control.remove_all_faults(running)
        remote_control.change_settings(
            running,
            pace="quick",
            nodes="allowed",
            quota={"TPUV3": None},
            policies=[],
            denied_permissions=[],
            reservations=[],
        )


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """The JSON data of a command that must succeed."""
    code = run(["local", *words, "--json"])
    envelope = json.loads(capsys.readouterr().out)
    assert (code, envelope["status"]) == (0, "ok"), envelope
    assert envelope["command"] == " ".join(["local", *words[: 2 if words[0] == "fault" else 1]])
    return envelope["data"]


def list_nodes(cloud: server_process.LocalCloud) -> int:
    with requests.Session() as session:
        session.trust_env = False
        headers = {"Authorization": f"Bearer {cloud.token}"}
        return session.get(cloud.url + NODES, headers=headers, timeout=60).status_code


def test_fault_lifecycle(
    capsys: pytest.CaptureFixture[str], cloud: server_process.LocalCloud
) -> None:
    assert run(["local", "fault", "add", "unavailable", "--method", "ListNodes"]) == 0
    fault_id = capsys.readouterr().out.strip()
    assert run(["local", "fault", "list"]) == 0
    output = capsys.readouterr().out
    assert fault_id in output
    assert "0 of 1" in output
    assert list_nodes(cloud) == 503
    assert run(["local", "fault", "list"]) == 0
    assert "1 of 1" in capsys.readouterr().out
    assert run(["local", "fault", "remove", fault_id]) == 0
    assert "applied 1 of 1" in capsys.readouterr().out
    assert remote_control.faults(cloud) == []


def test_every_option_is_passed(
    capsys: pytest.CaptureFixture[str], cloud: server_process.LocalCloud
) -> None:
    options = (
        "--method Create* --project p --zone us-east5-* --region us-east5 --type v3-8 --name n "
        "--at 4 --times unlimited --code aborted --http 418 --fail-operation --text no"
    )
    fault = answer(capsys, "fault", "add", "error", *options.split())
    expected = {
        "kind": "error", "method": "Create*", "project": "p", "zone": "us-east5-*",
        "region": "us-east5", "type": "v3-8", "name": "n", "at": 4,
        "times": "unlimited", "code": "ABORTED",
        "http": 418, "fail_operation": True, "text": "no", "applied": 0,
    }  # fmt: skip
    assert {key: fault[key] for key in expected} == expected
    assert (
        answer(capsys, "fault", "add", "error", "--google-error", "reservation")["google_error"]
        == "reservation"
    )
    assert answer(capsys, "fault", "add", "hold", "--hold-response")["hold_response"] is True
    assert answer(capsys, "fault", "add", "slow", "--seconds", "1.5")["seconds"] == 1.5
    quota = answer(capsys, "fault", "add", "quota", "--limit", "A", "--number", "4")
    assert (quota["limit"], quota["number"]) == ("A", 4)
    later = answer(capsys, "fault", "add", "preempt", "--node", "x", "--seconds", "9999")
    assert later["node"] == "x"
    cut = answer(capsys, "fault", "add", "truncate", "--body", "response", "--after-bytes", "7")
    assert (cut["body"], cut["after_bytes"]) == ("response", 7)
    command = "host-unreachable --node x --worker 2 --mode refused --seconds 9999"
    fault = answer(capsys, "fault", "add", *command.split())
    assert (fault["node"], fault["worker"], fault["mode"]) == ("x", 2, "refused")
    full = "disk-full --node x --worker 0 --after-bytes 9 --seconds 9999"
    fault = answer(capsys, "fault", "add", *full.split())
    assert (fault["worker"], fault["after_bytes"], fault["due"] > 0) == (0, 9, True)
    assert len(answer(capsys, "fault", "list")) == 9
    assert len(answer(capsys, "fault", "remove", "--all")) == 9


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["add", "stokout"], 2, "Did you mean stockout?"),
        (["add", "slow"], 2, "seconds"),
        (["add", "drop-response", "--times", "often"], 2, "often"),
        (["add", "drop-response", "--seconds", "3"], 2, "seconds"),
        (["add", "preempt", "--node", "absent"], 1, "absent"),
        (["add", "disk-full", "--node", "absent"], 1, "Node absent not found."),
        (
            ["add", "host-unreachable", "--node", "n", "--mode", "dead"],
            2,
            "mode must be silent or refused",
        ),
        (["add", "drop-response", "--method", "CreateNods"], 2, "Did you mean CreateNode?"),
        (["add", "stockout", "--zone", "us-centrl1-b"], 2, "Did you mean us-central1-b?"),
        (["add", "stockout", "--type", "v3-9"], 2, "Did you mean v3-8?"),
        (["add", "quota", "--region", "us-centrl1"], 2, "Did you mean us-central1?"),
        (["remove", "drop-response-7"], 1, "drop-response-7"),
        (["release", "drop-response-7"], 1, "drop-response-7"),
    ],
)
def test_errors_name_the_invalid_value(
    capsys: pytest.CaptureFixture[str],
    cloud: server_process.LocalCloud,
    words: list[str],
    code: int,
    message: str,
) -> None:
    assert run(["local", "fault", *words, "--json"]) == code
    (diagnostic,) = json.loads(capsys.readouterr().out)["diagnostics"]
    assert message in diagnostic["detail"]
    assert remote_control.faults(cloud) == []


def test_settings(capsys: pytest.CaptureFixture[str], cloud: server_process.LocalCloud) -> None:
    answer(capsys, "set", "nodes", "denied")
    answer(capsys, "set", "quota", "TPUV3", "us-east5-a", "4")
    answer(capsys, "set", "policy", "compute.vmExternalIpAccess", "on")
    answer(capsys, "set", "denied-permission", "tpu.nodes.create", "on")
    answered = answer(capsys, "set", "pace", "instant")
    assert answered == answer(capsys, "set") == remote_control.settings(cloud)
    assert (answered["nodes"], answered["pace"]) == ("denied", "instant")
    assert answered["quota"] == {"TPUV3": {"us-east5-a": 4}}
    assert answered["policies"] == ["compute.vmExternalIpAccess"]
    assert answered["denied_permissions"] == ["tpu.nodes.create"]
    assert run(["local", "set"]) == 0
    output = capsys.readouterr().out
    assert "TPUV3 us-east5-a 4" in output
    assert "compute.vmExternalIpAccess on" in output
    answer(capsys, "set", "policy", "compute.vmExternalIpAccess", "off")
    answered = answer(capsys, "set", "quota", "TPUV3", "us-east5-a", "unlimited")
    assert (answered["policies"], answered["quota"]) == ([], {})
    assert run(["local", "set", "nodes", "closed"]) == 2
    assert "allowed or denied" in capsys.readouterr().err


def test_changed_pace_is_persistent(
    capsys: pytest.CaptureFixture[str], home: Path, cloud: server_process.LocalCloud
) -> None:
    """It is shown by `local status`, used by later commands, and survives a restart."""
    answer(capsys, "set", "pace", "real")
    running = server_process.status(home)
    assert running is not None
    assert running.pace == "real"
    assert server_process.start(home, pace="real").pid == cloud.pid
    assert run(["local", "up", "--pace", "quick"]) == 1
    assert "tpuctl local set pace quick" in capsys.readouterr().err
    server_process.stop(home)
    assert server_process.start(home, ssh="high").pace == "real"


def test_reset_deletes_faults_and_settings(
    capsys: pytest.CaptureFixture[str], home: Path, cloud: server_process.LocalCloud
) -> None:
    answer(capsys, "set", "nodes", "denied")
    answer(capsys, "fault", "add", "drop-response")
    assert run(["local", "reset", "--yes"]) == 0
    capsys.readouterr()
    fault = answer(capsys, "fault", "add", "drop-response")  # restarts it
    assert fault["id"] == "drop-response-1"
    assert [listed["id"] for listed in answer(capsys, "fault", "list")] == ["drop-response-1"]
    assert answer(capsys, "set")["nodes"] == "allowed"
