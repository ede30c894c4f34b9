"""Rehearsals: a script run for a few steps on this machine, as the stack's workers would run it."""

from __future__ import annotations

import secrets
import tempfile
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.errors import Refused, Usage

if TYPE_CHECKING:
    from tpuctl.api.local_buckets import Sample
    from tpuctl.api.stack import StackApi
    from tpuctl.flows.submission import Submission
    from tpuctl.model.job import JobRecord
    from tpuctl.model.stack import Stack
    from tpuctl.preflight.rehearsal.finding import Target
    from tpuctl.preflight.rehearsal.outcome import Rehearsal
    from tpuctl.preflight.rehearsal.passes import Pass
    from tpuctl.preflight.rehearsal.record import Content, Rehearsed

__all__ = ["Wish", "rehearse", "rehearsed_before", "was_rehearsed"]

STEPS = 8
SECONDS = 600.0  # for each pass


@dataclass(frozen=True)
class Wish:
    """How to rehearse."""

    steps: int = STEPS
    seconds: float = SECONDS
    samples: tuple[Sample, ...] = ()
    tensorflow: str | None = None  # another version than the runtime's
    is_verbose: bool = False


async def rehearse(stack_api: StackApi, wanted: Submission, wish: Wish) -> Rehearsal:
    """Run what was submitted twice for some steps on this machine, and judge what was seen.

    Nothing of it reaches Google: gs:// is the local cloud's, which is started if need be. Ctrl-C
    ends it with what was found until then. Raises Refused for what is not Python, and for a
    TensorFlow that this Python has no image of.
    """
    from tpuctl.api.rehearsing import Rehearsing
    from tpuctl.flows.submit import make_bundle
    from tpuctl.preflight.rehearsal.judging import judge
    from tpuctl.preflight.rehearsal.outcome import Rehearsal

    if wanted.form == "shell":
        raise Refused(
            "Only Python can be rehearsed",
            f"{wanted.program} is a command, in which nothing can be observed",
            hint="Rehearse the script that it starts:\n    tpuctl rehearse SCRIPT",
        )
    if wanted.script is not None and not wanted.script.is_file():
        raise Usage("No such script", str(wanted.script), hint="Name a file that exists.")
    stack = stack_api.stack
    version = wish.tensorflow or stack.runtime.tensorflow
    await _require_image(stack_api, version, is_asked=wish.tensorflow is not None)
    memory = _memory()
    with tempfile.TemporaryDirectory(prefix="tpuctl-rehearsal-") as scratch:
        bundle = await make_bundle(wanted, Path(scratch))
        one = Rehearsing(
            stack,
            wanted,
            wish,
            bundle,
            replace(_target(stack), tensorflow=version),
            stack_api.emit,
            stack_api.may_install,
            home=memory.folder / "home",
            folder=memory.new_folder(new_name()),
            scratch=Path(scratch),
        )
        await one.prepare()
        passes = await one.run()
    first = passes[0]
    done = Rehearsal(
        judge(passes, one.target, asked=wish.steps, operations=_operations(first)),
        one.target,
        tuple(passes),
        one.folder,
        one.output,
        one.left_out,
        any(each.stopped == "interrupted" for each in passes),
    )
    for program in one.folder.glob("*/*.hlo"):  # large, and counted by now
        program.unlink(missing_ok=True)
    if not done.is_interrupted:
        outcome = {"errors": done.judgement.has_errors, "at": datetime.now(UTC).isoformat()}
        memory.note(_content(stack, bundle.digest, one.program), outcome)
    return done


def was_rehearsed(stack: Stack, record: JobRecord) -> bool:
    """Whether what the record names was rehearsed here, with the same content, for this stack."""
    return _memory().has(_content(stack, record.bundle, record.script))


def rehearsed_before(stack: Stack, record: JobRecord) -> bool:
    """Whether there is no reason to offer a rehearsal: it was done, or there is nothing to see."""
    if record.form == "shell" or stack.runtime.tensorflow is None:
        return True
    return was_rehearsed(stack, record)


def new_name() -> str:
    """A name for one rehearsal: `20261122-014500-ab12`."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def _memory() -> Rehearsed:
    from tpuctl.jobs.indexes import cache_home
    from tpuctl.preflight.rehearsal.record import Rehearsed

    return Rehearsed(cache_home() / "rehearsals")


def _content(stack: Stack, digest: str, program: str) -> Content:
    from tpuctl.preflight.rehearsal.record import Content

    kind = stack.file.tpu.kind
    return Content(digest, program, stack.accelerator.name, stack.runtime.version, kind)


def _target(stack: Stack) -> Target:
    from tpuctl.preflight.rehearsal.finding import Target

    one, price, nodes = stack.accelerator, stack.price, len(stack.nodes)
    return Target(
        type=one.name if nodes == 1 else f"{nodes} × {one.name}",
        generation=one.generation,
        chips=one.chips * nodes,
        replicas=one.devices * nodes,
        bytes_per_replica=(one.hbm_gb_per_chip << 30) * one.chips // one.devices,
        kind="node" if stack.is_node else "vm",
        per_hour=None if price is None else price.per_hour * nodes,
        price_note="" if price is None else f"{price.kind}, prices of {price.read}",
        is_spot=stack.is_spot,
    )


async def _require_image(stack_api: StackApi, version: str | None, *, is_asked: bool) -> None:
    """Raise Refused where no image has exactly this TensorFlow: another may behave otherwise."""
    from tpuctl.api.local import install_interpreter
    from tpuctl.emulator.machines import ImageStore
    from tpuctl.interpreters import install_hint, or_list

    if version is None:
        return
    images = ImageStore()
    minors = images.interpreters(version) if version in images.locks() else []
    if minors and not images.can_run(version):
        await install_interpreter(version, stack_api.emit, stack_api.may_install)
    if minors and images.can_run(version):
        return
    nearest = images.nearest(version)
    runtime = stack_api.stack.runtime.version
    what = f"TensorFlow {version}" if is_asked else f"{runtime}: TensorFlow {version}"
    hints = []
    if minors:
        what += f" needs Python {or_list(minors)}, and none was found on PATH, in pyenv or in uv"
        hints.append(install_hint(minors[0]))
    else:
        what += f". There are {', '.join(images.locks())}"
    if nearest is not None:
        hints.append(
            "Rehearse with another version, which may behave differently:\n"
            f"    tpuctl rehearse --tensorflow {nearest} SCRIPT"
        )
    raise Refused(
        "No image of this TensorFlow",
        what,
        hint="\n".join(hints),
        where="--tensorflow" if is_asked else "tpu.runtime",
    )


def _operations(first: Pass) -> float | None:
    """The arithmetic of the training step, where that could be counted."""
    from tpuctl.preflight.rehearsal.arithmetic import operations_of

    step = first.training_step
    named = step.compilations[0].program if step is not None else None
    if named is None:
        return None
    try:
        return operations_of(Path(named).read_text("utf-8", "replace"))
    except OSError:
        return None
