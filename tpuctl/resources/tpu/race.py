"""A race: the TPU is requested or created in several places at once, and kept in the first.

Each place has one entry: its queued resource, or the nodes that are created there directly.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import datetime

from tpuctl.engine.resource import Report
from tpuctl.errors import TpuctlError
from tpuctl.model.cost.stack_cost import hourly_rates
from tpuctl.model.plan import Action, Change
from tpuctl.model.stack.candidates import Candidate
from tpuctl.model.stack.spending import TPU, Period
from tpuctl.resources.base import StackResource
from tpuctl.resources.project.ledger import LedgerObject
from tpuctl.resources.project.stack_record import Contents, RaceWinner, Record


class Race:
    """Which place has won. Shared by the entries of one race, at most one in each zone for each
    API."""

    def __init__(self, places: tuple[Candidate, ...]) -> None:
        self.places = places
        self.entries: list[RaceEntry] = []
        self.winner: Candidate | None = None
        self._decided = asyncio.Event()

    def decide(self, place: Candidate) -> None:
        """Let a place win, unless another has won."""
        if self.winner is None:
            self.winner = place
            self._decided.set()

    async def wait(self) -> None:
        """Wait until a place has won."""
        await self._decided.wait()


class RaceEntry(StackResource):
    """The stack's TPU in one place of a race; it is deleted as soon as another place wins.

    Its address includes its zone. Its names are the same in each zone, so that every other command
    finds the entries of a race as leftovers in other zones.
    """

    is_tpu = True
    is_machine = True
    is_zonal = True
    is_billable = True
    race: Race
    waited_seconds: float | None = None  # until it was granted

    @property
    def place(self) -> Candidate:
        return self.stack.candidate

    @property
    def parts(self) -> frozenset[str]:
        """The addresses, with their locations, of all that it consists of."""
        return frozenset({self.address})

    async def enter(self, change: Change, report: Report) -> str | None:
        """Carry out the change, and `claim` once there is a TPU."""
        raise NotImplementedError

    async def granted(self) -> datetime | None:
        """When the TPU was requested, if it is granted now."""
        raise NotImplementedError

    async def charged_since(self) -> datetime | None:
        """When the first of its nodes was created; None if there is none."""
        raise NotImplementedError

    async def clear(self, report: Report) -> None:
        """Delete what it consists of, in any state, if it belongs to the stack."""
        raise NotImplementedError

    async def apply(self, change: Change, report: Report) -> str | None:
        if change.action is Action.DELETE:
            await self.clear(report)
            return None
        entering = asyncio.ensure_future(self.enter(change, report))
        deciding = asyncio.ensure_future(self.race.wait())
        try:
            await asyncio.wait({entering, deciding}, return_when=asyncio.FIRST_COMPLETED)
            if self.race.winner in (None, self.place):
                return await entering
        finally:
            for task in (entering, deciding):
                task.cancel()
            await asyncio.gather(entering, deciding, return_exceptions=True)
        await self._withdraw(report)
        return f"deleted again, {self.race.winner} was first"

    async def claim(self) -> bool:
        """Whether this place has won, now that it has the TPU."""
        if self.race.winner is None:
            self.race.decide(await self._first_granted())
        return self.race.winner == self.place

    async def _first_granted(self) -> Candidate:
        """The place that has won, now that this one has the TPU, too.

        Another program may run the same race. So that both keep the same TPU, the winner is the
        first place to be written to the stack's record, as long as it has the TPU. If none has and
        this one's was deleted meanwhile, the plan for this place requests it again.
        """
        created = await self.granted()
        claim = None
        if created is not None:
            claim = RaceWinner(zone=self.place.zone, api=self.place.api, created=created)
        record = Record(self.stack, self.cloud)
        with suppress(TpuctlError):
            while True:
                contents = await record.read()
                before = None if contents is None else contents.race_winner
                if before is not None and (place := await self._still_granted(before)) is not None:
                    return place
                if claim is None:
                    break

                def write(contents: Contents, before: RaceWinner | None = before) -> Contents:
                    is_same = contents.race_winner == before
                    return (
                        contents.model_copy(update={"race_winner": claim}) if is_same else contents
                    )

                if (await record.update(write)).race_winner == claim:
                    break
        return self.place

    async def _still_granted(self, winner: RaceWinner) -> Candidate | None:
        """The place of the recorded winner, if it is in this race and still has its TPU."""
        for entry in self.race.entries:
            if (entry.place.zone, entry.place.api) == (winner.zone, winner.api):
                return entry.place if await entry.granted() == winner.created else None
        return None

    async def _withdraw(self, report: Report) -> None:
        """Delete it in any state, also if its creation was interrupted."""
        report(f"deleting it: {self.race.winner} was first", None)
        await self.cloud.abandoned_calls()
        created = None
        if self.stack.counts_spending:
            with suppress(TpuctlError):  # which must not keep it from being deleted
                created = await self.charged_since()
        await self.clear(report)
        if created is not None:
            await self._count_from(created)

    async def _count_from(self, created: datetime) -> None:
        """Add nodes that no longer exist to the ledger; their machines may have, too."""
        stack = self.stack
        period = Period(
            item=TPU,
            zone=stack.zone,
            stack=stack.name,
            user=stack.user,
            started=created.replace(microsecond=0),
            per_hour=hourly_rates(stack)[TPU],
            ended=self.cloud.server_clock.now(),
        )
        with suppress(TpuctlError):
            ledger = LedgerObject.of(stack, self.cloud)
            await ledger.update(lambda before: before.with_period(period))
