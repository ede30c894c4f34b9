"""The three policy methods of APIs whose resources have IAM policies."""

from __future__ import annotations

from typing import Any

from google.iam.v1 import iam_policy_pb2, policy_pb2
from google.protobuf import json_format

from tpuctl.emulator.iam.policies import Policies, Policy, concurrent_change
from tpuctl.emulator.state.errors import unsupported_field
from tpuctl.emulator.wire.registry import Caller, Registry, Service


class PolicyHandlers(Service):
    """Handlers for the resources that `_policy_name` knows."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self._policies = Policies(registry.store)

    def _policy_name(self, resource: str, verb: str) -> str:
        """The name of a request's resource in policies. Raises ApiError if it does not exist.

        `verb` is that of the permission to call the method: `getIamPolicy`.
        """
        raise NotImplementedError

    async def get_iam_policy(self, request: Any, caller: Caller) -> Any:
        return _message(self._policies.get(self._policy_name(request.resource, "getIamPolicy")))

    async def set_iam_policy(self, request: Any, caller: Caller) -> Any:
        name = self._policy_name(request.resource, "setIamPolicy")
        policy = json_format.MessageToDict(request.policy)
        if policy.get("auditConfigs"):  # there are no audit logs
            raise unsupported_field("policy.auditConfigs")
        return _message(self._policies.set(name, policy, concurrent_change()))

    async def test_iam_permissions(self, request: Any, caller: Caller) -> Any:
        name = self._policy_name(request.resource, "testIamPermissions")
        names = self._registry.authority.granted_permissions(caller, name, request.permissions)
        return iam_policy_pb2.TestIamPermissionsResponse(permissions=names)


def _message(policy: Policy) -> Any:
    return json_format.ParseDict(policy, policy_pb2.Policy(), ignore_unknown_fields=True)
