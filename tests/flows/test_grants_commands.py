"""Commands for callers: local token, local set propagation, fault --caller."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.callers import Member
from tests.support.projects import Project
from tpuctl.cli.main import run
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud

ANN = "user:ann@example.com"


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    code = run(["local", *words, "--json"])
    envelope = json.loads(capsys.readouterr().out)
    assert (code, envelope["status"]) == (0, "ok"), envelope
    return envelope["data"]


def test_token_of_another_member(
    project: Project, null_cloud: LocalCloud, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stable, different from the owner's, and limited to its scopes."""
    issued = answer(capsys, "token", ANN)
    assert issued == {"member": ANN, "token": Member(null_cloud, ANN).token}
    assert run(["local", "token", ANN]) == 0
    assert capsys.readouterr().out == issued["token"] + "\n"
    scope = "https://www.googleapis.com/auth/compute"
    limited = answer(capsys, "token", ANN, "--scope", scope)["token"]
    assert len({limited, issued["token"], null_cloud.token}) == 3
    ann = Member(null_cloud, ANN)
    ann.token = limited
    message = ann.status_and_message("GET", "/v3/projects/local-project")
    assert message == (403, "Request had insufficient authentication scopes.")


@pytest.mark.parametrize("member", ["ann@example.com", "group:g@example.com", "user:ann", "user:"])
def test_invalid_callers_are_rejected(
    project: Project, capsys: pytest.CaptureFixture[str], member: str
) -> None:
    assert run(["local", "token", member]) != 0
    assert "Invalid member" in capsys.readouterr().err


def test_policy_propagation_delay(
    project: Project, null_cloud: LocalCloud, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        assert answer(capsys, "set", "propagation", "2.5")["propagation"] == 2.5
        assert remote_control.settings(null_cloud)["propagation"] == 2.5
        for wrong in ("soon", "nan", "inf"):
            assert run(["local", "set", "propagation", wrong]) != 0
            assert "number of seconds" in capsys.readouterr().err
    finally:
        remote_control.change_settings(null_cloud, propagation=0)


def test_device_limit(
    project: Project, null_cloud: LocalCloud, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        assert answer(capsys, "set", "devices", "2")["devices"] == 2
        assert remote_control.settings(null_cloud)["devices"] == 2
        assert answer(capsys, "set", "devices", "all")["devices"] == 0
    finally:
        remote_control.change_settings(null_cloud, devices=0)


def test_fault_for_one_caller(
    project: Project, null_cloud: LocalCloud, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = answer(capsys, "fault", "add", "unavailable", "--caller", "ann@*", "--times", "1")
    try:
        path = "/v3/projects/local-project"
        assert Member.owner(null_cloud).status_and_message("GET", path)[0] == 200
        assert Member(null_cloud, ANN).status_and_message("GET", path)[0] == 503
        assert Member(null_cloud, ANN).status_and_message("GET", path)[0] == 403
        assert remote_control.fault(null_cloud, fault["id"])["applied"] == 1
    finally:
        remote_control.remove_fault(null_cloud, fault["id"])
