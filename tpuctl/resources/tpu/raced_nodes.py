"""An entry of a race without a request: the nodes themselves, created directly."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from tpuctl.engine.resource import Report
from tpuctl.errors import Conflict, TpuctlError, Unreachable
from tpuctl.model.plan import Action, Change
from tpuctl.polling import gather_all
from tpuctl.resources.base import StackResource, min_time
from tpuctl.resources.tpu.node_lifecycle import NodeLifecycle
from tpuctl.resources.tpu.race import Race, RaceEntry
from tpuctl.resources.tpu.tpu_group_parts import GroupPart


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
