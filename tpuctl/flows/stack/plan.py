"""`plan`: what `up` would do, in which zone, what it costs, and the quota it needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC

from tpuctl.catalog import runtime, runtimes
from tpuctl.cloud.address import caller_address_range
from tpuctl.cloud.caller_identity import granted_on_project
from tpuctl.cloud.clients import Cloud
from tpuctl.engine.planner import observe, plan_up
from tpuctl.engine.resource import Resource
from tpuctl.errors import (
    ApiDisabled,
    Conflict,
    Denied,
    Diagnostic,
    NoCapacity,
    TpuctlError,
    Usage,
)
from tpuctl.flows.context import Context
from tpuctl.flows.machines.inventory import list_resources, was_brought_up
from tpuctl.flows.machines.os_login import login_warnings, with_os_login
from tpuctl.flows.stack.capacity_history import in_preferred_order
from tpuctl.flows.stack.controller_recovery import recovery_plan
from tpuctl.flows.stack.org_policies import require_policies
from tpuctl.flows.stack.permissions import require_permissions
from tpuctl.flows.stack.quota import count_new_nodes, read_limits, read_region, report_of
from tpuctl.flows.stack.spending import read_ledgers, require_life_limits
from tpuctl.flows.stack.zones import (
    is_left_over,
    place_and_race,
    raced,
    refuse_other_slices,
    with_controller,
    with_other_tpus_first,
)
from tpuctl.model.capacity.quota import QuotaReport
from tpuctl.model.cost.cost import Cost
from tpuctl.model.cost.race_cost import RaceCost, race_cost
from tpuctl.model.cost.stack_cost import cost_of, fallback_costs
from tpuctl.model.events import WarningIssued
from tpuctl.model.plan import Action, Plan
from tpuctl.model.stack.candidates import Candidate
from tpuctl.model.stack.network_reference import nat_commands
from tpuctl.model.stack.spending import BudgetUse, Spending
from tpuctl.model.stack.stack import Stack
from tpuctl.model.status.charges import is_charged
from tpuctl.model.status.inventory import InventoryItem, ResourceKind
from tpuctl.remote.iap import RELAY_RANGE
from tpuctl.resources.access.key_use import KeyUse
from tpuctl.resources.access.secret_grants import removed_grants
from tpuctl.resources.access.service_account import require_account
from tpuctl.resources.composition import (
    addresses_of,
    beside_tpu,
    in_other_zones,
    kind_of,
    resources_of,
)
from tpuctl.resources.machines.controller import Controller
from tpuctl.resources.machines.disk import DataDisk
from tpuctl.resources.network.host_firewall import HostFirewall
from tpuctl.resources.network.host_project import agent_warnings
from tpuctl.resources.network.nat import Nat
from tpuctl.resources.network.network import Network
from tpuctl.resources.network.worker_rule import closed_ports_warning
from tpuctl.resources.project.bucket import Bucket
from tpuctl.resources.tpu.queued_resource import QueuedNodes
from tpuctl.resources.tpu.race import Race
from tpuctl.resources.tpu.reservation import require_reservation
from tpuctl.resources.tpu.tpu_node_v1 import RemoteNode, closed_api_warning
from tpuctl.spelling import nearest

TUNNEL = "iap.tunnelInstances.accessViaIAP"
ROLE = "roles/iap.tunnelResourceAccessor"


@dataclass(frozen=True)
class Prepared:
    """A plan for `up` with what is needed to apply it. `stack` is set to the plan's candidate."""

    stack: Stack
    plan: Plan
    resources: Sequence[Resource]
    quota: QuotaReport = field(default_factory=QuotaReport)  # empty for zones tried after the first
    race: Race | None = None  # between zones, one of which gets the TPU
    unread: frozenset[str] = frozenset()  # kinds of a stack that was up, in disabled APIs
    spending: Spending | None = None  # of limits that count it
    budget: BudgetUse | None = None  # of the project
    former_spending: Spending | None = None  # which --new-limits no longer counts

    @property
    def cost(self) -> Cost:
        """What the stack costs while it is up."""
        return cost_of(self.stack)

    @property
    def fallback_costs(self) -> dict[Candidate, Cost]:
        """The cost of each candidate that `up` tries if this one fails, in order."""
        return fallback_costs(self.stack)

    @property
    def race_cost(self) -> RaceCost | None:
        """What the race may cost in addition."""
        return None if self.race is None else race_cost(self.stack, self.race.places)

    @property
    def is_used_up(self) -> bool:
        """Whether nothing is left of a limit."""
        return any(use is not None and use.is_used_up for use in (self.spending, self.budget))

    @property
    def enables_apis(self) -> bool:
        """Whether APIs that the stack needs are not enabled yet."""
        return any(change.is_work and change.address.startswith("apis/") for change in self.plan)

    @property
    def creates_tpu_node(self) -> bool:
        """Whether the plan creates a TPU node, which Google no longer allows for most projects."""
        return any(
            change.action is Action.CREATE and change.address.startswith("tpu/")
            for change in self.plan
        )


async def plan(
    context: Context,
    candidate: Candidate | None = None,
    *,
    race: bool = False,
    new_limits: bool = False,
) -> Prepared:
    """Plan `up`. Reads the cloud, changes nothing. Raises InvalidStack, Denied.

    Quota in which it cannot fit is in the plan's report, and so are limits of which nothing is
    left: `up` does not apply such a plan. `new_limits` counts what is spent from zero.

    Plans for `candidate`, by default for the one where the stack is; with `race` for all zones at
    once, unless it has a TPU in one of them. On the stack's controller, and for further TPUs of a
    stack, the plan only creates the TPU, and deletes what failed tries left.
    """
    cloud, keys = context.cloud, context.keys
    stack = in_preferred_order(context.stack.bounded(cloud.server_clock.now()), cloud)
    stack.require_valid()
    if race:
        _require_raceable(stack)
    if new_limits:
        require_life_limits(stack)
    if context.controller is None:
        stack = await with_os_login(stack, cloud)
    if context.changes_only_tpu:
        ledgers = await read_ledgers(stack, cloud)
        stack = replace(stack, spent=ledgers.spent())
        planned = await recovery_plan(stack, cloud, keys.public_lines, candidate, race=race)
        return Prepared(
            planned.stack,
            planned.plan,
            planned.resources,
            race=planned.race,
            spending=ledgers.spending,
            budget=ledgers.budget,
        )
    sources = await allowed_sources(stack, cloud)
    preparing = prepare_up(
        stack,
        cloud,
        sources=sources,
        public_key=keys.public_lines,
        candidate=candidate,
        race=race,
        new_limits=new_limits,
    )
    prepared = await require_permissions(stack, cloud, preparing)
    if candidate is None:
        await require_account(stack, cloud)
    if count_new_nodes(prepared.stack, prepared.plan):
        _require_time(prepared.stack, cloud)
    if candidate is None and _creates_machines(prepared.plan):
        await require_policies(prepared.stack, cloud, prepared.plan)
        await require_reservation(prepared.stack, cloud)
    warnings = [
        *unread_warnings(prepared),
        *await access_warnings(stack, cloud, prepared.plan),
        *await login_warnings(stack, cloud),
        *await host_warnings(prepared, cloud),
        *await _worker_warnings(prepared, cloud),
        *_runtime_warnings(prepared),
        *resource_warnings(prepared),
    ]
    if candidate is None and prepared.creates_tpu_node:
        context.emit(WarningIssued(closed_api_warning(prepared.stack)))
    shortfalls = () if prepared.quota.blocking else prepared.quota.shortfalls
    for warning in (*warnings, *shortfalls):
        context.emit(WarningIssued(warning))
    return prepared


def _require_time(stack: Stack, cloud: Cloud) -> None:
    """Raise NoCapacity if the stack's deadline has passed."""
    if stack.deadline is not None and stack.deadline <= cloud.server_clock.now():
        raise NoCapacity(
            "Deadline has passed",
            f"tpu.deadline is {stack.deadline.astimezone(UTC):%Y-%m-%d %H:%M} UTC",
            hint="Set a later time, or a duration:\n    tpu: {deadline: 12h}",
        )


async def prepare_up(
    stack: Stack,
    cloud: Cloud,
    *,
    sources: tuple[str, ...],
    public_key: Callable[[], str],
    candidate: Candidate | None = None,
    race: bool = False,
    new_limits: bool = False,
) -> Prepared:
    """Read the cloud and plan for `candidate`, by default for the one where the stack is.

    Resources of the stack in other zones, and TPUs of the other API, are left over from failed
    tries and are deleted. A `race` adopts the requests in its zones; their other resources are left
    to the plan for the winner.
    """
    disabled: set[str] = set()

    def note_disabled(kind: type[ResourceKind], error: TpuctlError) -> None:
        if not isinstance(error, ApiDisabled):
            raise error
        disabled.add(kind.kind)

    limits = asyncio.create_task(read_limits(stack, cloud)) if candidate is None else None
    region = None
    try:
        in_project = await list_resources(
            cloud,
            stack.project,
            stack=stack.name,
            include=lambda kind: kind.may_be_left(stack),
            other_nodes=candidate is None,
            unused_apis=stack.unused_apis,
            zones=stack.zones,
            on_error=note_disabled,
        )
        of_stack = [item for item in in_project if item.stack == stack.name]
        place, entered = place_and_race(stack, of_stack, candidate, race=race)
        former = await read_ledgers(stack, cloud)
        ledgers = former.restarted() if new_limits else former
        has_tpu = any(item.kind_class.is_tpu and is_charged(item) for item in of_stack)
        stack_in_use = with_controller(
            replace(stack.at(place), spent=ledgers.spent(has_tpu=has_tpu)), of_stack
        )
        region = (
            asyncio.create_task(read_region(stack_in_use, cloud)) if candidate is None else None
        )
        resources = resources_of(
            stack_in_use, cloud, sources=sources, public_key=public_key, race=entered
        )
        used = (stack_in_use.candidate,) if entered is None else entered.places
        addresses = addresses_of(resources)
        refuse_other_slices(stack_in_use, of_stack, addresses)
        resources += in_other_zones(
            [
                item
                for item in of_stack
                if is_left_over(item, stack_in_use, used, addresses)
                and not _is_of_controller(item, stack_in_use)
            ],
            stack_in_use,
            cloud,
            resources,
            beside_creation=True,
        )
        resources += await removed_grants(stack_in_use, cloud, resources)
        plan = plan_up(resources, await observe(resources, enables_apis=True))
        if len(stack.alternatives) > 1:
            plan = with_other_tpus_first(plan, addresses, stack_in_use.zone)
        await _refuse_lost_account(stack_in_use, plan, resources)
        if entered is not None:
            plan = _with_zone_undecided(plan, beside_tpu(resources))
        if limits is None or region is None:
            return Prepared(stack_in_use, plan, resources)
        quota = report_of(stack_in_use, plan, in_project, await limits, await region)
        was_up = bool(disabled) and await was_brought_up(stack_in_use, cloud, of_stack)
        unread = frozenset(disabled if was_up else ())
        return Prepared(
            stack_in_use,
            plan,
            resources,
            quota,
            entered,
            unread,
            ledgers.spending,
            ledgers.budget,
            former.spending if new_limits else None,
        )
    finally:
        for task in (limits, region):
            if task is not None:
                task.cancel()  # no longer needed if still running


def unread_warnings(prepared: Prepared) -> Sequence[Diagnostic]:
    """The warning that disabled APIs may have more of the stack."""
    if not prepared.unread:
        return ()
    detail = (
        f"{', '.join(f'{kind}/*' for kind in sorted(prepared.unread))}: their APIs are not enabled "
        f"in project {prepared.stack.project}, so the plan does not know what exists there"
    )
    hint = "`up` enables the APIs first, then plans again with what it finds."
    return (Diagnostic("Not checked", detail, hint),)


async def _refuse_lost_account(stack: Stack, plan: Plan, resources: Sequence[Resource]) -> None:
    """Raise Conflict if the stack's account no longer exists, but machines created with it do.

    They keep its identity: another account of the same name gives them no access.
    """
    account = f"account/{stack.names.service_account}"
    if not any(change.address == account and change.action is Action.CREATE for change in plan):
        return
    machines = [
        change.address
        for change in plan
        if change.action in (Action.NOTHING, Action.UPDATE)
        and kind_of(change.address).is_machine
        and kind_of(change.address) is not RemoteNode  # has an account of Google's
        and not (kind_of(change.address) is QueuedNodes and "readiness" in change.fields)
    ]
    if not machines:
        return
    # Another `up` may have created both since the account was looked for.
    accounts = [resource for resource in resources if resource.address == account]
    if (await observe(accounts, enables_apis=True))[account] is None:
        raise Conflict(
            "Machines' service account was deleted",
            f"{stack.service_account} no longer exists. Another account of the same name gives no "
            f"access to machines that were created with it: {', '.join(machines)}",
            hint="Recreate the machines:\n    tpuctl down\n    tpuctl up\n"
            "Or restore the account, within 30 days, by the unique ID in the audit log:\n"
            f"    gcloud iam service-accounts undelete UNIQUE_ID --project={stack.project}",
        )


def _is_of_controller(item: InventoryItem, stack: Stack) -> bool:
    """Whether it is the stack's controller, its boot disk, or its NAT, where it stays when the TPU
    moves."""
    if item.kind == Nat.kind:
        return item.serves(stack.zone_of_controller)
    kinds = (Controller.kind, DataDisk.kind)
    here = (stack.names.controller, stack.zone_of_controller)
    return item.kind in kinds and (item.name, item.zone) == here


def _with_zone_undecided(plan: Plan, later: Collection[str]) -> Plan:
    """The plan of a race, whose changes to `later` name no zone."""
    because = "beside the TPU, once its zone is decided"
    changes = (
        replace(change, because=because) if change.is_work and change.address in later else change
        for change in plan
    )
    return replace(plan, changes=tuple(changes))


def _require_raceable(stack: Stack) -> None:
    """Raise Usage if the stack cannot be requested in several zones at once."""
    tpu = stack.file.tpu
    in_order = "Without --race, its zones are tried in order:\n    tpuctl up"
    places = raced(stack)
    for is_problem, detail, hint in (
        (
            stack.is_node,
            "--race is for TPU VMs; a TPU node (tpu.kind: node) cannot be queued",
            in_order,
        ),
        (
            not places,
            "--race requests the TPU through queued resources, and tpu.queue is not set",
            f"Add to {stack.path}:\n    tpu: {{queue: true}}",
        ),
        (
            len(places) == 1,
            f"--race needs several zones; the stack has only {', '.join(map(str, places))}",
            "Add zones to tpu.zones. To list those that offer the type:\n"
            f"    tpuctl zones {tpu.type}",
        ),
        (
            bool(tpu.data_disks),
            "a data disk exists in one zone only, so the TPU cannot be requested in others",
            "Remove tpu.data_disks, or --race.",
        ),
    ):
        if is_problem:
            raise Usage("Race not possible", detail, hint=hint, where="--race")


async def allowed_sources(stack: Stack, cloud: Cloud) -> tuple[str, ...]:
    """The source ranges that the stack's firewall rule allows.

    With IAP, those of IAP; otherwise the ranges in the stack file, by default this machine's
    address.
    """
    network = stack.file.network
    if network.ssh == "iap":
        return (RELAY_RANGE,)
    return network.allow_from or (await caller_address_range(cloud.endpoint),)


async def access_warnings(stack: Stack, cloud: Cloud, plan: Plan) -> Sequence[Diagnostic]:
    """Warnings for a plan that creates machines without external addresses."""
    if stack.file.network.ssh == "external" or not _creates_machines(plan):
        return ()
    warnings = [] if stack.has_internet else [_without_addresses(stack)]
    if stack.file.network.ssh == "iap" and not await _may_tunnel(stack, cloud):
        warnings.append(_without_role(stack))
    return warnings


def _creates_machines(plan: Plan) -> bool:
    return any(
        change.action is Action.CREATE and kind_of(change.address).has_ssh for change in plan
    )


def resource_warnings(prepared: Prepared) -> Sequence[Diagnostic]:
    """Warnings about the stack's bucket, and its key."""
    kinds = (Bucket, KeyUse)
    resources = (resource for resource in prepared.resources if isinstance(resource, kinds))
    return [warning for resource in resources for warning in resource.warnings]


async def _worker_warnings(prepared: Prepared, cloud: Cloud) -> Sequence[Diagnostic]:
    """The warning that an existing network separates the workers."""
    network = next(resource for resource in prepared.resources if isinstance(resource, Network))
    try:
        networks = await network.existing()
    except Denied:
        return ()  # `up` creates the project
    if networks is None or networks.usable is None:
        return ()
    warning = await closed_ports_warning(prepared.stack, cloud, networks.usable)
    return () if warning is None else (warning,)


async def host_warnings(prepared: Prepared, cloud: Cloud) -> Sequence[Diagnostic]:
    """Warnings about the host project of a new TPU or controller (Shared VPC)."""
    stack = prepared.stack
    if not stack.has_shared_network or not _creates_machines(prepared.plan):
        return ()
    firewalls = [each for each in prepared.resources if isinstance(each, HostFirewall)]
    of_rules = [warning for firewall in firewalls for warning in firewall.warnings]
    return [*of_rules, *await agent_warnings(stack, cloud)]


def _runtime_warnings(prepared: Prepared) -> Sequence[Diagnostic]:
    """The warning that a new TPU is requested with a runtime that is in no list here."""
    stack = prepared.stack
    name = stack.file.tpu.runtime
    if name == "auto" or stack.is_node or stack.is_compute or runtime(name) is not None:
        return ()
    if not _creates_machines(prepared.plan):
        return ()
    names = [entry.version for entry in runtimes() if entry.fits(stack.accelerator)]
    like = " or ".join(nearest(name, names)) or names[0]
    detail = f"tpuctl does not know the runtime {name}, and requests it as it is"
    hint = f"If Google refuses it, use {like}, or auto, which is {names[0]}."
    return (Diagnostic("Unknown runtime", detail, hint),)


def _without_addresses(stack: Stack) -> Diagnostic:
    if stack.has_shared_network:
        commands = nat_commands(stack.network_project, stack.network_name, stack.region)
        way = f"ask its administrator for Cloud NAT:\n{commands}"
    else:
        way = "have `up` create Cloud NAT, billed hourly:\n    network: {nat: true}"
    return Diagnostic(
        "Machines without external addresses",
        "without Cloud NAT in the network they reach only the bucket and Google's APIs: no PyPI, "
        "no downloads of data",
        f"Upload packages with the job (job: {{wheels: wheels}}), or {way}",
    )


async def _may_tunnel(stack: Stack, cloud: Cloud) -> bool:
    """Whether the project grants the permission; True if that cannot be tested."""
    try:
        return TUNNEL in await granted_on_project(cloud, stack.project, [TUNNEL])
    except TpuctlError:
        return True


def _without_role(stack: Stack) -> Diagnostic:
    return Diagnostic(
        "IAP may deny access",
        f"project {stack.project} does not grant you {TUNNEL}; "
        "it may still be granted on single machines or by a conditional binding",
        f"Ask an administrator to run\n    gcloud projects add-iam-policy-binding "
        f"{stack.project} --member=user:YOU --role={ROLE}",
    )
