"""A project like a company's: an administrator's policies, network, key, and accounts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.callers import Member, grant, make_role
from tests.support.crypto_keys import Keys
from tests.support.crypto_keys import agent as encrypting_agent
from tests.support.gcloud import make_project
from tests.support.locations import PROJECT, REGION, ZONE
from tests.support.shared_vpc import GROUP_AGENT, TPU_AGENT, HostProject, agent
from tpuctl.api import Tpuctl
from tpuctl.flows.doctor.diagnose import role_of
from tpuctl.local_cloud.server_process import LocalCloud

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


class Company:
    """All of it at once: the policies, the network of a host project, without addresses, OS Login,
    a key of another project, and a service account that Ann may act as, which has only the role
    that tpuctl asks for."""

    ann = "user:ann@example.com"

    def __init__(self, cloud: LocalCloud, folder: Path) -> None:
        self.cloud, self.owner = cloud, Member.owner(cloud)
        apis = ("compute", "tpu", "iam", "iamcredentials", "logging", "monitoring", "orgpolicy")
        self.project = make_project(cloud, *apis, "oslogin", "storage", parent=ORGANIZATION)
        self.machines, self.robot = self._account("machines"), self._account("acting")
        govern(cloud, self.project)
        self.host = self._host()
        self.key = self._key()
        self.stack_file = folder / "company" / "tpuctl.yaml"
        self.stack_file.parent.mkdir()
        self.stack_file.write_text(
            f"""
stack: training
project: {{id: {self.project}}}
names: {{prefix: corp}}
labels: {{cost-center: a1}}
tpu:
  type: v3-8
  runtime: tpu-ubuntu2204-base
  zones: [{ZONE}]
  service_account: {self.machines}
network: {{name: {self.host.network}, subnetwork: tpus, ssh: iap, tags: [tpus]}}
controller: {{secure_boot: true}}
encryption: {{kms_key: {self.key}}}
""",
            "utf-8",
        )
        self._let_robot()

    def _account(self, name: str) -> str:
        path = f"/v1/projects/{self.project}/serviceAccounts"
        return str(self.owner.send_ok("POST", path, json={"accountId": name})["email"])

    def _host(self) -> HostProject:
        host = HostProject(self.cloud, REGION)
        host.share_with(self.project)
        host.allow(agent(self.cloud, self.project, TPU_AGENT), "roles/tpu.xpnAgent")
        host.allow(agent(self.cloud, self.project, GROUP_AGENT))
        body = {"privateIpGoogleAccess": True}
        host.do(f"regions/{REGION}/subnetworks/tpus/setPrivateIpGoogleAccess", body)
        host.allow_port("ssh", sourceRanges=["35.235.240.0/20"], targetTags=["tpus"])
        return host

    def _key(self) -> str:
        keys = Keys(self.cloud, PROJECT, REGION)
        key = keys.create()
        number = self.owner.send_ok("GET", f"/v1/projects/{self.project}")["projectNumber"]
        self.owner.send_ok("GET", f"/storage/v1/projects/{self.project}/serviceAccount")
        services = ("gs-project-accounts", "compute-system")
        keys.set_members(key, *(encrypting_agent(number, service) for service in services))
        return key

    def _let_robot(self) -> None:
        member, project = f"serviceAccount:{self.robot}", f"projects/{self.project}"
        needed = role_of(Tpuctl(self.stack_file, cloud="local")).permissions
        grant(self.cloud, project, make_role(self.cloud, "stacks", needed, self.project), member)
        for role in ("compute.osAdminLogin", "compute.viewer", "iap.tunnelResourceAccessor"):
            grant(self.cloud, project, f"roles/{role}", member)
        machines = f"{project}/serviceAccounts/{self.machines}"
        grant(self.cloud, machines, "roles/iam.serviceAccountUser", member)
        robot = f"{project}/serviceAccounts/{self.robot}"
        grant(self.cloud, robot, "roles/iam.serviceAccountTokenCreator", self.ann)
        self.host.allow(member)
