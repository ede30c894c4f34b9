"""The hunt for one node under a trace of capacity: when and where it would run.

All times are seconds of the trace.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from tpuctl.capacity_trace import ZoneTrace


@dataclass(frozen=True)
class Run:
    """A time in which a zone's node is ready; `is_preempted` unless it lasts to the hunt's end."""

    zone: ZoneTrace
    start: float
    end: float
    is_preempted: bool

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Hunt:
    """How nodes are hunted for: the zones in order, and what the cloud and the client take.

    `setup` passes from a request that is granted until the node is ready, and is lost if the room
    is; `poll` between two requests in all zones. With a poll of 0 a request waits in a queue, and
    is granted at once.
    """

    zones: Sequence[ZoneTrace]
    setup: float = 0.0
    poll: float = 0.0

    def runs(self, start: float, end: float) -> Iterator[Run]:
        """The runs of a node that is requested, and after each preemption again, until `end`."""
        now = start
        while now < end:
            zone = next((zone for zone in self.zones if zone.nodes_at(now)), None)
            if zone is None:
                now = self._next_request(now, end)
                continue
            lost = room_until(zone, now, end)
            if now + self.setup < lost:
                yield Run(zone, now + self.setup, lost, is_preempted=lost < end)
            now = lost

    def _next_request(self, now: float, end: float) -> float:
        """The first request after the next change: those before it are refused, too."""
        change = min((_next_change(zone, now, end) for zone in self.zones), default=end)
        return now + self.poll * ceil((change - now) / self.poll) if self.poll else change


def room_seconds(zones: Sequence[ZoneTrace], start: float, end: float) -> float:
    """How long any of the zones has room: what is used by a hunt that knows the trace, and whose
    nodes are ready at once."""
    return sum(run.seconds for run in Hunt(zones).runs(start, end))


def saved_seconds(runs: Iterable[Run], interval: float) -> float:
    """The work of these runs that checkpoints keep: a preemption loses what came after the last."""
    return sum(
        run.seconds // interval * interval if run.is_preempted else run.seconds for run in runs
    )


def room_until(zone: ZoneTrace, start: float, end: float) -> float:
    """When a zone has no room any more, from `start` on; at most `end`."""
    if not zone.nodes_at(start):
        return start
    index = bisect_right(zone.times, start)
    changes = zip(zone.times[index:], zone.nodes[index:], strict=True)
    return min(next((time for time, nodes in changes if not nodes), end), end)


def _next_change(zone: ZoneTrace, now: float, end: float) -> float:
    index = bisect_right(zone.times, now)
    return zone.times[index] if index < len(zone.times) else end
