"""`up`: bring a stack up, trying one zone after another, until its machines are ready for jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict

from tpuctl.cloud.classification import NodesClosed
from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.threads import in_thread
from tpuctl.engine.apply import apply
from tpuctl.engine.planner import observe, observe_each, plan_down
from tpuctl.engine.step import step
from tpuctl.errors import Conflict, Denied, Diagnostic, TpuctlError
from tpuctl.flows.context import Context
from tpuctl.flows.machines.controller import shell_variables, write_shell_environment
from tpuctl.flows.machines.local_liveness import run_while_alive
from tpuctl.flows.stack.apply import apply_plan, errors_of, raise_failure
from tpuctl.flows.stack.capacity_history import record_attempts
from tpuctl.flows.stack.controller_recovery import tpu_resources
from tpuctl.flows.stack.down import down
from tpuctl.flows.stack.plan import Prepared, plan
from tpuctl.flows.stack.race import run_race
from tpuctl.flows.stack.spending import count_spending, require_left
from tpuctl.flows.stack.zones import (
    Refusal,
    candidates_to_try,
    may_continue,
    next_candidate,
    no_zone_error,
)
from tpuctl.jobs.launch import build_archive
from tpuctl.model.events import (
    Emit,
    Event,
    Note,
    Outcome,
    Planned,
    PlannedStep,
    StepFinished,
    WarningIssued,
)
from tpuctl.model.plan import Action, Plan
from tpuctl.model.stack.stack import Stack
from tpuctl.model.stack.stack_folder import other_folder_note, remember_folder
from tpuctl.model.status.status import NodeStatus
from tpuctl.model.text.record_parsing import Text, parse_answer
from tpuctl.polling import cancel, gather_all
from tpuctl.remote.transport import Result, Transport, with_retries
from tpuctl.resources.composition import belongs_to_tpu, kind_of
from tpuctl.resources.project.bucket import Bucket
from tpuctl.resources.project.enabled_apis import Services
from tpuctl.resources.project.project import Project
from tpuctl.resources.project.stack_record import Contents, Record

if TYPE_CHECKING:
    from tpuctl.remote.ssh import SshTransport

DOWN_AGAIN = "They may be charged. Delete them:\n    tpuctl down"
WORKERS, WATCHDOGS = "ssh/workers", "ssh/watchdog"
SSH_REASON = "jobs are submitted over SSH"
WATCHDOG_REASON = "machines enforce limits, and need access to the bucket"
T = TypeVar("T")
Report = Callable[[str], None]
DOWN_POLL_SECONDS = 5.0  # between checks for a concurrent `down`
FOLDER = ".tpuctl/watchdog"
PROGRAMS = ("watchdog.py", "ensure_watchdog.py", "probe.py", "folder.py", "storage.py")
IAM_TIMEOUT_SECONDS = 420.0  # longest observed propagation of IAM changes
# Of the machine's token, which a missing grant does not cause. A new account may need a moment.
UNKNOWN_CALLER, NEW_ACCOUNT_SECONDS = "HTTP 401", 30.0
NO_ACCESS = 91  # exit code: no access to the bucket, everything else succeeded
# Renamed into place: another `up` may be running the same files.
UNPACK = (
    'mkdir -p "$1" && new=$(mktemp -d "$1.XXXXXX") && tar -xf - -C "$new" '
    '&& mv -f "$new"/* "$1" && rmdir "$new" || { rm -rf "$new"; false; }'
)
ENSURE = 'python3 -S -I "$1/ensure_watchdog.py"'
PROBE = 'python3 -S -I "$1/probe.py" "$2" 0 >&2'
# In parallel, since each takes some time to start.
BOTH = f"{{ {PROBE} & {ENSURE}; ensured=$?; wait $! || proved=no; }}"
BOTH += f"; [ $ensured = 0 ] || exit $ensured; [ -z $proved ] || exit {NO_ACCESS}"


async def up(
    context: Context,
    confirm: Callable[[Prepared], None] | None = None,
    *,
    prepared: Prepared | None = None,
    race: bool = False,
    new_limits: bool = False,
) -> Prepared:
    """Bring the stack up and wait until every machine is ready for jobs. Raises QuotaExceeded
    before anything is created if quota is known to be too small in every zone, and TimedOut if
    nothing is left of its limits.

    `confirm` receives a plan with changes first; it may raise to cancel. A plan computed before
    can be passed as `prepared`. `race` requests the TPU in all zones at once. `new_limits` counts
    what is spent from zero.
    """
    stack, cloud, emit = context.stack, context.cloud, context.emit
    prepared = prepared or await plan(context, race=race, new_limits=new_limits)
    _require_quota(prepared, cloud)
    require_left(stack, prepared.spending, prepared.budget)
    if (note := other_folder_note(stack, context.jobs_cloud)) is not None:
        emit(note)
    if confirm is not None and not prepared.plan.is_empty:
        confirm(prepared)
    remember_folder(stack, context.jobs_cloud)
    emit(_planned_preparation(prepared))
    if not prepared.plan.is_empty:
        _ = context.keys.pair  # fails before anything is created
        await context.prepare_image(prepared.stack.runtime, emit)
        # What connects to machines takes 0.2 s to import: done while the cloud creates them.
        importing = asyncio.ensure_future(
            in_thread(import_module, "tpuctl.flows.machines.handover")
        )
        prepared = await provision(context, prepared)
        await importing
    from tpuctl.flows.machines.handover import prepare_controller
    from tpuctl.flows.machines.workers import connections, nodes_of

    async with connections(replace(context, stack=prepared.stack)) as transports:
        node = (await nodes_of(stack, cloud))[0] if stack.is_node else None
        await prepare_workers(prepared.stack, cloud, node, transports, emit)
    if not context.changes_only_tpu:
        await prepare_controller(prepared.stack, cloud, context.keys, emit)
    return prepared


async def up_without_tpu(
    context: Context, confirm: Callable[[Prepared], None] | None = None, *, race: bool = False
) -> Stack:
    """Bring up all of the stack but its TPU, which its controller then creates; return the stack in
    the zone that was planned.

    `confirm` receives the plan of the whole stack. Raises as `up` does.
    """
    prepared = await plan(context, race=race)
    _require_quota(prepared, context.cloud)
    require_left(prepared.stack, prepared.spending, prepared.budget)
    if confirm is not None and not prepared.plan.is_empty:
        confirm(prepared)
    remember_folder(prepared.stack, context.jobs_cloud)
    _ = context.keys.pair  # fails before anything is created
    await context.prepare_image(prepared.stack.runtime, context.emit)  # of the local cloud
    return (await provision(context, prepared, _without_tpu)).stack


def _without_tpu(prepared: Prepared) -> Prepared:
    """The same without what its controller creates; that also decides a race."""
    resources = [each for each in prepared.resources if not belongs_to_tpu(kind_of(each.address))]
    addresses = {resource.address for resource in resources}
    changes = tuple(change for change in prepared.plan if change.address in addresses)
    after = {address: prepared.plan.after[address] & addresses for address in addresses}
    return replace(prepared, plan=Plan(changes, after), resources=resources, race=None)


def _whole(prepared: Prepared) -> Prepared:
    return prepared


async def provision(
    context: Context, prepared: Prepared, part: Callable[[Prepared], Prepared] = _whole
) -> Prepared:
    """Apply a plan, or part of it, in other zones if necessary. Machines may not be reachable yet
    afterwards.

    Raises Conflict, with everything deleted again, if the stack was taken down at the same time.
    """
    detector = DownDetector(context.stack, context.cloud, context.emit)
    await detector.begin()
    applying = detector.run(_apply_counted(replace(context, emit=detector.emit), prepared, part))
    try:
        return await run_while_alive(applying, context.cloud.endpoint, "tpuctl up")
    except TakenDown as error:
        raise await _undo(context) from error


async def _apply_counted(
    context: Context, prepared: Prepared, part: Callable[[Prepared], Prepared]
) -> Prepared:
    """Apply the plan, with a ledger if a limit counts what is spent: before the machines, unless
    there is no bucket yet."""
    if not context.stack.counts_spending:
        return await _apply_to_candidates(context, prepared, part)
    former = prepared.former_spending
    is_new = former is not None
    is_counted = await count_spending(prepared.stack, context.cloud, is_new=is_new)
    if is_new:
        context.emit(Note(f"The limits count from zero. Used before: {former}."))
    applied = await _apply_to_candidates(context, prepared, part)
    if not is_counted or applied.stack.candidate != prepared.stack.candidate:
        await count_spending(applied.stack, context.cloud, is_new=False)
    return applied


async def _apply_to_candidates(
    context: Context, prepared: Prepared, part: Callable[[Prepared], Prepared]
) -> Prepared:
    """Apply the plan; on an error specific to the zone, region or API, plan and try the next one.

    A race is run first, whose winner is then the first zone to try. The next plan also deletes
    what was created before. Returns the plan that succeeded.
    """
    clock = context.cloud.server_clock
    context = replace(context, stack=context.stack.bounded(clock.now()))
    deadline = context.stack.deadline
    if prepared.unread:
        prepared = await _enable_apis(context, prepared)
    prepared = raced = part(prepared)
    if raced.race is not None:
        try:
            winner, applied = await run_race(
                context, raced.race, raced.stack, raced.plan, raced.resources
            )
        except TpuctlError:
            await _delete(_created(raced), raced, context.emit)
            raise
        raced = replace(raced, plan=applied)
        prepared = await plan(context, winner)
    candidates = candidates_to_try(prepared.stack, prepared.plan)
    refusals: list[Refusal] = []
    created: set[str] = set()  # by all plans: a controller stays when the TPU moves
    while True:
        candidate = prepared.stack.candidate
        created |= _created(prepared)
        try:
            results = await apply(prepared.plan, prepared.resources, context.emit)
            await record_attempts(
                prepared.stack, context.cloud, prepared.plan, prepared.resources, results
            )
            raise_failure(results)
        except TpuctlError as error:
            if isinstance(error, NodesClosed):  # the same in every zone
                await _delete(created, prepared, context.emit)
            if not may_continue(error, candidates):
                raise
            refusals.append(Refusal(candidate, error))
            is_over = deadline is not None and deadline <= clock.now()
            following = None if is_over else next_candidate(candidates, refusals)
            if following is None:
                await _delete(created, prepared, context.emit)
                last = no_zone_error(refusals, prepared.stack, candidates, is_over=is_over)
                if last is error:  # keeps its own cause
                    raise
                raise last from error
            context.emit(Note(f"{refusals[-1]}. Trying {following}."))
            prepared = part(await plan(context, following))
            continue
        if refusals:
            context.emit(
                Note(
                    f"Created {candidate.phrase}, "
                    f"because {'; '.join(str(refusal) for refusal in refusals)}."
                )
            )
        applied_plan = prepared.plan.with_results(results) if raced.race is None else raced.plan
        return replace(prepared, plan=applied_plan)


async def _enable_apis(context: Context, prepared: Prepared) -> Prepared:
    """Enable the APIs alone; return the plan with what they hid, such as a TPU in another zone."""
    kinds = (Project.kind, Services.kind)
    first = [resource for resource in prepared.resources if kind_of(resource.address).kind in kinds]
    addresses = {resource.address for resource in first}
    changes = tuple(change for change in prepared.plan if change.address in addresses)
    after = {address: prepared.plan.after[address] & addresses for address in addresses}
    await apply_plan(Plan(changes, after), first, context.emit)
    new_plan = await plan(context, race=prepared.race is not None)
    _require_quota(new_plan, context.cloud)
    return new_plan


def _require_quota(prepared: Prepared, cloud: Cloud) -> None:
    """Raise QuotaExceeded if the plan is known not to fit."""
    error = prepared.quota.error(prepared.stack.project, is_local=cloud.endpoint.is_local)
    if error is not None:
        raise error


def _created(prepared: Prepared) -> set[str]:
    """The zonal resources that a plan creates, requests for a TPU included."""
    return {
        change.address
        for change in prepared.plan
        if change.action is Action.CREATE and kind_of(change.address).is_zonal
    }


async def _delete(addresses: Collection[str], prepared: Prepared, emit: Emit) -> None:
    """Delete what was created, of the resources of a plan.

    What cannot be deleted is reported: the error that is the reason for this is raised.
    """
    resources = [resource for resource in prepared.resources if resource.address in addresses]
    snapshot, unread = await observe_each(resources)
    readable = [resource for resource in resources if resource.address not in unread]
    plan = plan_down(readable, snapshot)
    results = {} if plan.is_empty else await apply(plan, readable, emit)
    for error in (*unread.values(), *errors_of(results).values()):
        emit(WarningIssued(error.diagnostics[0], is_error=True))
    if left := [*unread, *errors_of(results)]:
        names = ", ".join(sorted(left))
        emit(WarningIssued(Diagnostic("Possibly not deleted", names, DOWN_AGAIN), is_error=True))


async def _undo(context: Context) -> TpuctlError:
    """Delete what was created during a concurrent `down`; return the error to raise."""
    stack = context.stack
    context.emit(Note("The stack is being taken down by another command: rolling back."))
    if context.changes_only_tpu:
        resources = tpu_resources(stack, context.cloud)
        await apply_plan(plan_down(resources, await observe(resources)), resources, context.emit)
    else:
        await down(context)
    return Conflict(
        "Stack taken down during up",
        f"another command took stack {stack.name} down at the same time; "
        "everything created has been deleted",
        hint="Bring it up again:\n    tpuctl up",
    )


def _planned_preparation(prepared: Prepared) -> Planned:
    """The steps of `prepare_workers`, which follow the plan."""
    addresses = (change.address for change in prepared.plan)
    machines = sorted(address for address in addresses if kind_of(address).is_machine)
    return Planned(
        (
            PlannedStep(WORKERS, "connect", SSH_REASON, tuple(machines)),
            PlannedStep(WATCHDOGS, "check", WATCHDOG_REASON, (WORKERS,)),
        )
    )


async def prepare_workers(
    stack: Stack,
    cloud: Cloud,
    node: NodeStatus | None,
    transports: Mapping[int, SshTransport],
    emit: Emit,
) -> None:
    """Wait until every machine is reachable and ready for jobs.

    `node` is the TPU node that the controller is configured for; None on TPU VMs.
    """
    from tpuctl.flows.machines.workers import connect_workers

    with step(emit, WORKERS, "connect", SSH_REASON):
        await connect_workers(cloud, list(transports.values()))
        if node is not None:
            variables = shell_variables(stack, node, cloud=cloud.endpoint.name)
            await write_shell_environment(transports[0], variables)
    with step(emit, WATCHDOGS, "check", WATCHDOG_REASON) as check:
        has_bell = stack.file.notify is not None
        has_watchdog = stack.has_limits or has_bell or (stack.is_node and stack.has_recovery)
        await prepare_machines(transports, stack.bucket, check.report, has_watchdog=has_watchdog)


# A concurrent `down` -----------------------------------------------------------------------


class TakenDown(Exception):
    """A `down` has started since the work began."""


class DownDetector:
    """Detects a `down` since `begin`, from the counter in the stack's record.

    Only the project and its APIs are created before the bucket, so `down` finds a bucket to
    record itself in.
    """

    def __init__(self, stack: Stack, cloud: Cloud, emit: Emit) -> None:
        self._bucket = Bucket(stack, cloud)
        self._record = Record(stack, cloud)
        self._emit = emit
        self._before: Contents | None = None
        self._has_record = self._has_bucket = False

    async def begin(self) -> None:
        self._before = await self._record.read()
        self._has_record = self._before is not None

    def emit(self, event: Event) -> None:
        """Emit the event; note when the bucket exists."""
        if isinstance(event, StepFinished) and event.address == self._bucket.address:
            self._has_bucket = event.outcome in (Outcome.DONE, Outcome.UNCHANGED)
        self._emit(event)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`; cancel it and raise TakenDown if a `down` starts at the same time."""
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({task}, timeout=DOWN_POLL_SECONDS))[0]:
                if await self._ignoring_errors(self._was_taken_down):
                    raise TakenDown
            if task.exception() is not None:
                if await self._ignoring_errors(self._was_taken_down) or await self._ignoring_errors(
                    self._lost_bucket
                ):
                    raise TakenDown from task.exception()
            elif await self._was_taken_down() or not self._has_record:
                raise TakenDown  # `work` wrote a record, which is gone: deleted with the bucket
            return task.result()
        finally:
            await cancel(task)

    async def _was_taken_down(self) -> bool:
        now = await self._record.read()
        if now is None:
            was_there, self._has_record = self._has_record, False
            return was_there
        self._has_record = True
        return now.down_count != (self._before.down_count if self._before is not None else 0)

    async def _lost_bucket(self) -> bool:
        return self._has_bucket and await self._bucket.observe() is None

    async def _ignoring_errors(self, look: Callable[[], Awaitable[bool]]) -> bool:
        """False if the check fails: the work continues, or raises its own error."""
        try:
            return await look()
        except TpuctlError:
            return False


# A machine is ready once its watchdog runs and its account has access to the bucket --------


@dataclass(frozen=True)
class WatchdogState:
    """The watchdog of one machine. `failure` is the error of its last attempt to delete."""

    worker: int
    was_started: bool  # just now over SSH, since it had not started at boot
    activity: str
    failure: str


async def prepare_machines(
    transports: Mapping[int, Transport], bucket: str, report: Report, *, has_watchdog: bool
) -> dict[int, WatchdogState]:
    """Ensure watchdogs on all machines, if required, and bucket access on the first, in parallel.

    Takes one command per machine, unless there is something to wait for.
    """
    first, *others = transports

    async def prepare_first() -> WatchdogState | None:
        script = f"{UNPACK} && {BOTH if has_watchdog else f'{{ {PROBE} || exit {NO_ACCESS}; }}'}"
        transport = transports[first]
        argv = ["sh", "-c", script, "sh", FOLDER, bucket]
        result = await transport.run(argv, input=build_archive(PROGRAMS, {}))
        if result.exit_code == NO_ACCESS:
            report(result.stderr.decode(errors="replace").strip())
            await _wait_for_access(transport, bucket, report)
        else:
            result.check(f"worker {transport.name}: starting the watchdog")
        return _state(transport.worker, result.stdout) if has_watchdog else None

    work = [prepare_first()]
    if has_watchdog:
        work += [_ensure_watchdog(transports[worker]) for worker in others]
    states = await gather_all(work)
    return {state.worker: state for state in states if state is not None}


async def _ensure_watchdog(transport: Transport) -> WatchdogState:
    script = f"{UNPACK} && {ENSURE}"
    result = await transport.run(
        ["sh", "-c", script, "sh", FOLDER], input=build_archive(PROGRAMS, {})
    )
    result.check(f"worker {transport.name}: starting the watchdog")
    return _state(transport.worker, result.stdout)


class _WatchdogAnswer(BaseModel):
    """What `ensure_watchdog.py` answers."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    was_started: bool
    activity: Text = ""
    failure: Text = ""


def _state(worker: int, text: bytes) -> WatchdogState:
    state = parse_answer(_WatchdogAnswer, text, f"worker {worker}")
    return WatchdogState(worker=worker, **state.model_dump())


async def _wait_for_access(transport: Transport, bucket: str, report: Report) -> None:
    """Raises Denied with the last error after a timeout."""
    last, began = "", time.monotonic()
    argv = ["python3", "-S", "-I", f"{FOLDER}/probe.py", bucket, str(IAM_TIMEOUT_SECONDS)]

    async def probe() -> Result:
        nonlocal last
        async with transport.stream(argv) as stream:
            async for chunk in stream.chunks():
                lines = chunk.decode(errors="replace").splitlines()
                last = lines[-1] if lines else last
                if UNKNOWN_CALLER in last and time.monotonic() - began >= NEW_ACCOUNT_SECONDS:
                    raise Denied(
                        "Machine's service account was deleted",
                        f"worker {transport.name}, gs://{bucket}: {last}\n"
                        "The account that the machine was created with no longer exists, even if "
                        "there is another of the same name",
                        hint="Recreate the machines:\n    tpuctl down\n    tpuctl up",
                    )
                report(f"waiting for the machine's access to the bucket: {last}")
            return await stream.result()

    result = await with_retries(probe)
    if result.exit_code in (1, 2):
        raise Denied(
            "Machine cannot access the bucket",
            f"worker {transport.name}, gs://{bucket}: {last}",
            hint="The grants were removed, or a policy denies them: check the bucket's IAM policy "
            "and the organization policies.",
        )
    result.check(f"worker {transport.name}: testing access to gs://{bucket}")
