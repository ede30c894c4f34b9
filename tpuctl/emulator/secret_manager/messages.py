"""Secret Manager v1: messages and methods, numbered as in the public description.

From googleapis/googleapis, google/cloud/secretmanager/v1, and Google's discovery document of
secretmanager v1.
"""

from __future__ import annotations

from collections.abc import Mapping

from tpuctl.emulator.wire.definitions import Definition, MethodDefinition
from tpuctl.emulator.wire.messages import Method

__all__ = ["V1", "methods"]

_EMPTY = "google.protobuf.Empty"
_IAM = "google.iam.v1"
_TIME = "google.protobuf.Timestamp"
_DURATION = "google.protobuf.Duration"
_PARENT = "/v1/{parent=projects/*}/secrets"
_SECRET = "/v1/{name=projects/*/secrets/*}"
_SECRET_PARENT = "/v1/{parent=projects/*/secrets/*}"
_VERSION = "/v1/{name=projects/*/secrets/*/versions/*}"
_RESOURCE = "/v1/{resource=projects/*/secrets/*}"


def _state_method(verb: str) -> MethodDefinition:
    """A method that changes the state of a version."""
    kind = f"{verb.capitalize()}SecretVersionRequest"
    return MethodDefinition(kind, "SecretVersion", "POST", f"{_VERSION}:{verb}", "*")


_METHODS: Mapping[str, MethodDefinition] = {
    "list_secrets": MethodDefinition("ListSecretsRequest", "ListSecretsResponse", "GET", _PARENT),
    "create_secret": MethodDefinition("CreateSecretRequest", "Secret", "POST", _PARENT, "secret"),
    "get_secret": MethodDefinition("GetSecretRequest", "Secret", "GET", _SECRET),
    "update_secret": MethodDefinition("AbsentRequest", "Secret", "PATCH", _SECRET),
    "delete_secret": MethodDefinition("DeleteSecretRequest", _EMPTY, "DELETE", _SECRET),
    "add_secret_version": MethodDefinition(
        "AddSecretVersionRequest", "SecretVersion", "POST", f"{_SECRET_PARENT}:addVersion", "*"
    ),
    "list_secret_versions": MethodDefinition(
        "ListSecretVersionsRequest",
        "ListSecretVersionsResponse",
        "GET",
        f"{_SECRET_PARENT}/versions",
    ),
    "get_secret_version": MethodDefinition(
        "GetSecretVersionRequest", "SecretVersion", "GET", _VERSION
    ),
    "access_secret_version": MethodDefinition(
        "AccessSecretVersionRequest", "AccessSecretVersionResponse", "GET", f"{_VERSION}:access"
    ),
    "disable_secret_version": _state_method("disable"),
    "enable_secret_version": _state_method("enable"),
    "destroy_secret_version": _state_method("destroy"),
    "get_iam_policy": MethodDefinition(
        f"{_IAM}.GetIamPolicyRequest", f"{_IAM}.Policy", "GET", f"{_RESOURCE}:getIamPolicy"
    ),
    "set_iam_policy": MethodDefinition(
        f"{_IAM}.SetIamPolicyRequest", f"{_IAM}.Policy", "POST", f"{_RESOURCE}:setIamPolicy", "*"
    ),
    "test_iam_permissions": MethodDefinition(
        f"{_IAM}.TestIamPermissionsRequest",
        f"{_IAM}.TestIamPermissionsResponse",
        "POST",
        f"{_RESOURCE}:testIamPermissions",
        "*",
    ),
}

V1 = Definition(
    "google.cloud.secretmanager.v1",
    messages={
        "Secret": f"name replication:Replication create_time:{_TIME} labels:map topics:[Topic] "
        f"expire_time:{_TIME} ttl:{_DURATION} etag rotation:Rotation annotations:map=13 "
        f"version_destroy_ttl:{_DURATION}=14 tags:map=16",
        "Replication": "automatic:Automatic user_managed:UserManaged",
        "Automatic": "customer_managed_encryption:CustomerManagedEncryption",
        "UserManaged": "replicas:[Replica]",
        "Replica": "location customer_managed_encryption:CustomerManagedEncryption",
        "CustomerManagedEncryption": "kms_key_name",
        "Topic": "name",
        "Rotation": f"next_rotation_time:{_TIME} rotation_period:{_DURATION}",
        "SecretVersion": f"name create_time:{_TIME} destroy_time:{_TIME} state:State "
        "replication_status:ReplicationStatus etag client_specified_payload_checksum:bool",
        "ReplicationStatus": "automatic:AutomaticStatus user_managed:UserManagedStatus",
        "AutomaticStatus": "",
        "UserManagedStatus": "replicas:[ReplicaStatus]",
        "ReplicaStatus": "location",
        "SecretPayload": "data:bytes data_crc32c:int64",
        "ListSecretsRequest": "parent page_size:int32 page_token filter",
        "ListSecretsResponse": "secrets:[Secret] next_page_token total_size:int32",
        "CreateSecretRequest": "parent secret_id secret:Secret",
        "AddSecretVersionRequest": "parent payload:SecretPayload",
        "GetSecretRequest": "name",
        "DeleteSecretRequest": "name etag",
        "ListSecretVersionsRequest": "parent page_size:int32 page_token filter",
        "ListSecretVersionsResponse": "versions:[SecretVersion] next_page_token total_size:int32",
        "GetSecretVersionRequest": "name",
        "AccessSecretVersionRequest": "name",
        "AccessSecretVersionResponse": "name payload:SecretPayload",
        "DisableSecretVersionRequest": "name etag",
        "EnableSecretVersionRequest": "name etag",
        "DestroySecretVersionRequest": "name etag",
        "AbsentRequest": "name",
    },
    enums={"State": ("STATE_UNSPECIFIED", "ENABLED", "DISABLED", "DESTROYED")},
    services={"SecretManagerService": _METHODS},
)


def methods(service: str) -> list[Method]:
    """The methods of the service with that full name."""
    return V1.methods(service)
