"""Enables the APIs that a stack needs, in batches, and waits until they respond."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, ClassVar

from tpuctl.cloud.operations import long_operation
from tpuctl.engine.resource import Report
from tpuctl.errors import ApiDisabled, Denied, NotFound, TpuctlError
from tpuctl.model.plan import Change
from tpuctl.model.stack.stack import Stack
from tpuctl.polling import Backoff
from tpuctl.resources.base import StackResource


def _names(*short: str) -> frozenset[str]:
    return frozenset(f"{name}.googleapis.com" for name in short)


NEEDED = _names("cloudresourcemanager", "compute", "iam", "logging", "monitoring", "storage")
MAX_BATCH = 20  # documented limit of batchEnable
SECONDS = 600.0
TPU = "tpu.googleapis.com"


def needed(stack: Stack) -> frozenset[str]:
    """The full names of the APIs that the stack needs."""
    linking = stack.file.project.billing_account is not None
    apis = NEEDED | (_names("cloudbilling") if linking else frozenset())
    apis |= {TPU} if "tpu" in stack.apis else frozenset()
    apis |= _names("secretmanager") if stack.secret_names else frozenset()
    key = stack.crypto_key
    apis |= _names("cloudkms") if key is not None and key.project == stack.project else frozenset()
    return apis | (_names("iap") if stack.file.network.ssh == "iap" else frozenset())


class Services(StackResource):
    """Enabled if missing, never disabled: others in the project may need them."""

    kind = "apis"
    group = "project"
    label = "the APIs that the stack needs"
    unlisted_reason = "they stay enabled"
    permissions = """
        read serviceusage.serviceUsageConsumer serviceusage.services.list
        update serviceusage.serviceUsageAdmin serviceusage.services.enable
        update serviceusage.serviceUsageAdmin serviceusage.operations.get
    """
    optional: ClassVar = {"update": "enabling APIs"}

    @property
    def name(self) -> str:
        return "needed"

    @property
    def after(self) -> frozenset[str]:
        return frozenset({f"project/{self.stack.project}"})

    async def observe(self) -> frozenset[str] | None:
        """Which of the needed APIs are enabled; None if the project cannot be queried."""
        client = self.cloud.client("services")

        def listed(request: dict[str, Any], **options: Any) -> frozenset[str]:
            services = client.list_services(request, **options)
            return frozenset(service.name.rsplit("/", 1)[1] for service in services)

        request = {
            "parent": f"projects/{self.stack.project}",
            "filter": "state:ENABLED",
            "page_size": 200,
        }
        try:
            enabled = await self.cloud.call(self.address, listed, request)
        except (NotFound, ApiDisabled):
            return None
        except Denied as error:
            if error.diagnostics[0].summary == "Permission denied":
                return None
            raise
        return enabled & needed(self.stack)

    def diff(self, observed: frozenset[str] | None) -> Change:
        missing = sorted(needed(self.stack) - (observed or frozenset()))
        if not missing:
            return self.nothing("all are enabled")
        short = ", ".join(name.split(".")[0] for name in missing)
        return self.update(f"not enabled yet: {short}", missing)

    def removal(self, observed: frozenset[str] | None) -> Change:
        return self.leave("APIs are never disabled")

    async def apply(self, change: Change, report: Report) -> None:
        missing = change.fields
        for start in range(0, len(missing), MAX_BATCH):
            await self._enable(missing[start : start + MAX_BATCH], report)
        report("waiting until they respond", None)
        await asyncio.gather(*(self._wait_until_usable(name) for name in missing))
        if TPU in missing:
            await self._create_identity()

    async def _enable(self, names: Sequence[str], report: Report) -> None:
        request = {"parent": f"projects/{self.stack.project}", "service_ids": list(names)}
        operation = await self.call("services", "batch_enable_services", request)
        report("enabling APIs", None)
        await long_operation(
            self.cloud, "services", operation.operation, subject=self.address, seconds=SECONDS
        )

    async def _wait_until_usable(self, name: str) -> None:
        """A newly enabled API may still report that it is disabled."""
        project = self.stack.project
        probes: dict[str, tuple[str, str, dict[str, Any]]] = {
            "compute.googleapis.com": ("networks", "list", {"project": project}),
            "iam.googleapis.com": (
                "iam",
                "list_service_accounts",
                {"request": {"name": f"projects/{project}", "page_size": 1}},
            ),
            TPU: ("tpu", "list_nodes", {"request": {"parent": f"projects/{project}/locations/-"}}),
        }
        if name not in probes:
            return
        client, method, fields = probes[name]

        async def probe() -> bool | None:
            try:
                await self.cloud.call(name, getattr(self.cloud.client(client), method), **fields)
            except ApiDisabled:
                return None
            except TpuctlError:
                return True  # it responds; other errors are reported where they matter
            return True

        await self.poll(probe, f"{name} being usable", SECONDS, Backoff(0.5, 10.0))

    async def _create_identity(self) -> None:
        """Create the project's TPU service agent, so that it can be granted roles.

        Google creates it with the first node at the latest, so a failure is ignored.
        """
        parent = f"projects/{self.stack.project}/locations/{self.stack.zone}"
        with contextlib.suppress(TpuctlError):
            await self.call("tpu", "generate_service_identity", {"parent": parent})
