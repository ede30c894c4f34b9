"""Append jobs to a stack's queue, and have the stack's controller run it."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tpuctl.cloud.caller_identity import principal_of
from tpuctl.cloud.objects import ObjectStore
from tpuctl.engine.step import step
from tpuctl.errors import ApiDisabled, Diagnostic, TpuctlError, Usage
from tpuctl.flows.context import Context
from tpuctl.flows.jobs.job_start import new_record, upload, used_ids, with_bundle, write_record
from tpuctl.flows.jobs.run_state import RunOptions
from tpuctl.flows.jobs.secret_versions import require_secrets
from tpuctl.flows.jobs.submission import Submission
from tpuctl.flows.machines.handover import has_queue, ready_controller
from tpuctl.flows.machines.inventory import list_resources
from tpuctl.flows.packages.tools import ensure_tools, require_available
from tpuctl.flows.stack.plan import Prepared
from tpuctl.flows.stack.up import up_without_tpu
from tpuctl.model.events import WarningIssued
from tpuctl.model.jobs.attempt import Placement
from tpuctl.model.jobs.job import JobRecord, new_job_id
from tpuctl.model.jobs.queue import Queued
from tpuctl.model.jobs.sweep import SweepValues
from tpuctl.model.stack.stack import Stack
from tpuctl.model.status.inventory import ResourceKind
from tpuctl.model.text.names import STACK_NAME, queued_stack_file
from tpuctl.resources.project.stack_record import Record


async def enqueue(
    context: Context, submission: Submission, options: RunOptions, queued: Queued
) -> list[JobRecord]:
    """Append the submission to the stack's queue, or one job for each of `options.each`, and have
    the controller run the queue; returns once it does, and the laptop is no longer needed.

    With `options.up` what the stack lacks is created first, except for its TPU, which the
    controller creates. Raises Usage if the stack, or the job, needs this computer. If this raises,
    nothing is queued; a warning says if the controller could not be given the queue.
    """
    require_unattended(context.stack, submission)
    await _require_parallel(context, min(queued.parallel, len(options.each)))
    context = replace(context, stack=context.stack.for_framework(submission.framework))
    submission = await with_bundle(submission, context.emit)
    if options.up:
        if not context.stack.has_internet:
            await require_available(submission.installation)
        context = replace(context, stack=await up_without_tpu(context, options.confirm))
    stack, emit = context.stack, context.emit
    await require_secrets(submission.secrets, context.cloud)
    name = stack.names.controller
    with step(emit, f"controller/{name}", "update", "it runs the stack's queue") as progress:
        async with ready_controller(
            stack, context.cloud, context.keys, emit, progress.report
        ) as controller:
            file = await _write_stack_file(context.store, stack.name, controller.file)
            queued = queued.model_copy(update={"stack_file": file})
            records = await append_jobs(context, submission, options.each, queued)
            progress.result = f"{name} runs the queue"
            try:
                await controller.start_queue()
            except TpuctlError as error:
                progress.result = str(error)
                emit(WarningIssued(_not_started(error)))
    return records


async def append_jobs(
    context: Context, submission: Submission, each: Sequence[SweepValues], queued: Queued
) -> list[JobRecord]:
    """Append the submission to the stack's queue in the bucket, or one job for each of these
    values. Something has to run the queue."""
    store = context.store
    submission = await with_bundle(submission, context.emit)
    bundle = submission.bundle
    assert bundle is not None
    shipped = await upload(bundle, store, {}, context.emit)
    assert shipped.name is not None, "without workers it is only sent to the bucket"
    installation = await ensure_tools(
        submission.installation,
        store,
        context.emit,
        workers_have_internet=context.stack.has_internet,
        may_download=context.may_download,
    )
    principal = principal_of(context.cloud)
    submission = replace(submission, installation=installation, submitted_as=principal)
    draft = await _draft(context, submission)
    jobs = [draft.with_values(values) for values in each] or [draft]
    used, records = list(await used_ids(store)), list[JobRecord]()
    for job in jobs:
        records.append(await _append(store, job, shipped.name, queued, used))
        used.append(records[-1].id)
    return records


async def hand_over_up(
    context: Context, confirm: Callable[[Prepared], None] | None = None, *, race: bool = False
) -> Stack:
    """Bring up all of the stack but its TPU, and have its controller create that, in any of the
    stack's zones; returns once the laptop is no longer needed. Raises as `up` does, and Usage."""
    require_unattended(context.stack)
    stack = await up_without_tpu(context, confirm, race=race)
    name = stack.names.controller
    with step(context.emit, f"controller/{name}", "update", "it creates the TPU") as progress:
        async with ready_controller(
            stack, context.cloud, context.keys, context.emit, progress.report
        ) as controller:
            await controller.start_up(race=race)
            if await has_queue(stack, context.cloud):
                await controller.start_queue()
            progress.result = f"{name} creates {stack.counted_type}"
    return stack


def require_unattended(stack: Stack, submission: Submission | None = None) -> None:
    """Raise Usage unless the stack's controller can run the queue, and this job, alone."""
    if stack.is_node:
        raise Usage(
            "TPU node needs this computer",
            "the account of a TPU node (tpu.kind: node) gets access to the bucket once the node "
            "exists, which the controller may not grant",
            hint="Use a TPU VM (tpu: {kind: vm}), or run without --detach.",
            where="tpu.kind",
        )
    if not stack.has_recovery:
        missing = "job.retries are all 0" if stack.controller else "the stack has no controller"
        raise Usage(
            "Controller missing",
            f"a stack's controller does this while this computer is off; {missing}",
            hint=f"Add to {stack.path}:\n    controller: {{}}",
            where="controller",
        )
    sources = submission.secrets.sources if submission is not None else {}
    here = sorted(name for name, source in sources.items() if source.variable)
    if here:
        names = ", ".join(here)
        raise Usage(
            "Secret is only on this computer",
            f"{names}: the controller may start the job, and start it again, while this computer "
            "is off",
            hint="Store it in Secret Manager, and set in the stack file:\n"
            f"    job: {{secrets: {{{here[0]}: secret:NAME}}}}",
            where="job.secrets",
        )


async def _require_parallel(context: Context, tpus: int) -> None:
    """Raise Usage unless the stack can have so many TPUs: 1 is its own."""
    stack = context.stack
    if tpus <= 1:
        return
    if stack.file.tpu.data_disks:
        raise Usage(
            "Data disks are of one TPU",
            f"{stack.path} sets tpu.data_disks, which further TPUs cannot have",
            hint="Read the data from the bucket, or run without --parallel.",
            where="tpu.data_disks",
        )
    others = [stack.parallel(number).name for number in range(2, tpus + 1)]
    if not re.fullmatch(STACK_NAME, others[-1]):
        raise Usage(
            "Stack name too long",
            f"further TPUs are named {others[0]} to {others[-1]}, of at most 26 characters",
            hint="Choose a shorter name for the stack, or run without --parallel.",
            where="stack",
        )

    def ignore_disabled(kind: type[ResourceKind], error: TpuctlError) -> None:
        if not isinstance(error, ApiDisabled):  # which has nothing
            raise error

    listed = await list_resources(
        context.cloud,
        stack.project,
        include=lambda kind: not kind.is_tpu,
        on_error=ignore_disabled,
    )
    if existing := sorted({item.stack for item in listed} & {*others}):
        raise Usage(
            "Stack exists",
            f"{', '.join(existing)}: a further TPU of stack {stack.name} would have this name",
            hint="Rename one of the stacks, or run without --parallel.",
            where="--parallel",
        )


def _not_started(error: TpuctlError) -> Diagnostic:
    return Diagnostic(
        "Queue not started",
        f"{error}. The queue is in the bucket",
        hint="To have the controller run it:\n    tpuctl up --detach\n"
        "Or run it here:\n    tpuctl jobs run",
    )


async def _draft(context: Context, submission: Submission) -> Submission:
    """The submission on machines that do not exist yet; a `down` from now on ends it."""
    contents = await Record(context.stack, context.cloud).read()
    placement = Placement(
        zone=context.stack.zone,
        node=context.stack.names.node,
        down_count=contents.down_count if contents is not None else 0,
    )
    machines = replace(submission.machines, placement=placement, runtime="")
    return replace(submission, machines=machines)


async def _write_stack_file(store: ObjectStore, stack: str, file: Mapping[str, Any]) -> str:
    content = json.dumps(file, indent=1, sort_keys=True).encode()
    name = queued_stack_file(stack, hashlib.sha256(content).hexdigest())
    await store.put_bytes(name, content)
    return name


async def _append(
    store: ObjectStore,
    submission: Submission,
    bundle_name: str,
    queued: Queued,
    used: Sequence[str],
) -> JobRecord:
    """Write a job's record under an id that is not used, with which it is in the queue."""
    bundle = submission.bundle
    assert bundle is not None
    choice = random.SystemRandom()
    at = store.clock.now()
    record = new_record(submission, bundle, new_job_id(at, choice, used), at)
    record = record.model_copy(update={"bundle_name": bundle_name, "queued": queued})
    return await write_record(store, record, choice, used)
