"""Stacks in a project like a company's: fourteen organization policies in force at once, and all
else that companies have."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.callers import Member
from tests.support.company import ORGANIZATION, Company, govern
from tests.support.crypto_keys import Keys
from tests.support.forked_cli import run_tpuctl
from tests.support.gcloud import make_project
from tests.support.locations import PROJECT, REGION
from tests.support.projects import Bench, Project
from tpuctl.errors import Denied
from tpuctl.flows.doctor.diagnose import diagnose
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
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


async def test_other_stack_is_refused(governed: Bench, project: Project) -> None:
    """With what to change, or to ask for; nothing is left."""
    bench = project.stack("", "controller: {}")
    finding = await judge(bench)
    assert finding.state is CheckState.PROBLEM
    for constraint in (
        "compute.requireShieldedVm",
        "compute.vmExternalIpAccess",
        "gcp.restrictNonCmekServices",
        "iam.disableServiceAccountCreation",
    ):
        assert constraint in f"{finding.message} {finding.hint}"
    with pytest.raises(Denied, match="Google-managed encryption keys not allowed") as caught:
        await bench.provision()
    assert "    encryption: {kms_key: KEY}" in caught.value.diagnostics[0].hint
    assert (await bench.stack.status()).inventory == ()


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
