"""IAM policies of all resources: read-modify-write with etags."""

from __future__ import annotations

import base64
import math
import re
import time
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from tpuctl.emulator.iam.default_bindings import default_bindings
from tpuctl.emulator.state.constraints import OrgPolicies
from tpuctl.emulator.state.delays import is_over
from tpuctl.emulator.state.errors import ApiError, error_detail, invalid
from tpuctl.emulator.state.projects import DOMAIN
from tpuctl.emulator.state.settings import Settings
from tpuctl.emulator.state.store import Store

Policy = dict[str, Any]  # {"version", "etag", "bindings": [{"role", "members", "condition"?}]}

# Kinds in the store of service accounts and custom roles, by name. Policies accept them from the
# time in "visible_at".
ACCOUNTS = "account"
ROLES = "role"

_PREVIOUS = "previous-policies"  # policies in force until changes propagate, oldest first
_DOMAINS = "iam.allowedPolicyMemberDomains"
_MEMBER = re.compile(
    r"allUsers|allAuthenticatedUsers|(?:deleted:)?(?:user|serviceAccount|group|domain|principal"
    r"|principalSet|projectOwner|projectEditor|projectViewer):.+"
)
_ROLE = re.compile(r"(?:(?:projects|organizations)/[^/]+/)?roles/[A-Za-z0-9_.]+")
_ACCOUNT = re.compile(r"serviceAccount:([^@]+)@([^@]+)\.iam\.gserviceaccount\.com")
_COMPUTE_ACCOUNT = re.compile(r"serviceAccount:([0-9]+)-compute@developer\.gserviceaccount\.com")
_AGENT = re.compile(r"serviceAccount:service-([0-9]+)@([^@]+)\.iam\.gserviceaccount\.com")
# Service agents created when an API is enabled; those of other APIs are assumed to exist.
_AGENT_APIS = {
    "cloud-tpu": "tpu.googleapis.com",
    "compute-system": "compute.googleapis.com",
    "gcp-sa-tpu": "tpu.googleapis.com",
}


def is_visible(record: Mapping[str, Any] | None) -> bool:
    """Whether an account or a role exists, and policies accept it already."""
    return record is not None and is_over(
        record.get("created_at", 0.0), record.get("visible_at", 0.0)
    )


class Policies:
    """Policies by resource name, prefixed with the kind of resource."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._settings = Settings(store)

    def get(self, resource: str) -> Policy:
        """The policy; a resource whose policy was never set has the default bindings."""
        policy = self._store.get_json("policy", resource)
        if policy is None:
            bindings = default_bindings(self._store, resource)
            return {"version": 1, "etag": _etag(0), "bindings": bindings}
        return policy

    def effective_bindings(self, resource: str, now: float) -> tuple[list[dict[str, Any]], float]:
        """The bindings in force now, and until when: changes may take time to propagate."""
        previous = self._store.get_json(_PREVIOUS, resource)
        if previous is not None:
            delay = float(self._settings.get("propagation"))
            for policy in previous["policies"]:
                if policy["changed"] <= now < policy["changed"] + delay:
                    return policy["bindings"], policy["changed"] + delay
        return self.get(resource)["bindings"], math.inf

    def add(self, resource: str, bindings: list[dict[str, Any]]) -> None:
        """Add bindings as Google itself does: unchecked and effective immediately."""
        policy = self.get(resource)
        policy["bindings"] = _normalize([*policy["bindings"], *bindings])
        policy["etag"] = _etag(self._store.next("policy-etag"))
        self._store.put_json("policy", resource, policy)

    def set(
        self, resource: str, requested: Policy, conflict: ApiError, *, min_etag: int | None = None
    ) -> Policy:
        """Replace the policy; raises `conflict` if the request's etag is outdated.

        Only new roles and members are validated: existing bindings remain even if the role was
        deleted or the member's domain is no longer allowed. `conflict` also determines how the API
        reports a failed precondition.
        """
        current = self.get(resource)
        etag = requested.get("etag")
        if etag and etag != current["etag"]:
            raise conflict
        bindings = _normalize(requested.get("bindings") or [])
        self._check(resource, bindings, _role_members(current["bindings"]), conflict)
        policy: Policy = {
            "version": 1,
            "etag": _etag(self._store.next("policy-etag", min_etag or 1)),
            "bindings": bindings,
        }
        if any("condition" in binding for binding in policy["bindings"]):
            policy["version"] = 3
        with self._store.transaction():
            self._save_previous(resource, current["bindings"])
            self._store.put_json("policy", resource, policy)
        return policy

    def _save_previous(self, resource: str, bindings: list[dict[str, Any]]) -> None:
        """Keep the bindings in force until the change propagates; see the setting `propagation`."""
        delay, now = float(self._settings.get("propagation")), time.time()
        stored = (self._store.get_json(_PREVIOUS, resource) or {}).get("policies", [])
        previous = [
            policy for policy in stored if policy["changed"] <= now < policy["changed"] + delay
        ]
        if delay:
            previous.append({"changed": now, "bindings": bindings})
        if previous:
            self._store.put_json(_PREVIOUS, resource, {"policies": previous})
        elif stored:
            self._store.delete(_PREVIOUS, resource)

    def delete(self, resource: str) -> None:
        self._store.delete("policy", resource)
        self._store.delete(_PREVIOUS, resource)

    def move(self, old: str, new: str) -> None:
        """Move a resource's policy, if set, to another name."""
        policy = self._store.get_json("policy", old)
        if policy is not None:
            self._store.delete("policy", old)
            self._store.put_json("policy", new, policy)

    def rename_member(self, old: str, new: str) -> None:
        """Replace a member in every policy, when its account is deleted or restored."""
        for resource, _ in self._store.items("policy"):
            policy = self.get(resource)
            if any(old in binding["members"] for binding in policy["bindings"]):
                for binding in policy["bindings"]:
                    members = {new if member == old else member for member in binding["members"]}
                    binding["members"] = sorted(members)
                self._store.put_json("policy", resource, policy)

    def _check(
        self,
        resource: str,
        bindings: list[dict[str, Any]],
        existing: AbstractSet[tuple[str, str]],
        conflict: ApiError,
    ) -> None:
        new = _role_members(bindings) - existing
        for role in sorted({role for role, _ in new}):
            self._check_role(resource, role)
        members = sorted({member for _, member in new})
        for member in members:
            self._check_member(member)
        if OrgPolicies(self._store).is_enforced(resource, _DOMAINS):
            foreign = [member for member in members if not self._is_in_organization(member)]
            if foreign:
                raise _not_permitted(resource, foreign, conflict)

    def _check_role(self, resource: str, role: str) -> None:
        """A custom role must exist, not be deleted, and belong to this project or its organization.

        Google's wording, which also applies to roles created moments ago, is from
        terraform-provider-google#6923 and vault-plugin-secrets-gcp#84; that it applies to deleted
        roles is a guess.
        """
        if role.startswith("roles/"):
            return
        owner = role.partition("/roles/")[0]
        is_foreign = owner.startswith("projects/") and (
            resource.startswith("projects/") and not f"{resource}/".startswith(f"{owner}/")
        )
        definition = self._store.get_json(ROLES, role)
        if is_foreign or definition is None or definition["deleted"] or not is_visible(definition):
            raise invalid(f"Role ({role}) does not exist in the resource's hierarchy.")

    def _check_member(self, member: str) -> None:
        """Accounts of this cloud's projects must exist; other accounts are not checked.

        Google's wording: devopsaitoolkit.com's guide to this error, and many public issues.
        """
        if self._exists(member) is False:
            email = member.partition(":")[2]
            raise invalid(f"Service account {email} does not exist.")

    def _exists(self, member: str) -> bool | None:
        """Whether the account exists; None for members outside this cloud."""
        agent = _AGENT.fullmatch(member)
        if agent is not None and agent[2] in _AGENT_APIS:
            return self._has_enabled(agent[1], _AGENT_APIS[agent[2]])
        account = _ACCOUNT.fullmatch(member)
        if account is not None and self._store.get("project", account[2]) is not None:
            email = member.partition(":")[2]
            name = f"projects/{account[2]}/serviceAccounts/{email}"
            return is_visible(self._store.get_json(ACCOUNTS, name))
        compute = _COMPUTE_ACCOUNT.fullmatch(member)
        if compute is not None:
            return self._has_enabled(compute[1], "compute.googleapis.com")
        return None

    def _has_enabled(self, number: str, api: str) -> bool | None:
        project = self._store.get("project-number", number)
        if project is None:
            return None
        return self._store.get("enabled", f"{project.decode()}/{api}") is not None

    def _is_in_organization(self, member: str) -> bool:
        """The organization's users, its projects' accounts, and their service agents.

        Agents of other owners are refused (terraform-example-foundation#1257); accepting those of
        the organization's own projects is a guess.
        """
        kind, _, rest = member.removeprefix("deleted:").partition(":")
        if kind in ("user", "group", "domain"):
            return rest.partition("?")[0].rpartition("@")[2] == DOMAIN
        if kind == "serviceAccount":
            plain = f"serviceAccount:{rest.partition('?')[0]}"
            agent = _AGENT.fullmatch(plain) or _COMPUTE_ACCOUNT.fullmatch(plain)
            if agent is not None:
                return self._store.get("project-number", agent[1]) is not None
            account = _ACCOUNT.fullmatch(plain)
            return account is not None and self._store.get("project", account[2]) is not None
        return kind not in ("allUsers", "allAuthenticatedUsers")


def concurrent_change() -> ApiError:
    """The platform's response to an outdated etag."""
    return ApiError(
        "ABORTED",
        "There were concurrent policy changes. Please retry the whole read-modify-write with "
        "exponential backoff.",
    )


def _not_permitted(resource: str, members: list[str], conflict: ApiError) -> ApiError:
    """From terraform-example-foundation#1257 and #1454; Cloud Storage uses status 412."""
    violations = []
    for member in members:
        identity = member.partition(":")[2] or member
        violations.append(
            {
                "type": f"constraints/{_DOMAINS}",
                "subject": f"orgpolicy:{resource}?configvalue={identity}",
                "description": f"User {identity} is not in permitted organization.",
            }
        )
    is_storage = conflict.status == "FAILED_PRECONDITION"
    return ApiError(
        "FAILED_PRECONDITION",
        "One or more users named in the policy do not belong to a permitted customer.",
        reason=conflict.reason if is_storage else "",
        http=conflict.http if is_storage else 0,
        details=() if is_storage else [error_detail("PreconditionFailure", violations=violations)],
    )


def _role_members(bindings: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(binding["role"], member) for binding in bindings for member in binding["members"]}


def _normalize(bindings: Any) -> list[dict[str, Any]]:
    """Merge bindings of the same role and condition; sort members and drop duplicates."""
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
