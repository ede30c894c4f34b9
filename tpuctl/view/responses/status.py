"""The answer of `status`: the resources and jobs of a stack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpuctl.model.advice import Advice
from tpuctl.view.responses.base import Dollars, Hours, Response, Timestamp, source
from tpuctl.view.responses.jobs import JobSnapshot
from tpuctl.view.responses.stacks import Resource

if TYPE_CHECKING:
    from tpuctl.model import snapshot, status
    from tpuctl.model.charges import Charge

__all__ = ["Status"]


class Node(Response):
    name: str
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
    def of(cls, node: status.NodeStatus, charges: Sequence[Charge]) -> Node:
        spent = next((charge.so_far for charge in charges if charge.item.node is node), None)
        return cls.model_validate({**vars(node), "age_hours": node.hours(), "cost_so_far": spent})


class Status(Response):
    """The resources and jobs of a stack."""

    stack: str
    project: str
    nodes: list[Node]
    bucket: str | None
    resources: list[Resource]
    per_hour: Dollars | None
    cost_so_far: Dollars | None
    complete: bool
    advice: list[Advice]
    jobs: list[JobSnapshot]

    @classmethod
    def of(cls, moment: snapshot.Snapshot) -> Status:
        from tpuctl.model.charges import hourly, so_far

        stack_status = moment.status
        charges = stack_status.charges
        by_address = {charge.item.address: charge for charge in charges}
        per_hour, knows_prices = hourly(charges)
        spent, knows_all = so_far(charges)
        return cls(
            stack=stack_status.stack.name,
            project=stack_status.stack.project,
            nodes=[Node.of(node, charges) for node in stack_status.nodes],
            bucket=stack_status.bucket,
            resources=[
                Resource.of(item, by_address.get(item.address)) for item in stack_status.inventory
            ],
            per_hour=per_hour,
            cost_so_far=spent,
            complete=knows_prices and knows_all,
            advice=stack_status.advice,
            jobs=[JobSnapshot.of(job) for job in moment.jobs],
        )
