"""Resources that stacks left behind in a project, by stack, on stdout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Protocol

from tpuctl.model.status.charges import Charge, charge_of, is_charged
from tpuctl.model.status.inventory import InventoryItem, OrphanedItem, find_orphaned
from tpuctl.resources.composition import BY_NAME
from tpuctl.units import counted, dollars
from tpuctl.view.columns import Fields
from tpuctl.view.stack.cost import on_google
from tpuctl.view.terminal.tables import print_rows
from tpuctl.view.terminal.text_wrapping import print_wrapped

IN_USE = "in use"
KEPT = "kept on purpose"


class DownCommand(Protocol):
    """Returns the command to type that deletes a stack, or its bucket if nothing else is left."""

    def __call__(self, stack: str, *, is_bucket: bool) -> str: ...


@dataclass(frozen=True)
class Orphans:
    """All resources of a project's stacks, and which of them are leftovers."""

    project: str
    items: Sequence[InventoryItem]
    left: Sequence[OrphanedItem]
    unlisted: Sequence[str] = ()  # kinds that could not be listed

    @classmethod
    def of(
        cls, project: str, items: Iterable[InventoryItem], unlisted: Sequence[str] = ()
    ) -> Orphans:
        everything = sorted(items, key=lambda item: (item.stack, item.kind, item.zone, item.name))
        lacks_machines = any(BY_NAME[kind].is_machine for kind in unlisted)
        left = find_orphaned(everything, lacks_machines=lacks_machines)
        return cls(project, everything, left, unlisted)

    @property
    def is_charged(self) -> bool:
        """Whether a leftover costs money."""
        return any(is_charged(leftover.item) for leftover in self.left)

    @cached_property
    def groups(self) -> list[_Group]:
        """Everything by stack."""
        whys = {leftover.item: leftover.reason for leftover in self.left}
        groups = []
        for stack, items in groupby(self.items, key=lambda item: item.stack):
            mine = list(items)
            rows = [_row(item, whys.get(item)) for item in mine]
            works = any(item.kind_class.is_machine and item not in whys for item in mine)
            groups.append(_Group(stack, rows, works))
        return groups

    @property
    def hourly(self) -> tuple[float, bool]:
        """The sum of the leftovers' known hourly prices, and whether all are known."""
        rows = [row for group in self.groups for row in group.left]
        prices = [row.charge.per_hour for row in rows if row.charge is not None]
        return sum(price for price in prices if price is not None), (
            None not in prices and not self.unlisted
        )


@dataclass(frozen=True)
class ListedItem:
    item: InventoryItem
    charge: Charge | None
    reason: str
    is_orphaned: bool


@dataclass(frozen=True)
class _Group:
    """One stack's leftovers, and its resources in use with `--all`."""

    stack: str
    rows: Sequence[ListedItem]
    is_in_use: bool  # one of its machines is in use: `down` would delete that too

    @property
    def left(self) -> list[ListedItem]:
        return [row for row in self.rows if row.is_orphaned]

    @property
    def is_bucket(self) -> bool:
        """Whether only its bucket is left, which `down` keeps without --delete-bucket."""
        return all(row.item.kind == "bucket" for row in self.rows)

    def down(self, command: DownCommand) -> str:
        """The command that deletes it."""
        return command(self.stack, is_bucket=self.is_bucket)


def show_orphans(
    orphans: Orphans,
    row_type: type,
    rows: Mapping[str, Sequence[Fields]],
    command: DownCommand,
    up: str,
    *,
    everything: bool,
    is_free: bool,
    is_wide: bool = False,
) -> None:
    """The leftovers, or everything, from the rows of each stack; `up` is the command to type."""
    shown_groups = [group for group in orphans.groups if group.left or everything]
    for group in shown_groups:
        shown_rows = [row for row in rows[group.stack] if everything or row["orphaned"]]
        print(f"stack {group.stack}")
        print_rows(row_type, shown_rows, is_wide=is_wide)
        if group.left and group.is_in_use:
            print_wrapped(
                f"To delete the leftovers and keep the rest, with its stack file:\n    {up}"
            )
        elif group.left or everything:
            heading = "To delete the whole stack" if group.is_in_use else "To delete it"
            if group.is_bucket:
                heading = "To delete it and everything in it"
            print(f"{heading}:\n    {group.down(command)}")
        print()
    print_wrapped(_summary(orphans, is_free))
    if orphans.unlisted:
        print_wrapped(
            f"Not included, because they could not be listed: {', '.join(orphans.unlisted)}."
        )
    buckets = sum(1 for item in orphans.items if item.kind == "bucket")
    if buckets and not everything:
        many = "bucket is" if buckets == 1 else "buckets are"
        charged = on_google("charged", is_free=is_free)
        print_wrapped(f"{buckets} {many} kept on purpose and {charged}; use --all to list them.")


def _summary(orphans: Orphans, is_free: bool) -> str:
    with_left = [group for group in orphans.groups if group.left]
    if not with_left:
        doubt = " among those that could be listed" if orphans.unlisted else ""
        return f"No leftover resources in project {orphans.project}{doubt}."
    rows = [row for group in with_left for row in group.left]
    resources, stacks = counted(len(rows), "leftover resource"), counted(len(with_left), "stack")
    summary = f"{resources} of {stacks}"
    per_hour, is_complete = orphans.hourly
    if not orphans.is_charged:
        return f"{summary}, none of them billable."
    rate = f"{dollars(per_hour, is_complete=is_complete)} per hour"
    return f"{summary}, costing {on_google(rate, is_free=is_free)}."


def _row(item: InventoryItem, reason: str | None) -> ListedItem:
    usual = KEPT if item.kind == "bucket" else IN_USE
    charge = charge_of(item)
    return ListedItem(item, charge, reason or usual, reason is not None)
