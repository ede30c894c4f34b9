"""The APIs that a stack needs, enabled in one batch."""

from __future__ import annotations

from typing import Any

from tpuctl.cloud.errors import ApiDisabled
from tpuctl.cloud.operations import long_operation
from tpuctl.engine.resource import Report
from tpuctl.errors import Denied, NotFound
from tpuctl.model.plan import Change
from tpuctl.resources.base import StackResource

__all__ = ["NEEDED", "Services"]

NEEDED = frozenset(f"{name}.googleapis.com" for name in ("compute", "iam", "storage", "tpu"))


class Services(StackResource):
    """Enabled when missing, never disabled: other things of the project may need them."""

    kind = "apis"

    @property
    def name(self) -> str:
        return "needed"

    @property
    def after(self) -> frozenset[str]:
        return frozenset({f"project/{self.stack.project}"})

    async def observe(self) -> frozenset[str] | None:
        """Which of the needed APIs are enabled; None where the project cannot be asked."""
        client = self.cloud.client("services")

        def listed(request: dict[str, str], **options: Any) -> frozenset[str]:
            found = client.list_services(request, **options)
            return frozenset(one.name.rsplit("/", 1)[1] for one in found)

        request = {"parent": f"projects/{self.stack.project}", "filter": "state:ENABLED"}
        try:
            enabled = await self.cloud.call(self.address, listed, request)
        except (NotFound, ApiDisabled):
            return None
        except Denied as error:
            if error.diagnostics[0].summary == "Permission denied":
                return None
            raise
        return enabled & NEEDED

    def diff(self, observed: frozenset[str] | None) -> Change:
        missing = sorted(NEEDED - (observed or frozenset()))
        if not missing:
            return self.nothing("all are enabled")
        short = ", ".join(name.split(".")[0] for name in missing)
        return self.update(f"not enabled yet: {short}", missing)

    def removal(self, observed: frozenset[str] | None) -> Change:
        return self.leave("APIs are never disabled")

    async def apply(self, change: Change, report: Report) -> None:
        client = self.cloud.client("services")
        operation = await self.cloud.call(
            self.address,
            client.batch_enable_services,
            {"parent": f"projects/{self.stack.project}", "service_ids": list(change.fields)},
        )
        report("waiting until they are usable", None)
        await long_operation(
            self.cloud, "services", operation.operation, what=self.address, seconds=600
        )
