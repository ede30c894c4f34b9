"""Buckets: their metadata and their IAM policies."""

from __future__ import annotations

import re
import time
from typing import Any

from tpuctl import catalog
from tpuctl.emulator.paging import page
from tpuctl.emulator.policies import Policies
from tpuctl.emulator.projects import DEFAULT_PROJECT, Project, now_text
from tpuctl.emulator.services.storage_common import (
    NO_SUCH_BUCKET,
    Answer,
    Call,
    check_conditions,
    condition_not_met,
    etag_of,
)
from tpuctl.emulator.status import ApiError, invalid, missing
from tpuctl.emulator.world import World

__all__ = ["Bucket", "Buckets"]

Bucket = dict[str, Any]

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+")
_LABEL_KEY = re.compile(r"[^\W\dA-Z][\w-]{0,62}")
_LABEL_VALUE = re.compile(r"[\w-]{0,63}")
_MULTI_REGIONS = ("US", "EU", "ASIA")
_CLASSES = (
    "STANDARD",
    "NEARLINE",
    "COLDLINE",
    "ARCHIVE",
    "MULTI_REGIONAL",
    "REGIONAL",
    "DURABLE_REDUCED_AVAILABILITY",
)
# What only the service itself sets.
_OUTPUT_ONLY = (
    "kind",
    "id",
    "selfLink",
    "projectNumber",
    "metageneration",
    "generation",
    "timeCreated",
    "updated",
    "etag",
    "locationType",
    "acl",
    "defaultObjectAcl",
    "owner",
    "softDeleteTime",
    "hardDeleteTime",
)


class Buckets:
    """The buckets of every project; their names are one namespace."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._store = world.store
        self._policies = Policies(world.store)

    def must(self, name: str) -> Bucket:
        found = self._store.get_json("bucket", name)
        if found is None:
            raise missing(NO_SUCH_BUCKET)
        return found

    def show(self, bucket: Bucket, base_url: str) -> Bucket:
        metageneration = int(bucket["metageneration"])
        return {
            "kind": "storage#bucket",
            "selfLink": f"{base_url}/storage/v1/b/{bucket['name']}",
            "etag": etag_of(0, metageneration),
            **bucket,
        }

    # Methods.

    def insert(self, call: Call) -> Answer:
        wanted = call.json()
        project = self._project(call)
        name = wanted.get("name", "")
        if not isinstance(name, str) or not _is_name(name):
            raise invalid(f"Invalid bucket name: '{name}'")
        existing = self._store.get_json("bucket", name)
        if existing is not None:
            raise _taken(existing["projectNumber"] == str(project["number"]))
        if not project["billing"]:
            raise ApiError(
                "PERMISSION_DENIED",
                "The billing account for the owning project is disabled in state absent",
                reason="accountDisabled",
                location=("header", "Authorization"),
            )
        now = now_text()
        bucket: Bucket = {
            "id": name,
            "projectNumber": str(project["number"]),
            "timeCreated": now,
            "updated": now,
            "generation": str(time.time_ns() // 1000),
            "metageneration": "1",
            "storageClass": "STANDARD",
            "location": "US",
            **{key: value for key, value in wanted.items() if key not in _OUTPUT_ONLY},
        }
        _complete(bucket)
        self._store.put_json("bucket", name, bucket)
        return Answer(self.show(bucket, call.base_url))

    def get(self, call: Call) -> Answer:
        bucket = self.must(call.parts[1])
        check_conditions(call.query, _state(bucket), is_read=True)
        return Answer(self.show(bucket, call.base_url))

    def list_all(self, call: Call) -> Answer:
        project = self._project(call)
        prefix = call.first("prefix")
        rows = [
            bucket
            for bucket in self._store.list_json("bucket", prefix)
            if bucket["projectNumber"] == str(project["number"])
        ]
        count = call.number("maxResults", 1000)
        picked, token = page(rows, count, call.first("pageToken"), lambda row: str(row["name"]))
        answer: dict[str, Any] = {"kind": "storage#buckets"}
        if picked:
            answer["items"] = [self.show(row, call.base_url) for row in picked]
        if token:
            answer["nextPageToken"] = token
        return Answer(answer)

    def patch(self, call: Call) -> Answer:
        return self._change(call, replace=False)

    def update(self, call: Call) -> Answer:
        return self._change(call, replace=True)

    def delete(self, call: Call) -> Answer:
        bucket = self.must(call.parts[1])
        check_conditions(call.query, _state(bucket))
        name = bucket["name"]
        if self._store.row("SELECT 1 FROM objects WHERE bucket=? LIMIT 1", name):
            raise ApiError(
                "ABORTED", "The bucket you tried to delete is not empty.", reason="conflict"
            )
        with self._store.transaction():
            self._store.delete("bucket", name)
            self._policies.delete(f"buckets/{name}")
            self._store.run("DELETE FROM uploads WHERE bucket=?", name)
        return Answer(None, 204)

    def storage_layout(self, call: Call) -> Answer:
        bucket = self.must(call.parts[1])
        return Answer(
            {
                "kind": "storage#storageLayout",
                "bucket": bucket["name"],
                "location": bucket["location"],
                "locationType": bucket["locationType"],
                "hierarchicalNamespace": {"enabled": False},
            }
        )

    def get_policy(self, call: Call) -> Answer:
        bucket = self.must(call.parts[1])
        policy = self._policies.get(self._key(bucket), self._first_bindings(bucket))
        return Answer(self._policy(bucket, policy))

    def set_policy(self, call: Call) -> Answer:
        bucket = self.must(call.parts[1])
        policy = self._policies.set(self._key(bucket), call.json(), condition_not_met())
        return Answer(self._policy(bucket, policy))

    def test_permissions(self, call: Call) -> Answer:
        """Every permission asked for: policies are kept but not enforced yet."""
        self.must(call.parts[1])
        wanted = call.query.get("permissions", [])
        return Answer({"kind": "storage#testIamPermissionsResponse", "permissions": list(wanted)})

    def service_account(self, call: Call) -> Answer:
        project = self._find_project(call.parts[1])
        email = f"service-{project['number']}@gs-project-accounts.iam.gserviceaccount.com"
        return Answer({"kind": "storage#serviceAccount", "email_address": email})

    # What they share.

    def _change(self, call: Call, *, replace: bool) -> Answer:
        bucket = self.must(call.parts[1])
        check_conditions(call.query, _state(bucket))
        changes = {key: value for key, value in call.json().items() if key not in _OUTPUT_ONLY}
        if changes.get("name", bucket["name"]) != bucket["name"]:
            raise invalid("The bucket's name cannot be changed.")
        location = changes.pop("location", None)
        if location is not None and str(location).upper() != bucket["location"]:
            raise invalid("The bucket's location cannot be changed.")
        kept = ("location", "name", "storageClass", "iamConfiguration", *_OUTPUT_ONLY)
        changed = {key: bucket[key] for key in kept if key in bucket} if replace else dict(bucket)
        merge(changed, changes)
        changed["metageneration"] = str(int(bucket["metageneration"]) + 1)
        changed["updated"] = now_text()
        _complete(changed)
        self._store.put_json("bucket", bucket["name"], changed)
        return Answer(self.show(changed, call.base_url))

    def _project(self, call: Call) -> Project:
        """The one named in the query; clients in emulator mode name none that exists."""
        name = call.first("project")
        return self._find_project(DEFAULT_PROJECT if name in ("", "<none>") else name)

    def _find_project(self, name: str) -> Project:
        project = self._world.projects.find(name)
        if project is None or project["state"] != "ACTIVE":
            raise invalid(f"Unknown project id: {name}", reason="invalid")
        return project

    @staticmethod
    def _key(bucket: Bucket) -> str:
        return f"buckets/{bucket['name']}"

    def _first_bindings(self, bucket: Bucket) -> list[dict[str, Any]]:
        """cloud.google.com/storage/docs/access-control/iam: what a new bucket grants."""
        project = self._world.projects.find(bucket["projectNumber"])
        name = project["id"] if project else bucket["projectNumber"]
        owners = [f"projectEditor:{name}", f"projectOwner:{name}"]
        bindings = [
            {"role": "roles/storage.legacyBucketOwner", "members": owners},
            {"role": "roles/storage.legacyBucketReader", "members": [f"projectViewer:{name}"]},
        ]
        if bucket["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"]:
            bindings += [
                {"role": "roles/storage.legacyObjectOwner", "members": owners},
                {"role": "roles/storage.legacyObjectReader", "members": [f"projectViewer:{name}"]},
            ]
        return bindings

    @staticmethod
    def _policy(bucket: Bucket, policy: dict[str, Any]) -> dict[str, Any]:
        return {
            "kind": "storage#policy",
            "resourceId": f"projects/_/buckets/{bucket['name']}",
            **policy,
        }


def merge(target: dict[str, Any], changes: dict[str, Any]) -> None:
    """A JSON merge patch (RFC 7396): null removes, objects merge, the rest replaces."""
    for key, value in changes.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            inner = target.get(key)
            merged = dict(inner) if isinstance(inner, dict) else {}
            merge(merged, value)
            target[key] = merged
        else:
            target[key] = value


def _state(bucket: Bucket) -> tuple[int, int]:
    return int(bucket["generation"]), int(bucket["metageneration"])


def _is_name(name: str) -> bool:
    """cloud.google.com/storage/docs/buckets#naming."""
    if not _NAME.fullmatch(name) or _ADDRESS.fullmatch(name):
        return False
    if any(not 1 <= len(part) <= 63 for part in name.split(".")):
        return False
    return not name.startswith("goog") and "google" not in name and ".." not in name


def _taken(is_own: bool) -> ApiError:
    text = (
        "Your previous request to create the named bucket succeeded and you already own it."
        if is_own
        else "The requested bucket name is not available. The bucket namespace is shared by all "
        "users of the system. Please select a different name and try again."
    )
    return ApiError("ALREADY_EXISTS", text, reason="conflict")


def _complete(bucket: Bucket) -> None:
    """Check what a client may set and fill in what it left out."""
    location = str(bucket.get("location") or "US").upper()
    is_region = re.fullmatch(r"[A-Z]+-[A-Z]+\d+", location) is not None
    known = {catalog.region_of(zone).upper() for zone in catalog.zones()}
    if location not in _MULTI_REGIONS and not is_region and location not in known:
        raise invalid("The specified location constraint is not valid.", reason="invalid")
    bucket["location"] = location
    bucket["locationType"] = "multi-region" if location in _MULTI_REGIONS else "region"
    bucket["storageClass"] = bucket.get("storageClass") or "STANDARD"
    if bucket["storageClass"] not in _CLASSES:
        raise invalid(f"Invalid argument: storageClass {bucket['storageClass']}")
    labels = bucket.get("labels", {})
    if not isinstance(labels, dict):
        raise invalid("Invalid argument: labels")
    for key, value in labels.items():
        text = str(value)
        if (
            not _LABEL_KEY.fullmatch(key)
            or not _LABEL_VALUE.fullmatch(text)
            or text.lower() != text
        ):
            raise invalid(f"Invalid label: '{key}': '{value}'", reason="invalid")
    access = bucket.setdefault("iamConfiguration", {})
    if not isinstance(access, dict):
        raise invalid("Invalid argument: iamConfiguration")
    older = access.get("bucketPolicyOnly") or {}
    uniform = access.get("uniformBucketLevelAccess") or older or {"enabled": False}
    if not isinstance(uniform, dict):
        raise invalid("Invalid argument: uniformBucketLevelAccess")
    access["uniformBucketLevelAccess"] = access["bucketPolicyOnly"] = {
        "enabled": False,
        **uniform,
    }
    prevention = access.setdefault("publicAccessPrevention", "inherited")
    if prevention not in ("inherited", "enforced", "unspecified"):
        raise invalid(f"Invalid argument: publicAccessPrevention {prevention}")
    bucket.setdefault(
        "softDeletePolicy",
        {"retentionDurationSeconds": "604800", "effectiveTime": bucket["timeCreated"]},
    )
    policy = bucket["softDeletePolicy"]
    if isinstance(policy, dict):
        policy["retentionDurationSeconds"] = str(policy.get("retentionDurationSeconds", 604800))
