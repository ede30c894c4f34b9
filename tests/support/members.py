"""Callers who are not the local cloud's owner, and what policies grant them.

All of it goes over the wire and blocks: where the cloud runs in this process, tests of it run in a
thread.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import requests
from google.cloud import storage
from google.oauth2.credentials import Credentials

from tests.support.places import PROJECT

__all__ = ["OWNER", "Member", "grant", "in_thread", "make_role", "revoke"]

OWNER = "owner@local-cloud.invalid"


def in_thread(test: Callable[..., None]) -> Callable[..., Coroutine[Any, Any, None]]:
    """Have a test that blocks leave the event loop to the cloud."""

    @functools.wraps(test)
    async def run(*arguments: Any, **named: Any) -> None:
        await asyncio.to_thread(test, *arguments, **named)

    return run


class Member:
    """A caller, by whose token requests are sent. `cloud` has the server's url, and its token."""

    def __init__(self, cloud: Any, name: str, scopes: Iterable[str] = ()) -> None:
        self.name = name if ":" in name else f"user:{name}@example.com"
        self.email = self.name.partition(":")[2]
        self.url = cloud.url
        self.token = cloud.token
        if self.email != OWNER:
            wanted = {"member": self.name, "scopes": list(scopes)}
            self.token = self.ask("POST", "/_local/tokens", json=wanted).json()["token"]

    @classmethod
    def owner(cls, cloud: Any) -> Member:
        return cls(cloud, f"user:{OWNER}")

    def ask(self, verb: str, path: str, **more: Any) -> Any:
        headers = {"Authorization": f"Bearer {self.token}"}
        with requests.Session() as session:
            session.trust_env = False
            return session.request(verb, self.url + path, headers=headers, timeout=30, **more)

    def told(self, verb: str, path: str, **more: Any) -> tuple[int, str]:
        """Status and message of a request."""
        answer = self.ask(verb, path, **more)
        if answer.ok:
            return answer.status_code, ""
        return answer.status_code, str(answer.json()["error"]["message"])

    def must(self, verb: str, path: str, **more: Any) -> Any:
        answer = self.ask(verb, path, **more)
        assert answer.ok, answer.text
        return answer.json()

    @contextmanager
    def storage(self) -> Iterator[Any]:
        """Google's own client."""
        client = storage.Client(
            project=PROJECT,
            credentials=Credentials(token=self.token),
            client_options={"api_endpoint": self.url},
        )
        try:
            yield client
        finally:
            client.close()


def grant(cloud: Any, resource: str, role: str, member: str, condition: str = "") -> None:
    """By the cloud's owner, in the resource's own policy."""
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
            binding["members"] = [one for one in binding["members"] if one != member]
    _set_policy(cloud, resource, policy)


def make_role(cloud: Any, name: str, permissions: Iterable[str], project: str = PROJECT) -> str:
    """A custom role of the project with exactly these, made or changed; returns its full name."""
    owner, full = Member.owner(cloud), f"projects/{project}/roles/{name}"
    role = {"title": name, "includedPermissions": sorted(permissions), "stage": "GA"}
    if owner.ask("GET", f"/v1/{full}").ok:
        owner.must("PATCH", f"/v1/{full}?updateMask=includedPermissions", json=role)
    else:
        body = {"roleId": name, "role": role}
        owner.must("POST", f"/v1/projects/{project}/roles", json=body)
    return full


def _policy(cloud: Any, resource: str) -> Any:
    owner, options = Member.owner(cloud), {"options": {"requestedPolicyVersion": 3}}
    if resource.startswith("buckets/"):
        path = f"/storage/v1/b/{quote(resource.partition('/')[2], safe='')}/iam"
        return owner.must("GET", f"{path}?optionsRequestedPolicyVersion=3")
    if resource.startswith("billingAccounts/"):
        return owner.must("GET", f"/v1/{resource}:getIamPolicy")
    version = "v1" if "/serviceAccounts/" in resource else "v3"
    return owner.must(
        "POST", f"/{version}/{resource}:getIamPolicy", json=_options(version, options)
    )


def _options(version: str, options: dict[str, Any]) -> dict[str, Any]:
    return options if version == "v3" else {}


def _set_policy(cloud: Any, resource: str, policy: Any) -> None:
    owner, wanted = Member.owner(cloud), {**policy, "version": 3}
    if resource.startswith("buckets/"):
        path = f"/storage/v1/b/{quote(resource.partition('/')[2], safe='')}/iam"
        owner.must("PUT", path, json=wanted)
        return
    version = "v3" if resource.startswith(("projects/", "folders/", "organizations/")) else "v1"
    version = "v1" if "/serviceAccounts/" in resource else version
    owner.must("POST", f"/{version}/{resource}:setIamPolicy", json={"policy": wanted})
