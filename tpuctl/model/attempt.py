"""The tries at one job: where each ran, why another followed, and how many more may."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Attempt", "Placement", "Retries", "Retry", "Verdict", "retries_left"]

Retry = Literal["preemption", "infrastructure", "failure"]  # each with a budget of its own


class Retries(BaseModel):
    """How often a job is tried again, by what ended the attempt before."""

    model_config = ConfigDict(frozen=True)

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

    def of(self, kind: Retry) -> int:
        return {
            "preemption": self.preemption,
            "infrastructure": self.infrastructure,
            "failure": self.failure,
        }[kind]


class Placement(BaseModel):
    """The machines that an attempt was started on, distinguished from others of the same names."""

    model_config = ConfigDict(frozen=True)

    zone: str
    node: str
    node_ids: tuple[str, ...] = Field((), description="IDs of all nodes, which are never reused.")
    created: datetime | None = Field(None, description="When the first of them was created.")
    down_count: int = Field(0, description="How often `down` had run on the stack by then.")


class Verdict(BaseModel):
    """`attempts/<n>/verdict.json`: why attempt n is to be followed by another.

    Written once, before anything is done about it: what is done hides what has happened.
    """

    model_config = ConfigDict(frozen=True)

    version: Literal[1] = 1
    kind: Retry
    name: str = Field(description="The class of failure, in one word.")
    cause: str = Field(description="In a sentence.")
    hint: str = ""
    worker: int | None = None
    detail: str = ""
    at: datetime
    by: str = ""


class Attempt(BaseModel):
    """`attempts/<n>/attempt.json`, of n = 2 and later: written once, by whoever starts it.

    Of several who would, the one that wrote it does; the others follow that attempt.
    """

    model_config = ConfigDict(frozen=True)

    version: Literal[1] = 1
    number: int = Field(ge=2)
    placement: Placement
    verdict: Verdict = Field(description="What ended the attempt before.")
    started: datetime
    started_by: str = ""
    claim: str = Field("", description="Random: no two writers' are alike.")

    @property
    def since(self) -> str:
        return f"{self.started.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def retries_left(retries: Retries, attempts: Iterable[Attempt]) -> dict[Retry, int]:
    """What is left of each budget after these attempts."""
    used = Counter(attempt.verdict.kind for attempt in attempts)
    kinds: tuple[Retry, ...] = ("preemption", "infrastructure", "failure")
    return {kind: max(0, retries.of(kind) - used[kind]) for kind in kinds}
