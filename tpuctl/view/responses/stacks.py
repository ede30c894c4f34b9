"""Answers about stacks: plans, resources and their state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator

from tpuctl.model.plan import Change
from tpuctl.model.stack.candidates import Candidate
from tpuctl.model.status.advice import Advice
from tpuctl.view.columns import ABSENT, Column, Fields, Number
from tpuctl.view.responses.base import (
    Dollars,
    Hours,
    NullIfEmpty,
    Response,
    SmallDollars,
    Timestamp,
    source,
)
from tpuctl.view.responses.jobs import JobSnapshot
from tpuctl.view.responses.resources import RemainingResource, Resource

if TYPE_CHECKING:
    from tpuctl.model.stack.stack import Stack
    from tpuctl.model.status import snapshot, status
    from tpuctl.model.status.charges import Charge
    from tpuctl.view.stack import orphans


class WrittenFiles(Response):
    """The files that were written, relative to the current folder."""

    files: list[Path]


class CostLine(Response):
    item: str
    per_hour: SmallDollars | None
    note: str
    as_of: str = source("read")


class Cost(Response):
    """`complete` is false if a price is unknown."""

    currency: Literal["USD"]
    per_hour: SmallDollars | None
    per_month: SmallDollars | None
    complete: bool = source("is_complete")
    as_of: str = source("read")
    lines: list[CostLine]


def _by_candidate_key(costs: dict[Candidate, object]) -> dict[str, object]:
    return {candidate.key: cost for candidate, cost in costs.items()}


class QuotaLine(Response):
    """`limit` and `remaining` are null where the limit is unknown."""

    quota: str = source("limit")
    location: str = source("place")
    unit: NullIfEmpty[str]
    limit: Number | None = source("allowed")
    usage: Number | None = source("used")
    requested: Number | None = source("added")
    remaining: Number | None = source("left")


class Quota(Response):
    """`alternatives` are the limits of the alternatives that `up` tries later."""

    limits: list[QuotaLine] = source("lines")
    alternatives: list[QuotaLine] = source("of_alternatives")
    unavailable: list[str] = source("unread")


class Race(Response):
    """`zones` are named as in `fallback_costs`. `cost_per_hour` is that of the TPUs of all zones
    together, `extra_cost` what it costs if all zones grant one at the same time, until those in
    excess are deleted, in `seconds`."""

    zones: list[str]
    cost_per_hour: Dollars | None = source("per_hour")
    extra_cost: SmallDollars | None = source("extra")
    seconds: Number


class Spending(Response):
    """What was spent of `limits.max_cost` and `limits.max_hours`, by all machines and disks since
    the first `up`, or `up --new-limits`: US dollars, and hours with a TPU."""

    cost: Dollars
    max_cost: Number | None
    hours: Hours
    max_hours: Number | None
    since: Timestamp | None


class BudgetShare(Response):
    stack: str
    user: str
    cost: Dollars


class Budget(Response):
    """What all stacks of the project with a budget have cost in the month that began at `month`."""

    budget: Number
    cost: Dollars
    month: Timestamp
    shares: list[BudgetShare]


class ForecastRange(Response):
    low: float
    high: float


class Forecast(Response):
    """Durations are seconds, `cost` is in US dollars; ranges leave out a tenth at each end. `wait`
    is the trace's, `past_wait` that of remembered requests, of which `grants` were granted. Of the
    `starts` in the trace, the work is not done at its end after `unfinished`."""

    created: Timestamp
    hours: float
    starts: int
    unfinished: int
    grants: int
    wait: ForecastRange | None
    past_wait: ForecastRange | None
    preemptions: ForecastRange | None
    duration: ForecastRange | None
    checkpoint: ForecastRange | None
    cost: ForecastRange | None


class Plan(Response):
    """What `up` would do, or did; `price_per_hour` is for one node, `cost` for the whole stack.

    `fallback_costs` are in the order in which `up` tries them: by zone, or by `ZONE/compute` for
    Compute Engine; of a stack with alternatives with `spot v6e-8/` before it, for example."""

    stack: str = source("stack.name")
    zone: str = source("stack.zone")
    type: str = source("stack.accelerator.name")
    capacity: str = source("stack.file.tpu.capacity")
    api: Literal["tpu", "compute"] = source("stack.api")
    runtime: str = source("stack.runtime.version")
    framework: str | None = source("stack.framework.framework")
    python: str | None = ABSENT
    changes: list[Change] = source("plan.changes")
    price_per_hour: Number | None = source("stack.price.per_hour")
    price_as_of: str | None = source("stack.price.read")
    cost: Cost
    fallback_costs: Annotated[dict[str, Cost], BeforeValidator(_by_candidate_key)]
    race: Race | None = source("race_cost")
    quota: Quota
    spending: Spending | None
    budget: Budget | None
    forecast: Forecast | None = ABSENT

    @classmethod
    def of(cls, prepared: object, python: str | None, forecast: object | None = None) -> Plan:
        """A plan, and the version of the Python that jobs bring; None if it is the image's."""
        others = {} if forecast is None else {"forecast": forecast}
        return cls.from_object(prepared, python=python, **others)


class UpDetached(Response):
    """The controller that creates the TPU."""

    controller: str


class Down(Response):
    remaining: list[RemainingResource]


class OrphanedResource(Resource):
    orphaned: bool = source("is_orphaned")
    reason: Annotated[str, Column()]

    @classmethod
    def row(cls, resource: orphans.ListedItem) -> dict[str, Any]:
        """Its fields, with the price as it is before it is rounded for JSON."""
        per_hour = None if resource.charge is None else resource.charge.per_hour
        return {**dict(cls.model_validate(resource)), "per_hour": per_hour}


class OrphanStack(Response):
    stack: str
    in_use: bool = source("is_in_use")
    command: str
    resources: list[OrphanedResource] = source("rows")


class Orphans(Response):
    """Leftovers of stacks in a project; `unlisted` are the kinds that could not be listed."""

    project: str
    per_hour: Dollars
    complete: bool
    stacks: list[OrphanStack]
    unlisted: list[str]

    @classmethod
    def of(
        cls,
        leftovers: orphans.Orphans,
        rows: Mapping[str, Sequence[Fields]],
        command: orphans.DownCommand,
    ) -> Orphans:
        """`rows` are the resources by stack; `command` returns the command to type for a stack."""
        per_hour, is_complete = leftovers.hourly
        return cls.from_object(
            leftovers,
            per_hour=per_hour,
            complete=is_complete,
            stacks=[
                OrphanStack.from_object(
                    group, command=group.down(command), resources=rows[group.stack]
                )
                for group in leftovers.groups
            ],
        )


class Node(Response):
    name: str
    slice: int | None
    zone: str
    state: str
    health: str | None
    type: str = source("accelerator_type")
    runtime: str
    created: Timestamp | None
    age_hours: Hours
    cost_so_far: Dollars | None
    addresses: list[str]
    endpoints: list[str]

    @classmethod
    def of(
        cls, node: status.NodeStatus, charges: Sequence[Charge], stack: Stack, at: datetime
    ) -> Node:
        is_slice = stack.slices > 1 and node.name in stack.nodes
        return cls.from_object(
            node,
            slice=stack.nodes.index(node.name) if is_slice else None,
            age_hours=node.hours(at),
            cost_so_far=next((cost.so_far for cost in charges if cost.item.node is node), None),
        )


class Activity(Response):
    """What a program, such as the controller's, is doing with the stack."""

    by: str
    at: Timestamp
    text: str


class Status(Response):
    """The resources and jobs of a stack; `unlisted` are the kinds that could not be listed."""

    stack: str = source("status.stack.name")
    project: str = source("status.stack.project")
    nodes: list[Node]
    bucket: str | None = source("status.bucket")
    resources: list[Resource]
    per_hour: Dollars | None
    cost_so_far: Dollars | None
    complete: bool
    spending: Spending | None
    budget: Budget | None
    advice: list[Advice]
    jobs: list[JobSnapshot]
    activity: Activity | None
    unlisted: list[str]

    @classmethod
    def of(cls, stack_snapshot: snapshot.Snapshot) -> Status:
        from tpuctl.model.status.charges import hourly, so_far

        stack_status = stack_snapshot.status
        charges = stack_status.charges
        by_address = {charge.item.address: charge for charge in charges}
        per_hour, knows_prices = hourly(charges)
        spent, knows_all = so_far(charges)
        return cls.from_object(
            stack_snapshot,
            nodes=[
                Node.of(node, charges, stack_status.stack, stack_status.at)
                for node in stack_status.nodes
            ],
            resources=[
                Resource.of(item, by_address.get(item.address)) for item in stack_status.inventory
            ],
            per_hour=per_hour,
            cost_so_far=spent,
            complete=knows_prices and knows_all and not stack_status.unlisted,
            jobs=[JobSnapshot.of(job) for job in stack_snapshot.jobs],
            unlisted=[kind.partition("/")[0] for kind in stack_status.unlisted],
        )
