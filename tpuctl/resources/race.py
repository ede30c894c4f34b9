"""A race: one request in each of several zones, of which the first that is granted is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tpuctl.engine.resource import Report
from tpuctl.model.plan import Action, Change
from tpuctl.resources.network import Network
from tpuctl.resources.queued_resource_spec import owner
from tpuctl.resources.tpu_queued import QueuedNodes, Request

__all__ = ["Race", "RacedRequest"]


class Race:
    """Which zone has won. Shared by the requests of one race."""

    def __init__(self, zones: tuple[str, ...]) -> None:
        self.zones = zones
        self.winner = ""
        self._decided = asyncio.Event()

    def claim(self, zone: str) -> bool:
        """Report that the request in a zone is ACTIVE; returns whether it is the first."""
        if not self.winner:
            self.winner = zone
            self._decided.set()
        return self.winner == zone

    async def wait(self) -> None:
        """Wait until a zone has won."""
        await self._decided.wait()


class RacedRequest(QueuedNodes):
    """The stack's request in one zone of a race; it is deleted as soon as another zone wins.

    Its address includes its zone. Its name is the same in each zone, so that every other command
    finds the requests of a race as leftovers in other zones.
    """

    def __init__(self, network: Network, public_key: Callable[[], str], race: Race) -> None:
        super().__init__(network, public_key)
        self.race = race

    @property
    def address(self) -> str:
        return f"{self.kind}/{self.stack.zone}/{self.name}"

    def diff(self, observed: Request | None) -> Change:
        change = super().diff(observed)
        if change.action is Action.CREATE:
            return change
        return self.update(change.because, ("readiness",))  # also if it is ACTIVE, to win

    async def apply(self, change: Change, report: Report) -> str | None:
        if change.action is Action.DELETE:
            return await super().apply(change, report)
        requesting = asyncio.ensure_future(super().apply(change, report))
        deciding = asyncio.ensure_future(self.race.wait())
        try:
            await asyncio.wait({requesting, deciding}, return_when=asyncio.FIRST_COMPLETED)
            if self.race.winner in ("", self.stack.zone):
                return await requesting
        finally:
            for task in (requesting, deciding):
                task.cancel()
            await asyncio.gather(requesting, deciding, return_exceptions=True)
        await self._withdraw(report)
        return f"deleted again, {self.race.winner} was first"

    async def _when_active(self, report: Report) -> None:
        if self.race.claim(self.stack.zone):
            await super()._when_active(report)

    async def _withdraw(self, report: Report) -> None:
        """Delete the request in any state, also one whose creation was interrupted."""
        report(f"deleting the request: {self.race.winner} was first", None)
        await self.cloud.abandoned_calls()
        queued = await self._get()
        if queued is not None and owner(queued) == self.stack.name:
            await self._delete(report, queued)
