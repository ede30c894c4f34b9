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
        return [one for one in self.observations if isinstance(one, kind)]

    @property
    def steps(self) -> list[Step]:
        return self.of(Step)

    @property
    def ended(self) -> Ended | None:
        """How the script ended: where it ended badly, the failure that was told, else the last.

        What a process that it started fails with is its own affair while it ends well itself.
        """
        found = self.of(Ended)
        failed = [one for one in found if one.reason == "failed" and self.exit_code != 0]
        chosen = failed or found
        return chosen[-1] if chosen else None

    @property
    def has_failed(self) -> bool:
        """Whether the script came to a bad end of its own."""
        found = self.of(Ended)
        if self.stopped or any(one.reason == "steps" for one in found):
            return False
        if self.exit_code is None:
            return any(one.reason == "failed" for one in found)
        return bool(self.exit_code)

    @property
    def losses(self) -> list[float]:
        return [one.loss for one in self.steps if one.loss is not None]

    @property
    def examples(self) -> int | None:
        """The global batch: the usual one, which the last of an epoch may not be."""
        seen = [one.examples for one in self.steps if one.examples]
        return max(set(seen), key=seen.count) if seen else None

    @property
    def warm_steps(self) -> list[Step]:
        """Without the first, which compile; all where there are hardly more."""
        steps = self.steps
        return steps[WARM:] if len(steps) > WARM + 1 else steps[1:] or steps

    @property
    def step_seconds(self) -> float | None:
        """Of a usual step on this machine."""
        found = [one.seconds for one in self.warm_steps if one.seconds > 0]
        return median(found) if found else None

    @property
    def waited_share(self) -> float | None:
        """Which part of the steps' time was spent on waiting for data; None if nobody knows."""
        told = [one for one in self.warm_steps if one.waited is not None and one.seconds > 0]
        if not told:
            return None
        waited = math.fsum(one.waited or 0.0 for one in told)
        return min(1.0, waited / math.fsum(one.seconds for one in told))

    @property
    def planned_steps(self) -> int | None:
        """Of the whole run, where the script says so; the largest of several plans."""
        return max((one.steps for one in self.of(Planned) if one.steps), default=None)

    @property
    def saved(self) -> list[Checkpoint]:
        return [one for one in self.of(Checkpoint) if one.action == "saved"]

    @property
    def restored(self) -> list[Checkpoint]:
        return [one for one in self.of(Checkpoint) if one.action == "restored"]

    @property
    def strategy(self) -> Strategy | None:
        """The one with the most replicas."""
        return max(self.of(Strategy), key=lambda one: one.replicas, default=None)

    @property
    def training_step(self) -> Function | None:
        """The function that computes gradients; of several, what took longest to compile."""
        functions = self.functions
        training = [one for one in functions if any(each.trains for each in one.compilations)]
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
        return math.fsum(one.seconds for one in self.compilations)

    @property
    def peak(self) -> int | None:
        return max((one.peak for one in self.compilations if one.peak), default=None)

    @property
    def dynamic(self) -> int:
        """Dynamic dimensions in its programs."""
        return max((one.dynamic or 0 for one in self.compilations), default=0)


def functions_of(compilations: Iterable[Compiled]) -> list[Function]:
    """By function, what took longest first: that is the training step, as a rule.

    Keras' steps of training and of evaluation have one name, and stand on one line of the script.
    """
    grouped: dict[tuple[str, str, bool], list[Compiled]] = {}
    for one in compilations:
        grouped.setdefault((one.function, str(one.where), one.trains), []).append(one)
    functions = [Function(key[0], tuple(each)) for key, each in grouped.items()]
    return sorted(functions, key=lambda one: one.seconds, reverse=True)
