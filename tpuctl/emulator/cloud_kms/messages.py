"""Messages and methods of Cloud KMS v1, from Google's discovery document.

What is needed to say which keys exist, in which state, and who may use them. Nothing is encrypted.
"""

from __future__ import annotations

from tpuctl.emulator.wire.discovery.definitions import Definition
from tpuctl.emulator.wire.messages import Method

RING = "projects/*/locations/*/keyRings/*"
KEY = f"{RING}/cryptoKeys/*"
_VERSION = f"{KEY}/cryptoKeyVersions/*"


def _policy_methods() -> dict[str, str]:
    """Of key rings and keys; the first is read with GET, with the version in the query."""
    path = "/v1/{resource=projects/*/locations/*/keyRings/**}"
    return {
        "get_iam_policy": f"GET {path}:getIamPolicy: GetIamPolicyRequest -> Policy",
        "set_iam_policy": f"POST {path}:setIamPolicy *: SetIamPolicyRequest -> Policy",
        "test_iam_permissions": f"POST {path}:testIamPermissions *: TestIamPermissionsRequest -> "
        "TestIamPermissionsResponse",
    }


_PAGE = "parent page_size:int32 page_token"

KMS = Definition(
    "google.cloud.kms.v1",
    messages={
        "KeyRing": "name create_time:Timestamp",
        "CryptoKey": "name primary:CryptoKeyVersion purpose:CryptoKeyPurpose "
        "create_time:Timestamp version_template:CryptoKeyVersionTemplate labels:map",
        "CryptoKeyVersion": "name state:CryptoKeyVersionState protection_level:ProtectionLevel "
        "algorithm:CryptoKeyVersionAlgorithm create_time:Timestamp generate_time:Timestamp "
        "destroy_time:Timestamp destroy_event_time:Timestamp",
        "CryptoKeyVersionTemplate": "protection_level:ProtectionLevel "
        "algorithm:CryptoKeyVersionAlgorithm",
        "CreateKeyRingRequest": "parent key_ring_id key_ring:KeyRing",
        "GetKeyRingRequest": "name",
        "ListKeyRingsRequest": _PAGE,
        "ListKeyRingsResponse": "key_rings:[KeyRing] next_page_token total_size:int32",
        "CreateCryptoKeyRequest": "parent crypto_key_id crypto_key:CryptoKey "
        "skip_initial_version_creation:bool",
        "GetCryptoKeyRequest": "name",
        "ListCryptoKeysRequest": _PAGE,
        "ListCryptoKeysResponse": "crypto_keys:[CryptoKey] next_page_token total_size:int32",
        "UpdateCryptoKeyPrimaryVersionRequest": "name crypto_key_version_id",
        "CreateCryptoKeyVersionRequest": "parent crypto_key_version:CryptoKeyVersion",
        "GetCryptoKeyVersionRequest": "name",
        "ListCryptoKeyVersionsRequest": _PAGE,
        "ListCryptoKeyVersionsResponse": "crypto_key_versions:[CryptoKeyVersion] next_page_token "
        "total_size:int32",
        "UpdateCryptoKeyVersionRequest": "crypto_key_version:CryptoKeyVersion update_mask",
        "DestroyCryptoKeyVersionRequest": "name",
        "RestoreCryptoKeyVersionRequest": "name",
    },
    enums={
        "CryptoKeyPurpose": ("CRYPTO_KEY_PURPOSE_UNSPECIFIED", "ENCRYPT_DECRYPT"),
        "CryptoKeyVersionState": (
            *("CRYPTO_KEY_VERSION_STATE_UNSPECIFIED", "ENABLED", "DISABLED", "DESTROYED"),
            "DESTROY_SCHEDULED",
        ),
        "ProtectionLevel": ("PROTECTION_LEVEL_UNSPECIFIED", "SOFTWARE", "HSM"),
        "CryptoKeyVersionAlgorithm": (
            *("CRYPTO_KEY_VERSION_ALGORITHM_UNSPECIFIED", "GOOGLE_SYMMETRIC_ENCRYPTION"),
        ),
    },
    services={
        "KeyManagementService": {
            "create_key_ring": "POST /v1/{parent=projects/*/locations/*}/keyRings key_ring: "
            "CreateKeyRingRequest -> KeyRing",
            "get_key_ring": f"GET /v1/{{name={RING}}}: GetKeyRingRequest -> KeyRing",
            "list_key_rings": "GET /v1/{parent=projects/*/locations/*}/keyRings: "
            "ListKeyRingsRequest -> ListKeyRingsResponse",
            "create_crypto_key": f"POST /v1/{{parent={RING}}}/cryptoKeys crypto_key: "
            "CreateCryptoKeyRequest -> CryptoKey",
            "get_crypto_key": f"GET /v1/{{name={KEY}}}: GetCryptoKeyRequest -> CryptoKey",
            "list_crypto_keys": f"GET /v1/{{parent={RING}}}/cryptoKeys: ListCryptoKeysRequest -> "
            "ListCryptoKeysResponse",
            "update_crypto_key_primary_version": f"POST /v1/{{name={KEY}}}:updatePrimaryVersion "
            "*: UpdateCryptoKeyPrimaryVersionRequest -> CryptoKey",
            "create_crypto_key_version": f"POST /v1/{{parent={KEY}}}/cryptoKeyVersions "
            "crypto_key_version: CreateCryptoKeyVersionRequest -> CryptoKeyVersion",
            "get_crypto_key_version": f"GET /v1/{{name={_VERSION}}}: GetCryptoKeyVersionRequest "
            "-> CryptoKeyVersion",
            "list_crypto_key_versions": f"GET /v1/{{parent={KEY}}}/cryptoKeyVersions: "
            "ListCryptoKeyVersionsRequest -> ListCryptoKeyVersionsResponse",
            "update_crypto_key_version": f"PATCH /v1/{{crypto_key_version.name={_VERSION}}} "
            "crypto_key_version: UpdateCryptoKeyVersionRequest -> CryptoKeyVersion",
            "destroy_crypto_key_version": f"POST /v1/{{name={_VERSION}}}:destroy *: "
            "DestroyCryptoKeyVersionRequest -> CryptoKeyVersion",
            "restore_crypto_key_version": f"POST /v1/{{name={_VERSION}}}:restore *: "
            "RestoreCryptoKeyVersionRequest -> CryptoKeyVersion",
            **_policy_methods(),
        },
    },
)


def methods(service: str) -> list[Method]:
    return KMS.methods(service)
