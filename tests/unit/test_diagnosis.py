"""How checks run, how findings are combined and displayed; without a cloud."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import yaml
from google.cloud.orgpolicy_v2.types import PolicySpec
from rich.console import Console

from tests.support.stacks import stack_from
from tpuctl.errors import Denied, NotFound, QuotaExceeded, TpuctlError, Transient
from tpuctl.flows.doctor.checks import Check, run_checks
from tpuctl.flows.doctor.role import custom_role
from tpuctl.flows.doctor.workstation import machine_finding
from tpuctl.flows.stack.org_policies import POLICIES, _is_allowed
from tpuctl.flows.stack.permissions import required_permissions
from tpuctl.model.stack.stack import Stack
from tpuctl.model.troubleshooting.diagnosis import CheckState, Diagnosis, Finding, failed
from tpuctl.resources.composition import KINDS
from tpuctl.view.diagnosis import role_text, show_finding, summary


def answers(finding: Finding) -> Callable[[], Awaitable[Finding]]:
    async def run() -> Finding:
        return finding

    return run


def ok(name: str) -> Check:
    return Check(name, answers(Finding(name, CheckState.OK, "well")))


def stack_of(folder: Path, text: str) -> Stack:
    return stack_from(folder, f"stack: s\nproject: {{id: my-project}}\n{text}")


def test_checks_after_failed_check_are_skipped() -> None:
    async def refuse() -> Finding:
        raise QuotaExceeded("Quota exceeded", "of it")

    async def never() -> Finding:
        raise AssertionError("must not run")

    checks = [
        ok("a"),
        Check("b", refuse, ("a",)),
        Check("c", never, ("b",)),
        Check("d", never, ("a", "c")),
        Check("e", answers(Finding("e", CheckState.OK, "well")), ("absent",), ("d",)),
    ]
    diagnosis = asyncio.run(run_checks(checks, lambda finding: None))
    assert [finding.state.value for finding in diagnosis.findings] == [
        *("ok", "problem", "skipped", "skipped", "ok")
    ]
    assert [finding.root for finding in diagnosis.findings] == ["", "", "b", "b", ""]
    assert diagnosis.exit_code == 76


def test_findings_are_reported_in_order_as_available() -> None:
    reported: list[str] = []
    late = asyncio.Event()

    async def slow() -> Finding:
        await late.wait()
        return Finding("b", CheckState.OK, "well")

    async def ends_all() -> Finding:
        while reported != ["a"]:
            await asyncio.sleep(0)
        late.set()
        return Finding("c", CheckState.OK, "well")

    checks = [ok("a"), Check("b", slow), Check("c", ends_all)]
    asyncio.run(run_checks(checks, lambda finding: reported.append(finding.check)))
    assert reported == ["a", "b", "c"]


def test_unexpected_exception_propagates() -> None:
    async def broken() -> Finding:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(run_checks([ok("a"), Check("b", broken)], lambda finding: None))


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ([("ok", 0), ("warning", 0), ("skipped", 0)], 0),
        ([("ok", 0), ("problem", 77), ("problem", 2)], 77),
        ([("problem", 2), ("problem", 77)], 2),
        ([("problem", 0)], 1),
    ],
)
def test_exit_code_is_that_of_first_problem(states: list[tuple[str, int]], code: int) -> None:
    findings = [Finding("x", CheckState(state), "", exit_code=number) for state, number in states]
    assert Diagnosis(tuple(findings)).exit_code == code


def output_of(finding: Finding, width: int) -> str:
    out = io.StringIO()
    show_finding(finding, Console(file=out, width=width, no_color=True, highlight=False))
    return out.getvalue()


def test_text_is_wrapped_and_commands_are_not() -> None:
    command = "gcloud projects add-iam-policy-binding my-project --member=user:YOU --role=roles/a.b"
    finding = Finding(
        "permissions",
        CheckState.PROBLEM,
        "missing " + " ".join(f"word{number}" for number in range(30)),
        "Ask an administrator to grant it with a rather long sentence that has to be wrapped\n"
        f"    {command}",
    )
    lines = output_of(finding, 80).splitlines()
    assert any(line.strip() == command for line in lines)
    assert all(len(line) <= 80 for line in lines if command not in line)
    assert lines[0].startswith("problem    permissions   missing word0")
    assert finding.command == command


def test_ending_counts_findings_and_their_commands() -> None:
    findings = [Finding("x", CheckState(state), "") for state in ("ok", "warning", "skipped")]
    assert summary(Diagnosis(tuple(findings))) == "No problems found, with 1 warning. 1 skipped."
    findings += [Finding("x", CheckState.PROBLEM, "")] * 2
    assert summary(Diagnosis(tuple(findings))) == "2 problems. 1 skipped."
    hint = "Do this:\n    network: {ssh: iap}\nor\n    gcloud org-policies reset x"
    assert Finding("a", CheckState.PROBLEM, "", hint).command == "gcloud org-policies reset x"
    assert Finding("a", CheckState.PROBLEM, "", "    tpu: {kind: vm}").command == ""


def test_ssh_key_that_cannot_be_read_or_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(tmp_path / "config"))
    finding = machine_finding(None)
    assert finding.state in (CheckState.OK, CheckState.WARNING)
    assert "created on first use" in finding.message
    assert not (tmp_path / "config").exists(), "nothing is changed"
    (tmp_path / "file").write_text("", "utf-8")
    monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(tmp_path / "file" / "below"))
    finding = machine_finding(None)
    assert (finding.state, finding.exit_code) == (CheckState.PROBLEM, 2)
    assert "TPUCTL_CONFIG_HOME" in finding.command
    wrong = tmp_path / "key"
    wrong.write_text("no key", "utf-8")
    finding = machine_finding(
        stack_of(tmp_path, f"tpu: {{type: v2-8}}\naccess: {{ssh_key: {wrong}}}")
    )
    assert finding.state is CheckState.PROBLEM
    assert str(wrong) in finding.message


# Values as on Google's page on resource locations, with allowed and denied locations.
def rule_of(fields: dict[str, object]) -> PolicySpec.PolicyRule:
    return PolicySpec.PolicyRule.from_json(json.dumps(fields))


@pytest.mark.parametrize(
    ("rule", "yes", "no"),
    [
        ({"allowAll": True}, ["europe-west4-a", "us"], []),
        ({"denyAll": True}, [], ["europe-west4-a"]),
        (
            {"values": {"allowedValues": ["in:europe-west4-locations"]}},
            ["europe-west4-a", "europe-west4"],
            ["europe-west1", "us-central1-b", "eu"],
        ),
        (
            {"values": {"allowedValues": ["in:eu-locations", "us-central1"]}},
            ["europe-west4-a", "eu", "us-central1"],
            ["us-central1-b", "us"],
        ),
        (
            {"values": {"deniedValues": ["in:us-locations"]}},
            ["europe-west4-a"],
            ["us-central1-b", "us"],
        ),
    ],
)
def test_allowed_locations(rule: dict[str, object], yes: list[str], no: list[str]) -> None:
    assert [location for location in (*yes, *no) if _is_allowed(location, [rule_of(rule)])] == yes


IMAGES, SHIELDED = "compute.trustedImageProjects", "compute.requireShieldedVm"
CMEK, KEYS = "gcp.restrictNonCmekServices", "gcp.restrictCmekCryptoKeyProjects"
WITH_KEY = (
    "encryption: {kms_key: projects/our-keys/locations/europe-west4/keyRings/r/cryptoKeys/k}\n"
)
IN_EUROPE = "tpu: {type: v3-8, zones: [europe-west4-a]}\n"
WITHOUT_OS_LOGIN = "tpu: {type: v3-8, metadata: {enable-oslogin: 'FALSE'}}\n"
AT_COMPUTE = "tpu: {api: compute, type: v6e-4, zones: [us-east5-b]}\n"
OURS = "projects/ubuntu-os-accelerator-images"


@pytest.mark.parametrize(
    ("constraint", "rule", "text", "problem"),
    [
        ("compute.vmExternalIpAccess", {"denyAll": True}, "", True),
        ("compute.vmExternalIpAccess", {"denyAll": True}, "network: {ssh: internal}\n", None),
        ("compute.vmExternalIpAccess", {"allowAll": True}, "", None),
        ("compute.requireOsLogin", {"enforce": True}, "", None),
        ("compute.requireOsLogin", {"enforce": True}, WITHOUT_OS_LOGIN, True),
        ("compute.requireOsLogin", {"enforce": False}, WITHOUT_OS_LOGIN, None),
        (SHIELDED, {"enforce": True}, "", None),
        (SHIELDED, {"enforce": True}, "controller: {}\n", True),
        (SHIELDED, {"enforce": True}, AT_COMPUTE, True),
        (SHIELDED, {"enforce": True}, "controller: {secure_boot: true}\n", None),
        (SHIELDED, {"enforce": True}, AT_COMPUTE.replace("}", ", secure_boot: true}"), None),
        (SHIELDED, {"enforce": False}, AT_COMPUTE, None),
        (CMEK, {"values": {"deniedValues": ["storage.googleapis.com"]}}, "", True),
        (CMEK, {"values": {"deniedValues": ["storage.googleapis.com"]}}, WITH_KEY, None),
        (CMEK, {"values": {"deniedValues": ["compute.googleapis.com"]}}, "", None),
        (CMEK, {"values": {"deniedValues": ["compute.googleapis.com"]}}, "controller: {}\n", True),
        (KEYS, {"values": {"allowedValues": ["under:projects/other-keys"]}}, WITH_KEY, True),
        (KEYS, {"values": {"allowedValues": ["projects/our-keys"]}}, WITH_KEY, None),
        (KEYS, {"values": {"allowedValues": ["under:folders/1"]}}, WITH_KEY, None),
        ("iam.disableServiceAccountCreation", {"enforce": True}, "", True),
        ("iam.allowedPolicyMemberDomains", {"values": {"allowedValues": ["C0a"]}}, "", None),
        ("gcp.resourceLocations", {"values": {"allowedValues": ["in:us-locations"]}}, "", True),
        (IMAGES, {"allowAll": True}, AT_COMPUTE, None),
        (IMAGES, {"values": {"allowedValues": ["projects/debian-cloud"]}}, AT_COMPUTE, True),
        (IMAGES, {"values": {"allowedValues": [f"is:{OURS}"]}}, AT_COMPUTE, None),
        (IMAGES, {"values": {"deniedValues": [OURS]}}, AT_COMPUTE, True),
        (IMAGES, {"denyAll": True}, "tpu: {type: v6e-4, zones: [us-east5-b]}\n", None),
    ],
)
def test_policy_verdicts(
    tmp_path: Path, constraint: str, rule: dict[str, object], text: str, problem: bool | None
) -> None:
    stack = stack_of(tmp_path, text if text.startswith("tpu") else IN_EUROPE + text)
    verdict = POLICIES[constraint](stack, [rule_of(rule)])
    assert (None if verdict is None else verdict.is_problem) == problem


def test_one_denied_zone_of_several_is_a_warning(tmp_path: Path) -> None:
    text = "tpu: {type: v3-8, zones: [europe-west4-a, us-central1-a]}\n"
    text += "bucket: {location: europe-west4, allow_egress: true}\n"
    rule = {"values": {"allowedValues": ["in:eu-locations"]}}
    verdict = POLICIES["gcp.resourceLocations"](stack_of(tmp_path, text), [rule_of(rule)])
    assert verdict is not None
    assert not verdict.is_problem
    assert "us-central1-a" in verdict.detail
    assert "zones: [europe-west4-a]" in verdict.hint


def test_role_describes_each_group(tmp_path: Path) -> None:
    assert {(permission.kind, permission.action) for permission in required_permissions(KINDS)} >= {
        (kind.kind, action) for kind in KINDS for action in kind.optional
    }
    stack = stack_of(
        tmp_path,
        "tpu: {type: v3-8, kind: node, zones: [europe-west4-a]}\n"
        "job: {secrets: {TOKEN: projects/other/secrets/token}}\n",
    )
    role = custom_role(stack)
    text = role_text(role)
    assert yaml.safe_load(text)["stage"] == "GA"
    assert len({*role.permissions}) == len(role.permissions)
    assert "gcloud secrets add-iam-policy-binding token --project=other" in text
    assert "# the TPU node\n- compute." in text
    assert "network: the" not in text


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("network: {ssh: iap}", "iap.tunnelInstances.accessViaIAP"),
        ("controller: {}", "compute.instances.create"),
        ("limits: {max_hours: 1}", "iam.roles.create"),
        ("job: {secrets: {TOKEN: secret:token}}", "secretmanager.secrets.setIamPolicy"),
    ],
)
def test_role_has_exactly_the_permissions_of_the_stack(
    tmp_path: Path, text: str, name: str
) -> None:
    plain = "tpu: {type: v3-8, zones: [europe-west4-a]}\nlimits: {idle: null}\n"
    without = stack_of(tmp_path, plain)
    assert name not in custom_role(without).permissions
    if text.startswith("limits"):
        plain = plain.partition("limits")[0]
    with_it = stack_of(tmp_path, f"{plain}{text}\n")
    assert name in custom_role(with_it).permissions


@pytest.mark.parametrize(
    ("error", "code"), [(Transient("x"), 69), (QuotaExceeded("x"), 76), (NotFound("x"), 1)]
)
def test_errors_keep_their_exit_codes(error: TpuctlError, code: int) -> None:
    assert failed("a", error).exit_code == code
    assert failed("a", error, 77).exit_code == 77


async def test_failed_check_reports_the_error() -> None:
    async def refuse() -> Finding:
        error = Denied("Permission denied", "no", hint="Ask:\n    command --now")
        raise error from NotFound("x")

    (finding,) = (await run_checks([Check("a", refuse)], lambda finding: None)).findings
    assert (finding.message, finding.command) == ("Permission denied: no", "command --now")
    assert finding.exit_code == 77
