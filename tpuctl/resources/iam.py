"""What the workers' account may do: read and write the stack's bucket, nothing else."""

from __future__ import annotations

import contextlib
from typing import Any

from tpuctl.cloud.errors import ApiDisabled
from tpuctl.engine.resource import Report
from tpuctl.errors import Conflict, NotFound
from tpuctl.model.plan import Action, Change
from tpuctl.resources.base import StackResource, once_visible

__all__ = ["ROLES", "BucketGrants"]

# objectAdmin lacks storage.buckets.get, which TensorFlow's gs:// asks for.
ROLES = ("roles/storage.objectAdmin", "roles/storage.legacyBucketReader")
TRIES = 8


class BucketGrants(StackResource):
    """Grants to the workers' account on the bucket, not on the project."""

    kind = "grants"

    @property
    def name(self) -> str:
        return self.stack.bucket

    @property
    def after(self) -> frozenset[str]:
        needed = {f"bucket/{self.stack.bucket}"}
        if self.stack.makes_service_account:
            needed.add(f"account/{self.stack.names.service_account}")
        return frozenset(needed)

    @property
    def member(self) -> str:
        return f"serviceAccount:{self.stack.service_account}"

    async def observe(self) -> frozenset[str] | None:
        """Which of the roles the account has, or None where there is no bucket."""
        try:
            policy = await self._policy()
        except (NotFound, ApiDisabled):
            return None
        return self._held(policy)

    def diff(self, observed: frozenset[str] | None) -> Change:
        missing = [role for role in ROLES if role not in (observed or frozenset())]
        if not missing:
            return self.nothing("the workers' account has them")
        return self.update("the workers read and write the bucket", missing)

    def removal(self, observed: frozenset[str] | None) -> Change:
        if not observed:
            return self.nothing("there are none")
        return self.delete("made for this stack")

    async def apply(self, change: Change, report: Report) -> None:
        if change.action is Action.DELETE:
            with contextlib.suppress(NotFound):
                await self._edit(grant=False)
            return
        await once_visible(
            lambda: self._edit(grant=True),
            self.stack.service_account,
            self.cloud,
            lambda text: report(text, None),
        )

    async def _policy(self) -> Any:
        bucket = self.cloud.client("storage").bucket(self.stack.bucket)
        return await self.cloud.call(
            self.address, bucket.get_iam_policy, requested_policy_version=3
        )

    def _held(self, policy: Any) -> frozenset[str]:
        return frozenset(
            binding["role"]
            for binding in policy.bindings
            if self.member in binding["members"] and self._is_ours(binding)
        )

    @staticmethod
    def _is_ours(binding: Any) -> bool:
        """Others' conditions, and roles that the account has for other reasons, stay alone."""
        return binding["role"] in ROLES and not binding.get("condition")

    async def _edit(self, *, grant: bool) -> bool:
        """Read, change, write back under the etag; start over when somebody else was faster."""
        for _ in range(TRIES):
            policy = await self._policy()
            policy.version = 3
            if grant:
                missing = [role for role in ROLES if role not in self._held(policy)]
                if not missing:
                    return True
                policy.bindings += [{"role": role, "members": {self.member}} for role in missing]
            else:
                for binding in policy.bindings:
                    if self._is_ours(binding):
                        binding["members"] = {*binding["members"]} - {self.member}
                policy.bindings = [one for one in policy.bindings if one["members"]]
            bucket = self.cloud.client("storage").bucket(self.stack.bucket)
            try:
                await self.cloud.call(self.address, bucket.set_iam_policy, policy)
            except Conflict as error:
                if self.stack.service_account in str(error):  # not visible yet, no lost race
                    raise
                await self.cloud.clock.sleep(0.2)
                continue
            return True
        raise Conflict("Policy keeps changing", f"the policy of gs://{self.stack.bucket}")
