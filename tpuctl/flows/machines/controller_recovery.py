"""Recreate a stack's TPU with the limited permissions of its controller."""

from __future__ import annotations

from collections.abc import Callable

from tpuctl.cloud.clients import Cloud
from tpuctl.engine.planner import observe, plan_up
from tpuctl.engine.resource import Resource
from tpuctl.model.plan import Action, Change, Plan
from tpuctl.model.stack.stack import Stack
from tpuctl.resources.composition import kind_of, resources_of

WAITING = ("readiness",)  # fields of an update that only continues to wait for an existing request


async def recovery_plan(
    stack: Stack, cloud: Cloud, public_keys: Callable[[], str]
) -> tuple[Plan, list[Resource]]:
    """The plan to create the TPU in the controller's zone, with its resources.

    Everything else exists and is not changed, nor is an existing TPU.
    """
    resources = tpu_resources(stack, cloud, public_keys)
    whole = plan_up(resources, await observe(resources))
    return Plan(tuple(_creation_only(change) for change in whole), whole.after), resources


def tpu_resources(
    stack: Stack, cloud: Cloud, public_keys: Callable[[], str] = str
) -> list[Resource]:
    """The stack's TPU resources: all that its controller may create and delete."""
    everything = resources_of(stack, cloud, public_key=public_keys)
    return [resource for resource in everything if kind_of(resource.address).is_tpu]


def _creation_only(change: Change) -> Change:
    if change.action is not Action.UPDATE or change.fields == WAITING:
        return change
    return Change(change.address, Action.NOTHING, f"exists; not changed: {change.because}")
