"""OS Login v1: profiles with SSH keys and POSIX accounts, and logins that they allow.

Names of users are from cloud.google.com/compute/docs/oslogin/set-up-oslogin: of an email address
with underscores, or `sa_` and the unique ID of a service account. Keys are identified by SHA-256 of
their bytes. Wording without a source is a guess.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from typing import Any

from tpuctl.emulator.iam.policies import ACCOUNTS
from tpuctl.emulator.iam.required_permissions import ACT_AS, PolicyResources
from tpuctl.emulator.machines.interface import MachineSpec
from tpuctl.emulator.machines.servers.metadata_tree import numeric_id
from tpuctl.emulator.os_login.messages import V1
from tpuctl.emulator.state.errors import ApiError, invalid, missing
from tpuctl.emulator.wire.registry import Caller, Registry, Service

PROFILES = "os-login"  # kind in the store, by email
MAX_PROFILE_BYTES = 32 * 1024
MAX_NAME_LENGTH = 32
_KEY = re.compile(r"(?:ssh|ecdsa|sk-\S+?)-\S+ ([A-Za-z0-9+/]+=*)(?: .*)?")
_FULL = (  # a report of a log, in tests/unit/seen_texts.toml
    "Login profile size exceeds 32 KiB. Delete profile values to make additional space."
)

Profile = dict[str, Any]  # keys by fingerprint, each key and expires, and projects with an account


class OsLoginApi(Service):
    """Handlers of google.cloud.oslogin.v1.OsLoginService."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self._store = registry.store
        self._resources = PolicyResources(registry.store, registry.projects)

    async def get_login_profile(self, request: Any, caller: Caller) -> Any:
        email = self._own(request.name, caller)
        self._require_api(request.project_id)
        return self._message(email, self._profile(email), request.project_id)

    async def import_ssh_public_key(self, request: Any, caller: Caller) -> Any:
        email = self._own(request.parent, caller)
        self._require_api(request.project_id)
        profile = self._profile(email)
        if request.ssh_public_key.key:  # gcloud sends none to get a POSIX account
            self._add_key(profile, request.ssh_public_key)
        if request.project_id:
            self._add_account(profile, request.project_id)
        self._save(email, profile)
        message = self._message(email, profile, request.project_id)
        return V1.message("ImportSshPublicKeyResponse")(login_profile=message)

    async def create_ssh_public_key(self, request: Any, caller: Caller) -> Any:
        email = self._own(request.parent, caller)
        profile = self._profile(email)
        if _fingerprint(request.ssh_public_key.key) in profile["keys"]:
            raise ApiError("ALREADY_EXISTS", "Requested entity already exists")
        fingerprint = self._add_key(profile, request.ssh_public_key)
        self._save(email, profile)
        return _key_message(email, fingerprint, profile)

    async def get_ssh_public_key(self, request: Any, caller: Caller) -> Any:
        email, profile, fingerprint = self._key(request.name, caller)
        return _key_message(email, fingerprint, profile)

    async def update_ssh_public_key(self, request: Any, caller: Caller) -> Any:
        """Only the expiry can change: another key has another name."""
        email, profile, fingerprint = self._key(request.name, caller)
        requested = request.ssh_public_key
        if requested.key and _fingerprint(requested.key) != fingerprint:
            raise invalid("The key does not match its fingerprint.")
        _check_expiry(requested.expiration_time_usec)
        profile["keys"][fingerprint]["expires"] = requested.expiration_time_usec
        self._save(email, profile)
        return _key_message(email, fingerprint, profile)

    async def delete_ssh_public_key(self, request: Any, caller: Caller) -> None:
        email, profile, fingerprint = self._key(request.name, caller)
        del profile["keys"][fingerprint]
        self._save(email, profile)

    async def provision_posix_account(self, request: Any, caller: Caller) -> Any:
        email = self._own(request.name, caller)
        project = request.name.rpartition("/")[2]
        profile = self._profile(email)
        self._add_account(profile, project)
        self._save(email, profile)
        return self._account(email, project)

    async def delete_posix_account(self, request: Any, caller: Caller) -> None:
        email = self._own(request.name, caller)
        project, profile = request.name.rpartition("/")[2], self._profile(email)
        if project not in profile["projects"]:
            raise missing("Requested entity was not found.")
        profile["projects"].remove(project)
        self._save(email, profile)

    def admit(self, machine: MachineSpec, user: str, public_key: str) -> bool | None:
        """Whether a user who logs in to a machine with this key may use sudo; None refuses.

        A profile's user with a key that has not expired needs `compute.instances.osLogin`, or
        `osAdminLogin`, in the machine's project, and actAs on the account that the machine has:
        cloud.google.com/compute/docs/oslogin/set-up-oslogin#configure_users.
        """
        fingerprint = _fingerprint(public_key)
        for email, text in self._store.items(PROFILES):
            profile = json.loads(text)
            key = profile["keys"].get(fingerprint)
            if key is None or machine.project not in profile["projects"]:
                continue
            if user == self._user_name(email) and not _has_expired(key["expires"]):
                return self._permission(email, machine)
        return None

    def _permission(self, email: str, machine: MachineSpec) -> bool | None:
        allows = self._registry.authority.allows
        project = self._resources.project(machine.project)
        account = machine.service_account
        if account and not allows(email, ACT_AS, self._resources.account(account)):
            return None
        if allows(email, "compute.instances.osAdminLogin", project):
            return True
        return False if allows(email, "compute.instances.osLogin", project) else None

    def _own(self, name: str, caller: Caller) -> str:
        """The email of a user that a name starts with, by address or unique ID: the caller's.

        The permission for profiles of others is not emulated.
        """
        user = name.split("/")[1]
        if user not in (caller.email, self._unique_id(caller.email)):
            raise ApiError("PERMISSION_DENIED", "The caller does not have permission")
        return caller.email

    def _key(self, name: str, caller: Caller) -> tuple[str, Profile, str]:
        email = self._own(name, caller)
        profile, fingerprint = self._profile(email), name.rpartition("/")[2]
        if fingerprint not in profile["keys"]:
            raise missing("Requested entity was not found.")
        return email, profile, fingerprint

    def _require_api(self, project: str) -> None:
        if project:
            self._registry.projects.require(project, "oslogin.googleapis.com")

    def _profile(self, email: str) -> Profile:
        return self._store.get_json(PROFILES, email) or {"keys": {}, "projects": []}

    def _save(self, email: str, profile: Profile) -> None:
        if len(json.dumps(profile)) > MAX_PROFILE_BYTES:
            raise invalid(_FULL)
        self._store.put_json(PROFILES, email, profile)

    def _add_key(self, profile: Profile, key: Any) -> str:
        fingerprint = _fingerprint(key.key)
        if not fingerprint:
            raise invalid("Invalid SSH public key.")
        _check_expiry(key.expiration_time_usec)
        profile["keys"][fingerprint] = {"key": key.key, "expires": key.expiration_time_usec}
        return fingerprint

    def _add_account(self, profile: Profile, project: str) -> None:
        record = self._registry.projects.require(project, "oslogin.googleapis.com")
        if record["id"] not in profile["projects"]:
            profile["projects"].append(record["id"])

    def _message(self, email: str, profile: Profile, project: str) -> Any:
        """The profile, with the account of one project, or all."""
        message = V1.message("LoginProfile")(name=self._unique_id(email))
        for name in profile["projects"]:
            if project in ("", name):
                message.posix_accounts.append(self._account(email, name))
        for fingerprint in profile["keys"]:
            message.ssh_public_keys[fingerprint].CopyFrom(_key_message(email, fingerprint, profile))
        return message

    def _account(self, email: str, project: str) -> Any:
        user = self._user_name(email)
        number = int(self._unique_id(email)) % (1 << 31)
        return V1.message("PosixAccount")(
            name=f"users/{email}/projects/{project}",
            account_id=project,
            username=user,
            uid=number,
            gid=number,
            home_directory=f"/home/{user}",
            shell="/bin/bash",
            operating_system_type="LINUX",
            primary=True,
        )

    def _unique_id(self, email: str) -> str:
        accounts = self._store.list_json(ACCOUNTS)
        ids = (account["unique_id"] for account in accounts if account["email"] == email)
        return next(ids, "") or str(numeric_id(email))

    def _user_name(self, email: str) -> str:
        if email.endswith(".gserviceaccount.com"):
            return f"sa_{self._unique_id(email)}"
        return re.sub(r"[^a-z0-9]", "_", email.lower())[:MAX_NAME_LENGTH]


def _fingerprint(public_key: str) -> str:
    """Of a key in OpenSSH's format; "" if it is none."""
    match = _KEY.fullmatch(public_key.strip())
    try:
        return hashlib.sha256(base64.b64decode(match[1])).hexdigest() if match else ""
    except ValueError:
        return ""


def _key_message(email: str, fingerprint: str, profile: Profile) -> Any:
    key = profile["keys"][fingerprint]
    return V1.message("SshPublicKey")(
        name=f"users/{email}/sshPublicKeys/{fingerprint}",
        fingerprint=fingerprint,
        key=key["key"],
        expiration_time_usec=key["expires"],
    )


def _check_expiry(microseconds: int) -> None:
    if _has_expired(microseconds):
        raise invalid("The expiration time of the SSH key is in the past.")


def _has_expired(microseconds: int) -> bool:
    return microseconds != 0 and microseconds < time.time() * 1e6
