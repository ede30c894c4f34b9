"""What `doctor` reports for each problem, and the command that fixes it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.callers import Member, grant
from tests.support.grants import ANN, Pipeline
from tests.support.locations import ZONE
from tests.support.projects import Project
from tpuctl.cli.main import run
from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.endpoints import GOOGLE
from tpuctl.flows.doctor.project import ProjectChecks
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.troubleshooting.diagnosis import CheckState

CHECKS = [
    *("this machine", "local cloud", "stack file", "credentials", "project", "billing", "APIs"),
    *("permissions", "network", "org policies", "plan", "quota", "clock"),
]


@pytest.fixture
def ready(cloud: LocalCloud, tmp_path: Path, project: Project) -> Pipeline:
    """A project without problems, and a stack file."""
    return Pipeline(cloud, tmp_path, "vm")


Ask = Callable[..., tuple[int, Mapping[str, Any], str]]


@pytest.fixture
def run_doctor(
    ready: Pipeline, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Ask:
    """The exit code, the checks by name, and the next command."""

    def doctor(*words: str, caller: str = "") -> tuple[int, Mapping[str, Any], str]:
        with monkeypatch.context() as patch:
            patch.chdir(ready.bench.folder)
            if caller:
                patch.setenv("TPUCTL_LOCAL_CALLER", caller)
            code = run(["doctor", "--json", *words])
        answer = json.loads(capsys.readouterr().out)
        assert answer["exit_code"] == code
        checks = {each["check"]: each for each in answer["data"]["checks"]}
        return code, checks, answer["data"]["next"]

    return doctor


def states(checks: Mapping[str, Any]) -> dict[str, str]:
    """The states of checks that are not ok."""
    return {name: check["state"] for name, check in checks.items() if check["state"] != "ok"}


def test_all_checks_pass_without_changes(
    ready: Pipeline, cloud: LocalCloud, run_doctor: Ask
) -> None:
    since = remote_control.calls(cloud)[-1]["number"]
    code, checks, following = run_doctor()
    assert list(checks) == CHECKS
    assert (code, following) == (0, "tpuctl up")
    assert states(checks) == {"org policies": "skipped"}
    policies = checks["org policies"]["command"]
    assert policies == f"gcloud services enable orgpolicy.googleapis.com --project={ready.project}"
    mutations = [call["method"] for call in remote_control.calls(cloud, since) if call["mutating"]]
    assert mutations == []


def test_caller_with_printed_role_passes(ready: Pipeline, run_doctor: Ask) -> None:
    ready.let_robot(ready.role().permissions)
    code, checks, _ = run_doctor(caller=ready.member)
    assert code == 0
    assert ready.email in checks["credentials"]["message"]
    assert checks["permissions"]["state"] == "ok"


def test_missing_permission(ready: Pipeline, run_doctor: Ask) -> None:
    names = {*ready.role().permissions} - {"tpu.nodes.create", "compute.firewalls.update"}
    ready.let(sorted(names))
    code, checks, following = run_doctor(caller=ANN)
    assert code == 77
    message = checks["permissions"]["message"]
    assert "tpu.nodes.create" in message
    assert "compute.firewalls.update" not in message, "required only to change the address"
    command = (
        f"gcloud projects add-iam-policy-binding {ready.project} --member={ANN} "
        "--role=roles/tpu.admin"
    )
    assert checks["permissions"]["command"] == following == command
    assert "tpuctl doctor --role" in checks["permissions"]["hint"]
    assert checks["plan"]["state"] == "skipped"
    assert checks["quota"]["requires"] == "permissions"
    ready.let(ready.role().permissions)
    grant(ready.cloud, f"projects/{ready.project}", "roles/tpu.admin", ANN)
    assert run_doctor(caller=ANN)[0] == 0


def test_missing_login_role(ready: Pipeline, cloud: LocalCloud, run_doctor: Ask) -> None:
    ready.let([*ready.role().permissions, "compute.projects.get"])
    on = {"items": [{"key": "enable-oslogin", "value": "TRUE"}]}
    path = f"/compute/v1/projects/{ready.project}"
    Member.owner(cloud).send_ok("POST", f"{path}/setCommonInstanceMetadata", json=on)
    for role, missing in (("osLogin", "osLogin;"), ("osAdminLogin", "osAdminLogin:"), ("", "")):
        permissions = run_doctor(caller=ANN)[1]["permissions"]
        if missing:
            assert f"does not grant you compute.instances.{missing}" in permissions["message"]
            command = f"--member={ANN} --role=roles/compute.osAdminLogin"
            assert permissions["command"].endswith(command)
            grant(cloud, f"projects/{ready.project}", f"roles/compute.{role}", ANN)
        else:
            assert permissions["state"] == "ok"


def test_billing_disabled(ready: Pipeline, cloud: LocalCloud, run_doctor: Ask) -> None:
    path = f"/v1/projects/{ready.project}/billingInfo"
    Member.owner(cloud).send_ok("PUT", path, json={"billingAccountName": ""})
    code, checks, following = run_doctor()
    assert (code, states(checks)["billing"]) == (77, "problem")
    assert following.startswith(f"gcloud billing projects link {ready.project} --billing-account=")
    assert "no billing account" in checks["billing"]["message"]


def test_api_without_permission_to_enable(
    ready: Pipeline, cloud: LocalCloud, run_doctor: Ask
) -> None:
    path = f"/v1/projects/{ready.project}/services/tpu.googleapis.com:disable"
    Member.owner(cloud).send_ok("POST", path, json={})
    assert run_doctor()[1]["APIs"]["message"] == "`up` enables tpu"
    ready.let(
        [
            permission
            for permission in ready.role().permissions
            if permission != "serviceusage.services.enable"
        ]
    )
    code, checks, following = run_doctor(caller=ANN)
    assert code == 77
    assert following == f"gcloud services enable tpu.googleapis.com --project={ready.project}"
    assert "no permission to enable" in checks["APIs"]["message"]


def test_zero_quota(ready: Pipeline, cloud: LocalCloud, run_doctor: Ask) -> None:
    limit = "TPUV3sPerProjectPerZoneForTPUAPI"
    remote_control.change_settings(cloud, quota={limit: {ZONE: 0}})
    try:
        code, checks, following = run_doctor()
    finally:
        remote_control.change_settings(cloud, quota={limit: None})
    assert (code, states(checks)["quota"]) == (76, "problem")
    assert limit in checks["quota"]["message"]
    assert following == checks["quota"]["command"] != ""


def test_organization_policy(ready: Pipeline, cloud: LocalCloud, run_doctor: Ask) -> None:
    owner, project = Member.owner(cloud), f"projects/{ready.project}"
    apis = {"serviceIds": ["orgpolicy.googleapis.com"]}
    owner.send_ok("POST", f"/v1/{project}/services:batchEnable", json=apis)
    assert run_doctor()[1]["org policies"]["state"] == "ok"
    name = f"{project}/policies/iam.disableServiceAccountCreation"
    policy = {"name": name, "spec": {"rules": [{"enforce": True}]}}
    owner.send_ok("POST", f"/v2/{project}/policies", json=policy)
    code, checks, following = run_doctor()
    assert (code, states(checks)) == (77, {"org policies": "problem"})
    assert "iam.disableServiceAccountCreation" in checks["org policies"]["message"]
    assert "    tpu: {service_account: NAME@" in checks["org policies"]["hint"]
    reset = f"gcloud org-policies reset iam.disableServiceAccountCreation --project={ready.project}"
    assert following == checks["org policies"]["command"] == reset
    ready.let(
        [
            permission
            for permission in ready.role().permissions
            if permission != "orgpolicy.policy.get"
        ]
    )
    code, checks, _ = run_doctor(caller=ANN)
    assert (code, states(checks)["org policies"]) == (0, "skipped")
    assert "--role=roles/orgpolicy.policyViewer" in checks["org policies"]["command"]


def test_missing_network(ready: Pipeline, run_doctor: Ask) -> None:
    with ready.file.open("a", encoding="utf-8") as file:
        file.write("network: {name: missing}\n")
    code, checks, following = run_doctor()
    assert (code, states(checks)["network"]) == (1, "problem")
    assert following == f"gcloud compute networks create missing --project={ready.project}"


def test_expired_token(ready: Pipeline, cloud: LocalCloud, run_doctor: Ask) -> None:
    remote_control.add_fault(
        cloud, "error", method="GetProject", project=ready.project, code="UNAUTHENTICATED"
    )
    code, checks, following = run_doctor()
    assert (code, following) == (77, "gcloud auth application-default login")
    assert checks["project"]["state"] == "problem"
    others = CHECKS[CHECKS.index("billing") :]
    assert {checks[name]["requires"] for name in others} == {"project"}


def test_missing_project(ready: Pipeline, run_doctor: Ask) -> None:
    text = ready.file.read_text("utf-8")
    ready.file.write_text(text.replace(ready.project, "nobodys-project"), "utf-8")
    code, checks, following = run_doctor()
    assert (code, following) == (77, "gcloud projects list")
    assert "nobodys-project" in checks["project"]["message"]


def test_project_created_by_up(project: Project) -> None:
    bench = project.stack()
    code, out, _ = bench.type("doctor", "--json")
    checks = {check["check"]: check for check in json.loads(out)["data"]["checks"]}
    assert code == 0
    assert checks["project"]["message"] == f"`up` creates {project.id}"
    assert checks["billing"]["state"] == checks["quota"]["state"] == "skipped"


def test_invalid_or_missing_stack_file(ready: Pipeline, run_doctor: Ask) -> None:
    ready.file.write_text("stack: s\nproject: {id: p}\ntpu: {tpye: v2-8}\n", "utf-8")
    code, checks, following = run_doctor()
    assert (code, following) == (2, "tpuctl check")
    assert list(checks) == CHECKS[:4]
    assert checks["credentials"]["state"] == "ok"
    ready.file.unlink()
    code, checks, following = run_doctor()
    assert (code, following) == (2, "tpuctl init")
    code, checks, following = run_doctor("--project", ready.project)
    assert (code, following) == (0, "tpuctl init")
    assert states(checks)["quota"] == "skipped"


def test_terminal_output_fits_and_ends_with_next_command(ready: Pipeline) -> None:
    screen = ready.bench.in_terminal("--no-color", "doctor", columns=80)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", screen).splitlines()
    copied = [line for line in lines if "gcloud " in line or " " not in line.strip()]
    assert all(len(line) <= 80 for line in lines if line not in copied), screen
    assert [line.split("  ")[0] for line in lines if line[:1] not in (" ", "")][:3] == ["ok"] * 3
    assert lines[-2:] == ["Next:", "    tpuctl up"]
    assert not re.search(r"\x1b\[(?:\d+;)*[349]\d", screen), "colors"


def test_output_without_terminal_and_conflicting_options(ready: Pipeline) -> None:
    code, out, errors = ready.bench.type("doctor")
    assert (code, errors) == (0, "")
    assert out.endswith("\nNext:\n    tpuctl up\n")
    code, out, errors = ready.bench.type("doctor", "--role", "--project", "p")
    assert (code, out) == (2, "")
    assert "Conflicting options" in errors
    code, out, errors = ready.bench.type("doctor", "--role", "--json")
    assert (code, errors) == (0, "")
    assert json.loads(out)["data"]["role"]["stage"] == "GA"


async def test_rejected_google_credentials(
    ready: Pipeline, cloud: LocalCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service account key, which the local cloud's token endpoint does not support."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    info = {
        "type": "service_account",
        "project_id": ready.project,
        "private_key_id": "1",
        "private_key": key.decode(),
        "client_email": ready.email,
        "token_uri": f"{cloud.url}/token",
    }
    (tmp_path / "key.json").write_text(json.dumps(info), "utf-8")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("CI", raising=False)
    made = Cloud(GOOGLE, ready.project)
    checks = ProjectChecks(ready.open().stack, lambda: made)
    finding = await checks.credentials()
    assert (finding.state, finding.exit_code) == (CheckState.PROBLEM, 77)
    assert finding.command == "gcloud auth application-default login"
    monkeypatch.setenv("CI", "true")
    assert (await checks.credentials()).command == "tpuctl ci github"
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "absent.json"))
    absent = Cloud(GOOGLE, ready.project)
    finding = await ProjectChecks(ready.open().stack, lambda: absent).credentials()
    assert "absent.json does not exist" in finding.message
