"""Callers other than the local cloud's owner, and their grants.

Everything blocks on HTTP: if the cloud runs in the same process, run the test in a thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import requests
from google.cloud import storage
from google.oauth2.credentials import Credentials

from tests.support.locations import PROJECT

OWNER = "owner@local-cloud.invalid"


class Member:
    """A caller with a token. `cloud` needs `url` and the owner's `token`."""

    def __init__(self, cloud: Any, name: str, scopes: Iterable[str] = ()) -> None:
        self.name = name if ":" in name else f"user:{name}@example.com"
        self.email = self.name.partition(":")[2]
        self.url = cloud.url
        self.token = cloud.token
        if self.email != OWNER:
            body = {"member": self.name, "scopes": list(scopes)}
            self.token = self.send("POST", "/_local/tokens", json=body).json()["token"]

    @classmethod
    def owner(cls, cloud: Any) -> Member:
        return cls(cloud, f"user:{OWNER}")

    def send(self, verb: str, path: str, **more: Any) -> Any:
        headers = {"Authorization": f"Bearer {self.token}", **more.pop("headers", {})}
        with requests.Session() as session:
            session.trust_env = False
            return session.request(verb, self.url + path, headers=headers, timeout=60, **more)

    def status_and_message(self, verb: str, path: str, **more: Any) -> tuple[int, str]:
        """Send a request; returns status and error message."""
        answer = self.send(verb, path, **more)
        if answer.ok:
            return answer.status_code, ""
        return answer.status_code, str(answer.json()["error"]["message"])

    def send_ok(self, verb: str, path: str, **more: Any) -> Any:
        answer = self.send(verb, path, **more)
        assert answer.ok, answer.text
        return answer.json()

    @contextmanager
    def storage(self) -> Iterator[Any]:
        """Google's storage client with the member's token."""
        client = storage.Client(
            project=PROJECT,
            credentials=Credentials(token=self.token),
            client_options={"api_endpoint": self.url},
        )
        try:
            yield client
        finally:
            client.close()


def needs_role(
    cloud: Any, member: Member, role: str, refusal: str, path: str, body: dict[str, Any]
) -> None:
    """Assert that a POST is refused with these words, and allowed with the role in the project."""
    status, text = member.status_and_message("POST", path, json=body)
    assert (status, refusal in text) == (403, True), text
    grant(cloud, f"projects/{PROJECT}", role, member.name)
    assert member.send("POST", path, json=body).ok


def grant(cloud: Any, resource: str, role: str, member: str, condition: str = "") -> None:
    """Add a binding to the resource's policy, as the cloud's owner."""
    binding: dict[str, Any] = {"role": role, "members": [member]}
    if condition:
        binding["condition"] = {"title": "test", "expression": condition}
    policy = _policy(cloud, resource)
    policy["bindings"] = [*policy.get("bindings", ()), binding]
    _set_policy(cloud, resource, policy)


def revoke(cloud: Any, resource: str, role: str, member: str) -> None:
    policy = _policy(cloud, resource)
    for binding in policy["bindings"]:
        if binding["role"] == role:
            binding["members"] = [name for name in binding["members"] if name != member]
    _set_policy(cloud, resource, policy)


def make_role(cloud: Any, name: str, permissions: Iterable[str], project: str = PROJECT) -> str:
    """Create or update a custom role with exactly these permissions; returns its full name."""
    owner, full = Member.owner(cloud), f"projects/{project}/roles/{name}"
    role = {"title": name, "includedPermissions": sorted(permissions), "stage": "GA"}
    if owner.send("GET", f"/v1/{full}").ok:
        owner.send_ok("PATCH", f"/v1/{full}?updateMask=includedPermissions", json=role)
    else:
        body = {"roleId": name, "role": role}
        owner.send_ok("POST", f"/v1/projects/{project}/roles", json=body)
    return full


def _policy(cloud: Any, resource: str) -> Any:
    owner, options = Member.owner(cloud), {"options": {"requestedPolicyVersion": 3}}
    if resource.startswith("buckets/"):
        path = f"/storage/v1/b/{quote(resource.partition('/')[2], safe='')}/iam"
        return owner.send_ok("GET", f"{path}?optionsRequestedPolicyVersion=3")
    if resource.startswith("billingAccounts/"):
        return owner.send_ok("GET", f"/v1/{resource}:getIamPolicy")
    version = "v1" if "/serviceAccounts/" in resource else "v3"
    return owner.send_ok(
        "POST", f"/{version}/{resource}:getIamPolicy", json=_options(version, options)
    )


def _options(version: str, options: dict[str, Any]) -> dict[str, Any]:
    return options if version == "v3" else {}


def _set_policy(cloud: Any, resource: str, policy: Any) -> None:
    owner, new_policy = Member.owner(cloud), {**policy, "version": 3}
    if resource.startswith("buckets/"):
        path = f"/storage/v1/b/{quote(resource.partition('/')[2], safe='')}/iam"
        owner.send_ok("PUT", path, json=new_policy)
        return
    version = "v3" if resource.startswith(("projects/", "folders/", "organizations/")) else "v1"
    version = "v1" if "/serviceAccounts/" in resource else version
    owner.send_ok("POST", f"/{version}/{resource}:setIamPolicy", json={"policy": new_policy})
