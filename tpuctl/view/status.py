"""What exists of a stack, its age and cost so far, on stdout and in JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tpuctl.model.charges import Charge, hourly, so_far
from tpuctl.model.cost import dollars
from tpuctl.model.duration import format_duration
from tpuctl.view.cost import FREE, on_google
from tpuctl.view.tables import console, print_facts, table

if TYPE_CHECKING:
    from rich.table import Table

    from tpuctl.model.advice import Advice
    from tpuctl.model.inventory import InventoryItem
    from tpuctl.model.stack import Stack
    from tpuctl.model.status import NodeStatus

__all__ = [
    "charge_data",
    "charges_table",
    "found_data",
    "show_status",
    "status_data",
    "status_facts",
]

MOST_ADDRESSES = 8
NUMBERS = ("age", "an hour", "so far")
WAYS = {"iap": "through Identity-Aware Proxy", "internal": "at internal addresses"}
CAPACITIES = {"on-demand": "", "preemptible": ", preemptible", "spot": ", spot"}


def found_data(found: InventoryItem, charge: Charge | None) -> dict[str, Any]:
    """One thing of a stack; what it costs is null where it is free or unknown."""
    return {
        "kind": found.kind,
        "name": found.name,
        "zone": found.zone or None,
        "state": found.state or None,
        "type": found.detail or None,
        "size_gb": found.size_gb or None,
        "capacity": found.capacity if found.kind_class.is_tpu else None,
        "created": found.created.isoformat() if found.created else None,
        **(charge_data(charge) if charge is not None else _FREE),
    }


def charge_data(charge: Charge) -> dict[str, Any]:
    return {
        "age_hours": round(charge.hours, 4),
        "per_hour": _rounded(charge.per_hour),
        "cost_so_far": _rounded(charge.so_far),
        "price_note": charge.note,
        "price_as_of": charge.read or None,
    }


_FREE = dict.fromkeys(("age_hours", "per_hour", "cost_so_far", "price_note", "price_as_of"))


def status_data(
    stack: Stack,
    nodes: Iterable[NodeStatus],
    bucket: str | None,
    found: Sequence[InventoryItem],
    charges: Sequence[Charge],
    advice: Sequence[Advice],
    jobs: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    by_address = {one.item.address: one for one in charges}
    per_hour, knows_prices = hourly(charges)
    spent, knows_all = so_far(charges)
    return {
        "stack": stack.name,
        "project": stack.project,
        "nodes": [_node_data(node, charges) for node in nodes],
        "bucket": bucket,
        "resources": [found_data(one, by_address.get(one.address)) for one in found],
        "per_hour": _rounded(per_hour),
        "cost_so_far": _rounded(spent),
        "complete": knows_prices and knows_all,
        "advice": [{"text": one.text, "command": one.command} for one in advice],
        "jobs": list(jobs),
    }


def _node_data(node: NodeStatus, charges: Sequence[Charge]) -> dict[str, Any]:
    charge = next((one for one in charges if one.item.node is node), None)
    return {
        "name": node.name,
        "zone": node.zone,
        "state": node.state,
        "health": node.health,
        "type": node.accelerator_type,
        "runtime": node.runtime,
        "created": node.created.isoformat() if node.created else None,
        "age_hours": round(node.hours(), 4),
        "cost_so_far": _rounded(charge.so_far) if charge is not None else None,
        "addresses": list(node.addresses),
        "endpoints": list(node.endpoints),
    }


def show_status(
    stack: Stack,
    found: Sequence[InventoryItem],
    charges: Sequence[Charge],
    advice: Sequence[Advice],
    commands: Mapping[str, str],
    jobs: Iterable[tuple[str, str]] = (),
    *,
    is_free: bool,
) -> None:
    """`commands` are the lines to type for what the advice says, `jobs` are facts about jobs."""
    print_facts([*status_facts(stack, found, charges), *jobs])
    if (made := charges_table(found, charges, is_free=is_free)) is not None:
        print()
        console().print(made)
        read = ", ".join(dict.fromkeys(one.read for one in charges if one.read))
        if read:
            if is_free:
                print(f"{FREE} These are Google's prices.")
            print(f"Prices of {read}; so far: as if charged since it was made, without traffic.")
    for each in advice:
        print(f"\n{each.text}\n    {commands[each.command]}")


def status_facts(
    stack: Stack, found: Sequence[InventoryItem], charges: Sequence[Charge]
) -> list[tuple[str, str]]:
    facts = [("stack", f"{stack.name} in project {stack.project}")]
    for one in found:
        facts += _facts(one)
    if len(facts) > 1 and stack.file.network.ssh in WAYS:
        facts.append(("ssh", WAYS[stack.file.network.ssh]))
    facts += [
        ("bucket", f"gs://{one.item.name}: {one.note}")
        for one in charges
        if one.item.kind == "bucket"
    ]
    return facts


def _facts(one: InventoryItem) -> list[tuple[str, str]]:
    node = one.node
    if node is None:
        return []
    facts = [
        (
            "node",
            f"{node.name} in {node.zone}: {node.accelerator_type}"
            f"{CAPACITIES.get(one.capacity, f', {one.capacity}')}, {node.runtime}",
        )
    ]
    addresses = node.endpoints or node.addresses
    if addresses:
        listed = ", ".join(addresses[:MOST_ADDRESSES])
        if len(addresses) > MOST_ADDRESSES:
            listed += f" and {len(addresses) - MOST_ADDRESSES} more"
        facts.append(("serves at" if node.endpoints else "workers", listed))
    return facts


def charges_table(
    found: Sequence[InventoryItem], charges: Sequence[Charge], *, is_free: bool
) -> Table | None:
    """Everything but buckets with its state and cost, and the sum; None where there is nothing."""
    by_address = {one.item.address: one for one in charges}
    rows = [_row(one, by_address.get(one.address)) for one in found if one.kind != "bucket"]
    if not rows:
        return None
    per_hour, knows_prices = hourly(charges)
    spent, knows_all = so_far(charges)
    in_all = on_google("in all", is_free=is_free)
    rows.append((in_all, "", "", _sum(per_hour, knows_prices), _sum(spent, knows_all)))
    return table(("what", "state", *NUMBERS), rows, numbers=NUMBERS)


def _row(one: InventoryItem, charge: Charge | None) -> tuple[str, ...]:
    age = format_duration(charge.hours * 3600) if charge is not None and one.created else _age(one)
    return (
        f"{one.kind_class.display_name or one.kind} {one.name}",
        _state(one),
        age,
        _money(charge.per_hour) if charge is not None else "",
        _money(charge.so_far) if charge is not None else "",
    )


def _age(one: InventoryItem) -> str:
    from datetime import UTC, datetime

    return format_duration((datetime.now(UTC) - one.created).total_seconds()) if one.created else ""


def _state(one: InventoryItem) -> str:
    health = one.node.health if one.node is not None else ""
    is_ill = one.state == "READY" and health.startswith("UNHEALTHY")
    return f"{one.state}, {health}" if is_ill else one.state


def _money(amount: float | None) -> str:
    return "unknown" if amount is None else dollars(amount)


def _sum(amount: float, is_complete: bool) -> str:
    return dollars(amount) if is_complete else f"at least {dollars(amount)}"


def _rounded(amount: float | None) -> float | None:
    return None if amount is None else round(amount, 4)
