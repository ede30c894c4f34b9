"""What a worker's chips do: their duty cycle and memory use, as its supervisor records them."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from tpuctl.model.text.record_parsing import ByteCount, Moment, Text


class ChipMetrics(BaseModel):
    """A sample of all chips of a worker. Unknown fields are ignored.

    Where a chip has two cores, libtpu measures the memory of each of them.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    at: Moment
    absence: Text = Field("", description="Why there are no values; empty if there are.")
    duty_cycle_percent: tuple[float, ...] = Field(
        (), max_length=1000, description="Percentage of the time in which a chip was computing."
    )
    hbm_used_bytes: tuple[ByteCount, ...] = Field((), max_length=1000)
    hbm_total_bytes: tuple[ByteCount, ...] = Field((), max_length=1000)

    @property
    def duty_cycle(self) -> float:
        """The mean of all chips, in percent."""
        return sum(self.duty_cycle_percent) / len(self.duty_cycle_percent)

    @property
    def fullest(self) -> tuple[int, int]:
        """Used and total memory of the chip with the least room left."""
        pairs = zip(self.hbm_used_bytes, self.hbm_total_bytes, strict=False)
        return max(pairs, key=_share)

    @property
    def fullness(self) -> float:
        """The share of the fullest chip's memory that is used."""
        return _share(self.fullest)


def _share(memory: tuple[int, int]) -> float:
    used, total = memory
    return used / max(total, 1)
