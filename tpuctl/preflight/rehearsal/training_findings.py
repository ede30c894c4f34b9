"""What the steps themselves say: the loss, the data, the replicas, the checkpoints, the time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import PurePosixPath

from tpuctl.model.cost import dollars
from tpuctl.preflight.rehearsal.estimate import (
    UTILIZATION,
    Estimate,
    rounded,
    spoken_cost,
    spoken_time,
)
from tpuctl.preflight.rehearsal.findings import Finding, Target
from tpuctl.preflight.rehearsal.observations import Wrote
from tpuctl.preflight.rehearsal.passes import Pass

__all__ = ["checkpoints", "loss", "pipeline", "replicas", "whole_run"]

MUCH = 0.3  # of a step, spent on waiting for data
SHORT = 0.005  # seconds for a batch, below which the call itself is what is measured
BACKUP = (
    "Save to the job's folder in the bucket, and go on from there:\n"
    '    tf.keras.callbacks.BackupAndRestore(os.environ["TPUCTL_OUTPUT"] + "/backup")'
)


def loss(first: Pass, second: Pass | None) -> Finding:
    for one in (first, second):
        broken = [step for step in (one.steps if one else ()) if not _is_finite(step.loss)]
        if one is not None and broken:
            where = "" if one is first else f" on {one.replicas} replicas"
            return Finding(
                "loss",
                "error",
                f"is {broken[0].loss} at step {broken[0].number}{where}",
                hint="Find the first operation that makes it so, on this machine:\n"
                "    tf.debugging.enable_check_numerics()",
            )
    seen = first.losses
    if not seen:
        return Finding("loss", "unknown", "was not seen")
    if len(seen) == 1:
        return Finding("loss", "fine", f"{_number(seen[0])} after one step")
    if len(set(seen)) == 1:
        return Finding(
            "loss",
            "risk",
            f"stays {_number(seen[0])} in all {len(seen)} steps: nothing is learned",
            hint="Do the gradients reach the weights? Is the learning rate 0 at the start?",
        )
    moved = f"{_number(seen[0])} to {_number(seen[-1])} in {len(seen)} steps"
    if seen[-1] > max(seen[0], 0) * 10:
        return Finding("loss", "risk", f"grows: {moved}", hint="Try a lower learning rate.")
    return Finding("loss", "fine", f"moves: {moved}, too few to say more")


def pipeline(first: Pass, likely: Estimate) -> Finding:
    """Who waits for whom. The CPU's step is slower than a TPU's: waiting only gets worse there."""
    share, seconds, examples = first.waited_share, first.step_seconds, first.examples
    if share is None or seconds is None:
        return Finding("data", "unknown", "whether steps wait for it cannot be told")
    rate = f", {rounded(examples / seconds)} examples/s" if examples else ""
    each = share * seconds
    if share >= MUCH and each < SHORT:
        return Finding("data", "fine", f"a batch is there within {each * 1000:.1f} ms{rate}")
    if share >= MUCH:
        return Finding(
            "data",
            "cost",
            f"steps wait for it {share:.0%} of their time already here{rate}",
            hint="Let tf.data work ahead: map(…, num_parallel_calls=tf.data.AUTOTUNE), "
            "cache(), prefetch(tf.data.AUTOTUNE).",
        )
    kept = f"keeps up with this machine's steps{rate}; waiting is {share:.0%}"
    if examples and likely.step_seconds is not None:
        wanted = examples / likely.step_seconds[0]
        kept += f". The TPU may want up to {rounded(wanted)} examples/s"
    return Finding("data", "fine", kept)


def replicas(first: Pass, second: Pass | None, target: Target) -> Finding:
    """Whether the whole slice works."""
    strategy = first.strategy or (second.strategy if second is not None else None)
    if target.replicas > 1 and (strategy is None or not _spreads(strategy.name)):
        what = "makes no strategy" if strategy is None else f"uses {strategy.name}"
        return Finding(
            "replicas",
            "cost",
            f"{what}, so that the {target.replicas} cores of {target.type} are not used",
            hint="Make the model and its optimizer under a TPUStrategy's scope.",
            where=strategy.where if strategy is not None else None,
        )
    if second is None or not second.steps:
        return Finding("replicas", "unknown", "several were not tried")
    if second.replicas < 2:
        return Finding("replicas", "fine", "one")
    cut = "" if second.replicas == target.replicas else f" ({target.type} has {target.replicas})"
    batch = f" with a batch of {second.examples:,} over all" if second.examples else ""
    return Finding("replicas", "fine", f"runs on {second.replicas}{cut}{batch}")


def checkpoints(first: Pass, second: Pass | None, target: Target) -> Iterator[Finding]:
    """Saved, where to, and whether the second run went on from there."""
    saved = first.saved or (second.saved if second is not None else [])
    taken = "a spot machine is taken away at any time" if target.is_spot else "machines fail"
    if not saved:
        yield Finding(
            "checkpoint",
            "risk",
            f"none in {len(first.steps)} steps, nor when asked to stop: {taken}",
            hint=BACKUP,
        )
        return
    last = saved[-1]
    local = [one for one in saved if not _is_in_bucket(one.path)]
    if local and not _is_copied(local[-1].path, first, second):
        message = f"goes to the machine's own disk, and is lost with it: {local[-1].path}"
        yield Finding("checkpoint", "risk", message, hint=BACKUP, where=local[-1].where)
    at = f" at step {last.step}" if last.step is not None else ""
    if second is None or not second.steps:
        yield Finding("checkpoint", "unknown", f"saved{at}; going on from it was not tried")
    elif second.restored:
        back = second.restored[0].step
        from_there = f" from step {back}" if back is not None else ""
        yield Finding("checkpoint", "fine", f"saved{at}; started again, it goes on{from_there}")
    else:
        yield Finding(
            "checkpoint",
            "risk",
            f"saved{at}, but started again it begins anew: {taken}",
            hint=f"It was saved as\n    {last.path}\nRestore the newest one at the start. In the "
            "job's later attempts TPUCTL_OUTPUT is the same.",
            where=last.where,
        )


def _is_copied(path: str, first: Pass, second: Pass | None) -> bool:
    """Whether what was saved on this machine went on to a bucket, or came back from one."""
    name = PurePosixPath(path).name
    seen = [one.path for one in first.of(Wrote)]
    if second is not None:
        seen += [one.path for one in second.restored]
        seen += [one.path for one in second.of(Wrote)]
    return any(_is_in_bucket(each) and name in each for each in seen)


def _is_in_bucket(path: str) -> bool:
    return path.startswith("gs://")


def whole_run(likely: Estimate, target: Target) -> Finding:
    """A range of time and cost, or the price and why there is none."""
    if likely.step_seconds is None:
        cost = f". {_per_step(target.per_hour)}" if target.per_hour is not None else ""
        return Finding("estimate", "unknown", f"none: {likely.why_not}{cost}")
    low, high = UTILIZATION
    ground = f"where a chip reaches {low:.0%} to {high:.0%} of its peak, as larger models do"
    step = f"a step {spoken_time(likely.step_seconds)}"
    if likely.seconds is None:
        return Finding("estimate", "fine", f"{step}, {ground}")
    whole = f"{likely.steps:,} steps in {spoken_time(likely.seconds)}"
    if likely.dollars is not None:
        whole += f", {spoken_cost(likely.dollars)}"
    return Finding("estimate", "fine", f"{whole}, {ground}: {step}")


def _per_step(per_hour: float) -> str:
    return f"1,000 steps cost {dollars(per_hour / 3.6)} for each second that one takes"


def _spreads(name: str) -> bool:
    return name not in ("OneDeviceStrategy", "_DefaultDistributionStrategy", "DefaultStrategy")


def _is_finite(value: float | None) -> bool:
    return value is None or math.isfinite(value)


def _number(value: float) -> str:
    return f"{value:.4g}"
