"""The TPUs that work on a stack's queue beside the stack's own: see `Stack.parallel`."""

from __future__ import annotations

from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.objects import ObjectStore
from tpuctl.errors import Conflict, NotFound
from tpuctl.flows.machines.inventory import list_tpus
from tpuctl.model.jobs.queue import Turns
from tpuctl.model.stack.stack import Stack
from tpuctl.model.status.inventory import InventoryItem
from tpuctl.model.text.names import turns_name
from tpuctl.model.text.record_parsing import parse_record
from tpuctl.polling import gather_all


async def read_turns(store: ObjectStore, stack: str) -> tuple[Turns, int]:
    """The turns of a stack's queue, and the generation of their object: 0 if there is none.

    A damaged object has none, and is replaced.
    """
    name = turns_name(stack)
    try:
        text, generation = await store.get_version(name)
    except NotFound:
        return Turns(), 0
    try:
        return parse_record(Turns, text, store.uri(name)), generation
    except Conflict:
        return Turns(), generation


async def list_further(stack: Stack, cloud: Cloud) -> list[InventoryItem]:
    """What exists of the TPUs beside a stack's own."""
    turns, _ = await read_turns(cloud.objects(stack.bucket), stack.name)
    listed = await gather_all(list_tpus(stack.parallel(number), cloud) for number in turns.further)
    return [item for items in listed for item in items]


def stack_of_item(item: InventoryItem, stack: Stack) -> Stack:
    """The stack that an item of `list_further` belongs to."""
    return stack.parallel(int(item.stack.removeprefix(f"{stack.name}-")))
