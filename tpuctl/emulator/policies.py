"""IAM policies of any resource: read-modify-write guarded by etags."""

from __future__ import annotations

import base64
import re
from typing import Any

from tpuctl.emulator.status import ApiError, invalid
from tpuctl.emulator.store import Store

__all__ = ["Policies", "Policy", "concurrent_change", "from_message", "to_message"]

Policy = dict[str, Any]  # {"version", "etag", "bindings": [{"role", "members", "condition"?}]}

_MEMBER = re.compile(
    r"allUsers|allAuthenticatedUsers|(?:deleted:)?(?:user|serviceAccount|group|domain|principal"
    r"|principalSet|projectOwner|projectEditor|projectViewer):.+"
)
_ROLE = re.compile(r"(?:(?:projects|organizations)/[^/]+/)?roles/[A-Za-z0-9_.]+")


class Policies:
    """The policy of each resource, by its name with a prefix for its kind."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, resource: str, default: list[dict[str, Any]] | None = None) -> Policy:
        """The policy; `default` are the bindings of a resource whose policy was never set."""
        found = self._store.get_json("policy", resource)
        if found is None:
            return {"version": 1, "etag": _etag(0), "bindings": list(default or [])}
        return found

    def set(
        self, resource: str, wanted: Policy, conflict: ApiError, *, counted: int | None = None
    ) -> Policy:
        """Replace the policy; raises `conflict` when an etag is given and is an old one."""
        current = self.get(resource)
        given = wanted.get("etag")
        if given and given != current["etag"]:
            raise conflict
        policy: Policy = {
            "version": 1,
            "etag": _etag(self._store.next("policy-etag", counted or 1)),
            "bindings": _clean(wanted.get("bindings") or []),
        }
        if any("condition" in binding for binding in policy["bindings"]):
            policy["version"] = 3
        self._store.put_json("policy", resource, policy)
        return policy

    def delete(self, resource: str) -> None:
        self._store.delete("policy", resource)


def concurrent_change() -> ApiError:
    """What the common platform answers to an old etag."""
    return ApiError(
        "ABORTED",
        "There were concurrent policy changes. Please retry the whole read-modify-write with "
        "exponential backoff.",
    )


def from_message(policy: Any) -> Policy:
    """A google.iam.v1.Policy in its JSON form."""
    from google.protobuf import json_format

    return dict(json_format.MessageToDict(policy))


def to_message(policy: Policy) -> Any:
    from google.iam.v1 import policy_pb2
    from google.protobuf import json_format

    return json_format.ParseDict(policy, policy_pb2.Policy(), ignore_unknown_fields=True)


def _clean(bindings: Any) -> list[dict[str, Any]]:
    """Bindings of the same role and condition joined, members in order and without doubles."""
    if not isinstance(bindings, list):
        raise invalid("Invalid policy: bindings must be a list.")
    joined: dict[str, dict[str, Any]] = {}
    for binding in bindings:
        if not isinstance(binding, dict):
            raise invalid("Invalid policy: a binding must be an object.")
        role, members = binding.get("role"), binding.get("members") or []
        if not isinstance(role, str) or not _ROLE.fullmatch(role):
            raise invalid(f"Role {role} is not supported for this resource.")
        if not isinstance(members, list):
            raise invalid("Invalid policy: members must be a list.")
        for member in members:
            if not isinstance(member, str) or not _MEMBER.fullmatch(member):
                raise invalid(f"Invalid argument: '{member}' is not a valid member.")
        condition = binding.get("condition") or None
        entry = joined.setdefault(f"{role} {condition}", {"role": role, "members": []})
        entry["members"] = sorted({*entry["members"], *members})
        if condition:
            entry["condition"] = condition
    return [entry for entry in joined.values() if entry["members"]]


def _etag(number: int) -> str:
    return base64.b64encode(number.to_bytes(8, "big")).decode()
