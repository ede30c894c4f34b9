"""A stack in a project like a company's: fourteen organization policies in force at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.callers import Member
from tests.support.crypto_keys import Keys
from tests.support.gcloud import make_project
from tests.support.locations import PROJECT, REGION
from tests.support.projects import Bench, Project
from tpuctl.errors import Denied
from tpuctl.flows.doctor.diagnose import diagnose
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.troubleshooting.diagnosis import CheckState, Finding

ENFORCED: dict[str, Any] = {"enforce": True}
ORGANIZATION = "organizations/400000000001"
SERVICES = ("compute", "storage", "tpu")
POLICIES: dict[str, dict[str, Any]] = {
    "compute.requireOsLogin": ENFORCED,
    "compute.requireShieldedVm": ENFORCED,
    "compute.skipDefaultNetworkCreation": ENFORCED,
    "compute.trustedImageProjects": {"values": {"allowedValues": ["projects/ubuntu-os-cloud"]}},
    "compute.vmExternalIpAccess": {"denyAll": True},
    "gcp.resourceLocations": {"values": {"allowedValues": [f"in:{REGION}-locations"]}},
    "gcp.restrictCmekCryptoKeyProjects": {"values": {"allowedValues": [f"projects/{PROJECT}"]}},
    "gcp.restrictNonCmekServices": {
        "values": {"deniedValues": [f"{service}.googleapis.com" for service in SERVICES]}
    },
    "iam.automaticIamGrantsForDefaultServiceAccounts": ENFORCED,
    "iam.disableServiceAccountCreation": ENFORCED,
    "iam.disableServiceAccountKeyCreation": ENFORCED,
    "iam.disableServiceAccountKeyUpload": ENFORCED,
    "storage.publicAccessPrevention": ENFORCED,
    "storage.uniformBucketLevelAccess": ENFORCED,
}


def govern(cloud: LocalCloud, project: str) -> None:
    owner = Member.owner(cloud)
    for constraint, rule in POLICIES.items():
        policy = {"name": f"projects/{project}/policies/{constraint}", "spec": {"rules": [rule]}}
        owner.send_ok("POST", f"/v2/projects/{project}/policies", json=policy)


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
