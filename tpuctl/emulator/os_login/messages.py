"""Messages of OS Login v1, from Google's discovery document of oslogin v1."""

from __future__ import annotations

from tpuctl.emulator.wire.discovery.definitions import Definition
from tpuctl.emulator.wire.messages import Method

_USER, _KEY = "/v1/{parent=users/*}", "/v1/{name=users/*/sshPublicKeys/*}"
_ACCOUNT = "/v1/{name=users/*/projects/*}"

V1 = Definition(
    "google.cloud.oslogin.v1",
    messages={
        "SshPublicKey": "expiration_time_usec:int64 fingerprint key name",
        "PosixAccount": "account_id gecos gid:int64 home_directory name "
        "operating_system_type:OperatingSystemType primary:bool shell system_id uid:int64 username",
        "LoginProfile": "name posix_accounts:[PosixAccount] ssh_public_keys:map:SshPublicKey",
        "GetLoginProfileRequest": "name project_id system_id",
        "ImportSshPublicKeyRequest": "parent ssh_public_key:SshPublicKey project_id "
        "regions:[string]",
        "ImportSshPublicKeyResponse": "details login_profile:LoginProfile",
        "CreateSshPublicKeyRequest": "parent ssh_public_key:SshPublicKey",
        "GetSshPublicKeyRequest": "name",
        "DeleteSshPublicKeyRequest": "name",
        "UpdateSshPublicKeyRequest": "name ssh_public_key:SshPublicKey update_mask:FieldMask",
        "DeletePosixAccountRequest": "name",
        "ProvisionPosixAccountRequest": "name regions:[string]",
    },
    enums={
        "OperatingSystemType": ("OPERATING_SYSTEM_TYPE_UNSPECIFIED", "LINUX", "WINDOWS"),
    },
    services={
        "OsLoginService": {
            "get_login_profile": "GET /v1/{name=users/*}/loginProfile: GetLoginProfileRequest -> "
            "LoginProfile",
            "import_ssh_public_key": f"POST {_USER}:importSshPublicKey ssh_public_key: "
            "ImportSshPublicKeyRequest -> ImportSshPublicKeyResponse",
            "create_ssh_public_key": f"POST {_USER}/sshPublicKeys ssh_public_key: "
            "CreateSshPublicKeyRequest -> SshPublicKey",
            "get_ssh_public_key": f"GET {_KEY}: GetSshPublicKeyRequest -> SshPublicKey",
            "update_ssh_public_key": f"PATCH {_KEY} ssh_public_key: UpdateSshPublicKeyRequest -> "
            "SshPublicKey",
            "delete_ssh_public_key": f"DELETE {_KEY}: DeleteSshPublicKeyRequest -> Empty",
            "delete_posix_account": f"DELETE {_ACCOUNT}: DeletePosixAccountRequest -> Empty",
            "provision_posix_account": f"POST {_ACCOUNT} *: ProvisionPosixAccountRequest -> "
            "PosixAccount",
        }
    },
)


def methods(service: str) -> list[Method]:
    """The methods of the service, by its full name."""
    return V1.methods(service)
