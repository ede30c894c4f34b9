"""Access control lists: their entries, and the same as bindings of policies.

A bucket's list is a view of its policy: cloud.google.com/storage/docs/access-control/iam#acls. An
object's list adds to what policies grant. The account that uploaded an object owns it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from tpuctl.emulator.state.errors import ApiError, invalid
from tpuctl.emulator.state.members import member_of
from tpuctl.emulator.storage.requests.primitives import API, etag_of

Kind = Literal["Bucket", "Object"]  # whose access a list controls
Entry = dict[str, str]  # {"entity", "role"}
Bucket = Mapping[str, Any]

DEFAULT_OBJECT_LIST = "_defaultObjectAcl"  # in a stored bucket, unless it is the project's team's
DEFAULT_OBJECT_LIST_CHANGE = "_defaultObjectAclChange"  # the metageneration that it came with
OBJECT_LIST = "_acl"  # in a stored object's body, unless it is the team's
UPLOADER = "_owner"  # in a stored object's body: the entity that owns it
ROLES: Mapping[Kind, Mapping[str, str]] = {
    "Bucket": {
        "OWNER": "roles/storage.legacyBucketOwner",
        "READER": "roles/storage.legacyBucketReader",
        "WRITER": "roles/storage.legacyBucketWriter",
    },
    "Object": {
        "OWNER": "roles/storage.legacyObjectOwner",
        "READER": "roles/storage.legacyObjectReader",
    },
}
_PUBLIC = ("allUsers", "allAuthenticatedUsers")
_TEAMS = {"owners": "projectOwner", "editors": "projectEditor", "viewers": "projectViewer"}
_TEAM = re.compile(r"project-(owners|editors|viewers)-(\d+)")
_OTHER = re.compile(r"(user|group|domain)-(.+)")
_OWNERS = "project-owners"
_TEAM_ROLES = {_OWNERS: "OWNER", "project-editors": "OWNER", "project-viewers": "READER"}
# What predefined lists grant, as Google's description of the API has it. An object's owner is added
# to every list.
_PREDEFINED: Mapping[Kind, Mapping[str, Mapping[str, str]]] = {
    "Bucket": {
        "authenticatedRead": {_OWNERS: "OWNER", "allAuthenticatedUsers": "READER"},
        "private": {_OWNERS: "OWNER"},
        "projectPrivate": _TEAM_ROLES,
        "publicRead": {_OWNERS: "OWNER", "allUsers": "READER"},
        "publicReadWrite": {_OWNERS: "OWNER", "allUsers": "WRITER"},
    },
    "Object": {
        "authenticatedRead": {"allAuthenticatedUsers": "READER"},
        "bucketOwnerFullControl": {_OWNERS: "OWNER"},
        "bucketOwnerRead": {_OWNERS: "READER"},
        "private": {},
        "projectPrivate": _TEAM_ROLES,
        "publicRead": {"allUsers": "READER"},
    },
}
_MORE = "Read more at https://cloud.google.com/storage/docs/uniform-bucket-level-access"


def team_entries(number: str) -> list[Entry]:
    """The entries of a new bucket or object: of the project's members, by its number."""
    return _entries(_TEAM_ROLES, number)


def with_owner(entries: Sequence[Entry], body: Mapping[str, Any]) -> list[Entry]:
    """An object's list, with its owner, who may always do everything with it."""
    owner = body.get(UPLOADER)
    others = [entry for entry in entries if entry["entity"] != owner]
    return [*others, {"entity": owner, "role": "OWNER"}] if owner else others


def predefined_entries(name: str, kind: Kind, number: str) -> list[Entry]:
    """The entries of a predefined list, such as `publicRead`."""
    if name not in _PREDEFINED[kind]:
        raise invalid(f"Invalid argument: predefined ACL {name}")
    return _entries(_PREDEFINED[kind][name], number)


def _entries(roles: Mapping[str, str], number: str) -> list[Entry]:
    """The entries of these roles, in which a project's team is without the project's number."""
    return [
        {"entity": f"{name}-{number}" if name in _TEAM_ROLES else name, "role": role}
        for name, role in roles.items()
    ]


def requested_entries(
    bucket: Bucket, kind: Kind, items: Any, predefined: str
) -> list[Entry] | None:
    """The list that a request gives its bucket or object, or else names; None if neither."""
    is_usual = predefined in ("", "bucketOwnerFullControl", "projectPrivate")
    if bucket["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"]:
        if items or not is_usual:
            noun = "a bucket" if kind == "Bucket" else "an object"
            text = (
                f"Cannot insert legacy ACL for {noun} when uniform bucket-level access is enabled"
            )
            raise invalid(f"{text}. {_MORE}")
        return None
    entries = predefined_entries(predefined, kind, bucket["projectNumber"]) if predefined else None
    if items is not None and not (predefined and not items):  # clients clear the one they replace
        entries = checked_entries(items, kind, bucket)
    return entries


def checked_entries(items: Any, kind: Kind, bucket: Bucket) -> list[Entry]:
    """The entries of a client's list, one an entity; ApiError for what is none."""
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise invalid("Invalid argument: acl")
    entries = {}
    for item in items:
        entity, role = item.get("entity"), item.get("role")
        if not isinstance(entity, str) or member(entity) is None:
            raise invalid(f"Invalid argument: entity {entity}")
        if role not in ROLES[kind]:
            raise invalid(f"Invalid argument: role {role}")
        if entity in _PUBLIC and bucket["iamConfiguration"]["publicAccessPrevention"] == "enforced":
            text = "The access control list is public, which public access prevention forbids."
            raise ApiError("FAILED_PRECONDITION", text, reason="conditionNotMet", http=412)
        entries[entity] = {"entity": entity, "role": str(role)}
    return list(entries.values())


def require_lists(bucket: Bucket, kind: Kind, *, is_change: bool) -> None:
    """Raise ApiError for a bucket with uniform access, which has no lists."""
    if not bucket["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"]:
        return
    noun = "a bucket" if kind == "Bucket" else "an object"
    text = f"Cannot get legacy ACL for {noun}"
    if is_change:
        text = f"Cannot use ACL API to update {kind.lower()} policy"
    raise invalid(f"{text} when uniform bucket-level access is enabled. {_MORE}")


def member(entity: str) -> str | None:
    """The policy member that an entity of a list is; None if it is none.

    A project's team names the project by its number, as members of policies may.
    """
    if entity in _PUBLIC:
        return entity
    if team := _TEAM.fullmatch(entity):
        return f"{_TEAMS[team[1]]}:{team[2]}"
    other = _OTHER.fullmatch(entity)
    if other is None:
        return None
    return member_of(other[2]) if other[1] == "user" else f"{other[1]}:{other[2]}"


def entity(member: str, number: str) -> str | None:
    """The entity of a list for a policy member; None if lists cannot name it."""
    if member in _PUBLIC:
        return member
    kind, _, name = member.partition(":")
    for team, convenience in _TEAMS.items():
        if kind == convenience:
            return f"project-{team}-{number}"
    kind = "user" if kind == "serviceAccount" else kind
    return f"{kind}-{name}" if kind in ("domain", "group", "user") else None


def bindings(entries: Iterable[Entry], kind: Kind) -> list[dict[str, Any]]:
    """What entries grant, as bindings of a policy."""
    return [
        {"role": ROLES[kind][entry["role"]], "members": [member(entry["entity"])]}
        for entry in entries
    ]


def listed(policy: Sequence[Mapping[str, Any]], number: str) -> list[Entry]:
    """The entries of a bucket's list, from the bindings of its policy."""
    roles = {role: name for name, role in ROLES["Bucket"].items()}
    entries = []
    for binding in policy:
        if binding["role"] in roles and not binding.get("condition"):
            for each in binding["members"]:
                if (name := entity(each, number)) is not None:
                    entries.append({"entity": name, "role": roles[binding["role"]]})
    return entries


def unlisted(policy: Sequence[dict[str, Any]], number: str) -> list[dict[str, Any]]:
    """The bindings of a policy without what `listed` shows."""
    rest = []
    for binding in policy:
        members = binding["members"]
        if binding["role"] in ROLES["Bucket"].values() and not binding.get("condition"):
            members = [each for each in members if entity(each, number) is None]
        if members:
            rest.append({**binding, "members": members})
    return rest


def bucket_control(bucket: Bucket, entry: Entry) -> dict[str, Any]:
    """An entry of a bucket's list, as a resource."""
    return {
        "kind": "storage#bucketAccessControl",
        "id": f"{bucket['name']}/{entry['entity']}",
        "selfLink": f"{API}/b/{bucket['name']}/acl/{entry['entity']}",
        "bucket": bucket["name"],
        **described(entry),
        "etag": etag_of(int(bucket["metageneration"])),
    }


def default_control(bucket: Bucket, entry: Entry) -> dict[str, Any]:
    """An entry of the list that new objects of a bucket get, as a resource."""
    etag = etag_of(int(bucket.get(DEFAULT_OBJECT_LIST_CHANGE, 1)))
    return {"kind": "storage#objectAccessControl", **described(entry), "etag": etag}


def described(entry: Entry) -> dict[str, Any]:
    """An entry with what Google adds to it."""
    if team := _TEAM.fullmatch(entry["entity"]):
        return {**entry, "projectTeam": {"projectNumber": team[2], "team": team[1]}}
    if other := _OTHER.fullmatch(entry["entity"]):
        return {**entry, "domain" if other[1] == "domain" else "email": other[2]}
    return dict(entry)
