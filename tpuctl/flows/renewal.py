"""Making a stack's TPU anew with the few rights that its own controller has."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from tpuctl.cloud.clients import Cloud
from tpuctl.engine.planner import observe, plan_down, plan_up
from tpuctl.engine.resource import Resource
from tpuctl.flows.provision import Prepared, apply_plan
from tpuctl.model.events import Emit
from tpuctl.model.plan import Action, Change, Plan
from tpuctl.model.stack import Stack
from tpuctl.resources.composition import kind_of, resources_of

__all__ = [
    "CLOUD",
    "CONTROLLER",
    "cloud_of_jobs",
    "controller_name",
    "prepare_renewal",
    "undo_renewal",
]

# What a program on a controller is told by its environment.
CONTROLLER, CLOUD = "TPUCTL_CONTROLLER", "TPUCTL_CONTROLLER_CLOUD"
WAITING = ("wait",)  # what an update names that goes on with what was asked for


def controller_name(environment: Mapping[str, str] = os.environ) -> str | None:
    """The controller that this program runs on, working for its stack; None anywhere else."""
    return environment.get(CONTROLLER) or None


def cloud_of_jobs(name: str, environment: Mapping[str, str] = os.environ) -> str:
    """The cloud that jobs are in, for a program that speaks to the one of this name.

    On a controller the local cloud goes by Google's name, and answers at Google's addresses.
    """
    return environment.get(CLOUD) or name


async def prepare_renewal(
    stack: Stack, cloud: Cloud, *, public_keys: Callable[[], str]
) -> Prepared:
    """The part of a plan for `up` that makes the TPU, in the controller's zone.

    Everything else is there and stays as it is; changes of a TPU that is there are its owner's.
    """
    resources = _tpu(stack, cloud, public_keys)
    whole = plan_up(resources, await observe(resources))
    plan = Plan(tuple(_of_making(change) for change in whole), whole.after)
    return Prepared(stack, plan, resources)


async def undo_renewal(stack: Stack, cloud: Cloud, emit: Emit) -> None:
    """Take away a TPU that was made beside a `down`."""
    resources = _tpu(stack, cloud, str)
    await apply_plan(plan_down(resources, await observe(resources)), resources, emit)


def _tpu(stack: Stack, cloud: Cloud, public_keys: Callable[[], str]) -> list[Resource]:
    everything = resources_of(stack, cloud, public_key=public_keys)
    return [one for one in everything if kind_of(one.address).is_tpu]


def _of_making(change: Change) -> Change:
    if change.action is not Action.UPDATE or change.fields == WAITING:
        return change
    return Change(change.address, Action.NOTHING, f"it is there; left as it is: {change.because}")
