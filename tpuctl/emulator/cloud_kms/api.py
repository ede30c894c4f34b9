"""Registration of Cloud KMS: surfaces and permissions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from tpuctl.emulator.iam.api_access import ApiAccess
from tpuctl.emulator.iam.crypto_keys import denied_text
from tpuctl.emulator.iam.permission_errors import permission_denied
from tpuctl.emulator.iam.required_permissions import Need, PolicyResources
from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.wire.google_api import GoogleApi, Surface

_HOST = "cloudkms.googleapis.com"
_SERVICE = "google.cloud.kms.v1.KeyManagementService"


def _refuse(method: str, need: Need, email: str, request: Any) -> ApiError:
    text = denied_text(need.permission, need.resource_name)
    return permission_denied(text, need, _HOST, need.resource_name)


def _policy(verb: str, resources: PolicyResources, request: Any) -> Iterator[Need]:
    kind = "cryptoKeys" if "/cryptoKeys/" in request.resource else "keyRings"
    resource = resources.resolve(request.resource)
    yield Need(f"cloudkms.{kind}.{verb}IamPolicy", resource, request.resource)


_ACCESS = ApiAccess(
    package=__package__,
    host=_HOST,
    methods=("google.cloud.kms.",),
    refuse=_refuse,
    rules={f"{verb}_key_policy": partial(_policy, verb) for verb in ("get", "set")},
    scopes=("cloudkms",),
)

API = GoogleApi(
    access=_ACCESS,
    services={"keys": "tpuctl.emulator.cloud_kms.service:KeyService"},
    documents={"cloudkms.v1": "Cloud KMS v1"},
    surfaces=(
        Surface(
            _SERVICE,
            "",
            "keys",
            r"/v1/projects/[^/]+/locations/[^/]+/keyRings",
            api=_HOST,
            definition="tpuctl.emulator.cloud_kms.messages",
        ),
    ),
)
