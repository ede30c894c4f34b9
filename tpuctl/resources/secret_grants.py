"""Reading of the secrets that jobs name, granted to the machines' account on each of them alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tpuctl.cloud.clients import Cloud
from tpuctl.engine.resource import Resource
from tpuctl.model.plan import Change
from tpuctl.model.secret_sources import secret_not_found
from tpuctl.model.stack import Stack
from tpuctl.resources.base import SETTLING
from tpuctl.resources.leftover import Elsewhere
from tpuctl.resources.policy_grants import Grants, PolicyGrants
from tpuctl.resources.stack_record import Contents, Record

__all__ = ["ABSENT", "ACCESSOR", "SecretGrants", "forgotten_secrets", "settling_seconds"]

ACCESSOR = "roles/secretmanager.secretAccessor"
ABSENT = Grants(frozenset())  # of a secret that nobody has made
ON = "secret/"  # before a secret's name, where the record speaks of it


@dataclass
class _SecretPolicy:
    """A secret's policy as its JSON came."""

    message: dict[str, Any]

    @property
    def bindings(self) -> list[dict[str, Any]]:
        return list(self.message.get("bindings", ()))


class SecretGrants(PolicyGrants):
    """One secret of Secret Manager, which is somebody else's: the stack is let in, no more."""

    kind = "secret"
    group = "bucket"
    label = "who may read the stack's secrets"
    unlisted = "the stack's record names them"
    permissions = """
        look secretmanager.viewer secretmanager.secrets.getIamPolicy
        update secretmanager.admin secretmanager.secrets.setIamPolicy
    """

    def __init__(self, stack: Stack, cloud: Cloud, secret: str) -> None:
        """`secret` is its name in full, `projects/P/secrets/NAME`."""
        super().__init__(stack, cloud)
        self.secret = secret

    @property
    def name(self) -> str:
        """Short for a secret of the stack's own project."""
        return self.secret.removeprefix(f"projects/{self.stack.project}/secrets/")

    @property
    def on(self) -> str:
        return f"{ON}{self.secret}"

    @property
    def roles(self) -> tuple[str, ...]:
        return (ACCESSOR,)

    @property
    def after(self) -> frozenset[str]:
        """After the bucket, since the record lies there."""
        needed = {"apis/needed", f"bucket/{self.stack.bucket}"}
        if self.stack.creates_service_account:
            needed.add(f"account/{self.stack.names.service_account}")
        return frozenset(needed)

    async def observe(self) -> Grants | None:
        """ABSENT where the secret is; None is for what cannot be looked at before an `up`."""
        found = await super().observe()
        return ABSENT if found is None else found

    def diff(self, observed: Grants | None) -> Change:
        if observed is ABSENT:
            raise secret_not_found(self.secret)
        return super().diff(observed)

    def _because(self) -> str:
        return "jobs read this secret, with the machines' own account"

    async def _policy(self) -> _SecretPolicy:
        found = await self.cloud.call(
            self.address,
            self.cloud.client("rest").call,
            "GET",
            "secretmanager",
            f"/v1/{self.secret}:getIamPolicy",
            query={"options.requestedPolicyVersion": "3"},
        )
        return _SecretPolicy(found)

    async def _write(self, policy: Any, bindings: list[dict[str, Any]]) -> None:
        plain = [{**one, "members": sorted(one["members"])} for one in bindings]
        await self.cloud.call(
            self.address,
            self.cloud.client("rest").call,
            "POST",
            "secretmanager",
            f"/v1/{self.secret}:setIamPolicy",
            body={"policy": {**policy.message, "version": 3, "bindings": plain}},
        )


async def forgotten_secrets(
    stack: Stack, cloud: Cloud, known: Iterable[Resource]
) -> list[Resource]:
    """Those that the stack was let into and that its file names no more: grants that go."""
    contents = await Record(stack, cloud).read()
    addresses = {one.address for one in known}
    on = {one.on for one in contents.grants} if contents is not None else set()
    names = sorted(one.removeprefix(ON) for one in on if one.startswith(f"{ON}projects/"))
    found = (SecretGrants(stack, cloud, name) for name in names)
    return [Elsewhere(one, one.address) for one in found if one.address not in addresses]


def settling_seconds(contents: Contents | None) -> float:
    """For how long a secret may still be refused to an account that was let in.

    As the stack's record tells. A clock that is wrong never makes it longer than from now.
    """
    grants = contents.grants if contents is not None else ()
    times = [one.time for one in grants if one.on.startswith(ON) and one.time is not None]
    if not times:
        return 0.0
    since = (datetime.now(UTC) - max(times)).total_seconds()
    return min(max(SETTLING - since, 0.0), SETTLING)
