"""Organization Policy v2: messages and methods, numbered as in the public description.

From googleapis/googleapis, google/cloud/orgpolicy/v2, and Google's discovery document of
orgpolicy v2. Alternates, dry runs, conditions and custom constraints are left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from tpuctl.emulator.wire.definitions import Definition, MethodDefinition
from tpuctl.emulator.wire.messages import Method

__all__ = ["V2", "methods"]

_POLICIES = "/v2/{parent=*/*}/policies"
_POLICY = "/v2/{name=*/*/policies/*}"

_METHODS: Mapping[str, MethodDefinition] = {
    "list_constraints": MethodDefinition(
        "ListConstraintsRequest", "ListConstraintsResponse", "GET", "/v2/{parent=*/*}/constraints"
    ),
    "list_policies": MethodDefinition(
        "ListPoliciesRequest", "ListPoliciesResponse", "GET", _POLICIES
    ),
    "get_policy": MethodDefinition("GetPolicyRequest", "Policy", "GET", _POLICY),
    "get_effective_policy": MethodDefinition(
        "GetEffectivePolicyRequest", "Policy", "GET", f"{_POLICY}:getEffectivePolicy"
    ),
    "create_policy": MethodDefinition("CreatePolicyRequest", "Policy", "POST", _POLICIES, "policy"),
    "update_policy": MethodDefinition(
        "UpdatePolicyRequest", "Policy", "PATCH", "/v2/{policy.name=*/*/policies/*}", "policy"
    ),
    "delete_policy": MethodDefinition(
        "DeletePolicyRequest", "google.protobuf.Empty", "DELETE", _POLICY
    ),
}

V2 = Definition(
    "google.cloud.orgpolicy.v2",
    messages={
        "Policy": "name spec:PolicySpec etag=5",
        "PolicySpec": "etag update_time:google.protobuf.Timestamp rules:[PolicyRule] "
        "inherit_from_parent:bool reset:bool",
        "PolicyRule": "values:StringValues allow_all:bool? deny_all:bool? enforce:bool?",
        "StringValues": "allowed_values:[string] denied_values:[string]",
        "Constraint": "name display_name description constraint_default:ConstraintDefault "
        "list_constraint:ListConstraint boolean_constraint:BooleanConstraint",
        "ListConstraint": "supports_in:bool supports_under:bool",
        "BooleanConstraint": "",
        "ListConstraintsRequest": "parent page_size:int32 page_token",
        "ListConstraintsResponse": "constraints:[Constraint] next_page_token",
        "ListPoliciesRequest": "parent page_size:int32 page_token",
        "ListPoliciesResponse": "policies:[Policy] next_page_token",
        "GetPolicyRequest": "name",
        "GetEffectivePolicyRequest": "name",
        "CreatePolicyRequest": "parent policy:Policy=3",
        "UpdatePolicyRequest": "policy:Policy update_mask=3",
        "DeletePolicyRequest": "name etag",
    },
    enums={"ConstraintDefault": ("CONSTRAINT_DEFAULT_UNSPECIFIED", "ALLOW", "DENY")},
    services={"OrgPolicy": _METHODS},
)


def methods(service: str) -> list[Method]:
    """The methods of the service with that full name."""
    return V2.methods(service)
