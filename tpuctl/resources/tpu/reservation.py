"""The reservation of a stack's TPU at Compute Engine, checked before anything is created."""

from __future__ import annotations

from typing import Any

from tpuctl.cloud.clients import Cloud
from tpuctl.errors import ApiDisabled, Denied, NotFound, TpuctlError, Usage
from tpuctl.model.stack.stack import Stack


async def require_reservation(stack: Stack, cloud: Cloud) -> None:
    """Raise Usage unless machines of the stack may use its reservation, as far as visible.

    A project may not be allowed to read another's reservation that is shared with it.
    """
    reference = stack.file.tpu.reservation
    if reference is None or not stack.is_compute:
        return
    project, _, name = reference.removeprefix("projects/").rpartition("/reservations/")
    owner = project or stack.project
    is_own = owner == stack.project
    client = cloud.client("reservations")
    try:
        reservation = await cloud.call(
            f"reservation {name}", client.get, project=owner, zone=stack.zone, reservation=name
        )
    except (NotFound, Denied) as error:
        # Without the API, this project has no reservations. What another project has is then
        # unknown, as without permission.
        if isinstance(error, NotFound) or (is_own and isinstance(error, ApiDisabled)):
            raise _not_found(stack, owner, name) from None
        if is_own:
            raise
        return
    problem = _problem(stack, reservation, is_own=is_own)
    if problem:
        raise _error(
            "Reservation not usable",
            f"reservation {name} of project {owner} {problem}",
            "Set another reservation, or use another capacity, such as\n    tpu: {capacity: spot}",
        )


def _not_found(stack: Stack, owner: str, name: str) -> TpuctlError:
    hint = "Reservations belong to one zone. List them:\n"
    hint += f"    gcloud compute reservations list --project={owner}"
    if owner == stack.project:
        hint += "\nFor one that another project shares with this one, set\n"
        hint += "    tpu: {reservation: projects/PROJECT/reservations/NAME}"
    return _error(
        "Reservation not found", f"project {owner} has no reservation {name} in {stack.zone}", hint
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
