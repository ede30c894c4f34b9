"""Who a credential belongs to. The principals are those of Google's page on identifiers."""

from __future__ import annotations

import pytest
from google.auth import identity_pool
from google.auth.credentials import AnonymousCredentials
from google.oauth2.credentials import Credentials

from tpuctl.cloud.caller_identity import Identity, acting_user, pool_of, principal_of
from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.endpoints import GOOGLE, Endpoint
from tpuctl.user_account import user_at_host


@pytest.mark.parametrize(
    "pool",
    [
        "projects/123456789/locations/global/workloadIdentityPools/ci",
        "locations/global/workforcePools/employees",
    ],
)
def test_federated_identity_is_a_principal_of_its_pool(pool: str) -> None:
    credentials = identity_pool.Credentials.from_info(  # type: ignore[no-untyped-call]
        {
            "type": "external_account",
            "audience": f"//iam.googleapis.com/{pool}/providers/a-provider",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": "https://sts.googleapis.com/v1/token",
            "credential_source": {"file": "token"},
        }
    )
    identity = Identity("", "workload identity federation", pool=pool_of(credentials))
    assert identity.member == f"principal://iam.googleapis.com/{pool}/subject/SUBJECT"


def test_other_identities_have_no_pool() -> None:
    assert pool_of(Credentials(token="token")) == ""  # type: ignore[no-untyped-call]
    assert Identity("", "user").member == "user:YOU"


def test_records_name_account_and_user(monkeypatch: pytest.MonkeyPatch) -> None:
    account = "robot@my-project.iam.gserviceaccount.com"
    cloud = Cloud(Endpoint("google", impersonate=account), "my-project")
    assert acting_user(cloud) == f"{user_at_host()} as {account}"
    for email, principal in ((account, account), ("default", ""), (None, "")):
        credentials = AnonymousCredentials()  # type: ignore[no-untyped-call]
        credentials.service_account_email = email  # type: ignore[attr-defined]
        monkeypatch.setattr(Cloud, "credentials", credentials)
        assert principal_of(Cloud(GOOGLE, "my-project")) == principal
    assert acting_user(Cloud(GOOGLE, "my-project")) == user_at_host()
