"""A race: the TPU is requested or created in several places at once, and kept in the first.

Each place has one entry: its queued resource, or the nodes that are created there directly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from tpuctl.engine.resource import Report
from tpuctl.errors import Conflict, TpuctlError, Unreachable
from tpuctl.model.cost.stack_cost import hourly_rates
from tpuctl.model.plan import Action, Change
from tpuctl.model.stack.candidates import Candidate
from tpuctl.model.stack.spending import TPU, Period
from tpuctl.polling import gather_all
from tpuctl.resources.base import StackResource, min_time, time_of
from tpuctl.resources.network.network import Network
from tpuctl.resources.project.ledger import LedgerObject
from tpuctl.resources.project.stack_record import Contents, RaceWinner, Record
from tpuctl.resources.tpu.node_lifecycle import NodeLifecycle
from tpuctl.resources.tpu.queued_resource import QueuedNodes, Request
from tpuctl.resources.tpu.queued_resource_spec import owner
from tpuctl.resources.tpu.tpu_group_parts import GroupPart


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


class RacedRequest(RaceEntry, QueuedNodes):
    """A queued resource; it wins when it is ACTIVE."""

    def __init__(self, network: Network, public_key: Callable[[], str], race: Race) -> None:
        QueuedNodes.__init__(self, network, public_key)
        self.race = race
        race.entries.append(self)

    @property
    def address(self) -> str:
        return f"{self.kind}/{self.stack.zone}/{self.name}"

    def diff(self, observed: Request | None) -> Change:
        change = super().diff(observed)
        if change.action is Action.CREATE:
            return change
        return self.update(change.because, ("readiness",))  # also if it is ACTIVE, to win

    async def enter(self, change: Change, report: Report) -> str | None:
        return await QueuedNodes.apply(self, change, report)

    async def _when_active(self, report: Report) -> None:
        if await self.claim():
            await super()._when_active(report)

    async def granted(self) -> datetime | None:
        queued = await self._get()
        is_active = queued is not None and queued.state.state.name == "ACTIVE"
        return time_of(queued.create_time) if queued is not None and is_active else None

    async def charged_since(self) -> datetime | None:
        nodes = await gather_all(node.observe() for node in self.nodes)
        return min_time(time_of(node.create_time) for node in nodes if node is not None)

    async def clear(self, report: Report) -> None:
        queued = await self._get()
        if queued is not None and owner(queued) == self.stack.name:
            await self._delete(report, queued)


class RacedNodes(RaceEntry):
    """All nodes of the stack in one place, created there directly; they win when all are READY.

    `resources` are those of the TPU in that place: nodes, and the templates and policies of groups.
    """

    def __init__(self, resources: Sequence[StackResource], race: Race) -> None:
        self.nodes = [each for each in resources if isinstance(each, NodeLifecycle)]
        super().__init__(self.nodes[0].stack, self.nodes[0].cloud)
        self._resources = resources
        self._needed = [each for each in resources if not isinstance(each, NodeLifecycle)]
        self.race = race
        race.entries.append(self)

    @property
    def name(self) -> str:
        return self.nodes[0].name

    @property
    def address(self) -> str:
        return self._located(self.nodes[0])

    @property
    def parts(self) -> frozenset[str]:
        return frozenset(map(self._located, self._resources))

    def _located(self, resource: StackResource) -> str:
        location = resource.region if isinstance(resource, GroupPart) else self.stack.zone
        return f"{resource.kind}/{location}/{resource.name}"

    @property
    def after(self) -> frozenset[str]:
        inner = {resource.address for resource in self._resources}
        return frozenset[str]().union(*(resource.after for resource in self._resources)) - inner

    async def observe(self) -> tuple[Any | None, ...] | None:
        """What exists of its resources, in their order; None if nothing does."""
        observed = await gather_all(resource.observe() for resource in self._resources)
        return tuple(observed) if any(each is not None for each in observed) else None

    def diff(self, observed: tuple[Any | None, ...] | None) -> Change:
        changes = [
            resource.diff(state)
            for resource, state in zip(self._resources, self._states(observed), strict=True)
            if isinstance(resource, NodeLifecycle)
        ]
        main = next((change for change in changes if change.action is Action.CREATE), changes[0])
        if main.action is Action.CREATE:
            return self.create(main.because)
        return self.update(main.because, ("readiness",))  # also if they are READY, to win

    def _states(self, observed: tuple[Any | None, ...] | None) -> tuple[Any | None, ...]:
        return observed if observed is not None else (None,) * len(self._resources)

    def removal(self, observed: tuple[Any | None, ...] | None) -> Change:
        changes = [
            resource.removal(state)
            for resource, state in zip(self._resources, self._states(observed), strict=True)
        ]
        main = next((change for change in changes if change.action is Action.DELETE), changes[0])
        return Change(self.address, main.action, main.because)

    async def enter(self, change: Change, report: Report) -> str | None:
        began = self.cloud.clock.now()
        try:
            for resources in (self._needed, self.nodes):
                await gather_all(self._bring_up(resource, report) for resource in resources)
        except (Conflict, Unreachable):
            raise  # not ours to delete, or the cloud is unreachable
        except TpuctlError:  # what was created would be charged for as long as the others wait
            with suppress(TpuctlError):
                await self.clear(report)
            raise
        self.waited_seconds = self.cloud.clock.now() - began
        await self.claim()
        return None

    async def _bring_up(self, resource: StackResource, report: Report) -> None:
        change = resource.diff(await resource.observe())
        if change.is_work:
            await resource.apply(change, report)

    async def granted(self) -> datetime | None:
        nodes = await self._existing()
        is_ready = [node.state_of(observed) for node, observed in nodes] == ["READY"] * len(
            self.nodes
        )
        return min_time(node.created_at(observed) for node, observed in nodes) if is_ready else None

    async def charged_since(self) -> datetime | None:
        return min_time(node.charged_since(observed) for node, observed in await self._existing())

    async def _existing(self) -> list[tuple[NodeLifecycle, Any]]:
        observed = await gather_all(node.observe() for node in self.nodes)
        return [pair for pair in zip(self.nodes, observed, strict=True) if pair[1] is not None]

    async def clear(self, report: Report) -> None:
        for resources in (self.nodes, self._needed):
            await gather_all(self._take_down(resource, report) for resource in resources)

    async def _take_down(self, resource: StackResource, report: Report) -> None:
        change = resource.removal(await resource.observe())
        if change.action is Action.DELETE:
            await resource.apply(change, report)
