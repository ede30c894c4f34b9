"""What docs/guides/company-administrator.sh makes, through the real gcloud."""

from __future__ import annotations

import pytest

from tests.docs.page_blocks import ROOT
from tests.support.commands import succeed
from tests.support.gcloud import Gcloud, make_project
from tests.support.locations import US_ZONE

SCRIPT = ROOT / "docs" / "guides" / "company-administrator.sh"
SHARED = ("compute", "shared-vpc")


def run_script(gcloud: Gcloud, **variables: str) -> None:
    """Run the script for users of the project."""
    who = {"PROJECT": gcloud.project, "MEMBER": "user:ann@example.com"}
    succeed(["bash", str(SCRIPT)], env={**gcloud.environment, **who, **variables})


def test_network_of_a_host_project(gcloud: Gcloud) -> None:
    host = make_project(gcloud.cloud, "compute", project="net-host")
    at_host = f"--project={host}"
    gcloud.run("compute", "networks", "create", "corp", "--subnet-mode=custom", at_host)
    tpus = ("--network=corp", "--range=10.7.0.0/20", f"--region={US_ZONE[:-2]}", at_host)
    gcloud.run("compute", "networks", "subnets", "create", "tpus", *tpus)
    refused = gcloud.run(
        *SHARED, "associated-projects", "add", gcloud.project, f"--host-project={host}", check=False
    )
    assert f"'projects/{host}' is not a shared VPC host project." in refused.stderr
    gcloud.run(*SHARED, "enable", host)
    region = US_ZONE[:-2]
    used = {"HOST": host, "NETWORK": "corp", "SUBNETWORK": "tpus", "REGION": region}
    run_script(gcloud, **used)
    rules = gcloud.json("compute", "firewall-rules", "list", at_host)
    assert {"tpus-ssh", "tpus-workers"} < {rule["name"] for rule in rules}
    assert gcloud.json(*SHARED, "get-host-project", gcloud.project)["name"] == host
    machine = ("--machine-type=n1-standard-1", "--image-family=debian-12", "--no-address")
    subnet = f"--subnet=projects/{host}/regions/{US_ZONE[:-2]}/subnetworks/tpus"
    image = "--image-project=debian-cloud"
    [box] = gcloud.json("compute", "instances", "create", "box", *machine, image, subnet)
    assert box["networkInterfaces"][0]["network"].endswith("projects/net-host/global/networks/corp")
    network = f"--network=projects/{host}/global/networks/corp"
    subnetwork = subnet.replace("--subnet", "--subnetwork")
    tpu = ("--accelerator-type=v2-8", "--version=tpu-vm-base", network, subnetwork)
    gcloud.run("compute", "tpus", "tpu-vm", "create", "bert", *tpu, "--internal-ips")
    usable = gcloud.json("compute", "networks", "subnets", "list-usable", at_host)
    names = [item["subnetwork"].rpartition("/")[2] for item in usable if "corp" in item["network"]]
    assert names == ["tpus"]


@pytest.mark.soak
def test_accounts_and_key(gcloud: Gcloud) -> None:
    """Acting as an account, logging in with OS Login, and a new key; again it changes nothing."""
    account = f"tpu-users@{gcloud.project}.iam.gserviceaccount.com"
    gcloud.run("services", "enable", "iam.googleapis.com")
    gcloud.run("iam", "service-accounts", "create", "tpu-users")
    key = f"projects/{gcloud.project}/locations/us-central1/keyRings/tpu/cryptoKeys/training"
    for _ in range(2):
        run_script(gcloud, ACT_AS=account, OS_LOGIN=account, KMS_KEY=key)
    roles = {
        binding["role"]: binding["members"]
        for binding in gcloud.json("iam", "service-accounts", "get-iam-policy", account)["bindings"]
    }
    ann = ["user:ann@example.com"]
    assert roles["roles/iam.serviceAccountTokenCreator"] == ann
    assert roles["roles/iam.serviceAccountUser"] == ann
    policy = gcloud.json("kms", "keys", "get-iam-policy", key)
    agents = [
        binding["members"]
        for binding in policy["bindings"]
        if binding["role"] == "roles/cloudkms.cryptoKeyEncrypterDecrypter"
    ]
    assert [member.partition("@")[2] for member in sorted(agents[0])] == [
        "compute-system.iam.gserviceaccount.com",
        "gs-project-accounts.iam.gserviceaccount.com",
    ]
