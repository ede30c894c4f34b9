"""What the steps themselves say: the loss, the data, the replicas, the checkpoints, the time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import PurePosixPath

from tpuctl.model.cost import dollars
from tpuctl.preflight.rehearsal.estimate import (
    UTILIZATION,
    Estimate,
    format_cost,
    format_time,
    rounded,
)
from tpuctl.preflight.rehearsal.findings import Finding, Target
from tpuctl.preflight.rehearsal.observations import Wrote
from tpuctl.preflight.rehearsal.passes import Pass

__all__ = ["checkpoints", "loss", "pipeline", "replicas", "whole_run"]

MUCH = 0.3  # of a step, spent on waiting for data
SHORT = 0.005  # seconds for a batch, below which the call itself is what is measured
BACKUP = (
    "Save to the job's folder in the bucket, and resume from there:\n"
    '    tf.keras.callbacks.BackupAndRestore(os.environ["TPUCTL_OUTPUT"] + "/backup")'
)


def loss(first: Pass, second: Pass | None) -> Finding:
    for run in (first, second):
        broken = [step for step in (run.steps if run else ()) if not _is_finite(step.loss)]
        if run is not None and broken:
            where = "" if run is first else f" on {run.replicas} replicas"
            return Finding(
                "loss",
                "error",
                f"is {broken[0].loss} at step {broken[0].number}{where}",
                hint="Find the first operation that produces it, on this machine:\n"
                "    tf.debugging.enable_check_numerics()",
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
    moved = f"{_number(losses[0])} to {_number(losses[-1])} in {len(losses)} steps"
    if losses[-1] > max(losses[0], 0) * 10:
        return Finding("loss", "risk", f"grows: {moved}", hint="Try a lower learning rate.")
    return Finding("loss", "fine", f"changes: {moved}, too few to say more")


def pipeline(first: Pass, likely: Estimate) -> Finding:
    """Who waits for whom. The CPU's step is slower than a TPU's: waiting only gets worse there."""
    share, seconds, examples = first.waited_share, first.step_seconds, first.examples
    if share is None or seconds is None:
        return Finding("data", "unknown", "unknown whether steps wait for it")
    rate = f", {rounded(examples / seconds)} examples/s" if examples else ""
    each = share * seconds
    if share >= MUCH and each < SHORT:
        return Finding("data", "fine", f"a batch is there within {each * 1000:.1f} ms{rate}")
    if share >= MUCH:
        return Finding(
            "data",
            "cost",
            f"steps wait for it {share:.0%} of their time even on this machine{rate}",
            hint="Let tf.data prefetch: map(…, num_parallel_calls=tf.data.AUTOTUNE), "
            "cache(), prefetch(tf.data.AUTOTUNE).",
        )
    message = f"keeps up with this machine's steps{rate}; waiting is {share:.0%}"
    if examples and likely.step_seconds is not None:
        rate_needed = examples / likely.step_seconds[0]
        message += f". The TPU may need up to {rounded(rate_needed)} examples/s"
    return Finding("data", "fine", message)


def replicas(first: Pass, second: Pass | None, target: Target) -> Finding:
    """Whether the whole slice works."""
    strategy = first.strategy or (second.strategy if second is not None else None)
    if target.replicas > 1 and (strategy is None or not _spreads(strategy.name)):
        subject = "creates no strategy" if strategy is None else f"uses {strategy.name}"
        return Finding(
            "replicas",
            "cost",
            f"{subject}: the {target.replicas} cores of {target.type} are not used",
            hint="Create the model and its optimizer in a TPUStrategy's scope.",
            where=strategy.where if strategy is not None else None,
        )
    if second is None or not second.steps:
        return Finding("replicas", "unknown", "several were not tested")
    if second.replicas < 2:
        return Finding("replicas", "fine", "one")
    cut = "" if second.replicas == target.replicas else f" ({target.type} has {target.replicas})"
    batch = f" with a batch of {second.examples:,} over all" if second.examples else ""
    return Finding("replicas", "fine", f"runs on {second.replicas}{cut}{batch}")


def checkpoints(first: Pass, second: Pass | None, target: Target) -> Iterator[Finding]:
    """Saved, where to, and whether the second run went on from there."""
    saved = first.saved or (second.saved if second is not None else [])
    risk = "a spot machine can be preempted at any time" if target.is_spot else "machines fail"
    if not saved:
        yield Finding(
            "checkpoint",
            "risk",
            f"none in {len(first.steps)} steps, nor when asked to stop: {risk}",
            hint=BACKUP,
        )
        return
    last = saved[-1]
    local = [checkpoint for checkpoint in saved if not _is_in_bucket(checkpoint.path)]
    if local and not _is_copied(local[-1].path, first, second):
        message = f"saved on the machine's own disk, and lost with it: {local[-1].path}"
        yield Finding("checkpoint", "risk", message, hint=BACKUP, where=local[-1].where)
    at = f" at step {last.step}" if last.step is not None else ""
    if second is None or not second.steps:
        yield Finding("checkpoint", "unknown", f"saved{at}; resuming from it was not tested")
    elif second.restored:
        back = second.restored[0].step
        from_there = f" from step {back}" if back is not None else ""
        yield Finding("checkpoint", "fine", f"saved{at}; after a restart it resumes{from_there}")
    else:
        yield Finding(
            "checkpoint",
            "risk",
            f"saved{at}, but after a restart it starts from scratch: {risk}",
            hint=f"It was saved as\n    {last.path}\nRestore the newest one at the start: "
            "TPUCTL_OUTPUT is the same in all attempts of the job.",
            where=last.where,
        )


def _is_copied(path: str, first: Pass, second: Pass | None) -> bool:
    """Whether what was saved on this machine went on to a bucket, or came back from one."""
    name = PurePosixPath(path).name
    paths = [write.path for write in first.of(Wrote)]
    if second is not None:
        paths += [checkpoint.path for checkpoint in second.restored]
        paths += [write.path for write in second.of(Wrote)]
    return any(_is_in_bucket(each) and name in each for each in paths)


def _is_in_bucket(path: str) -> bool:
    return path.startswith("gs://")


def whole_run(likely: Estimate, target: Target) -> Finding:
    """A range of time and cost, or the price and why there is none."""
    if likely.step_seconds is None:
        cost = f". {_per_step(target.per_hour)}" if target.per_hour is not None else ""
        return Finding("estimate", "unknown", f"none: {likely.unavailable_reason}{cost}")
    low, high = UTILIZATION
    ground = (
        f"where a chip reaches {low:.0%} to {high:.0%} of its peak performance, as larger models do"
    )
    step = f"a step {format_time(likely.step_seconds)}"
    if likely.seconds is None:
        return Finding("estimate", "fine", f"{step}, {ground}")
    whole = f"{likely.steps:,} steps in {format_time(likely.seconds)}"
    if likely.dollars is not None:
        whole += f", {format_cost(likely.dollars)}"
    return Finding("estimate", "fine", f"{whole}, {ground}: {step}")


def _per_step(per_hour: float) -> str:
    return f"1,000 steps cost {dollars(per_hour / 3.6)} per second of step time"


def _spreads(name: str) -> bool:
    return name not in ("OneDeviceStrategy", "_DefaultDistributionStrategy", "DefaultStrategy")


def _is_finite(value: float | None) -> bool:
    return value is None or math.isfinite(value)


def _number(value: float) -> str:
    return f"{value:.4g}"
