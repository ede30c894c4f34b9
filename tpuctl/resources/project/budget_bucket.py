"""The bucket that all stacks of a project with a budget share: what they spend is in its ledger."""

from __future__ import annotations

from typing import Any

from tpuctl.engine.resource import Report
from tpuctl.errors import Conflict
from tpuctl.model.plan import Change
from tpuctl.model.stack.stack import Stack
from tpuctl.model.text.names import BUDGET_LABEL
from tpuctl.resources.project.bucket import StorageBucket


class BudgetBucket(StorageBucket):
    """Created by the first stack with a budget; no `down` deletes it."""

    kind = "budget"
    group = "bucket"
    label = "the project's budget"
    unlisted_reason = "it belongs to no stack"
    permissions = """
        read storage.admin storage.buckets.get storage.objects.get
        create storage.admin storage.buckets.create
        create storage.admin storage.objects.create storage.objects.delete
    """

    @classmethod
    def applies(cls, stack: Stack) -> bool:
        return stack.budget is not None

    @property
    def name(self) -> str:
        return self.stack.names.budget_bucket

    @property
    def new_labels(self) -> dict[str, str]:
        return {BUDGET_LABEL: "shared"}

    async def observe(self) -> Any | None:
        bucket = await self.find("storage", "get_bucket", self.name)
        if bucket is not None:
            await self.read_number()
        return bucket

    def diff(self, observed: Any | None) -> Change:
        if observed is None:
            return self.create("all stacks of the project with a budget share it")
        self._check(observed)
        return self.nothing(f"gs://{self.name} exists")

    def removal(self, observed: Any | None) -> Change:
        if observed is None or not self.is_ours(observed):
            return super().removal(observed)
        return self.leave(
            "all stacks of the project with a budget share it; to delete it, with what they spent: "
            f"gcloud storage rm --recursive gs://{self.name}"
        )

    async def apply(self, change: Change, report: Report) -> None:
        await self.create_or_adopt(self.create_bucket, self.observe, report, check=self._check)

    def is_ours(self, observed: Any) -> bool:
        return BUDGET_LABEL in observed.labels and self.is_in_project(observed)

    def _check(self, observed: Any) -> None:
        if not self.is_ours(observed):
            raise Conflict(
                "Name taken",
                f"gs://{self.name} exists and was not created by tpuctl in project "
                f"{self.stack.project}",
                hint="limits.budget needs it: delete that bucket, or remove limits.budget.",
            )
