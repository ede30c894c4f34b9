"""The TPUs that work on a stack's queue beside the stack's own: see `Stack.parallel`."""

from __future__ import annotations

from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.objects import ObjectStore
from tpuctl.errors import Conflict, NotFound, TpuctlError
from tpuctl.flows.machines.inventory import list_tpus
from tpuctl.model.jobs.queue import Turns
from tpuctl.model.stack.stack import Stack
from tpuctl.model.status.inventory import InventoryItem
from tpuctl.model.text.names import turns_name
from tpuctl.model.text.record_parsing import parse_record
from tpuctl.polling import gather_all


async def read_turns(store: ObjectStore, stack: str) -> tuple[Turns, int]:
    """The turns of a stack's queue, and the generation of their object: 0 if there is none."""
    name = turns_name(stack)
    try:
        text, generation = await store.get_version(name)
    except NotFound:
        return Turns(), 0
    return turns_of(text, store.uri(name)), generation


def turns_of(text: bytes | None, where: str) -> Turns:
    """The turns in an object's text. A damaged one has none, and is replaced."""
    if text is None:
        return Turns()
    try:
        return parse_record(Turns, text, where)
    except Conflict:
        return Turns()


async def list_further(
    stack: Stack, cloud: Cloud, problems: dict[str, TpuctlError]
) -> list[InventoryItem]:
    """What exists of the TPUs beside a stack's own. `problems` receives what keeps them from being
    listed, by the object that names them."""
    store = cloud.objects(stack.bucket)
    try:
        turns, _ = await read_turns(store, stack.name)
        stacks = map(stack.parallel, turns.further)
        listed = await gather_all(list_tpus(further, cloud) for further in stacks)
    except TpuctlError as error:
        problems[store.uri(turns_name(stack.name))] = error
        return []
    return [item for items in listed for item in items]


def stack_of_item(item: InventoryItem, stack: Stack) -> Stack:
    """The stack that an item of `list_further` belongs to."""
    return stack.parallel(int(item.stack.removeprefix(f"{stack.name}-")))
