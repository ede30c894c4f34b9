"""Keys of Cloud KMS in a local cloud."""

from __future__ import annotations

from itertools import count
from typing import Any

from tests.support.callers import Member

ROLE = "roles/cloudkms.cryptoKeyEncrypterDecrypter"


def agent(number: int | str, service: str) -> str:
    """The member of a service agent: of `gs-project-accounts` or `compute-system`."""
    return f"serviceAccount:service-{number}@{service}.iam.gserviceaccount.com"


_numbers = count(1)


class Keys:
    """Keys of one project and location; creating them enables the API."""

    def __init__(self, cloud: Any, project: str, location: str) -> None:
        self.owner = Member.owner(cloud)
        self.project = project
        ring = f"ring-{next(_numbers)}"
        self.ring = f"projects/{project}/locations/{location}/keyRings/{ring}"
        self.options = f"--keyring={ring} --location={location} --project={project}"
        api = f"/v1/projects/{project}/services/cloudkms.googleapis.com:enable"
        self.owner.send_ok("POST", api)
        parent, _, id = self.ring.rpartition("/")
        self.owner.send_ok("POST", f"/v1/{parent}", params={"keyRingId": id}, json={})

    def create(self, id: str = "key") -> str:
        """The full name of a new key."""
        body = {"purpose": "ENCRYPT_DECRYPT"}
        path, params = f"/v1/{self.ring}/cryptoKeys", {"cryptoKeyId": id}
        return str(self.owner.send_ok("POST", path, params=params, json=body)["name"])

    def set_members(self, key: str, *members: str) -> None:
        """Let these encrypt and decrypt with the key, and no others."""
        bindings = [{"role": ROLE, "members": list(members)}] if members else []
        body = {"policy": {"bindings": bindings}}
        self.owner.send_ok("POST", f"/v1/{key}:setIamPolicy", json=body)

    def members(self, key: str) -> set[str]:
        policy = self.owner.send_ok("GET", f"/v1/{key}:getIamPolicy")
        return {member for binding in policy.get("bindings", ()) for member in binding["members"]}

    def set_state(self, key: str, state: str, version: int = 1) -> None:
        path = f"/v1/{key}/cryptoKeyVersions/{version}"
        self.owner.send_ok("PATCH", path, params={"updateMask": "state"}, json={"state": state})
