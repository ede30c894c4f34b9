"""Service accounts with keys. Everything blocks on HTTP: run the test in a thread."""

from __future__ import annotations

import base64
import json
from typing import Any

import google.auth.credentials
import pytest

from tests.support.callers import Member, grant
from tests.support.locations import PROJECT, PROJECT_NAME

ALLOWED = {"spec": {"rules": [{"enforce": False}]}}


def allow_keys(cloud: Any, resource: str = PROJECT_NAME) -> None:
    """Let keys be created and uploaded, by organization policies of a resource."""
    cloud.enable("orgpolicy")
    for constraint in (
        "iam.disableServiceAccountKeyCreation",
        "iam.disableServiceAccountKeyUpload",
    ):
        policy = {"name": f"{resource}/policies/{constraint}", **ALLOWED}
        Member.owner(cloud).send_ok("POST", f"/v2/{resource}/policies", json=policy)


def without_lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let google-auth not ask Google, in the background, in which regions an account may be used.

    Only its clients of Google's own hosts would reach the local cloud.
    """
    kind = google.auth.credentials.CredentialsWithRegionalAccessBoundary
    name = "_is_regional_access_boundary_lookup_required"
    monkeypatch.setattr(kind, name, lambda credentials: False)


class Robot:
    """A service account, with roles in the project."""

    def __init__(self, cloud: Any, account_id: str = "a-robot", *roles: str) -> None:
        self.cloud, self._owner = cloud, Member.owner(cloud)
        path = f"/v1/{PROJECT_NAME}/serviceAccounts"
        account = self._owner.send_ok("POST", path, json={"accountId": account_id})
        self.email, self.unique_id = account["email"], account["uniqueId"]
        self.member = f"serviceAccount:{self.email}"
        self.name = f"{PROJECT_NAME}/serviceAccounts/{self.email}"
        for role in roles:
            grant(cloud, PROJECT_NAME, role, self.member)

    def make_key(self) -> dict[str, Any]:
        """The content of a new key file, whose token endpoint is the local cloud's."""
        key = self._owner.send_ok("POST", f"/v1/{self.name}/keys", json={})
        content: dict[str, Any] = json.loads(base64.b64decode(key["privateKeyData"]))
        return {**content, "token_uri": f"{self.cloud.url}/token"}

    def key_name(self, key: dict[str, Any]) -> str:
        return f"{self.name}/keys/{key['private_key_id']}"

    def post(self, path: str) -> None:
        """A method of the account or of a key, without a body."""
        self._owner.send_ok("POST", f"/v1/{path}", json={})

    def delete(self, path: str) -> None:
        self._owner.send_ok("DELETE", f"/v1/{path}")

    def credentials(self, key: dict[str, Any], scopes: list[str] | None = None) -> Any:
        from google.oauth2 import service_account

        return service_account.Credentials.from_service_account_info(key, scopes=scopes)

    def storage(self, key: dict[str, Any]) -> Any:
        """Google's storage client with the key."""
        from google.cloud import storage

        return storage.Client(
            project=PROJECT,
            credentials=self.credentials(key),
            client_options={"api_endpoint": self.cloud.url},
        )
