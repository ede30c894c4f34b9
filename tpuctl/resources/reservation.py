"""The reservation of a stack's TPU at Compute Engine, checked before anything is created."""

from __future__ import annotations

from typing import Any

from tpuctl.cloud.clients import Cloud
from tpuctl.errors import Denied, NotFound, TpuctlError, Usage
from tpuctl.model.stack import Stack

__all__ = ["require_reservation"]


async def require_reservation(stack: Stack, cloud: Cloud) -> None:
    """Raise Usage unless machines of the stack may use its reservation, as far as visible.

    A project may not be allowed to read another's reservation that is shared with it.
    """
    reference = stack.file.tpu.reservation
    if reference is None or not stack.is_compute:
        return
    project, _, name = reference.removeprefix("projects/").rpartition("/reservations/")
    owner = project or stack.project
    client = cloud.client("reservations")
    try:
        reservation = await cloud.call(
            f"reservation {name}", client.get, project=owner, zone=stack.zone, reservation=name
        )
    except NotFound:
        other = "" if project else ". For one that another project shares with this one, set\n    "
        other += "" if project else "tpu: {reservation: projects/PROJECT/reservations/NAME}"
        raise _error(
            "Reservation not found",
            f"project {owner} has no reservation {name} in {stack.zone}",
            "Reservations belong to one zone. List them:\n"
            f"    gcloud compute reservations list --project={owner}{other}",
        ) from None
    except Denied:
        if owner == stack.project:
            raise
        return
    problem = _problem(stack, reservation, is_own=owner == stack.project)
    if problem:
        raise _error(
            "Reservation not usable",
            f"reservation {name} of project {owner} {problem}",
            "Set another reservation, or use another capacity, such as\n    tpu: {capacity: spot}",
        )


def _problem(stack: Stack, reservation: Any, *, is_own: bool) -> str:
    sharing = reservation.share_settings
    is_shared = sharing.share_type == "SPECIFIC_PROJECTS" and stack.project in sharing.project_map
    if not is_own and not is_shared:
        return f"is not shared with project {stack.project}"
    if not reservation.specific_reservation_required:
        return "cannot be used by its name: it was created without --require-specific-reservation"
    actual = reservation.specific_reservation.instance_properties.machine_type.rpartition("/")[2]
    desired = stack.machine.machine_type
    return f"is for {actual}, not {desired}" if actual not in ("", desired) else ""


def _error(summary: str, detail: str, hint: str) -> TpuctlError:
    return Usage(summary, f"tpu.reservation: {detail}", hint=hint)
