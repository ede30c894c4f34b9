"""IAM Admin v1: keys of service accounts.

Creating and uploading keys is refused unless an organization policy permits it. Wording without a
source is a guess.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any
from urllib.parse import quote

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509 import load_pem_x509_certificate
from google.cloud.iam_admin_v1.types import iam as messages

from tpuctl.emulator.iam.account_keys import NEVER, Key, managed_key_id
from tpuctl.emulator.machines.servers.rsa_keys import (
    is_rsa_certificate,
    make_certificate,
    new_private_key,
    public_pem,
)
from tpuctl.emulator.state.constraints import OrgPolicies
from tpuctl.emulator.state.errors import ApiError, error_detail, invalid, missing
from tpuctl.emulator.wire.registry import Caller, Service
from tpuctl.local_cloud.certificate_authority import private_pem

_MAX_KEYS = 10  # firebase/firebase-tools#6192
_MANAGED_SECONDS = 2 * 366 * 24 * 3600  # IAM's guide: "up to two years and one month"
_NAME = re.compile(r"(projects/[^/]+/serviceAccounts/[^/]+)/keys/([^/]+)")
_PKCS12_PASSWORD = b"notasecret"  # iam.proto
_CREATION = "iam.disableServiceAccountKeyCreation"
_UPLOAD = "iam.disableServiceAccountKeyUpload"

_Algorithm = messages.ServiceAccountKeyAlgorithm
_Origin = messages.ServiceAccountKeyOrigin
_FileType = messages.ServiceAccountPrivateKeyType
_PublicType = messages.ServiceAccountPublicKeyType
_Type = messages.ListServiceAccountKeysRequest.KeyType
_BITS = {_Algorithm.KEY_ALG_UNSPECIFIED: 2048, _Algorithm.KEY_ALG_RSA_1024: 1024}

Account = dict[str, Any]


class KeyHandlers(Service):
    """Handlers of google.iam.admin.v1.IAM for keys."""

    def _get(self, name: str) -> Account:
        """The account by its full name; ApiError if it does not exist."""
        raise NotImplementedError

    async def create_service_account_key(self, request: Any, caller: Caller) -> Any:
        """The wording is from many public issues."""
        account = self._get(request.name)
        text = "Key creation is not allowed on this service account."
        subject = f"{account['name']}?configvalue={quote(account['email'], safe='')}"
        self._require_allowed(_CREATION, account, text, subject)
        self._require_room(account)
        private = await asyncio.to_thread(new_private_key, _BITS.get(request.key_algorithm, 2048))
        certificate = make_certificate(private, account["unique_id"], NEVER)
        key = self._keys.add(self._get(request.name)["email"], certificate)
        answer = _message(account, key)
        if request.private_key_type == _FileType.TYPE_PKCS12_FILE:
            answer.private_key_type = _FileType.TYPE_PKCS12_FILE
            answer.private_key_data = _pkcs12(private, certificate)
        else:
            answer.private_key_type = _FileType.TYPE_GOOGLE_CREDENTIALS_FILE
            content = _credentials_file(account, key["id"], private_pem(private))
            answer.private_key_data = json.dumps(content, indent=2).encode()
        return answer

    async def upload_service_account_key(self, request: Any, caller: Caller) -> Any:
        """The wording is from a log of GAM."""
        account = self._get(request.name)
        text = (
            f"Constraint `constraints/{_UPLOAD}` violated for service account {account['name']} "
            "attempting to upload public key."
        )
        subject = f"{account['name']}?configvalue={account['email'].partition('@')[0]}"
        self._require_allowed(_UPLOAD, account, text, subject)
        self._require_room(account)
        if not is_rsa_certificate(request.public_key_data):
            raise invalid("The public key must be an RSA key in an X.509 certificate.")
        certificate = request.public_key_data.decode()
        return _message(account, self._keys.add(account["email"], certificate, is_uploaded=True))

    async def list_service_account_keys(self, request: Any, caller: Caller) -> Any:
        account = self._get(request.name)
        kinds = {*request.key_types} or {_Type.USER_MANAGED, _Type.SYSTEM_MANAGED}
        keys = [_managed_message(account)] if _Type.SYSTEM_MANAGED in kinds else []
        if _Type.USER_MANAGED in kinds:
            keys += [_message(account, key) for key in self._keys.list_all(account["email"])]
        return messages.ListServiceAccountKeysResponse.pb()(keys=keys)

    async def get_service_account_key(self, request: Any, caller: Caller) -> Any:
        account, key_id = self._parse(request.name)
        if key_id == managed_key_id(account):
            answer, managed = _managed_message(account), await self._keys.managed(account)
            certificate = managed["certificate"]
        else:
            key = self._require(account, key_id)
            answer, certificate = _message(account, key), key["certificate"]
        if request.public_key_type == _PublicType.TYPE_X509_PEM_FILE:
            answer.public_key_data = certificate.encode()
        elif request.public_key_type == _PublicType.TYPE_RAW_PUBLIC_KEY:
            answer.public_key_data = public_pem(certificate)
        return answer

    async def delete_service_account_key(self, request: Any, caller: Caller) -> None:
        account, key_id = self._parse(request.name)
        self._require(account, key_id)
        self._keys.delete(account["email"], key_id)

    async def disable_service_account_key(self, request: Any, caller: Caller) -> None:
        self._switch_key(request.name, disabled=True)

    async def enable_service_account_key(self, request: Any, caller: Caller) -> None:
        self._switch_key(request.name, disabled=False)

    @property
    def _keys(self) -> Any:
        return self._registry.access.keys

    def _require_allowed(self, constraint: str, account: Account, text: str, subject: str) -> None:
        project = f"projects/{account['project']}"
        if OrgPolicies(self._registry.store).is_enforced(project, constraint):
            raise violation(text, constraint, subject)

    def _require_room(self, account: Account) -> None:
        if len(self._keys.list_all(account["email"])) >= _MAX_KEYS:
            raise ApiError("FAILED_PRECONDITION", "Precondition check failed.")

    def _parse(self, name: str) -> tuple[Account, str]:
        match = _NAME.fullmatch(name)
        if match is None:
            raise invalid(f"Invalid service account key name {name!r}.")
        return self._get(match[1]), match[2]

    def _require(self, account: Account, key_id: str) -> Key:
        """A user-managed key."""
        if key_id == managed_key_id(account):
            raise ApiError("FAILED_PRECONDITION", "Precondition check failed.")
        key: Key | None = self._keys.get(account["email"], key_id)
        if key is None:
            raise missing(f"Service account key {key_id} does not exist.")
        return key

    def _switch_key(self, name: str, *, disabled: bool) -> None:
        account, key_id = self._parse(name)
        self._keys.put(account["email"], {**self._require(account, key_id), "disabled": disabled})


def violation(text: str, constraint: str, subject: str) -> ApiError:
    """The error of a request that an organization policy does not permit."""
    kind = f"constraints/{constraint}"
    details = {"type": kind, "subject": subject, "description": text}
    failure = error_detail("PreconditionFailure", violations=[details])
    return ApiError("FAILED_PRECONDITION", text, details=[failure])


def _message(account: Account, key: Key) -> Any:
    bits = load_pem_x509_certificate(key["certificate"].encode()).public_key()
    is_short = isinstance(bits, rsa.RSAPublicKey) and bits.key_size == 1024
    answer = messages.ServiceAccountKey.pb()(
        name=f"{account['name']}/keys/{key['id']}",
        key_algorithm=_Algorithm.KEY_ALG_RSA_1024 if is_short else _Algorithm.KEY_ALG_RSA_2048,
        key_origin=_Origin.USER_PROVIDED if key["uploaded"] else _Origin.GOOGLE_PROVIDED,
        key_type=_Type.USER_MANAGED,
        disabled=key["disabled"],
    )
    answer.valid_after_time.FromSeconds(int(key["created"]))
    answer.valid_before_time.FromSeconds(int(key["expires"]))
    return answer


def _managed_message(account: Account) -> Any:
    """Created with the account; Google rotates such keys."""
    answer = messages.ServiceAccountKey.pb()(
        name=f"{account['name']}/keys/{managed_key_id(account)}",
        key_algorithm=_Algorithm.KEY_ALG_RSA_2048,
        key_origin=_Origin.GOOGLE_PROVIDED,
        key_type=_Type.SYSTEM_MANAGED,
    )
    answer.valid_after_time.FromSeconds(int(account["visible_at"]))
    answer.valid_before_time.FromSeconds(int(account["visible_at"]) + _MANAGED_SECONDS)
    return answer


def _credentials_file(account: Account, key_id: str, private: str) -> dict[str, str]:
    """The key file, in the form that google-auth reads (google/oauth2/service_account.py)."""
    pages = "https://www.googleapis.com"
    return {
        "type": "service_account",
        "project_id": account["project"],
        "private_key_id": key_id,
        "private_key": private,
        "client_email": account["email"],
        "client_id": account["unique_id"],
        "auth_uri": "https://accounts.google.com/o/oauth2/auth",
        "token_uri": "https://oauth2.googleapis.com/token",
        "auth_provider_x509_cert_url": f"{pages}/oauth2/v1/certs",
        "client_x509_cert_url": f"{pages}/robot/v1/metadata/x509/{quote(account['email'])}",
        "universe_domain": "googleapis.com",
    }


def _pkcs12(private: rsa.RSAPrivateKey, certificate: str) -> bytes:
    encryption = serialization.BestAvailableEncryption(_PKCS12_PASSWORD)
    parsed = load_pem_x509_certificate(certificate.encode())
    return pkcs12.serialize_key_and_certificates(b"privatekey", private, parsed, None, encryption)
