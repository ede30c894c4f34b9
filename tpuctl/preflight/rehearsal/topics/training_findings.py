"""Findings about training: the loss, the data, the replicas, the checkpoints, the duration."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import PurePosixPath

from tpuctl.preflight.rehearsal.estimate import (
    UTILIZATION,
    Estimate,
)
from tpuctl.preflight.rehearsal.findings import Finding, Target
from tpuctl.preflight.rehearsal.observations import Checkpoint, NonFinite, Postponed, Wrote
from tpuctl.preflight.rehearsal.passes import Pass
from tpuctl.units import approximate, cost_range, counted, dollars, time_range

MAX_WAIT_SHARE = 0.3  # of a step's duration, spent waiting for data
MIN_WAIT_SECONDS = 0.005  # per batch; shorter waits mainly measure the call itself
MAX_FILES = 3  # in a list
SAVE = "Save to the job's folder in the bucket, and resume from there:\n"
SAVE_HINTS = {
    "tensorflow": 'tf.keras.callbacks.BackupAndRestore(os.environ["TPUCTL_OUTPUT"] + "/backup")',
    "jax": 'orbax.checkpoint.CheckpointManager(os.environ["TPUCTL_OUTPUT"] + "/checkpoints")',
    "torch": 'with fsspec.open(os.environ["TPUCTL_OUTPUT"] + "/checkpoint.pt", "wb") as file:\n'
    "        torch.save(state, file)",
}
NAN_HINT = "Find the first operation that produces it, on this machine:\n"
NAN_CHECKS = {
    "tensorflow": "tf.debugging.enable_check_numerics()",
    "jax": 'jax.config.update("jax_debug_nans", True)',
    "torch": "torch.autograd.set_detect_anomaly(True)",
}
PREFETCH_HINTS = {
    "tensorflow": "Prefetch with tf.data: map(…, num_parallel_calls=tf.data.AUTOTUNE), "
    "cache(), prefetch(tf.data.AUTOTUNE).",
    "jax": "Load the next batches in other threads or processes while a step runs.",
    "torch": "Load in several processes: DataLoader(…, num_workers=8).",
}
LOGS = ("events.out.tfevents", ".log", ".jsonl", ".csv", ".txt")  # in names of files


def loss(first: Pass, second: Pass | None) -> Finding:
    for run in (first, second):
        nonfinite = [step for step in (run.steps if run else ()) if not _is_finite(step.loss)]
        if run is not None and nonfinite:
            where = "" if run is first else f" on {run.replicas} replicas"
            return Finding(
                "loss",
                "error",
                f"is {nonfinite[0].loss} at step {nonfinite[0].number}{where}",
                hint=f"{NAN_HINT}    {NAN_CHECKS[first.framework]}",
            )
    for parameters in first.of(NonFinite):
        return Finding(
            "loss",
            "error",
            f"{parameters.parameters} of {counted(parameters.total, 'parameter')} are infinite or "
            f"not a number after step {parameters.after_step}",
            hint=f"{NAN_HINT}    {NAN_CHECKS[first.framework]}",
        )
    losses = first.losses
    if not losses:
        return Finding("loss", "unknown", "was not observed")
    if len(losses) == 1:
        return Finding("loss", "fine", f"{_number(losses[0])} after one step")
    if len(set(losses)) == 1:
        return Finding(
            "loss",
            "risk",
            f"stays {_number(losses[0])} in all {len(losses)} steps: the model does not learn",
            hint="Check that gradients reach the weights, and that the learning rate is not 0.",
        )
    change = f"{_number(losses[0])} to {_number(losses[-1])} in {len(losses)} steps"
    if losses[-1] > max(losses[0], 0) * 10:
        return Finding("loss", "risk", f"grows: {change}", hint="Try a lower learning rate.")
    return Finding("loss", "fine", f"changes: {change}, too few for a trend")


def pipeline(first: Pass, run_estimate: Estimate) -> Finding:
    """Whether steps wait for data. On a TPU, whose steps are faster, they wait even longer."""
    share, seconds, examples = first.waited_share, first.step_seconds, first.examples
    if share is None or seconds is None:
        return Finding("data", "unknown", "whether steps wait for it is unknown")
    rate = f", {approximate(examples / seconds)} examples/s" if examples else ""
    wait_seconds = share * seconds
    if share >= MAX_WAIT_SHARE and wait_seconds < MIN_WAIT_SECONDS:
        return Finding("data", "fine", f"a batch is ready in {wait_seconds * 1000:.1f} ms{rate}")
    if share >= MAX_WAIT_SHARE:
        reason = "in other code, such as loading it" if first.jax else "waiting for it"
        return Finding(
            "data",
            "cost",
            f"steps spend {share:.0%} of their time {reason}, even on this machine{rate}",
            hint=PREFETCH_HINTS[first.framework],
        )
    message = f"keeps up with this machine's steps{rate}; waiting is {share:.0%}"
    if examples and run_estimate.step_seconds is not None:
        rate_needed = examples / run_estimate.step_seconds[0]
        message += f". The TPU may need up to {approximate(rate_needed)} examples/s"
    return Finding("data", "fine", message)


def replicas(first: Pass, second: Pass | None, target: Target) -> Finding:
    """Whether the script uses all cores of the slice."""
    strategy = first.strategy or (second.strategy if second is not None else None)
    if target.replicas > 1 and (strategy is None or not _uses_all_cores(strategy.name)):
        subject = "creates no strategy" if strategy is None else f"uses {strategy.name}"
        return Finding(
            "replicas",
            "cost",
            f"{subject}: the {target.replicas} cores of {target.type} are not used",
            hint="Create the model and its optimizer in a TPUStrategy's scope.",
            where=strategy.where if strategy is not None else None,
        )
    if second is None or not second.steps:
        return Finding("replicas", "unknown", "only one was tested")
    if second.replicas < 2:
        return Finding("replicas", "fine", "one")
    of_all = "" if second.replicas == target.replicas else f" ({target.type} has {target.replicas})"
    batch = f" with a global batch of {second.examples:,}" if second.examples else ""
    return Finding("replicas", "fine", f"runs on {second.replicas}{of_all}{batch}")


def checkpoints(first: Pass, second: Pass | None, target: Target) -> Iterator[Finding]:
    """Whether checkpoints are saved in a bucket, and whether the second pass resumed from them."""
    saved = first.saved or (second.saved if second is not None else [])
    risk = "a spot machine can be preempted at any time" if target.is_spot else "machines fail"
    outputs = [path for path in first.outputs if not _is_log(path)]
    save_hint = f"{SAVE}    {SAVE_HINTS[first.framework]}"
    if not saved and outputs:
        listed = ", ".join(outputs[:MAX_FILES]) + (", …" if len(outputs) > MAX_FILES else "")
        message = f"wrote {listed}; whether it resumes from there was not observed"
        yield Finding("checkpoint", "unknown", message)
        return
    postponed = first.of(Postponed)
    if not saved and postponed:
        message = f"none due in {len(first.steps)} steps: saving and resuming were not tested"
        hint = "Rehearse more steps than the manager's interval, with --steps."
        yield Finding("checkpoint", "unknown", message, hint=hint, where=postponed[0].where)
        return
    if not saved:
        files = [write.path for write in first.of(Wrote) if not _is_in_bucket(write.path)]
        files = [path for path in files if not _is_log(path)][:MAX_FILES]
        yield Finding(
            "checkpoint",
            "risk",
            f"none in {len(first.steps)} steps or after SIGTERM: {risk}",
            "\n".join(["files on the machine's disk are lost with it:", *files] if files else ()),
            save_hint,
        )
        return
    last = saved[-1]
    local = [checkpoint for checkpoint in saved if not _is_in_bucket(checkpoint.path)]
    if local and not _is_copied(local[-1].path, first, second):
        message = f"saved only on the machine's disk, and lost with it: {local[-1].path}"
        yield Finding("checkpoint", "risk", message, hint=save_hint, where=local[-1].where)
    at = f" at step {last.step}" if last.step is not None else ""
    if second is None or not second.steps:
        yield Finding("checkpoint", "unknown", f"saved{at}; resuming from it was not tested")
    elif resumed := _resumed_from(first, second):
        resumed_step = resumed[0].step
        from_there = f" from step {resumed_step}" if resumed_step is not None else ""
        yield Finding("checkpoint", "fine", f"saved{at}; after a restart it resumes{from_there}")
    else:
        yield Finding(
            "checkpoint",
            "risk",
            f"saved{at}, but after a restart it starts from scratch: {risk}",
            hint=f"It was saved as\n    {last.path}\nRestore the latest checkpoint at the start: "
            "TPUCTL_OUTPUT is the same in all attempts of the job.",
            where=last.where,
        )


def _resumed_from(first: Pass, second: Pass) -> list[Checkpoint]:
    """What the second pass restored, except what the first one did too: pretrained weights."""
    saved = {checkpoint.path for checkpoint in first.saved}
    pretrained = {checkpoint.path for checkpoint in first.restored} - saved
    return [checkpoint for checkpoint in second.restored if checkpoint.path not in pretrained]


def _is_copied(path: str, first: Pass, second: Pass | None) -> bool:
    """Whether a checkpoint on local disk was copied to a bucket or restored from one."""
    name = PurePosixPath(path).name
    paths = [*first.outputs, *(write.path for write in first.of(Wrote))]
    if second is not None:
        paths += [checkpoint.path for checkpoint in second.restored]
        paths += [write.path for write in second.of(Wrote)]
    return any(_is_in_bucket(candidate) and name in candidate for candidate in paths)


def _is_log(path: str) -> bool:
    return any(part in PurePosixPath(path).name for part in LOGS)


def _is_in_bucket(path: str) -> bool:
    return path.startswith("gs://")


def duration_and_cost(run_estimate: Estimate, target: Target) -> Finding:
    """The estimated duration and cost, or the reason why there is none, and the price."""
    if run_estimate.step_seconds is None:
        cost = f". {_per_step(target.per_hour)}" if target.per_hour is not None else ""
        return Finding("estimate", "unknown", f"none: {run_estimate.unavailable_reason}{cost}")
    low, high = UTILIZATION
    assumption = (
        f"if a chip reaches {low:.0%} to {high:.0%} of its peak performance, as larger models do"
    )
    step = f"a step takes {time_range(run_estimate.step_seconds)}"
    if run_estimate.seconds is None:
        return Finding("estimate", "fine", f"{step}, {assumption}")
    total = f"{run_estimate.steps:,} steps in {time_range(run_estimate.seconds)}"
    if run_estimate.dollars is not None:
        total += f", {cost_range(run_estimate.dollars)}"
    return Finding("estimate", "fine", f"{total}, {assumption}: {step}")


def _per_step(per_hour: float) -> str:
    return f"1,000 steps cost {dollars(per_hour / 3.6)} per second of step time"


def _uses_all_cores(name: str) -> bool:
    return name not in ("OneDeviceStrategy", "_DefaultDistributionStrategy", "DefaultStrategy")


def _is_finite(value: float | None) -> bool:
    return value is None or math.isfinite(value)


def _number(value: float) -> str:
    return f"{value:.4g}"
