"""HMAC keys of service accounts, as resources: no request can be signed with one here."""

from __future__ import annotations

import base64
import secrets
from typing import Any

from tpuctl.emulator.iam.policies import ACCOUNTS
from tpuctl.emulator.state.errors import ApiError, invalid, missing
from tpuctl.emulator.state.projects import Project, now_text
from tpuctl.emulator.state.store import Store
from tpuctl.emulator.storage.buckets.buckets import Buckets
from tpuctl.emulator.storage.requests.primitives import API, Answer, Call, etag_of
from tpuctl.emulator.wire.paging import page

KIND = "hmac-key"  # in the store, by PROJECT/ACCESS-ID
_STATES = ("ACTIVE", "INACTIVE")


class HmacKeys:
    """projects.hmacKeys.*"""

    def __init__(self, store: Store, buckets: Buckets) -> None:
        self._store = store
        self._buckets = buckets

    def create(self, call: Call) -> Answer:
        project, email = self._project(call), call.param("serviceAccountEmail")
        if not email:
            where = ("parameter", "serviceAccountEmail")
            message = "Required parameter: serviceAccountEmail"
            raise invalid(message, reason="required", location=where)
        name = f"projects/{project['id']}/serviceAccounts/{email}"
        is_default = email.partition("@")[0] == f"{project['number']}-compute"
        if not is_default and self._store.get(ACCOUNTS, name) is None:
            raise missing(f"Service Account '{email}' not found.")
        access_id, now = (
            "GOOG1E" + base64.b32encode(secrets.token_bytes(34)).decode()[:55],
            now_text(),
        )
        metadata = {
            "kind": "storage#hmacKeyMetadata",
            "id": f"{project['id']}/{access_id}",
            "selfLink": f"{API}/projects/{project['id']}/hmacKeys/{access_id}",
            "accessId": access_id,
            "projectId": project["id"],
            "serviceAccountEmail": email,
            "state": "ACTIVE",
            "timeCreated": now,
        }
        stored = self._save(metadata)
        secret = base64.b64encode(secrets.token_bytes(30)).decode()
        return Answer({"kind": "storage#hmacKey", "metadata": stored, "secret": secret})

    def get(self, call: Call) -> Answer:
        return Answer(self._load(call))

    def list_all(self, call: Call) -> Answer:
        email, is_complete = call.param("serviceAccountEmail"), call.flag("showDeletedKeys")
        rows = [
            row
            for row in self._store.list_json(KIND, f"{self._project(call)['id']}/")
            if email in ("", row["serviceAccountEmail"])
            and (is_complete or row["state"] != "DELETED")
        ]
        size, token = call.number("maxResults", 250), call.param("pageToken")
        picked, token = page(rows, size, token, lambda row: str(row["accessId"]), max_size=250)
        answer: dict[str, Any] = {"kind": "storage#hmacKeysMetadata"}
        answer |= {"items": picked} if picked else {}
        return Answer(answer | ({"nextPageToken": token} if token else {}))

    def update(self, call: Call) -> Answer:
        stored, resource = self._load(call), call.json()
        if stored["state"] == "DELETED":  # so the fixtures of Google's clients expect it
            raise missing("Access ID not found in project.")
        if resource.get("etag") not in (None, stored["etag"]):
            raise ApiError("FAILED_PRECONDITION", "Precondition Failed", http=412)
        state = resource.get("state")
        if state not in _STATES:
            raise invalid(f"Invalid argument: state {state}")
        return Answer(self._save({**stored, "state": state}))

    def delete(self, call: Call) -> Answer:
        stored = self._load(call)
        if stored["state"] == "ACTIVE":
            raise invalid("Cannot delete keys in 'ACTIVE' state.")
        if stored["state"] == "DELETED":
            raise missing("Access ID not found in project.")
        self._save({**stored, "state": "DELETED"})
        return Answer(None, 204)

    def _project(self, call: Call) -> Project:
        return self._buckets.find_project(call.parts[1])

    def _load(self, call: Call) -> dict[str, Any]:
        stored = self._store.get_json(KIND, f"{self._project(call)['id']}/{call.parts[3]}")
        if stored is None:
            raise missing("Access ID not found in project.")
        return stored

    def _save(self, metadata: dict[str, Any]) -> dict[str, Any]:
        version = self._store.next("hmac-key-version")
        stored = {**metadata, "updated": now_text(), "etag": etag_of(version)}
        self._store.put_json(KIND, f"{stored['projectId']}/{stored['accessId']}", stored)
        return stored
