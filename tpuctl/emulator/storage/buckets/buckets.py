"""Buckets: their metadata and their IAM policies."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from tpuctl.emulator.iam.policies import Policies
from tpuctl.emulator.state.constraints import OrgPolicies
from tpuctl.emulator.state.errors import ApiError, invalid, missing
from tpuctl.emulator.state.merge_patch import merge
from tpuctl.emulator.state.projects import Project, now_text, time_text
from tpuctl.emulator.storage.buckets.access_entries import (
    DEFAULT_OBJECT_LIST,
    DEFAULT_OBJECT_LIST_CHANGE,
    Entry,
    bindings,
    bucket_control,
    default_control,
    described,
    listed,
    requested_entries,
    team_entries,
    unlisted,
)
from tpuctl.emulator.storage.buckets.bucket_schema import OUTPUT_ONLY, parse_bucket
from tpuctl.emulator.storage.buckets.bucket_settings import (
    Bucket,
    apply_changes,
    fill_defaults,
    is_hierarchical,
    soft_delete_seconds,
)
from tpuctl.emulator.storage.buckets.encryption import (
    agent_of,
    check_readable,
    default_key,
    encryption_fields,
    usable_version,
)
from tpuctl.emulator.storage.requests.primitives import (
    API,
    NO_SUCH_BUCKET,
    Answer,
    Call,
    check_conditions,
    condition_not_met,
    etag_of,
)
from tpuctl.emulator.storage.requests.user_project import check_user_project
from tpuctl.emulator.wire.paging import name_of, page
from tpuctl.emulator.wire.registry import Registry
from tpuctl.local_cloud.defaults import DEFAULT_PROJECT

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_PUBLIC = {"allUsers", "allAuthenticatedUsers"}
_DELETED = "deleted-bucket"  # in the store, by BUCKET/GENERATION: what can be restored
# Kinds in the store of what belongs to a bucket, by BUCKET/…
NOTIFICATIONS, MANAGED_FOLDERS, FOLDERS = "bucket-notification", "managed-folder", "folder"
_ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+")


class Buckets:
    """The buckets of all projects, in one global namespace."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._store = registry.store
        self._policies = Policies(registry.store)
        # The access control list of an object's resource, and the entity that owns it.
        self.object_access: Callable[[Bucket], tuple[list[Entry], str]] = lambda resource: ([], "")
        self.on_delete: Callable[[str], None] = lambda name: None

    def load(self, name: str) -> Bucket:
        bucket = self._store.get_json("bucket", name)
        if bucket is None:
            raise missing(NO_SUCH_BUCKET)
        return bucket

    def encryption_fields(
        self, bucket: Bucket, headers: Mapping[str, str], kms_key: str
    ) -> dict[str, Any]:
        """The fields of a new object of a bucket for the keys that a request names."""
        project = self.find_project(bucket["projectNumber"])
        return encryption_fields(headers, kms_key, bucket, self._registry.keys, project)

    def check_readable(self, bucket: Bucket, version: str) -> None:
        """Raise ApiError if a Cloud KMS key's version cannot decrypt objects of a bucket."""
        project = self.find_project(bucket["projectNumber"])
        check_readable(version, self._registry.keys, project)

    def add_access_controls(self, value: dict[str, Any]) -> None:
        """Add the lists and owners of the objects in an answer, except in uniform buckets."""
        for resource in (value, value.get("resource"), *value.get("items", ())):
            if not resource or resource.get("kind") != "storage#object":
                continue
            bucket = self.load(resource["bucket"])
            if bucket["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"]:
                continue
            entries, owner = self.object_access(resource)
            resource["acl"] = [
                {
                    "kind": "storage#objectAccessControl",
                    "id": f"{resource['id']}/{entry['entity']}",
                    "selfLink": f"{resource['selfLink']}/acl/{entry['entity']}",
                    "bucket": resource["bucket"],
                    "object": resource["name"],
                    "generation": resource["generation"],
                    "etag": resource["etag"],
                    **entry,
                }
                for entry in map(described, entries)
            ]
            if owner:
                resource["owner"] = {"entity": owner}

    def entries(self, bucket: Bucket) -> list[Entry]:
        """The bucket's access control list."""
        policy = self._policies.get(self._key(bucket))
        return listed(policy["bindings"], bucket["projectNumber"])

    def set_entries(self, bucket: Bucket, entries: Sequence[Entry]) -> Bucket:
        """Change the policy to what a list says; returns the changed bucket."""
        number = bucket["projectNumber"]
        project = self.find_project(number)["id"]
        granted = [
            {**binding, "members": [re.sub(rf":{number}$", f":{project}", binding["members"][0])]}
            for binding in bindings(entries, "Bucket")
        ]
        policy = self._policies.get(self._key(bucket))["bindings"]
        changed = _with_change_marks(bucket)
        with self._store.transaction():
            new_policy = {"bindings": [*unlisted(policy, number), *granted]}
            self._policies.set(self._key(bucket), new_policy, condition_not_met())
            self._store.put_json("bucket", bucket["name"], changed)
        return changed

    def default_entries(self, bucket: Bucket) -> list[Entry]:
        """The list that new objects get."""
        default: list[Entry] | None = bucket.get(DEFAULT_OBJECT_LIST)
        return team_entries(bucket["projectNumber"]) if default is None else default

    def set_default_entries(self, bucket: Bucket, entries: Sequence[Entry]) -> None:
        changed = _with_change_marks({**bucket, DEFAULT_OBJECT_LIST: list(entries)})
        changed[DEFAULT_OBJECT_LIST_CHANGE] = changed["metageneration"]
        self._store.put_json("bucket", bucket["name"], changed)

    def check_user_project(self, name: str, query: Mapping[str, list[str]]) -> None:
        """Raise unless the current caller may bill a request to an existing bucket as it asks."""
        caller = self._registry.traffic.caller()
        if caller is not None:
            user_project = (query.get("userProject") or [""])[-1]
            check_user_project(self._registry, caller, self.load(name), user_project)

    def caller_entity(self) -> str:
        """The current caller as an entity of access control lists; "" if there is none."""
        caller = self._registry.traffic.caller()
        return "" if caller is None else f"user-{caller.email}"

    def require(self, permission: str, name: str, key: str) -> None:
        """Raise unless the current caller has the permission on an object of a bucket."""
        self._registry.guard.require(permission, name, key)

    def show(self, bucket: Bucket, call: Call) -> Bucket:
        metageneration = int(bucket["metageneration"])
        return {
            "kind": "storage#bucket",
            "selfLink": f"{API}/b/{bucket['name']}",
            "etag": etag_of(metageneration),
            **{key: value for key, value in bucket.items() if not key.startswith("_")},
            **(self._access_controls(bucket) if call.param("projection") == "full" else {}),
        }

    # Methods.

    def insert(self, call: Call) -> Answer:
        resource = call.json()
        project = self._project(call)
        name = resource.get("name", "")
        if not isinstance(name, str) or not _is_valid_name(name):
            raise invalid(f"Invalid bucket name: '{name}'")
        existing = self._store.get_json("bucket", name)
        if existing is not None:
            raise _name_taken(existing["projectNumber"] == str(project["number"]))
        if not project["billing"]:
            # "absent": googleapis/python-storage#1456; "closed": stanford-futuredata/noscope#48.
            state = "closed" if project.get("account") else "absent"
            raise ApiError(
                "PERMISSION_DENIED",
                f"The billing account for the owning project is disabled in state {state}",
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
        }
        merge(bucket, parse_bucket(resource))
        self._check_location(project, str(bucket["location"]).lower())
        fill_defaults(bucket)
        usable_version(default_key(bucket), bucket, self._registry.keys, project)
        if bucket["locationType"] == "region":
            bucket["satisfiesPZI"] = True
        if call.flag("enableObjectRetention"):
            self.require("storage.buckets.enableObjectRetention", str(project["id"]), "")
            bucket["objectRetention"] = {"mode": "Enabled"}
        requested = self._requested_lists(bucket, call)
        self._store.put_json("bucket", name, bucket)
        return Answer(self.show(self._with_lists(bucket, *requested), call))

    def _requested_lists(self, bucket: Bucket, call: Call) -> tuple[list[Entry] | None, ...]:
        """The bucket's list and that of new objects, as far as a request has them."""
        resource = call.json()
        return (
            requested_entries(bucket, "Bucket", resource.get("acl"), call.param("predefinedAcl")),
            requested_entries(
                bucket,
                "Object",
                resource.get("defaultObjectAcl"),
                call.param("predefinedDefaultObjectAcl"),
            ),
        )

    def _with_lists(
        self, bucket: Bucket, entries: list[Entry] | None, default: list[Entry] | None
    ) -> Bucket:
        """The saved bucket with these lists."""
        if default is not None and default != self.default_entries(bucket):
            change = {DEFAULT_OBJECT_LIST_CHANGE: bucket["metageneration"]}
            bucket = {**bucket, DEFAULT_OBJECT_LIST: default, **change}
            self._store.put_json("bucket", bucket["name"], bucket)
        if entries is not None and entries != self.entries(bucket):
            metageneration = bucket["metageneration"]
            bucket = {**self.set_entries(bucket, entries), "metageneration": metageneration}
            self._store.put_json("bucket", bucket["name"], bucket)
        return bucket

    def _check_location(self, project: Project, location: str) -> None:
        """The error: GoogleCloudDataproc/spark-bigquery-connector#231."""
        constraint = "gcp.resourceLocations"
        if not OrgPolicies(self._store).allows(f"projects/{project['id']}", constraint, location):
            raise ApiError(
                "FAILED_PRECONDITION",
                f"'{location}' violates constraint 'constraints/{constraint}'",
                reason="conditionNotMet",
                location=("header", "If-Match"),
                http=412,
            )

    def get(self, call: Call) -> Answer:
        if call.flag("softDeleted"):
            return Answer(self.show(self._load_deleted(call, "storage.buckets.get"), call))
        bucket = self.load(call.parts[1])
        check_conditions(call.query, _state(bucket), etag=_etag(bucket))
        return Answer(self.show(bucket, call))

    def list_all(self, call: Call) -> Answer:
        project = self._project(call)
        prefix = call.param("prefix")
        rows = [
            bucket
            for bucket in (
                self._deleted(prefix)
                if call.flag("softDeleted")
                else self._store.list_json("bucket", prefix)
            )
            if bucket["projectNumber"] == str(project["number"])
        ]
        count = call.number("maxResults", 1000)
        picked, token = page(rows, count, call.param("pageToken"), name_of)
        answer: dict[str, Any] = {"kind": "storage#buckets"}
        if picked:
            answer["items"] = [self.show(row, call) for row in picked]
        if token:
            answer["nextPageToken"] = token
        return Answer(answer)

    def patch(self, call: Call) -> Answer:
        return self._change(call, replace=False)

    def update(self, call: Call) -> Answer:
        return self._change(call, replace=True)

    def delete(self, call: Call) -> Answer:
        bucket = self.load(call.parts[1])
        check_conditions(call.query, _state(bucket))
        name = bucket["name"]
        if self._store.row(
            "SELECT 1 FROM objects WHERE bucket=?1 UNION ALL "
            "SELECT 1 FROM versions WHERE bucket=?1 AND until IS NULL LIMIT 1",
            name,
        ):
            raise ApiError(
                "ABORTED", "The bucket you tried to delete is not empty.", reason="conflict"
            )
        seconds, now = soft_delete_seconds(bucket), datetime.now(UTC)
        with self._store.transaction():
            self._store.delete("bucket", name)
            for kind in (NOTIFICATIONS, MANAGED_FOLDERS, FOLDERS):
                for key, _ in self._store.items(kind, f"{name}/"):
                    self._store.delete(kind, key)
            if seconds:
                policy = self._policies.get(f"buckets/{name}")
                times = {
                    "softDeleteTime": time_text(now),
                    "hardDeleteTime": time_text(now + timedelta(seconds=seconds)),
                }
                deleted = {"bucket": {**bucket, **times}, "policy": policy}
                self._store.put_json(_DELETED, f"{name}/{bucket['generation']}", deleted)
            self._policies.delete(f"buckets/{name}")
            self._store.run("DELETE FROM uploads WHERE bucket=?", name)
        self.on_delete(name)
        return Answer(None, 204)

    def restore(self, call: Call) -> Answer:
        """What belonged to the bucket besides its settings and policy is gone."""
        name = call.parts[1]
        bucket = self._load_deleted(call, "storage.buckets.restore")
        if self._store.get("bucket", name) is not None:
            raise _name_taken(is_own=True)
        key = f"{name}/{bucket['generation']}"
        policy = (self._store.get_json(_DELETED, key) or {})["policy"]
        times = ("softDeleteTime", "hardDeleteTime")
        restored = {field: value for field, value in bucket.items() if field not in times}
        restored = _with_change_marks(restored)
        with self._store.transaction():
            self._store.delete(_DELETED, key)
            self._store.put_json("bucket", name, restored)
            self._store.put_json("policy", f"buckets/{name}", policy)
        return Answer(self.show(restored, call))

    def _deleted(self, prefix: str) -> list[Bucket]:
        """The buckets that can still be restored, by name."""
        now = datetime.now(UTC)
        buckets: list[Bucket] = []
        for key, _ in self._store.items(_DELETED, prefix):
            bucket = (self._store.get_json(_DELETED, key) or {})["bucket"]
            if datetime.fromisoformat(bucket["hardDeleteTime"]) > now:
                buckets.append(bucket)
            else:
                self._store.delete(_DELETED, key)
        return buckets

    def _load_deleted(self, call: Call, permission: str) -> Bucket:
        generation = call.param("generation")
        if not generation:
            where = ("parameter", "generation")
            raise invalid("Required parameter: generation", reason="required", location=where)
        for bucket in self._deleted(f"{call.parts[1]}/"):
            if bucket["generation"] == generation:
                self._registry.guard.require_in_project(permission, bucket["projectNumber"])
                return bucket
        raise missing(NO_SUCH_BUCKET)

    def lock_retention(self, call: Call) -> Answer:
        """Irreversible. kmoneil/zig-gcp measured the errors (src/storage/fake_buckets.zig)."""
        bucket = self.load(call.parts[1])
        if not call.param("ifMetagenerationMatch"):
            raise invalid("Required parameter: ifMetagenerationMatch", reason="required")
        policy = bucket.get("retentionPolicy")
        if policy is None or policy.get("isLocked"):
            raise invalid(f"Bucket '{bucket['name']}' does not have an unlocked retention policy.")
        check_conditions(call.query, _state(bucket))
        changed = _with_change_marks({**bucket, "retentionPolicy": {**policy, "isLocked": True}})
        self._store.put_json("bucket", bucket["name"], changed)
        return Answer(self.show(changed, call))

    def storage_layout(self, call: Call) -> Answer:
        return Answer(self.layout(call.parts[1]))

    def layout(self, name: str) -> dict[str, Any]:
        bucket = self.load(name)
        return {
            "kind": "storage#storageLayout",
            "bucket": bucket["name"],
            "location": bucket["location"],
            "locationType": bucket["locationType"],
            "hierarchicalNamespace": {"enabled": is_hierarchical(bucket)},
        }

    def get_policy(self, call: Call) -> Answer:
        bucket = self.load(call.parts[1])
        policy = self._policies.get(self._key(bucket))
        return Answer(self._policy(bucket, policy))

    def set_policy(self, call: Call) -> Answer:
        """The policy's etag is the bucket's: measured by kmoneil/zig-gcp (src/storage/iam.zig)."""
        bucket = self.load(call.parts[1])
        new_policy = call.json()
        if new_policy.get("etag") and new_policy["etag"] != _etag(bucket):
            raise condition_not_met()
        _check_bindings(bucket, new_policy.get("bindings"), new_policy.get("version"))
        changed = _with_change_marks(bucket)
        with self._store.transaction():
            policy = self._policies.set(
                self._key(bucket), {**new_policy, "etag": ""}, condition_not_met()
            )
            self._store.put_json("bucket", bucket["name"], changed)
        return Answer(self._policy(changed, policy))

    def test_permissions(self, call: Call) -> Answer:
        bucket = self.load(call.parts[1])
        permissions = call.query.get("permissions", [])
        answer: dict[str, Any] = {"kind": "storage#testIamPermissionsResponse"}
        names = self._registry.authority.granted_permissions(
            call.caller, self._key(bucket), permissions
        )
        return Answer({**answer, "permissions": names} if names else answer)

    def service_account(self, call: Call) -> Answer:
        project = self.find_project(call.parts[1])
        email = agent_of(project)
        return Answer({"kind": "storage#serviceAccount", "email_address": email})

    # Helpers.

    def _change(self, call: Call, *, replace: bool) -> Answer:
        bucket = self.load(call.parts[1])
        check_conditions(call.query, _state(bucket))
        changes = parse_bucket(call.json())
        if changes.get("name", bucket["name"]) != bucket["name"]:
            raise invalid("The bucket's name cannot be changed.")
        location = changes.pop("location", None)
        if location is not None and str(location).upper() != bucket["location"]:
            raise invalid("The bucket's location cannot be changed.")
        requested = self._requested_lists(bucket, call)
        if not changes and not replace and not any(each is not None for each in requested):
            return Answer(self.show(bucket, call))  # measured: nothing changes
        unchanged = (
            *("location", "name", "storageClass", "iamConfiguration", *OUTPUT_ONLY),
            "hierarchicalNamespace",
            DEFAULT_OBJECT_LIST,
            DEFAULT_OBJECT_LIST_CHANGE,
        )
        base = {key: bucket[key] for key in unchanged if key in bucket} if replace else bucket
        changed = _with_change_marks(apply_changes(bucket, changes, base=base))
        if default_key(changed) != default_key(bucket):
            project = self.find_project(bucket["projectNumber"])
            usable_version(default_key(changed), changed, self._registry.keys, project)
        self._store.put_json("bucket", bucket["name"], changed)
        return Answer(self.show(self._with_lists(changed, *requested), call))

    def _access_controls(self, bucket: Bucket) -> dict[str, Any]:
        """The lists of a bucket without uniform access."""
        if bucket["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"]:
            return {}
        return {
            "acl": [bucket_control(bucket, entry) for entry in self.entries(bucket)],
            "defaultObjectAcl": [
                default_control(bucket, entry) for entry in self.default_entries(bucket)
            ],
            "owner": {"entity": f"project-owners-{bucket['projectNumber']}"},
        }

    def _project(self, call: Call) -> Project:
        """The project named in the query; clients in emulator mode name a placeholder."""
        name = call.param("project")
        if not name:
            where = ("parameter", "project")
            raise invalid("Required parameter: project", reason="required", location=where)
        return self.find_project(DEFAULT_PROJECT if name == "<none>" else name)

    def find_project(self, name: str) -> Project:
        project = self._registry.projects.find(name)
        if project is None or project["state"] != "ACTIVE":
            raise invalid(f"Unknown project id: {name}")
        return project

    @staticmethod
    def _key(bucket: Bucket) -> str:
        return f"buckets/{bucket['name']}"

    @staticmethod
    def _policy(bucket: Bucket, policy: dict[str, Any]) -> dict[str, Any]:
        return {
            "kind": "storage#policy",
            "resourceId": f"projects/_/buckets/{bucket['name']}",
            **policy,
            "etag": _etag(bucket),
        }


def _check_bindings(bucket: Bucket, bindings: Any, version: Any) -> None:
    """Reject bindings that the bucket's settings forbid; messages as measured by zig-gcp."""
    access = bucket["iamConfiguration"]
    listed = [binding for binding in bindings if isinstance(binding, dict)] if bindings else []
    if not access["uniformBucketLevelAccess"]["enabled"] and any(
        binding.get("condition") for binding in listed
    ):
        raise condition_not_met(
            "To set IAM conditions in this bucket, enable uniform bucket-level access."
        )
    if any(binding.get("condition") for binding in listed) and version != 3:
        # Of the text, only "at least 3" is known.
        raise invalid("Policies with conditions need a version of at least 3.")
    members = {str(member) for binding in listed for member in binding.get("members") or ()}
    if access["publicAccessPrevention"] == "enforced" and members & _PUBLIC:
        raise condition_not_met(
            "The member bindings allUsers and allAuthenticatedUsers are not allowed since public "
            "access prevention is enforced."
        )


def _with_change_marks(bucket: Bucket) -> Bucket:
    """The bucket with a new metageneration and update time."""
    metageneration = str(int(bucket["metageneration"]) + 1)
    return {**bucket, "metageneration": metageneration, "updated": now_text()}


def _state(bucket: Bucket) -> tuple[int, int]:
    return int(bucket["generation"]), int(bucket["metageneration"])


def _etag(bucket: Bucket) -> str:
    return etag_of(int(bucket["metageneration"]))


def _is_valid_name(name: str) -> bool:
    """cloud.google.com/storage/docs/buckets#naming."""
    if not _NAME.fullmatch(name) or _ADDRESS.fullmatch(name):
        return False
    if any(not 1 <= len(part) <= 63 for part in name.split(".")):
        return False
    return not name.startswith("goog") and "google" not in name and ".." not in name


def _name_taken(is_own: bool) -> ApiError:
    text = (
        "Your previous request to create the named bucket succeeded and you already own it."
        if is_own
        else "The requested bucket name is not available. The bucket namespace is shared by all "
        "users of the system. Please select a different name and try again."
    )
    return ApiError("ALREADY_EXISTS", text, reason="conflict")
