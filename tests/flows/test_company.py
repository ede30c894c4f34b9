"""Stacks in a project like a company's: fourteen organization policies in force at once, and all
else that companies have."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.support.callers import Member
from tests.support.company import ENFORCED, ORGANIZATION, Company, govern
from tests.support.crypto_keys import Keys
from tests.support.forked_cli import run_tpuctl
from tests.support.gcloud import make_project
from tests.support.locations import PROJECT, REGION
from tests.support.projects import Bench, Project
from tpuctl.errors import Denied
from tpuctl.flows.doctor.diagnose import diagnose
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.plan import Action
from tpuctl.model.troubleshooting.diagnosis import CheckState, Finding


@pytest.fixture
async def governed(project: Project, null_cloud: LocalCloud) -> Bench:
    """A stack that follows the policies, with an account and a key of the company's."""

    def prepare() -> str:
        project.id = make_project(
            null_cloud, "compute", "tpu", "iam", "orgpolicy", parent=ORGANIZATION
        )
        account = {"accountId": "machines"}
        path = f"/v1/projects/{project.id}/serviceAccounts"
        Member.owner(null_cloud).send_ok("POST", path, json=account)
        govern(null_cloud, project.id)
        return Keys(null_cloud, PROJECT, REGION).create()

    key = await asyncio.to_thread(prepare)
    return project.stack(
        f"service_account: machines@{project.id}.iam.gserviceaccount.com",
        f"network: {{ssh: iap}}\ncontroller: {{secure_boot: true}}\nencryption: {{kms_key: {key}}}",
    )


async def judge(bench: Bench) -> Finding:
    diagnosis, _ = await diagnose(bench.stack, lambda finding: None)
    [finding] = [each for each in diagnosis.findings if each.check == "org policies"]
    return finding


async def test_stack_that_follows_all_policies(governed: Bench) -> None:
    assert (await judge(governed)).state is CheckState.OK
    await governed.provision()
    assert (await governed.reopen().plan()).plan.is_empty
    assert (await governed.stack.down(delete_bucket=True)).leaks == ()


async def test_other_stack_is_refused(
    governed: Bench, project: Project, null_cloud: LocalCloud
) -> None:
    """Before anything is made, with what to change, or to ask for."""
    bench = project.stack("", "controller: {}")
    constraints = (
        "compute.requireShieldedVm",
        "compute.vmExternalIpAccess",
        "gcp.restrictNonCmekServices",
        "iam.disableServiceAccountCreation",
    )
    finding = await judge(bench)
    assert finding.state is CheckState.PROBLEM
    since = remote_control.calls(null_cloud)[-1]["number"]
    with pytest.raises(Denied, match="Refused by organization policies") as refused:
        await bench.provision()
    for text in (f"{finding.message} {finding.hint}", str(refused.value)):
        assert all(name in text for name in constraints)
    hint = refused.value.diagnostics[0].hint
    assert "    encryption: {kms_key: projects/P/" in hint
    assert f"    gcloud org-policies reset {constraints[0]} --project={project.id}" in hint
    methods = {call["method"] for call in remote_control.calls(null_cloud, since)}
    assert not [name for name in methods if re.search("(?i)insert|create|patch|enable", name)]


async def test_policy_does_not_refuse_what_exists(project: Project, null_cloud: LocalCloud) -> None:
    """The stack's account was created before; its TPU is created again."""
    apis = ("compute", "tpu", "iam", "orgpolicy")
    project.id = await asyncio.to_thread(make_project, null_cloud, *apis, parent=ORGANIZATION)
    bench = project.stack()
    await bench.provision()
    owner, constraint = Member.owner(null_cloud), "iam.disableServiceAccountCreation"
    policies = f"projects/{project.id}/policies"
    body = {"name": f"{policies}/{constraint}", "spec": {"rules": [ENFORCED]}}
    owner.send_ok("POST", f"/v2/{policies}", json=body)
    stack = bench.stack.stack
    node = f"projects/{project.id}/locations/{stack.zone}/nodes/{stack.names.node}"
    owner.send_ok("DELETE", f"/v2/{node}")
    plan = (await bench.reopen().plan()).plan
    assert [change.address for change in plan if change.action is Action.CREATE] == [
        f"node/{stack.names.node}"
    ]
    assert (await bench.reopen().down(delete_bucket=True)).leaks == ()
    with pytest.raises(Denied, match=constraint):
        await bench.reopen().plan()


async def test_policy_that_tpuctl_cannot_read_exactly_does_not_refuse(
    governed: Bench, project: Project, null_cloud: LocalCloud
) -> None:
    """A named set of locations, whose members only Google knows: a call may be refused later."""
    values = {"allowedValues": ["in:our-own-choice-locations"]}
    name = f"projects/{project.id}/policies/gcp.resourceLocations"
    body = {"name": name, "spec": {"rules": [{"values": values}]}}
    Member.owner(null_cloud).send_ok("PATCH", f"/v2/{name}", json=body)
    assert (await judge(governed)).state is CheckState.PROBLEM
    assert not (await governed.stack.plan()).plan.is_empty


JOB = """
import getpass, urllib.error, urllib.request
print("user", getpass.getuser())
try:
    urllib.request.urlopen("https://example.invalid/simple", timeout=20)
except urllib.error.URLError as error:
    print("internet", error)
"""


def test_all_at_once(local_cloud: LocalCloud, tmp_path: Path) -> None:
    """From a plan to nothing, as Ann types it; only the account that she acts as is seen."""
    company = Company(local_cloud, tmp_path)
    folder = company.stack_file.parent
    (folder / "job").mkdir()
    (folder / "job" / "train.py").write_text(JOB, "utf-8")
    since = remote_control.calls(local_cloud)[-1]["number"]
    as_robot = {
        "TPUCTL_LOCAL_CALLER": company.ann,
        "TPUCTL_IMPERSONATE_SERVICE_ACCOUNT": company.robot,
    }

    def type_in(*words: str) -> str:
        done = run_tpuctl(*words, folder=folder, **as_robot)
        assert done.returncode == 0, done.stderr
        return done.stdout

    type_in("up", "--yes")
    log = type_in("run", "job/train.py")
    assert "user sa_" in log
    assert "internet" in log and "504" in log
    assert "user sa_" in type_in("logs")
    type_in("down", "--yes", "--delete-bucket")
    callers = {call["caller"] for call in remote_control.calls(local_cloud, since)}
    assert company.robot in callers
    people = {caller for caller in callers if not caller.endswith("gserviceaccount.com")}
    assert people <= {company.ann.partition(":")[2], ""}
