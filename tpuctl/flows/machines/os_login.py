"""OS Login: machines accept the keys of a Google account's profile, as the user that it names.

A machine's metadata decides, or else its project's, as in the Google Cloud SDK (528,
command_lib/util/ssh/ssh.py: GetOsloginState).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from tpuctl.cloud.caller_identity import granted_on_project, identity_of
from tpuctl.cloud.clients import Cloud
from tpuctl.errors import ApiDisabled, Conflict, Denied, Diagnostic, NotFound, TpuctlError
from tpuctl.model.stack.stack import Stack
from tpuctl.model.text.os_login import OS_LOGIN, os_login_in

KEY_DAYS = 7  # a key in a profile expires that long after its last use, to the day
DAY_SECONDS = 86400
LOGIN, SUDO = "compute.instances.osLogin", "compute.instances.osAdminLogin"


async def project_uses_os_login(project: str, cloud: Cloud) -> bool:
    """Whether the project's metadata turns it on; if that cannot be read, it is taken for off."""
    path, query = f"/compute/v1/projects/{project}", {"fields": "commonInstanceMetadata"}
    try:
        answer = await cloud.call(
            "project metadata", cloud.client("rest").call, "GET", "compute", path, query=query
        )
    except (ApiDisabled, Denied, NotFound):
        return False
    items = answer.get("commonInstanceMetadata", {}).get("items", ())
    return os_login_in({item["key"]: item.get("value", "") for item in items}) is True


async def with_os_login(stack: Stack, cloud: Cloud) -> Stack:
    """The stack whose machines' own metadata turns it on if the project's does, unless the stack
    file decides: whether TPU VMs see the project's is not documented."""
    if OS_LOGIN in stack.file.tpu.metadata:
        return stack
    return stack.with_os_login() if await project_uses_os_login(stack.project, cloud) else stack


async def login_warnings(stack: Stack, cloud: Cloud) -> list[Diagnostic]:
    """What the caller lacks to log in to machines with OS Login, as far as the project tells."""
    if not stack.has_os_login:
        return []
    try:
        granted = await granted_on_project(cloud, stack.project, [LOGIN, SUDO])
    except TpuctlError:
        return []
    hint = (
        f"Ask an administrator to run\n    gcloud projects add-iam-policy-binding {stack.project} "
        "--member=user:YOU --role=roles/compute.osAdminLogin"
    )
    if LOGIN not in granted:
        detail = (
            f"the machines use OS Login, and project {stack.project} does not grant you {LOGIN}; "
            "it may still be granted on single machines"
        )
        return [Diagnostic("OS Login may deny access", detail, hint)]
    if SUDO not in granted:
        detail = (
            f"the machines use OS Login, and project {stack.project} does not grant you {SUDO}: "
            "you see only your own jobs on them, and none that the controller recovered"
        )
        return [Diagnostic("No sudo on the machines", detail, hint)]
    return []


async def profile_user(project: str, cloud: Cloud, public_key: str) -> str:
    """The user of the caller's profile in the project, after adding the key to the profile, or
    renewing it there."""
    identity = await identity_of(cloud)
    if not identity.email:
        raise Denied(
            "OS Login needs your account",
            "the machines use OS Login, and your credentials do not say whose they are",
            hint="Sign in with an account that has a profile, or act as a service account:\n"
            "    gcloud auth application-default login "
            "--impersonate-service-account=ACCOUNT@PROJECT.iam.gserviceaccount.com",
        )
    user = f"/v1/users/{quote(identity.email, safe='@')}"

    async def call(verb: str, path: str, **options: Any) -> Any:
        request = cloud.client("rest").call
        return await cloud.call("OS Login profile", request, verb, "oslogin", path, **options)

    profile = await call("GET", f"{user}/loginProfile", query={"projectId": project})
    key = _key_in(profile, public_key)
    now = time.time()
    expiry = {"expirationTimeUsec": str(int((now + KEY_DAYS * DAY_SECONDS) * 1e6))}
    if key is None or not profile.get("posixAccounts"):
        answer = await call(
            *("POST", f"{user}:importSshPublicKey"),
            query={"projectId": project},
            body={"key": public_key, **expiry},
        )
        profile = answer.get("loginProfile", {})
    elif 0 < int(key.get("expirationTimeUsec", 0)) < (now + (KEY_DAYS - 1) * DAY_SECONDS) * 1e6:
        path = f"{user}/sshPublicKeys/{key['fingerprint']}"
        await call("PATCH", path, query={"updateMask": "expirationTimeUsec"}, body=expiry)
    return _user_of(profile, identity.email)


def _key_in(profile: Mapping[str, Any], public_key: str) -> Mapping[str, Any] | None:
    """The key with these bytes; comments differ."""
    key_bytes = public_key.split()[:2]
    keys = profile.get("sshPublicKeys", {}).values()
    return next((key for key in keys if key.get("key", "").split()[:2] == key_bytes), None)


def _user_of(profile: Mapping[str, Any], email: str) -> str:
    """The primary account's, or else the first account's."""
    accounts = sorted(profile.get("posixAccounts", ()), key=lambda item: not item.get("primary"))
    if not accounts:
        raise Conflict(
            "OS Login profile without a user",
            f"the profile of {email} has no POSIX account",
            hint="Ask an administrator of your organization to assign one. See it with\n"
            "    gcloud compute os-login describe-profile",
        )
    return str(accounts[0]["username"])
