"""Attempts of a job: where each ran, why the next one followed, and the remaining retries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from tpuctl.model.text.record_parsing import AttemptNumber, Count, Index, Moment, Name, Text

Retry = Literal["preemption", "infrastructure", "failure", "requested"]  # each has its own budget


class Retries(BaseModel):
    """Maximum number of restarts of a job, by the cause of the failure."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    preemption: int = Field(10, ge=0, le=1000, description="Maximum restarts after preemption.")
    infrastructure: int = Field(
        3,
        ge=0,
        le=1000,
        description="Maximum restarts after a failure of a machine or a Google service.",
    )
    failure: int = Field(
        0, ge=0, le=1000, description="Maximum restarts after a failure of the script."
    )
    requested: int = Field(
        10,
        ge=0,
        le=1000,
        description="Maximum restarts that the script requests by exiting with code 75.",
    )

    def of(self, kind: Retry) -> int:
        budget: int = getattr(self, kind)
        return budget

    @property
    def total(self) -> int:
        """The maximum number of restarts for all causes together."""
        return self.preemption + self.infrastructure + self.failure + self.requested


class Placement(BaseModel):
    """The machines that an attempt was started on, distinguished from later ones of the same
    name."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    zone: Name
    node: Name
    node_ids: tuple[Name, ...] = Field((), description="IDs of all nodes, which are never reused.")
    created: Moment | None = Field(None, description="Creation time of the first node.")
    down_count: Count = Field(0, description="Number of times `down` had run on the stack by then.")
    accelerator: Name = Field("", description="TPU type of the nodes; empty if unknown.")
    runtime: Name = Field("", description="Software version of the nodes; empty if unknown.")
    capacity: Name = Field("", description="Their capacity, if the stack has alternatives.")
    tpu: Count = Field(
        1, ge=1, description="The number of the TPU, of those that work on the queue in parallel."
    )


class Verdict(BaseModel):
    """`attempts/<n>/verdict.json`: why attempt n is followed by another.

    Written once, before recovery starts, since recovery hides what has happened.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    version: Literal[1] = 1
    kind: Retry
    name: Name = Field(description="Failure class, in one word.")
    cause: Text = Field(description="The cause in a sentence.")
    hint: Text = ""
    worker: Index | None = None
    detail: Text = ""
    at: Moment
    by: Name = ""


class Attempt(BaseModel):
    """`attempts/<n>/attempt.json`, for n >= 2: written once, by the program that starts it.

    If several programs try, the one that wrote it starts the attempt; the others follow it.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    version: Literal[1] = 1
    number: AttemptNumber = Field(ge=2)
    placement: Placement
    verdict: Verdict = Field(description="What ended the previous attempt.")
    started: Moment
    started_by: Name = ""
    write_id: Name = Field("", description="Random, unique per writer.")

    @property
    def since(self) -> str:
        return f"{self.started.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def retries_left(retries: Retries, attempts: Iterable[Attempt]) -> dict[Retry, int]:
    """The remaining retries per cause after these attempts."""
    used = Counter(attempt.verdict.kind for attempt in attempts)
    kinds: tuple[Retry, ...] = get_args(Retry)
    return {kind: max(0, retries.of(kind) - used[kind]) for kind in kinds}
