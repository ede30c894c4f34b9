"""Read access to the secrets that jobs use, granted to the machines' account per secret."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from tpuctl.cloud.clients import Cloud
from tpuctl.engine.resource import Resource
from tpuctl.model.plan import Change
from tpuctl.model.stack.secret_sources import secret_not_found
from tpuctl.model.stack.stack import Stack
from tpuctl.resources.access.iam_grants import BudgetGrants
from tpuctl.resources.access.policy_grants import ApiPolicyGrants, Grants, PolicyGrants
from tpuctl.resources.base import IAM_PROPAGATION_SECONDS
from tpuctl.resources.leftover import LeftoverResource
from tpuctl.resources.project.stack_record import Contents, Record

ACCESSOR = "roles/secretmanager.secretAccessor"
ABSENT = Grants(frozenset())  # for a secret that does not exist
ON = "secret/"  # prefix of a secret's name in the record


class SecretGrants(ApiPolicyGrants):
    """Access to a secret in Secret Manager; the secret itself is never changed."""

    kind = "secret"
    client = "secrets"
    group = "bucket"
    label = "access to the stack's secrets"
    unlisted_reason = "listed in the stack's record"
    permissions = """
        read secretmanager.viewer secretmanager.secrets.getIamPolicy
        update secretmanager.admin secretmanager.secrets.setIamPolicy
    """
    roles = (ACCESSOR,)
    purpose = "jobs read this secret with the machines' account"

    @classmethod
    def applies(cls, stack: Stack) -> bool:
        return bool(stack.secret_names)

    def __init__(self, stack: Stack, cloud: Cloud, secret: str) -> None:
        """`secret` is the full name, `projects/P/secrets/NAME`."""
        super().__init__(stack, cloud)
        self.secret = secret

    @property
    def name(self) -> str:
        """The secret's name, without the prefix if it is in the stack's project."""
        return self.secret.removeprefix(f"projects/{self.stack.project}/secrets/")

    @property
    def on(self) -> str:
        return f"{ON}{self.secret}"

    @property
    def resource_name(self) -> str:
        return self.secret

    @property
    def after(self) -> frozenset[str]:
        return super().after | {"apis/needed"}

    async def observe(self) -> Grants | None:
        """ABSENT if the secret does not exist; None if that is unknown before `up`."""
        grants = await super().observe()
        return ABSENT if grants is None else grants

    def diff(self, observed: Grants | None) -> Change:
        if observed is ABSENT:
            raise secret_not_found(self.secret)
        return super().diff(observed)


async def removed_grants(
    stack: Stack, cloud: Cloud, resources: Iterable[Resource]
) -> list[Resource]:
    """Grants to revoke, on secrets and a budget that the stack file no longer has."""
    contents = await Record(stack, cloud).read()
    addresses = {resource.address for resource in resources}
    targets = {grant.resource for grant in contents.grants} if contents is not None else set()
    names = sorted(
        target.removeprefix(ON) for target in targets if target.startswith(f"{ON}projects/")
    )
    grants: list[PolicyGrants] = [SecretGrants(stack, cloud, name) for name in names]
    budget = BudgetGrants(stack, cloud)
    if budget.on in targets:
        grants.append(budget)
    return [
        LeftoverResource(grant, grant.address, grant.after - {budget.bucket_address})
        for grant in grants
        if grant.address not in addresses
    ]


def propagation_seconds(contents: Contents | None) -> float:
    """How long access may still be denied after a grant, by the times in the record.

    Never more than IAM_PROPAGATION_SECONDS, even if a clock is wrong.
    """
    grants = contents.grants if contents is not None else ()
    times = [
        grant.time for grant in grants if grant.resource.startswith(ON) and grant.time is not None
    ]
    if not times:
        return 0.0
    since = (datetime.now(UTC) - max(times)).total_seconds()
    return min(max(IAM_PROPAGATION_SECONDS - since, 0.0), IAM_PROPAGATION_SECONDS)
