"""The history of rehearsals on this machine: what was rehearsed is not suggested again, and no
advice is given twice for the same version of a script."""

from __future__ import annotations

from dataclasses import replace

from tpuctl.files import cache_home
from tpuctl.model.jobs.job import JobRecord
from tpuctl.model.stack.stack import Stack
from tpuctl.preflight.rehearsal.history import Content, RehearsalHistory

OBSERVED = ("tensorflow", "jax", "torch")  # frameworks, whatever the runtime


def rehearsal_history() -> RehearsalHistory:
    """The history of rehearsals."""
    return RehearsalHistory(cache_home() / "rehearsals")


def content_of(stack: Stack, digest: str, program: str) -> Content:
    """The history key for a rehearsal of this bundle for this stack."""
    kind = stack.file.tpu.kind
    return Content(digest, program, stack.accelerator.name, stack.runtime.version, kind)


def is_new_advice(topic: str, stack: Stack, content: Content) -> bool:
    """Whether this advice was not given on this machine for this content in this stack; from now
    on it was."""
    history = RehearsalHistory(cache_home() / "advice" / topic)
    content = replace(content, program=f"{stack.project}/{stack.name}/{content.program}")
    is_new = not history.has(content)
    if is_new:
        history.record(content, {})
    return is_new


def rehearsed_before(stack: Stack, record: JobRecord) -> bool:
    """Whether not to suggest a rehearsal: it was done, or this job cannot be rehearsed."""
    is_observed = stack.runtime.tensorflow is not None or record.framework in OBSERVED
    if record.kind == "shell" or not is_observed:
        return True
    return rehearsal_history().has(content_of(stack, record.bundle, record.script))
