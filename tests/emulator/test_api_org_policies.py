"""Organization Policy, through the client built from Google's discovery document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import requests
from googleapiclient import errors

from tests.support.callers import Member, grant
from tests.support.locations import PROJECT_NAME
from tpuctl.local_cloud import remote_control

ORGANIZATION = "organizations/400000000001"
BUCKETS = "/storage/v1/b?project=local-project"


@pytest.fixture
async def governed(new_cloud: Any) -> Any:
    """A local cloud with Organization Policy enabled."""
    new_cloud.enable("orgpolicy", "iam", "compute", "tpu")
    return new_cloud


class Client:
    """A blocking client of organization policies."""

    def __init__(self, cloud: Any) -> None:
        self.cloud = cloud
        self.api = cloud.discovered("orgpolicy", "v2")

    def of(self, parent: str) -> Any:
        return getattr(self.api, parent.partition("/")[0])().policies()

    def set(self, constraint: str, parent: str = PROJECT_NAME, **spec: Any) -> Any:
        body = {"name": f"{parent}/policies/{constraint}", "spec": spec}
        return self.of(parent).create(parent=parent, body=body).execute()

    def rules(self, constraint: str, parent: str = PROJECT_NAME) -> Any:
        """The rules of the effective policy."""
        name = f"{parent}/policies/{constraint}"
        return self.of(parent).getEffectivePolicy(name=name).execute()["spec"]["rules"]

    def post(self, path: str, body: Any) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {self.cloud.token}"}
        with requests.Session() as session:
            session.trust_env = False
            answer = session.post(self.cloud.url + path, json=body, headers=headers, timeout=60)
        return answer.status_code, answer.json().get("error", {}).get("message", "")


@pytest.fixture
async def client(governed: Any) -> Client:
    return Client(governed)


def refused(call: Callable[[], Any], status: int) -> None:
    with pytest.raises(errors.HttpError) as caught:
        call()
    assert caught.value.status_code == status


def test_org_policy_lifecycle(client: Client) -> None:
    constraint, of = "compute.requireOsLogin", client.of(PROJECT_NAME)
    assert client.rules(constraint) == [{"enforce": False}]
    refused(lambda: of.get(name=f"{PROJECT_NAME}/policies/{constraint}").execute(), 404)
    created = client.set(constraint, rules=[{"enforce": True}])
    assert client.rules(constraint) == [{"enforce": True}]
    refused(lambda: client.set(constraint, rules=[{"enforce": True}]), 409)
    listed = of.list(parent=PROJECT_NAME).execute()["policies"]
    assert [policy["name"] for policy in listed] == [created["name"]]
    stale = {"name": created["name"], "etag": "other", "spec": {"rules": [{"enforce": False}]}}
    refused(lambda: of.patch(name=created["name"], body=stale).execute(), 409)
    of.patch(name=created["name"], body={**stale, "etag": created["etag"]}).execute()
    assert client.rules(constraint) == [{"enforce": False}]
    of.delete(name=created["name"]).execute()
    refused(lambda: of.delete(name=created["name"]).execute(), 404)


def test_invalid_org_policies_are_rejected(client: Client) -> None:
    refused(lambda: client.rules("compute.unheardOf"), 404)
    refused(lambda: client.set("compute.requireOsLogin", rules=[{"allowAll": True}]), 400)
    refused(lambda: client.set("gcp.resourceLocations", rules=[{"enforce": True}]), 400)
    refused(lambda: client.set("gcp.resourceLocations", rules=[{}]), 400)
    refused(
        lambda: client.set("compute.requireOsLogin", reset=True, rules=[{"enforce": True}]), 400
    )


def test_unsupported_parts_of_org_policies_are_refused(client: Client) -> None:
    enforced = {"rules": [{"enforce": True}]}
    conditional = {"rules": [{"enforce": True, "condition": {"expression": "true"}}]}
    name = f"{PROJECT_NAME}/policies/compute.requireOsLogin"
    for policy in ({"spec": conditional}, {"spec": enforced, "dryRunSpec": enforced}):
        body = {"name": name, **policy}
        refused(client.of(PROJECT_NAME).create(parent=PROJECT_NAME, body=body).execute, 501)
    client.set("compute.requireOsLogin", **enforced)
    change = {"name": name, "spec": enforced}
    patch = client.of(PROJECT_NAME).patch(name=name, body=change, updateMask="policy.dryRunSpec")
    refused(patch.execute, 501)
    client.of(PROJECT_NAME).patch(name=name, body=change, updateMask="policy.spec").execute()


def test_project_inherits_replaces_and_resets_policy(client: Client) -> None:
    """Google's description of `inheritFromParent`, `reset` and merging."""
    constraint = "gcp.resourceLocations"
    values = {"allowedValues": ["europe-west4"]}
    client.set(constraint, ORGANIZATION, rules=[{"values": values}])
    assert client.rules(constraint) == [{"values": values}]
    own_values = {"allowedValues": ["us-central1"]}
    made = client.set(constraint, inheritFromParent=True, rules=[{"values": own_values}])
    both = {"allowedValues": ["europe-west4", "us-central1"]}
    assert client.rules(constraint) == [{"values": both}]
    of, name = client.of(PROJECT_NAME), made["name"]
    of.patch(name=name, body={"name": name, "spec": {"rules": [{"values": own_values}]}}).execute()
    assert client.rules(constraint) == [{"values": own_values}]
    of.patch(name=name, body={"name": name, "spec": {"reset": True}}).execute()
    assert client.rules(constraint) == [{"allowAll": True}]


def test_resource_locations_constraint(client: Client) -> None:
    client.set("gcp.resourceLocations", rules=[{"values": {"allowedValues": ["in:eu-locations"]}}])
    assert client.post(BUCKETS, {"name": "bucket-of-theirs"}) == (
        412,
        "'us' violates constraint 'constraints/gcp.resourceLocations'",
    )
    assert client.post(BUCKETS, {"name": "bucket-of-ours", "location": "europe-west4"})[0] == 200
    node = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-ubuntu2204-base"}
    path = "/v2/projects/local-project/locations/us-central1-b/nodes?nodeId=n"
    expected = (403, "Permission denied on 'locations/us-central1-b' (or it may not exist).")
    assert client.post(path, node) == expected
    machine = {"name": "m", "machineType": "zones/us-central1-b/machineTypes/n1-standard-1"}
    path = "/compute/v1/projects/local-project/zones/us-central1-b/instances"
    status, text = client.post(path, machine)
    assert status == 412
    assert "violates constraint constraints/gcp.resourceLocations" in text


def test_account_creation_and_external_ip_constraints(client: Client) -> None:
    client.set("iam.disableServiceAccountCreation", ORGANIZATION, rules=[{"enforce": True}])
    expected = (400, "Service account creation is not allowed on this project.")
    assert (
        client.post(f"/v1/{PROJECT_NAME}/serviceAccounts", {"accountId": "new-account"}) == expected
    )
    client.set("compute.vmExternalIpAccess", rules=[{"denyAll": True}])
    node = {
        "acceleratorType": "v2-8",
        "runtimeVersion": "tpu-ubuntu2204-base",
        "networkConfig": {"enableExternalIps": True},
    }
    path = "/v2/projects/local-project/locations/us-central1-b/nodes?nodeId="
    status, text = client.post(f"{path}outside", node)
    assert status == 400
    assert "constraints/compute.vmExternalIpAccess violated" in text
    del node["networkConfig"]
    assert client.post(f"{path}inside", node)[0] == 200


def test_trusted_image_projects(client: Client) -> None:
    family = "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
    image = f"projects/ubuntu-os-accelerator-images/global/images/family/{family}"
    path, body = f"/compute/v1/{PROJECT_NAME}/zones/us-east5-b/disks", {"sourceImage": image}
    rules = [{"values": {"allowedValues": ["projects/debian-cloud"]}}]
    client.set("compute.trustedImageProjects", rules=rules)
    status, text = client.post(path, {"name": "refused", **body})
    assert status == 412
    assert "Use of images from project ubuntu-os-accelerator-images is prohibited." in text
    client.set("compute.trustedImageProjects", ORGANIZATION, rules=[{"allowAll": True}])
    policies = client.of(PROJECT_NAME)
    policies.delete(name=f"{PROJECT_NAME}/policies/compute.trustedImageProjects").execute()
    assert client.post(path, {"name": "accepted", **body})[0] == 200


def test_org_policies_require_permission(governed: Any) -> None:
    """Viewing a project does not include viewing its organization policies."""
    ann = Member(governed, "ann")
    path = f"/v2/{PROJECT_NAME}/policies/compute.requireOsLogin:getEffectivePolicy"
    assert ann.status_and_message("GET", path)[0] == 403
    grant(governed, PROJECT_NAME, "roles/orgpolicy.policyViewer", ann.name)
    assert ann.status_and_message("GET", path) == (200, "")


def test_policies_setting_applies_to_organization(client: Client) -> None:
    remote_control.change_settings(client.cloud, policies=["compute.vmExternalIpAccess"])
    assert client.rules("compute.vmExternalIpAccess", ORGANIZATION) == [{"denyAll": True}]
    client.set("compute.vmExternalIpAccess", rules=[{"allowAll": True}])
    assert client.rules("compute.vmExternalIpAccess") == [{"allowAll": True}]
