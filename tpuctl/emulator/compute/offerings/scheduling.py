"""How instances are scheduled: provisioning models, waiting for capacity, and limited running.

Provisioning models and their rules: docs.cloud.google.com/compute/docs/instances/
provisioning-models, /create-flex-start-vm and /limit-vm-runtime. Error texts without a source are
the local cloud's own.
"""

from __future__ import annotations

from typing import Any

from tpuctl.emulator.compute.core.errors import bad_field
from tpuctl.emulator.compute.offerings.machine_types import machine_type
from tpuctl.emulator.state.errors import invalid

Row = dict[str, Any]

FLEX_START = "FLEX_START"
RESERVATION_BOUND = "RESERVATION_BOUND"
_MODELS = ("STANDARD", "SPOT", FLEX_START, RESERVATION_BOUND)
_RUN_SECONDS = (30, 120 * 86400)
_FLEX_START_RUN_SECONDS = (600, 7 * 86400)
_WAIT_SECONDS = (90, 2 * 3600)  # or none


def scheduling(requested: Row) -> Row:
    """With defaults: spot instances terminate on maintenance and do not restart."""
    model = requested.get("provisioningModel", "STANDARD")
    if model not in _MODELS:
        field = "resource.scheduling.provisioningModel"
        raise bad_field(field, model, f"Must be one of {', '.join(_MODELS)}.")
    is_spot = model == "SPOT" or requested.get("preemptible", False)
    if is_spot and requested.get("automaticRestart"):
        raise invalid("Scheduling must have automaticRestart as false when preemptible is true.")
    row = {
        "provisioningModel": "SPOT" if is_spot else model,
        "onHostMaintenance": "TERMINATE" if is_spot else "MIGRATE",
        **requested,
        "preemptible": is_spot,
        "automaticRestart": not is_spot and requested.get("automaticRestart", True),
    }
    _check_run_seconds(row)
    if "maxRunDuration" in row:
        row.setdefault("instanceTerminationAction", "STOP")
    return row


def run_seconds(row: Row) -> int | None:
    """How long an instance with this scheduling may run; None if that is not limited."""
    duration = row.get("maxRunDuration")
    return None if duration is None else int(duration.get("seconds", 0))


def wait_seconds(body: Row, model: str) -> int:
    """How long a requested instance may wait for capacity; 0 if it must not wait."""
    duration = body.get("params", {}).get("requestValidForDuration")
    seconds = 0 if duration is None else int(duration.get("seconds", 0))
    field = "resource.params.requestValidForDuration"
    least, most = _WAIT_SECONDS
    if seconds and model != FLEX_START:
        reason = f"Supported only by the provisioning model {FLEX_START}."
        raise bad_field(field, str(seconds), reason)
    if seconds and not least <= seconds <= most:
        # Public reports of 2026 (the second half of the sentence).
        reason = f"The duration must be at least {least} and less or equal to {most} seconds."
        raise bad_field(field, str(seconds), reason)
    return seconds


def live_migration(instance: Row) -> Row | None:
    """The refusal of an instance whose chips cannot migrate; None if it is terminated instead.

    The operation's error of instances with GPUs, in Dataflow's documentation.
    """
    if instance["scheduling"]["onHostMaintenance"] == "TERMINATE":
        return None
    machine = machine_type(instance["machineType"].rpartition("/")[2])
    if machine is None or machine.tpu is None:
        return None
    return {
        "code": "UNSUPPORTED_OPERATION",
        "message": "Instances with guest accelerators do not support live migration.",
        "http": 400,
    }


def _check_run_seconds(row: Row) -> None:
    seconds, is_flex_start = run_seconds(row), row["provisioningModel"] == FLEX_START
    field = "resource.scheduling.maxRunDuration"
    if seconds is None:
        if is_flex_start:
            raise bad_field(field, "", f"Required by the provisioning model {FLEX_START}.")
        return
    least, most = _FLEX_START_RUN_SECONDS if is_flex_start else _RUN_SECONDS
    if not least <= seconds <= most:
        reason = f"Must be between {least} and {most} seconds."
        raise bad_field(field, str(seconds), reason)
