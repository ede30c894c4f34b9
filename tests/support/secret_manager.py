"""Secrets of a local cloud's Secret Manager."""

from __future__ import annotations

import base64

from tests.support.callers import Member
from tpuctl.local_cloud.server_process import LocalCloud

ACCESSOR = "roles/secretmanager.secretAccessor"


class Secrets:
    """Secret Manager with an administrator's permissions."""

    def __init__(self, cloud: LocalCloud, project: str) -> None:
        self.owner = Member.owner(cloud)
        self.project = project

    def enable(self) -> None:
        path = f"/v1/projects/{self.project}/services/secretmanager.googleapis.com:enable"
        self.owner.send_ok("POST", path)

    def create(self, name: str, value: bytes = b"hush") -> str:
        """Create a secret; return its full name."""
        full_name = f"projects/{self.project}/secrets/{name}"
        path = f"/v1/projects/{self.project}/secrets?secretId={name}"
        if not self.owner.send("GET", f"/v1/{full_name}").ok:
            self.owner.send_ok("POST", path, json={"replication": {"automatic": {}}})
        data = base64.b64encode(value).decode()
        self.owner.send_ok("POST", f"/v1/{full_name}:addVersion", json={"payload": {"data": data}})
        return full_name

    def readers(self, name: str) -> list[str]:
        path = f"/v1/projects/{self.project}/secrets/{name}:getIamPolicy"
        bindings = self.owner.send_ok("GET", path).get("bindings", ())
        return [
            member for each in bindings if each["role"] == ACCESSOR for member in each["members"]
        ]
