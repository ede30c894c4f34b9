"""A pass: one run of a script for a few steps, with properties derived from its observations."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Literal, TypeVar

from tpuctl.preflight.rehearsal.observations import (
    Checkpoint,
    Compiled,
    Distributed,
    Ended,
    Observation,
    Planned,
    Started,
    Step,
    Strategy,
)

Mode = Literal["xla", "replicas"]
T = TypeVar("T", bound=Observation)
WARMUP_STEPS = 2  # first steps, which compile and fill caches


@dataclass(frozen=True)
class LeftOut:
    """A file of the user's folder that the script did not find, since it is not uploaded."""

    name: str
    rule: str
    remedy: str


@dataclass(frozen=True)
class Pass:
    """A run of the script: its observations and how it exited."""

    mode: Mode
    replicas: int
    observations: tuple[Observation, ...]
    exit_code: int | None = None  # None if unknown
    seconds: float = 0.0
    log: Path = Path("log")
    tail: tuple[str, ...] = ()  # the last lines of its output
    stopped: Literal["", "timeout", "interrupted"] = ""  # why tpuctl stopped it; empty if not
    left_out: LeftOut | None = None  # what made it fail
    processes: tuple[Pass, ...] = ()  # of a slice, if several ran; this is the first of them
    outputs: tuple[str, ...] = ()  # gs:// paths below the output folder when it exited

    def of(self, kind: type[T]) -> list[T]:
        """The observations of one kind, in order."""
        return [observation for observation in self.observations if isinstance(observation, kind)]

    @property
    def jax(self) -> str | None:
        """The version of JAX, if the script trains with it."""
        return next((start.jax for start in self.of(Started) if start.jax), None)

    @property
    def torch(self) -> str | None:
        """The version of PyTorch, if the script trains with it."""
        return next((start.torch for start in self.of(Started) if start.torch), None)

    @property
    def framework(self) -> Literal["tensorflow", "jax", "torch"]:
        """The framework that trains; TensorFlow if nothing tells."""
        return (
            "jax" if self.jax is not None else "torch" if self.torch is not None else "tensorflow"
        )

    @property
    def has_global_batch(self) -> bool:
        """Whether a step of the first pass is one of all devices: not with TensorFlow, nor where
        one process took the part of several."""
        return self.jax is not None or (self.torch is not None and not self.of(Distributed))

    @property
    def steps(self) -> list[Step]:
        return self.of(Step)

    @property
    def ended(self) -> Ended | None:
        """The last failure if the script failed, otherwise the last exit of any process.

        Failures of child processes do not count if the script itself succeeds.
        """
        ends = self.of(Ended)
        failed = [end for end in ends if end.reason == "failed" and self.exit_code != 0]
        candidates = failed or ends
        return candidates[-1] if candidates else None

    @property
    def has_failed(self) -> bool:
        """Whether the script failed without being stopped."""
        ends = self.of(Ended)
        if self.stopped or any(end.reason == "steps" for end in ends):
            return False
        if self.exit_code is None:
            return any(end.reason == "failed" for end in ends)
        return bool(self.exit_code)

    @property
    def losses(self) -> list[float]:
        return [step.loss for step in self.steps if step.loss is not None]

    @property
    def examples(self) -> int | None:
        """The most frequent global batch size; the last batch of an epoch may be smaller."""
        sizes = [step.examples for step in self.steps if step.examples]
        return max(set(sizes), key=sizes.count) if sizes else None

    @property
    def warm_steps(self) -> list[Step]:
        """The steps after the warm-up; if there are too few, all but the first."""
        steps = self.steps
        return steps[WARMUP_STEPS:] if len(steps) > WARMUP_STEPS + 1 else steps[1:] or steps

    @property
    def step_seconds(self) -> float | None:
        """The median duration of a step on this machine."""
        durations = [step.seconds for step in self.warm_steps if step.seconds > 0]
        return median(durations) if durations else None

    @property
    def waited_share(self) -> float | None:
        """The share of the steps' time that was spent waiting for data; None if unknown."""
        waits = [step for step in self.warm_steps if step.waited is not None and step.seconds > 0]
        if not waits:
            return None
        waited = math.fsum(step.waited or 0.0 for step in waits)
        return min(1.0, waited / math.fsum(step.seconds for step in waits))

    @property
    def planned_steps(self) -> int | None:
        """The steps of the full run, the largest of several plans; None if unknown."""
        return max((plan.steps for plan in self.of(Planned) if plan.steps), default=None)

    @property
    def saved(self) -> list[Checkpoint]:
        return [checkpoint for checkpoint in self.of(Checkpoint) if checkpoint.action == "saved"]

    @property
    def restored(self) -> list[Checkpoint]:
        return [checkpoint for checkpoint in self.of(Checkpoint) if checkpoint.action == "restored"]

    @property
    def strategy(self) -> Strategy | None:
        """The strategy with the most replicas."""
        return max(self.of(Strategy), key=lambda strategy: strategy.replicas, default=None)

    @property
    def training_step(self) -> Function | None:
        """The function that computes gradients; of several, the one that compiled longest."""
        for function in self.functions:
            if any(compiled.trains for compiled in function.compilations):
                return function
        return None

    @property
    def functions(self) -> list[Function]:
        return group_by_function(
            compiled for compiled in self.of(Compiled) if compiled.after_step is None
        )


@dataclass(frozen=True)
class Function:
    """A function and its compilations, in order."""

    name: str
    compilations: tuple[Compiled, ...] = field(default_factory=tuple)

    @property
    def seconds(self) -> float:
        return math.fsum(compilation.seconds for compilation in self.compilations)

    @property
    def peak(self) -> int | None:
        return max(
            (compilation.peak for compilation in self.compilations if compilation.peak),
            default=None,
        )

    @property
    def dynamic(self) -> int:
        """The highest number of dynamic dimensions in its programs."""
        return max((compilation.dynamic or 0 for compilation in self.compilations), default=0)


def group_by_function(compilations: Iterable[Compiled]) -> list[Function]:
    """Functions by compile time, longest first, which is usually the training step.

    Training and evaluation steps are kept apart: in Keras they share a name and the script's line.
    """
    grouped: dict[tuple[str, str, bool], list[Compiled]] = {}
    for compilation in compilations:
        grouped.setdefault(
            (compilation.function, str(compilation.where), compilation.trains), []
        ).append(compilation)
    functions = [Function(key[0], tuple(group)) for key, group in grouped.items()]
    return sorted(functions, key=lambda function: function.seconds, reverse=True)
