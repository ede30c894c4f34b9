"""Plans, what exists, and what is left, on stdout."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tpuctl.model.plan import Action, Plan
from tpuctl.model.stack import Stack
from tpuctl.view.tables import money, print_facts, print_table, span

if TYPE_CHECKING:
    from tpuctl.model.status import NodeStatus, Remaining

__all__ = [
    "plan_data",
    "remaining_data",
    "show_plan",
    "show_remaining",
    "show_status",
    "status_data",
]

SIGNS = {
    Action.CREATE: "+",
    Action.UPDATE: "~",
    Action.DELETE: "-",
    Action.NOTHING: "·",
    Action.LEAVE: "=",
}


def plan_data(stack: Stack, plan: Plan) -> dict[str, Any]:
    price = stack.price
    return {
        "stack": stack.name,
        "changes": [
            {
                "address": change.address,
                "action": change.action.value,
                "because": change.because,
                "fields": list(change.fields),
            }
            for change in plan
        ],
        "price_per_hour": price.per_hour if price else None,
        "price_read": price.read if price else None,
    }


def show_plan(plan: Plan) -> None:
    print_table(
        ("", "resource", "why"),
        [
            (SIGNS[change.action], change.address, f"{change.action.value}: {change.because}")
            for change in plan
        ],
    )


def status_data(
    stack: Stack, nodes: Iterable[NodeStatus], bucket: str | None, jobs: Iterable[Any] = ()
) -> dict[str, Any]:
    return {
        "stack": stack.name,
        "project": stack.project,
        "nodes": [
            {
                "name": node.name,
                "zone": node.zone,
                "state": node.state,
                "health": node.health,
                "type": node.accelerator_type,
                "runtime": node.runtime,
                "created": node.created.isoformat() if node.created else None,
                "age_hours": round(node.hours(), 4),
                "cost_so_far": _cost(stack, node),
                "addresses": list(node.addresses),
            }
            for node in nodes
        ],
        "bucket": bucket,
    }


def _cost(stack: Stack, node: NodeStatus) -> float | None:
    price = stack.price
    return round(price.per_hour * node.hours(), 4) if price else None


def show_status(stack: Stack, nodes: Iterable[NodeStatus], bucket: str | None) -> None:
    facts = [("stack", f"{stack.name} in project {stack.project}")]
    for node in nodes:
        cost = _cost(stack, node)
        price = stack.price
        facts += [
            ("node", f"{node.name} in {node.zone}: {node.state}"),
            ("type", f"{node.accelerator_type}, {node.runtime}"),
            ("workers", ", ".join(node.addresses)),
            (
                "age",
                span(node.hours())
                + (f", about {money(cost)} so far at {price}" if cost is not None else ""),
            ),
        ]
    if not any(name == "node" for name, _ in facts):
        facts.append(("node", "none"))
    facts.append(("bucket", f"gs://{bucket}" if bucket else "none"))
    print_facts(facts)


def remaining_data(remaining: Iterable[Remaining]) -> list[dict[str, Any]]:
    return [
        {
            "address": one.address,
            "state": one.state,
            "why": one.why,
            "billable": one.is_billable,
        }
        for one in remaining
    ]


def show_remaining(remaining: Iterable[Remaining]) -> None:
    print_table(
        ("resource", "now", "why"),
        [(one.address, one.state, one.why if one.state != "gone" else "") for one in remaining],
    )
