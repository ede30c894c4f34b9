"""A host project whose network a service project uses. Everything blocks on HTTP."""

from __future__ import annotations

import itertools
from typing import Any
from urllib.parse import urlsplit

from tests.support.callers import Member, grant
from tests.support.gcloud import make_project

_numbers = itertools.count(1)


class HostProject:
    """A project with a custom network `corp`, which has a subnetwork `tpus` in one region."""

    def __init__(self, cloud: Any, region: str) -> None:
        self.cloud, self.region = cloud, region
        self.owner = Member.owner(cloud)
        self.id = make_project(cloud, "compute", project=f"net-host-{next(_numbers)}")
        self.network = f"projects/{self.id}/global/networks/corp"
        self.subnetwork = f"projects/{self.id}/regions/{region}/subnetworks/tpus"
        self.do("global/networks", {"name": "corp", "autoCreateSubnetworks": False})
        subnetwork = {"name": "tpus", "ipCidrRange": "10.7.0.0/20", "network": self.network}
        self.do(f"regions/{region}/subnetworks", subnetwork)

    def do(self, path: str, body: Any = None, project: str = "") -> Any:
        """Call a method of Compute Engine, and wait for its operation."""
        base = f"/compute/v1/projects/{project or self.id}"
        operation = self.owner.send_ok("POST", f"{base}/{path}", json=body)
        done = self.owner.send_ok("POST", f"{urlsplit(operation['selfLink']).path}/wait")
        assert "error" not in done, done
        return done

    def share_with(self, project: str) -> None:
        """Attach a service project; the networks' use is granted by roles."""
        self.do("enableXpnHost")
        resource = {"xpnResource": {"id": project, "type": "PROJECT"}}
        self.do("enableXpnResource", resource)

    def allow(self, member: str, role: str = "roles/compute.networkUser") -> None:
        """Grant a role in the whole project."""
        grant(self.cloud, f"projects/{self.id}", role, member)

    def allow_on_subnetwork(self, *members: str) -> None:
        """Set the subnetwork's policy to its use by these members only."""
        bindings = [{"role": "roles/compute.networkUser", "members": list(members)}]
        path = f"/compute/v1/{self.subnetwork}/setIamPolicy"
        self.owner.send_ok("POST", path, json={"policy": {"bindings": bindings}})

    def allow_port(self, name: str, **fields: Any) -> None:
        """Create a firewall rule that allows SSH, or what the fields say."""
        rule = {"name": name, "network": self.network, **fields}
        rule.setdefault("allowed", [{"IPProtocol": "tcp", "ports": ["22"]}])
        self.do("global/firewalls", rule)

    def rules(self) -> dict[str, Any]:
        """The firewall rules of the network, by name."""
        path = f"/compute/v1/projects/{self.id}/global/firewalls"
        rules = self.owner.send_ok("GET", path).get("items", [])
        return {rule["name"]: rule for rule in rules if rule["network"].endswith(self.network)}


def agent(cloud: Any, project: str, form: str) -> str:
    """A service agent of a project; {} in its email is the project's number."""
    record = Member.owner(cloud).send_ok("GET", f"/v1/projects/{project}")
    return f"serviceAccount:{form.format(record['projectNumber'])}"


TPU_AGENT = "service-{}@gcp-sa-tpu.iam.gserviceaccount.com"
GROUP_AGENT = "{}@cloudservices.gserviceaccount.com"
