"""Roles given to an account on something that has a policy, remembered in the stack's record."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tpuctl.cloud.classification import ApiDisabled
from tpuctl.engine.resource import Report
from tpuctl.errors import Conflict, NotFound
from tpuctl.model.names import RECOVERY_ROLE, WATCH_ROLE
from tpuctl.model.plan import Action, Change
from tpuctl.resources.base import StackResource, retry_until_visible
from tpuctl.resources.iam_policy import Pair, edit, granted_pairs, with_pairs, without_pairs
from tpuctl.resources.stack_record import Contents, Grant, Record

__all__ = ["Grants", "PolicyGrants"]


@dataclass(frozen=True)
class Grants:
    """What was found: the roles that the account has, and those of all grants that are ours.

    `stale` is what the record alone still knows of: granted and revoked, or never granted.
    `shared` is remembered of another stack too; `borrowed` of others, but not yet of this one.
    """

    roles: frozenset[str]
    owned: frozenset[Pair] = frozenset()
    stale: frozenset[Pair] = frozenset()
    shared: frozenset[Pair] = frozenset()
    borrowed: frozenset[Pair] = frozenset()


class PolicyGrants(StackResource):
    """Roles of one account on one thing.

    Each grant that is about to be made is recorded first, and forgotten when it is revoked. What
    an account had before is not recorded, and stays; but the stack's own account is gone after
    `down`, and whatever it has here is the stack's. What another stack was granted for the same
    account is recorded as well: the last of those stacks revokes it.
    """

    @property
    def on(self) -> str:
        """The thing as the record names it."""
        raise NotImplementedError

    @property
    def roles(self) -> tuple[str, ...]:
        """What is to be granted."""
        raise NotImplementedError

    @property
    def own_roles(self) -> tuple[str, ...]:
        """What the stack's own account may have here because of us, now or earlier."""
        return self.roles

    async def account(self) -> str | None:
        """The e-mail of the account, None while nobody knows it."""
        return self.stack.service_account

    async def _others(self) -> list[Contents | None]:
        """What other stacks remember of the same account, which may serve several when given."""
        if self.stack.creates_service_account:
            return []
        return await Record(self.stack, self.cloud).others_of_project()

    async def _policy(self) -> Any:
        raise NotImplementedError

    async def _write(self, policy: Any, bindings: list[dict[str, Any]]) -> None:
        raise NotImplementedError

    async def observe(self) -> Grants | None:
        """None where the thing itself is not there, and nothing is remembered of it."""
        record, account = Record(self.stack, self.cloud), await self.account()
        try:
            # The policy last: whoever revokes forgets in its record afterwards, so that a grant
            # which no record has any more cannot be one that is about to go.
            contents, others = await asyncio.gather(record.read(), self._others())
        except (NotFound, ApiDisabled):
            return None
        try:
            policy = await self._policy()
        except NotFound:
            remembered = self._recorded(contents)
            return Grants(frozenset(), stale=remembered) if remembered else None
        except ApiDisabled:
            return None
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
        """What other stacks remember."""
        return [
            grant
            for contents in others
            if contents is not None
            for grant in contents.grants_on(self.on)
        ]

    def _shared(
        self, pairs: frozenset[Pair], others: Collection[Contents | None]
    ) -> frozenset[Pair]:
        """Those that another stack may rely on; where a record cannot be read it may be any.

        Nobody relies on the stack's own account, which goes with the stack.
        """
        own_member = f"serviceAccount:{self.stack.names.service_account_email}"
        listed = {grant.pair for grant in self._listed(others)}
        return frozenset(
            pair for pair in pairs if pair[1] != own_member and (pair in listed or None in others)
        )

    def diff(self, observed: Grants | None) -> Change:
        missing = self._missing(observed.roles if observed is not None else ())
        if missing:
            return self.update(self._because(), missing)
        if observed is not None and observed.borrowed:
            return self.update("another stack's grants are relied on: that is noted", ("record",))
        return self.nothing("the account has them")

    def _because(self) -> str:
        raise NotImplementedError

    def _missing(self, roles: Iterable[str]) -> list[str]:
        granted = {*roles}
        return [role for role in self.roles if role not in granted]

    def removal(self, observed: Grants | None) -> Change:
        if observed is None or not observed.owned | observed.stale | observed.shared:
            return self.nothing("there are none")
        if observed.shared:
            prefix = "made for this stack; " if observed.owned else ""
            return self.delete(f"{prefix}what another stack relies on stays, and is forgotten here")
        if observed.owned:
            return self.delete("made for this stack; others' grants stay")
        return self.delete("they are gone, and are forgotten")

    async def apply(self, change: Change, report: Report) -> None:
        if change.action is Action.DELETE:
            revoked: set[Pair] = set()
            try:
                await edit(self.cloud, self.on, lambda: self._revoke(revoked), new=())
            except NotFound:  # the thing is gone, and every grant on it
                await self._forget()
            return
        account = await self.account()
        if account is None:
            raise NotFound(
                "No account to grant to",
                f"{self.address}: it is not known yet",
                hint="It is told a while after the node is made. Repeat\n    tpuctl up",
            )
        new = (account, WATCH_ROLE, RECOVERY_ROLE)

        async def grant() -> None:
            await self._grant(f"serviceAccount:{account}")

        await retry_until_visible(
            lambda: edit(self.cloud, self.on, grant, new=new),
            new,
            self.cloud,
            lambda text: report(text, None),
        )

    async def _grant(self, member: str) -> None:
        others = await self._others()
        policy = await self._policy()  # in this order, see `observe`
        missing = self._missing(
            role for role, who in granted_pairs(policy.bindings) if who == member
        )
        now = datetime.now(UTC)
        new = [Grant(on=self.on, member=member, role=role, time=now) for role in missing]
        borrowed = [
            grant
            for grant in self._listed(others)
            if grant.member == member and grant.role in self.roles and grant.role not in missing
        ]
        if not new and not borrowed:
            return
        with contextlib.suppress(NotFound):  # without a bucket, derived names have to do
            await Record(self.stack, self.cloud).update(
                lambda contents: contents.with_grants(*new).with_unlisted(*borrowed)
            )
        if new:
            await self._write(policy, with_pairs(policy.bindings, [grant.pair for grant in new]))
        elif not granted_pairs((await self._policy()).bindings).issuperset(
            grant.pair for grant in borrowed
        ):
            # The other stack was taken down before it could know of this one.
            raise Conflict(
                "Grants were taken away",
                self.on,
                hint="Another stack on them was taken down just now. Have them made again:\n"
                "    tpuctl up",
            )

    async def _revoke(self, revoked: set[Pair]) -> None:
        """Revoke what is ours alone, forget it all. `revoked` remembers over several attempts."""
        record = Record(self.stack, self.cloud)
        contents, others, policy = await asyncio.gather(
            record.read(), self._others(), self._policy()
        )
        owned = self._owned(contents)
        bindings = without_pairs(policy.bindings, owned - self._shared(owned, others))
        removed = granted_pairs(policy.bindings) - granted_pairs(bindings)
        # What is noted and not granted may be about to be, by an `up` beside this: the policy is
        # written as it is then, so that the other is refused, looks again, and notes it anew.
        if removed or self._recorded(contents) - granted_pairs(policy.bindings):
            revoked |= removed
            await self._write(policy, bindings)
        if revoked:
            # Another stack may have begun to rely on them since.
            restored = revoked & {grant.pair for grant in self._listed(await self._others())}
            if restored:
                policy = await self._policy()
                await self._write(policy, with_pairs(policy.bindings, restored))
        await self._forget(contents)

    async def _forget(self, contents: Contents | None = None) -> None:
        """Take what is noted on the thing out of the record: what was read of it, or all."""
        record = Record(self.stack, self.cloud)
        contents = contents or await record.read()
        forget = contents.grants_on(self.on) if contents is not None else ()
        if forget:
            with contextlib.suppress(NotFound):
                await record.update(lambda record_contents: record_contents.without_grants(*forget))
