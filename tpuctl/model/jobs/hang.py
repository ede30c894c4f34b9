"""Hangs of jobs: when a job without progress is reported, and the report."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tpuctl.model.text.duration import seconds_of
from tpuctl.model.text.record_parsing import Index, Text

HANG_LIMIT = r"^[1-9][0-9]*(\.[0-9]+)?[smhdx]$"  # a duration, or a factor


class JobLimits(BaseModel):
    """When a job counts as hanging, and what happens then."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    hang: str | None = Field(
        "10x",
        pattern=HANG_LIMIT,
        description="Report a hang when the log shows no new step for this many times the usual "
        "time between steps, but at least 5 minutes; or no output for a duration such as 30m. "
        "null: never.",
    )
    on_hang: Literal["report", "restart"] = Field(
        "report",
        description="What to do about a hang besides the report. restart: end the attempt; another "
        "follows within job.retries.infrastructure.",
    )

    @property
    def spec(self) -> dict[str, Any] | None:
        """As the workers' supervisors read it."""
        if self.hang is None:
            return None
        is_factor = self.hang.endswith("x")
        limit = (
            {"factor": float(self.hang[:-1])} if is_factor else {"seconds": seconds_of(self.hang)}
        )
        return {**limit, "is_restarted": self.on_hang == "restart"}


class Hang(BaseModel):
    """A worker's report of a hang. Unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    worker: Index = Field(description="The worker that noticed it.")
    detail: Text = Field(description="What did not happen for how long.")
    stack: tuple[Text, ...] = Field(
        (),
        max_length=1000,
        description="The calls of the script's main thread, the innermost first.",
    )
