"""One run of a script for a few steps, and what can be read off its observations at once."""

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
    Ended,
    Observation,
    Planned,
    Step,
    Strategy,
)

__all__ = ["Function", "Mode", "Pass", "functions_of"]

Mode = Literal["xla", "replicas"]
T = TypeVar("T", bound=Observation)
WARM = 2  # steps at the beginning that compile, and fill caches


@dataclass(frozen=True)
class Pass:
    """A run of the script: what was seen of it, and how it came to its end."""

    mode: Mode
    replicas: int
    observations: tuple[Observation, ...]
    exit_code: int | None = None  # None: it was made to end
    seconds: float = 0.0
    log: Path = Path("log")
    tail: tuple[str, ...] = ()  # the last lines of its output
    raised_in: str = ""  # the file of the innermost frame of its last traceback
    stopped: Literal["", "timeout", "interrupted"] = ""  # by whom, where it did not end by itself

    def of(self, kind: type[T]) -> list[T]:
        """The observations of one kind, in order."""
        return [observation for observation in self.observations if isinstance(observation, kind)]

    @property
    def steps(self) -> list[Step]:
        return self.of(Step)

    @property
    def ended(self) -> Ended | None:
        """How the script ended: where it ended badly, the failure that was told, else the last.

        What a process that it started fails with is its own affair while it ends well itself.
        """
        ends = self.of(Ended)
        failed = [end for end in ends if end.reason == "failed" and self.exit_code != 0]
        candidates = failed or ends
        return candidates[-1] if candidates else None

    @property
    def has_failed(self) -> bool:
        """Whether the script came to a bad end of its own."""
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
        """The global batch: the usual one, which the last of an epoch may not be."""
        sizes = [step.examples for step in self.steps if step.examples]
        return max(set(sizes), key=sizes.count) if sizes else None

    @property
    def warm_steps(self) -> list[Step]:
        """Without the first, which compile; all where there are hardly more."""
        steps = self.steps
        return steps[WARM:] if len(steps) > WARM + 1 else steps[1:] or steps

    @property
    def step_seconds(self) -> float | None:
        """Of a usual step on this machine."""
        step = [durations.seconds for durations in self.warm_steps if durations.seconds > 0]
        return median(step) if step else None

    @property
    def waited_share(self) -> float | None:
        """Which part of the steps' time was spent on waiting for data; None if nobody knows."""
        waits = [step for step in self.warm_steps if step.waited is not None and step.seconds > 0]
        if not waits:
            return None
        waited = math.fsum(step.waited or 0.0 for step in waits)
        return min(1.0, waited / math.fsum(step.seconds for step in waits))

    @property
    def planned_steps(self) -> int | None:
        """Of the whole run, where the script says so; the largest of several plans."""
        return max((plan.steps for plan in self.of(Planned) if plan.steps), default=None)

    @property
    def saved(self) -> list[Checkpoint]:
        return [checkpoint for checkpoint in self.of(Checkpoint) if checkpoint.action == "saved"]

    @property
    def restored(self) -> list[Checkpoint]:
        return [checkpoint for checkpoint in self.of(Checkpoint) if checkpoint.action == "restored"]

    @property
    def strategy(self) -> Strategy | None:
        """The one with the most replicas."""
        return max(self.of(Strategy), key=lambda strategy: strategy.replicas, default=None)

    @property
    def training_step(self) -> Function | None:
        """The function that computes gradients; of several, what took longest to compile."""
        functions = self.functions
        training = [
            function for function in functions if any(each.trains for each in function.compilations)
        ]
        return next(iter(training), None)

    @property
    def functions(self) -> list[Function]:
        return functions_of(self.of(Compiled))


@dataclass(frozen=True)
class Function:
    """A function, and each of its compilations in order."""

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
        """Dynamic dimensions in its programs."""
        return max((compilation.dynamic or 0 for compilation in self.compilations), default=0)


def functions_of(compilations: Iterable[Compiled]) -> list[Function]:
    """By function, what took longest first: that is the training step, as a rule.

    Keras' steps of training and of evaluation have one name, and stand on one line of the script.
    """
    grouped: dict[tuple[str, str, bool], list[Compiled]] = {}
    for compilation in compilations:
        grouped.setdefault(
            (compilation.function, str(compilation.where), compilation.trains), []
        ).append(compilation)
    functions = [Function(key[0], tuple(each)) for key, each in grouped.items()]
    return sorted(functions, key=lambda function: function.seconds, reverse=True)
