"""How long slow things take: nothing, moments that can be watched, or as in the real cloud."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["DEFAULT_PACE", "PACES", "Pace"]

DEFAULT_PACE = "quick"

# Seconds per step at (quick, real), a step being an operation or its whole collection: what
# "compute.disks" has is meant for "compute.disks.resize", too. The real ones were seen where a
# source is named; the others are guesses and stand on the list of things not tried against Google.
_SECONDS: Mapping[str, tuple[float, float]] = {
    "tpu.nodes.create": (2.0, 300.0),  # "TPU VM 3-10 min" in public reports, 2019-2026
    "tpu.nodes.delete": (0.6, 60.0),  # guess
    "tpu.nodes.update": (0.2, 8.0),  # guess
    "tpu.nodes.stop": (0.6, 60.0),  # guess
    "tpu.nodes.start": (1.0, 180.0),  # guess
    "tpu.v1.create": (2.0, 240.0),  # guess
    "tpu.v1.delete": (0.6, 60.0),  # guess
    "tpu.v1.stop": (0.6, 60.0),  # guess
    "tpu.v1.start": (1.0, 180.0),  # guess
    "tpu.v1.reimage": (1.0, 120.0),  # guess
    "tpu.stockout": (0.4, 40.0),  # 27 to 71 s in public reports, 2019-2026
    "tpu.preempt": (3.0, 30.0),  # compute/docs/instances/preemptible: 30 s
    "tpu.maintain": (3.0, 300.0),  # guess
    "tpu.queued.create": (0.3, 10.0),  # about ten dots of gcloud in public logs of 2026
    "tpu.queued.accept": (0.2, 5.0),  # guess
    "tpu.queued.wait": (0.3, 60.0),  # guess; a report of 2026 tells of 132 s until PROVISIONING
    "tpu.queued.reset": (1.0, 240.0),  # about four minutes in public notes of 2026
    "services.enable": (0.6, 150.0),  # "API enabling 2-3 min" in public reports
    "services.disable": (0.3, 20.0),  # guess
    "projects.create": (0.6, 20.0),  # guess
    "projects.delete": (0.2, 5.0),  # guess
    # From creation until policies accept them, 0 where nobody wants to watch that: a new role was
    # refused for 12 to 18 seconds in one public report, a new account's time is a guess.
    "identity.roles.visible": (0.0, 15.0),
    "identity.accounts.visible": (0.0, 5.0),
    "compute.networks": (0.6, 30.0),  # guess
    "compute.firewalls": (0.3, 10.0),  # guess
    "compute.metadata": (0.3, 8.0),  # guess
    "compute.subnetworks": (0.4, 15.0),  # guess
    "compute.addresses": (0.3, 8.0),  # guess
    "compute.globalAddresses": (0.3, 8.0),  # guess
    "compute.disks": (0.3, 5.0),  # guess
    "compute.snapshots": (0.3, 8.0),  # guess
    "compute.instances": (0.2, 4.0),  # labels and such: guess
    "compute.instances.insert": (1.0, 45.0),  # "Compute VM 30-60 s" in public reports
    "compute.instances.bulkInsert": (0.0, 0.0),  # takes as long as its insertions
    "compute.instances.refused": (0.4, 20.0),  # 7 s and 96 s in two public reports
    "compute.instances.delete": (0.6, 60.0),  # guess
    "compute.instances.stop": (0.6, 60.0),  # guess
    "compute.instances.start": (0.8, 30.0),  # guess
    "compute.instances.reset": (0.6, 10.0),  # guess
    "compute.instances.preempted": (0.0, 0.0),  # its notice is the time it takes
    "compute.instances.nothing": (0.1, 2.0),  # guess
    "compute.instances.setMetadata": (0.2, 5.0),  # guess
    "compute.instances.setTags": (0.2, 5.0),  # guess
    "compute.instances.attachDisk": (0.3, 8.0),  # guess
    "compute.instances.detachDisk": (0.3, 8.0),  # guess
}
PACES = ("instant", "quick", "real")


class Pace:
    """One of PACES; `seconds(step)` is how long the step takes at least."""

    def __init__(self, name: str = DEFAULT_PACE) -> None:
        if name not in PACES:
            raise ValueError(f"no such pace: {name} (there are {', '.join(PACES)})")
        self.name = name

    def seconds(self, step: str) -> float:
        """Of a step or else of its collection; raises LookupError where neither has a pace."""
        for known in (step, step.rpartition(".")[0]):
            if known in _SECONDS:
                quick, real = _SECONDS[known]
                break
        else:
            raise LookupError(f"no pace for {step!r}: give it seconds in {__name__}")
        return {"instant": 0.0, "quick": quick, "real": real}[self.name]
