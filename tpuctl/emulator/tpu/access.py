"""Who may call Cloud TPU, and how it refuses the others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tpuctl.emulator.iam.api_access import ApiAccess
from tpuctl.emulator.iam.refusals import not_to_act_as, on_platform
from tpuctl.emulator.iam.required_permissions import Need, Places, text_at
from tpuctl.emulator.state.errors import ApiError

__all__ = ["ACCESS"]

_HOST = "tpu.googleapis.com"


def _refuse(method: str, need: Need, email: str, request: Any) -> ApiError:
    if need.kind == "actas":
        return not_to_act_as(need)
    return on_platform(_HOST)(method, need, email, request)


def _acts_as(places: Places, request: Any) -> Iterator[Need]:
    """Whoever makes a TPU VM lets it act as an account, and must be allowed to act so."""
    project = text_at(request, "parent").split("/")[1:2]
    if not project:
        return
    if "node" in request.DESCRIPTOR.fields_by_name:
        nodes = [request.node]
    else:
        nodes = [one.node for one in request.queued_resource.tpu.node_spec]
    emails = {node.service_account.email for node in nodes}
    needs = {places.acting_as(email, project[0]) for email in emails}
    yield from sorted(needs, key=lambda need: need.told)


def _operation(places: Places, request: Any) -> Iterator[Need]:
    """By the API whose it is. Those about projects are told whoever knows their names."""
    verb = "get" if "filter" not in request.DESCRIPTOR.fields_by_name else "list"
    found = re.match(r"operations/acf\.p2-([0-9]+)-", request.name)
    if found is not None:
        project = places.project(found[1])
        yield Need(f"serviceusage.operations.{verb}", project, request.name)
    elif request.name.startswith("projects/"):
        yield Need(f"tpu.operations.{verb}", places.of(request.name), request.name)


# With the services that every API's host serves: nothing tells whose words these are there.
ACCESS = ApiAccess(
    package=__package__,
    host=_HOST,
    methods=("google.cloud.tpu.", "google.cloud.location.", "google.longrunning."),
    refuse=_refuse,
    rules={"acts_as": _acts_as, "operation": _operation},
    scopes=("cloud.tpu",),
    # cloud.google.com/iam/docs/service-agents
    agents=(
        ("roles/tpu.serviceAgent", "service-{}@cloud-tpu.iam.gserviceaccount.com"),
        ("roles/cloudtpu.serviceAgent", "service-{}@gcp-sa-tpu.iam.gserviceaccount.com"),
    ),
)
