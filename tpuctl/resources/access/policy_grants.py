"""Roles granted to an account by an IAM policy, and recorded in the stack's record."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from tpuctl.engine.resource import Report
from tpuctl.errors import Conflict, NotFound
from tpuctl.model.plan import Action, Change
from tpuctl.model.text.names import RECOVERY_ROLE, WATCHDOG_ROLE
from tpuctl.resources.access.iam_policy import Pair, edit, granted_pairs, with_pairs, without_pairs
from tpuctl.resources.base import StackResource
from tpuctl.resources.project.stack_record import Contents, Grant, Record


@dataclass(frozen=True)
class Grants:
    """Existing grants: the account's roles, and the pairs granted by this stack.

    `stale` pairs are only in the record: revoked since, or never granted. `shared` pairs are also
    recorded by another stack; `borrowed` ones by others, but not yet by this one.
    """

    roles: frozenset[str]
    owned: frozenset[Pair] = frozenset()
    stale: frozenset[Pair] = frozenset()
    shared: frozenset[Pair] = frozenset()
    borrowed: frozenset[Pair] = frozenset()


class PolicyGrants(StackResource):
    """Roles of one account on one resource.

    Each grant is recorded before it is made, and removed from the record once revoked. Roles that
    the account already had are not recorded, and kept; but the stack's own account is deleted by
    `down`, so all its grants here belong to the stack. Grants that another stack made for the same
    account are recorded as well: the last of those stacks revokes them.
    """

    purpose: str  # of the grants

    @property
    def on(self) -> str:
        """The resource, as the record names it."""
        raise NotImplementedError

    @property
    def after(self) -> frozenset[str]:
        """After the account, and the bucket, which holds the record."""
        needed = {f"bucket/{self.stack.bucket}"}
        if self.stack.creates_service_account:
            needed.add(f"account/{self.stack.names.service_account}")
        return frozenset(needed)

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles to grant."""
        raise NotImplementedError

    @property
    def own_roles(self) -> tuple[str, ...]:
        """All roles that the stack may ever have granted to its own account here."""
        return self.roles

    async def account(self) -> str | None:
        """The account's email; None while unknown."""
        return self.stack.service_account

    async def _others(self) -> list[Contents | None]:
        """The records of other stacks: a user-provided account may serve several."""
        if self.stack.creates_service_account:
            return []
        return await Record(self.stack, self.cloud).others_of_project()

    async def _policy(self) -> Any:
        raise NotImplementedError

    async def _write(self, policy: Any, bindings: list[dict[str, Any]]) -> None:
        raise NotImplementedError

    async def observe(self) -> Grants | None:
        """None if the resource does not exist and nothing is recorded for it."""
        record, account = Record(self.stack, self.cloud), await self.account()
        try:
            # The policy last: revoking removes grants from the record afterwards, so a grant that
            # is in no record is not about to be revoked.
            contents, others = await asyncio.gather(record.read(), self._others())
        except NotFound:
            return None
        try:
            policy = await self._policy()
        except NotFound:
            remembered = self._recorded(contents)
            return Grants(frozenset(), stale=remembered) if remembered else None
        granted = granted_pairs(policy.bindings)
        recorded, owned = self._recorded(contents), granted & self._owned(contents)
        shared = self._shared(owned, others)
        account_pairs = frozenset(
            pair for pair in granted if pair[1] == f"serviceAccount:{account}"
        )
        return Grants(
            frozenset(role for role, _ in account_pairs),
            owned - shared,
            recorded - granted,
            shared,
            account_pairs.intersection(grant.pair for grant in self._listed(others)) - recorded,
        )

    def _recorded(self, contents: Contents | None) -> frozenset[Pair]:
        recorded = contents.grants_on(self.on) if contents is not None else ()
        return frozenset(grant.pair for grant in recorded)

    def _owned(self, contents: Contents | None) -> frozenset[Pair]:
        own_member = f"serviceAccount:{self.stack.names.service_account_email}"
        return self._recorded(contents) | {(role, own_member) for role in self.own_roles}

    def _listed(self, others: Iterable[Contents | None]) -> list[Grant]:
        """The grants here that other stacks have recorded."""
        return [
            grant
            for contents in others
            if contents is not None
            for grant in contents.grants_on(self.on)
        ]

    def _shared(
        self, pairs: frozenset[Pair], others: Collection[Contents | None]
    ) -> frozenset[Pair]:
        """Pairs that another stack may rely on: any, if a record cannot be read.

        No other stack relies on the stack's own account, which is deleted with the stack.
        """
        own_member = f"serviceAccount:{self.stack.names.service_account_email}"
        listed = {grant.pair for grant in self._listed(others)}
        return frozenset(
            pair for pair in pairs if pair[1] != own_member and (pair in listed or None in others)
        )

    def diff(self, observed: Grants | None) -> Change:
        missing = self._missing(observed.roles if observed is not None else ())
        if missing:
            return self.update(self.purpose, missing)
        if observed is not None and observed.borrowed:
            return self.update("recording the use of another stack's grants", ("record",))
        return self.nothing("granted")

    def _missing(self, roles: Iterable[str]) -> list[str]:
        granted = {*roles}
        return [role for role in self.roles if role not in granted]

    def removal(self, observed: Grants | None) -> Change:
        if observed is None or not observed.owned | observed.stale | observed.shared:
            return self.nothing("no grants")
        if observed.shared:
            prefix = "created for this stack; " if observed.owned else ""
            return self.delete(
                f"{prefix}grants that another stack uses stay, and are only removed from the record"
            )
        if observed.owned:
            return self.delete("created for this stack; other grants stay")
        return self.delete("already revoked; removing them from the record")

    async def apply(self, change: Change, report: Report) -> None:
        if change.action is Action.DELETE:
            revoked: set[Pair] = set()
            try:
                await edit(self.cloud, self.on, lambda: self._revoke(revoked), new=())
            except NotFound:  # the resource was deleted, with every grant on it
                await self._forget()
            return
        account = await self.account()
        if account is None:
            raise NotFound(
                "Account not known yet",
                f"{self.address}: the node has not reported its service agent",
                hint="Google assigns it a while after creating the node. Repeat\n    tpuctl up",
            )
        new = (account, WATCHDOG_ROLE, RECOVERY_ROLE)

        async def grant() -> None:
            await self._grant(f"serviceAccount:{account}")

        await self.retry_until_visible(
            lambda: edit(self.cloud, self.on, grant, new=new), report, new
        )

    async def _grant(self, member: str) -> None:
        others = await self._others()
        policy = await self._policy()  # in this order: see `observe`
        missing = self._missing(
            role for role, who in granted_pairs(policy.bindings) if who == member
        )
        now = self.cloud.server_clock.now()
        new = [Grant(resource=self.on, member=member, role=role, time=now) for role in missing]
        borrowed = [
            grant
            for grant in self._listed(others)
            if grant.member == member and grant.role in self.roles and grant.role not in missing
        ]
        if not new and not borrowed:
            return
        with contextlib.suppress(NotFound):  # without a bucket, derived names must suffice
            await Record(self.stack, self.cloud).update(
                lambda contents: contents.with_grants(*new).with_unlisted(*borrowed)
            )
        if new:
            await self._write(policy, with_pairs(policy.bindings, [grant.pair for grant in new]))
        elif not granted_pairs((await self._policy()).bindings).issuperset(
            grant.pair for grant in borrowed
        ):
            # The other stack was deleted before it could see this one's record.
            raise Conflict(
                "Grants were revoked",
                self.on,
                hint="Another stack that used them was just deleted. Recreate them:\n    tpuctl up",
            )

    async def _revoke(self, revoked: set[Pair]) -> None:
        """Revoke unshared grants and clear the record. `revoked` accumulates over attempts."""
        record = Record(self.stack, self.cloud)
        contents, others, policy = await asyncio.gather(
            record.read(), self._others(), self._policy()
        )
        owned = self._owned(contents)
        bindings = without_pairs(policy.bindings, owned - self._shared(owned, others))
        removed = granted_pairs(policy.bindings) - granted_pairs(bindings)
        # A recorded pair that is not granted may be about to be, by a concurrent `up`: writing the
        # policy unchanged makes that `up` fail its etag check, retry, and record the pair again.
        if removed or self._recorded(contents) - granted_pairs(policy.bindings):
            revoked |= removed
            await self._write(policy, bindings)
        if revoked:
            # Another stack may have started to use them since.
            restored = revoked & {grant.pair for grant in self._listed(await self._others())}
            if restored:
                policy = await self._policy()
                await self._write(policy, with_pairs(policy.bindings, restored))
        await self._forget(contents)

    async def _forget(self, contents: Contents | None = None) -> None:
        """Remove the resource's grants from the record: those in `contents`, or all."""
        record = Record(self.stack, self.cloud)
        contents = contents or await record.read()
        forget = contents.grants_on(self.on) if contents is not None else ()
        if forget:
            with contextlib.suppress(NotFound):
                await record.update(lambda record_contents: record_contents.without_grants(*forget))


class ApiPolicyGrants(PolicyGrants):
    """Grants in a policy that a client's `get_iam_policy` and `set_iam_policy` access."""

    client: ClassVar[str]  # as in `Cloud.client`

    @property
    def resource_name(self) -> str:
        """The full name of the resource that has the policy."""
        raise NotImplementedError

    async def _policy(self) -> _Policy:
        request = {"resource": self.resource_name, "options": {"requested_policy_version": 3}}
        return _Policy.of(await self.call(self.client, "get_iam_policy", request))

    async def _write(self, policy: Any, bindings: list[dict[str, Any]]) -> None:
        request = {"resource": self.resource_name, "policy": policy.with_bindings(bindings)}
        await self.call(self.client, "set_iam_policy", request)


@dataclass
class _Policy:
    """Such a policy: its message, and its bindings as mappings."""

    message: dict[str, Any]

    @classmethod
    def of(cls, policy: Any) -> _Policy:
        from google.protobuf import json_format

        return cls(json_format.MessageToDict(policy))

    @property
    def bindings(self) -> list[dict[str, Any]]:
        return list(self.message.get("bindings", ()))

    def with_bindings(self, bindings: list[dict[str, Any]]) -> Any:
        """The message with these bindings."""
        from google.iam.v1 import policy_pb2
        from google.protobuf import json_format

        plain = [{**binding, "members": sorted(binding["members"])} for binding in bindings]
        message = {**self.message, "version": 3, "bindings": plain}
        return json_format.ParseDict(message, policy_pb2.Policy())
