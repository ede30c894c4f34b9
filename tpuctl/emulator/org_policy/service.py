"""Organization Policy v2: policies of projects, folders and the organization.

Wording without a source is a guess.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

from google.cloud.orgpolicy_v2.types import orgpolicy

from tpuctl.emulator.state.constraints import CONSTRAINTS, KIND, OrgPolicies, Rule
from tpuctl.emulator.state.errors import ApiError, invalid, missing, unimplemented
from tpuctl.emulator.state.projects import FOLDER, ORGANIZATION
from tpuctl.emulator.wire.paging import requested_page
from tpuctl.emulator.wire.registry import Caller, Registry, Service

_ONE_OF = "A policy rule must have exactly one of values, allowAll, denyAll and enforce."


class OrgPolicyService(Service):
    """Handlers of google.cloud.orgpolicy.v2.OrgPolicy."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self._store = registry.store
        self._policies = OrgPolicies(registry.store)

    async def list_constraints(self, request: Any, caller: Caller) -> Any:
        parent = self._resource(request.parent)
        names, token = requested_page(request, sorted(CONSTRAINTS))
        answer = orgpolicy.ListConstraintsResponse.pb()(next_page_token=token)
        for name in names:
            kind = "list_constraint" if CONSTRAINTS[name] else "boolean_constraint"
            answer.constraints.add(
                name=f"{self._public_name(parent)}/constraints/{name}",
                constraint_default="ALLOW",
                **{kind: {}},
            )
        return answer

    async def list_policies(self, request: Any, caller: Caller) -> Any:
        parent = self._resource(request.parent)
        rows, token = requested_page(request, self._store.list_json(KIND, f"{parent}/policies/"))
        return orgpolicy.ListPoliciesResponse.pb()(
            policies=map(self._message, rows), next_page_token=token
        )

    async def get_policy(self, request: Any, caller: Caller) -> Any:
        return self._message(self._get(self._policy_name(request.name)))

    async def get_effective_policy(self, request: Any, caller: Caller) -> Any:
        resource, _, constraint = self._policy_name(request.name).partition("/policies/")
        answer = orgpolicy.Policy.pb()(name=f"{self._public_name(resource)}/policies/{constraint}")
        for rule in self._policies.effective(resource, constraint):
            _add_rule(answer.spec, rule)
        return answer

    async def create_policy(self, request: Any, caller: Caller) -> Any:
        parent = self._resource(request.parent)
        name = self._policy_name(request.policy.name)
        if name.partition("/policies/")[0] != parent:
            raise invalid(
                f"The policy {request.policy.name!r} does not belong to {request.parent}."
            )
        with self._store.transaction():
            if self._store.get(KIND, name) is not None:
                raise ApiError("ALREADY_EXISTS", "Requested entity already exists")
            return self._message(self._put(name, request.policy))

    async def update_policy(self, request: Any, caller: Caller) -> Any:
        name = self._policy_name(request.policy.name)
        unsupported = set(request.update_mask.paths) - {"*", "spec", "policy.spec"}
        if unsupported:
            raise unimplemented(f"Changing {', '.join(sorted(unsupported))}")
        with self._store.transaction():
            self._check_etag(name, request.policy.etag or request.policy.spec.etag)
            return self._message(self._put(name, request.policy))

    async def delete_policy(self, request: Any, caller: Caller) -> None:
        name = self._policy_name(request.name)
        with self._store.transaction():
            self._check_etag(name, request.etag)
            self._store.delete(KIND, name)

    def _resource(self, name: str) -> str:
        """A project by ID, the folder or the organization; it must exist."""
        kind, _, resource_id = name.partition("/")
        if kind == "projects":
            return f"projects/{self._registry.projects.require(resource_id)['id']}"
        if name not in (FOLDER, ORGANIZATION):
            raise missing("Requested entity was not found.")
        return name

    def _policy_name(self, name: str) -> str:
        parts = name.split("/")
        if len(parts) != 4 or parts[2] != "policies":
            raise invalid(f"Invalid policy name: {name!r}.")
        if parts[3] not in CONSTRAINTS:
            raise missing("Requested entity was not found.")
        return f"{self._resource('/'.join(parts[:2]))}/policies/{parts[3]}"

    def _public_name(self, resource: str) -> str:
        """The name in responses: with the project's number."""
        kind, _, name = resource.partition("/")
        if kind != "projects":
            return resource
        return f"{kind}/{self._registry.projects.require(name)['number']}"

    def _get(self, name: str) -> dict[str, Any]:
        row: dict[str, Any] | None = self._store.get_json(KIND, name)
        if row is None:
            raise missing("Requested entity was not found.")
        return row

    def _check_etag(self, name: str, etag: str) -> None:
        if etag not in ("", self._get(name)["etag"]):
            raise ApiError("ABORTED", "The etag does not match that of the policy.")

    def _put(self, name: str, policy: Any) -> dict[str, Any]:
        _require_supported(policy, "alternate", "dry_run_spec")
        spec = policy.spec
        is_list = CONSTRAINTS[name.partition("/policies/")[2]]
        if spec.reset and (spec.rules or spec.inherit_from_parent):
            raise invalid("A policy with reset cannot have rules or inheritFromParent.")
        if not is_list and (spec.inherit_from_parent or (len(spec.rules) != 1 and not spec.reset)):
            raise invalid("The policy of a boolean constraint must have exactly one rule.")
        rules = [_rule(rule, is_list=is_list) for rule in spec.rules]
        row = {
            "name": name,
            "rules": rules,
            "inherits": spec.inherit_from_parent,
            "reset": spec.reset,
            "updated": time.time(),
            "etag": secrets.token_urlsafe(12),
        }
        self._store.put_json(KIND, name, row)
        return row

    def _message(self, row: Mapping[str, Any]) -> Any:
        resource, _, constraint = row["name"].partition("/policies/")
        answer = orgpolicy.Policy.pb()(
            name=f"{self._public_name(resource)}/policies/{constraint}", etag=row["etag"]
        )
        spec = answer.spec
        spec.etag, spec.reset, spec.inherit_from_parent = row["etag"], row["reset"], row["inherits"]
        spec.update_time.FromMicroseconds(int(row["updated"] * 1e6))
        for rule in row["rules"]:
            _add_rule(spec, rule)
        return answer


def _rule(rule: Any, *, is_list: bool) -> Rule:
    _require_supported(rule, "condition", "parameters")
    kind = rule.WhichOneof("kind")
    if kind is None or (kind == "enforce") == is_list:
        raise invalid(_ONE_OF)
    if kind == "values":
        return {
            "allowed": list(rule.values.allowed_values),
            "denied": list(rule.values.denied_values),
        }
    return {kind: getattr(rule, kind)}


def _require_supported(message: Any, *unsupported: str) -> None:
    for field in unsupported:
        if message.HasField(field):
            raise unimplemented(f"A policy's {field}")


def _add_rule(spec: Any, rule: Rule) -> None:
    added = spec.rules.add()
    if "allowed" in rule:
        added.values.allowed_values.extend(rule["allowed"])
        added.values.denied_values.extend(rule["denied"])
        return
    for field, value in rule.items():
        setattr(added, field, value)
