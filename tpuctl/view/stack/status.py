"""The resources of a stack, their age and cost so far, on stdout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tpuctl.model.status.charges import Charge, hourly, so_far
from tpuctl.units import dollars, format_duration
from tpuctl.view.stack.cost import FREE, on_google
from tpuctl.view.terminal.tables import console, print_facts, table
from tpuctl.view.terminal.text_wrapping import print_wrapped

if TYPE_CHECKING:
    from datetime import datetime

    from rich.table import Table

    from tpuctl.model.stack.stack import Stack
    from tpuctl.model.status.advice import Advice
    from tpuctl.model.status.inventory import InventoryItem

MAX_ADDRESSES = 8
NUMBERS = ("age", "per hour", "so far")
SSH_ROUTES = {"iap": "through Identity-Aware Proxy", "internal": "at internal addresses"}
CAPACITIES = {"on-demand": "", "preemptible": ", preemptible", "spot": ", spot"}


def show_status(
    stack: Stack,
    items: Sequence[InventoryItem],
    charges: Sequence[Charge],
    advice: Sequence[Advice],
    typed: Callable[[str], str],
    facts: Iterable[tuple[str, str]] = (),
    *,
    at: datetime,
    is_free: bool,
) -> None:
    """`typed` returns the command to type for one of the advice, `facts` are of jobs and limits."""
    print_facts([*status_facts(stack, items, charges), *facts])
    if (charges_list := charges_table(items, charges, at, is_free=is_free)) is not None:
        print()
        console().print(charges_list)
        for line in price_notes(charges, is_free=is_free):
            print_wrapped(line)
    for suggestion in advice:
        print_wrapped(f"\n{suggestion.text}\n    {typed(suggestion.command)}")


def price_notes(charges: Sequence[Charge], *, is_free: bool) -> Iterator[str]:
    """What the prices are; nothing where none is known."""
    read = ", ".join(dict.fromkeys(charge.read for charge in charges if charge.read))
    if read:
        if is_free:
            yield f"{FREE} These are Google's prices."
        yield f"Prices of {read}; cost so far since creation, without traffic."


def status_facts(
    stack: Stack, items: Sequence[InventoryItem], charges: Sequence[Charge]
) -> list[tuple[str, str]]:
    facts = [("stack", f"{stack.name} in project {stack.project}")]
    for item in items:
        facts += _facts(item, stack)
    if len(facts) > 1 and stack.file.network.ssh in SSH_ROUTES:
        facts.append(("ssh", SSH_ROUTES[stack.file.network.ssh]))
    facts += [
        ("bucket", f"gs://{charge.item.name}: {charge.note}")
        for charge in charges
        if charge.item.kind == "bucket"
    ]
    return facts


def _facts(item: InventoryItem, stack: Stack) -> list[tuple[str, str]]:
    node = item.node
    if node is None:
        return []
    facts = [
        (
            "node",
            f"{node.name} in {node.zone}: {node.accelerator_type}"
            f"{CAPACITIES.get(item.capacity, f', {item.capacity}')}, {node.runtime}",
        )
    ]
    addresses = node.endpoints or node.addresses
    if stack.slices > 1 and node.name in stack.nodes:
        index = stack.nodes.index(node.name)
        addresses = tuple(f"{index}.{slot} {address}" for slot, address in enumerate(addresses))
    if addresses:
        listed = ", ".join(addresses[:MAX_ADDRESSES])
        if len(addresses) > MAX_ADDRESSES:
            listed += f" and {len(addresses) - MAX_ADDRESSES} more"
        facts.append(("endpoints" if node.endpoints else "workers", listed))
    return facts


def charges_table(
    items: Sequence[InventoryItem], charges: Sequence[Charge], at: datetime, *, is_free: bool
) -> Table | None:
    """State and cost of all resources except buckets, and the total; None if there are none."""
    rows = [(row.title, row.state, *row.numbers) for row in charge_rows(items, charges, at)]
    if not rows:
        return None
    in_all = on_google("total", is_free=is_free)
    rows.append((in_all, "", "", *total_costs(charges)))
    return table(("resource", "state", *NUMBERS), rows, numbers=NUMBERS)


class ChargeRow(NamedTuple):
    """A resource as text; `numbers` are its age, its cost per hour, and its cost so far."""

    item: InventoryItem
    title: str
    state: str
    numbers: tuple[str, str, str]


def charge_rows(
    items: Sequence[InventoryItem], charges: Sequence[Charge], at: datetime
) -> list[ChargeRow]:
    """All resources except buckets, as of the time `at`."""
    by_address = {charge.item.address: charge for charge in charges}
    return [_row(item, by_address.get(item.address), at) for item in items if item.kind != "bucket"]


def total_costs(charges: Sequence[Charge]) -> tuple[str, str]:
    """The costs per hour and so far: `$4.50`, `at least $1.20`."""
    per_hour, knows_prices = hourly(charges)
    spent, knows_all = so_far(charges)
    return dollars(per_hour, is_complete=knows_prices), dollars(spent, is_complete=knows_all)


def _row(item: InventoryItem, charge: Charge | None, at: datetime) -> ChargeRow:
    age = format_duration(max(0.0, (at - item.created).total_seconds())) if item.created else ""
    costs = ("", "") if charge is None else (_money(charge.per_hour), _money(charge.so_far))
    title = f"{item.kind_class.display_name or item.kind} {item.name}"
    return ChargeRow(item, title, _state(item), (age, *costs))


def _state(item: InventoryItem) -> str:
    health = item.node.health if item.node is not None else ""
    is_ill = item.state == "READY" and health.startswith("UNHEALTHY")
    return f"{item.state}, {health}" if is_ill else item.state


def _money(amount: float | None) -> str:
    return "unknown" if amount is None else dollars(amount)
