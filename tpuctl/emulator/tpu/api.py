"""Registration of Cloud TPU: surfaces, permissions and paces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tpuctl.emulator.iam.api_access import ApiAccess
from tpuctl.emulator.iam.permission_errors import act_as_denied, platform_denied
from tpuctl.emulator.iam.required_permissions import Need, PolicyResources, text_at
from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.tpu.rest_rules import TPU_V1, TPU_V2ALPHA1
from tpuctl.emulator.wire.google_api import GoogleApi, Surface

_HOST = "tpu.googleapis.com"


def _refuse(method: str, need: Need, email: str, request: Any) -> ApiError:
    if need.kind == "act-as":
        return act_as_denied(need)
    return platform_denied(_HOST)(method, need, email, request)


def _act_as(resources: PolicyResources, request: Any) -> Iterator[Need]:
    """Creating a TPU VM requires actAs on its service account."""
    project = text_at(request, "parent").split("/")[1:2]
    if not project:
        return
    if "node" in request.DESCRIPTOR.fields_by_name:
        nodes = [request.node]
    else:
        nodes = [spec.node for spec in request.queued_resource.tpu.node_spec]
    emails = {node.service_account.email for node in nodes}
    needs = {resources.act_as(email, project[0]) for email in emails}
    yield from sorted(needs, key=lambda need: need.resource_name)


def _operation(resources: PolicyResources, request: Any) -> Iterator[Need]:
    """By the operation's API. Operations on projects are readable by anyone with the name."""
    verb = "get" if "filter" not in request.DESCRIPTOR.fields_by_name else "list"
    match = re.match(r"operations/acf\.p2-([0-9]+)-", request.name)
    if match is not None:
        project = resources.project(match[1])
        yield Need(f"serviceusage.operations.{verb}", project, request.name)
    elif request.name.startswith("projects/_/buckets/"):
        bucket = resources.resolve(request.name)
        if bucket:
            yield Need(f"storage.bucketOperations.{verb}", bucket, request.name)
    elif request.name.startswith("projects/"):
        yield Need(f"tpu.operations.{verb}", resources.resolve(request.name), request.name)


# Includes the services shared by all hosts: no source shows their error wording.
_ACCESS = ApiAccess(
    package=__package__,
    host=_HOST,
    methods=("google.cloud.tpu.", "google.cloud.location.", "google.longrunning."),
    refuse=_refuse,
    rules={"act_as": _act_as, "operation": _operation},
    scopes=("cloud.tpu",),
    # cloud.google.com/iam/docs/service-agents
    agents=(
        ("roles/tpu.serviceAgent", "service-{}@cloud-tpu.iam.gserviceaccount.com"),
        ("roles/cloudtpu.serviceAgent", "service-{}@gcp-sa-tpu.iam.gserviceaccount.com"),
    ),
)

# Lists are in the order of their names, with all that there is.
_REFUSED = ("filter", "order_by")
_PACES = {
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
    "tpu.queued.wait": (0.3, 60.0),  # guess; a report of 2026 has 132 s until PROVISIONING
    "tpu.queued.reset": (1.0, 240.0),  # about four minutes in public notes of 2026
}

API = GoogleApi(
    access=_ACCESS,
    services={
        "tpu": "tpuctl.emulator.tpu.v2:TpuService",
        "tpu_v1": "tpuctl.emulator.tpu.v1:TpuV1Service",
        "tpu_alpha": "tpuctl.emulator.tpu.v2alpha1:TpuAlphaService",
        "operations": "tpuctl.emulator.wire.operations_service:OperationsService",
    },
    documents={
        "tpu.v2": "Cloud TPU v2",
        "tpu.v2alpha1": "Cloud TPU v2alpha1",
        "tpu.v1": "Cloud TPU v1",
        "tpu.v1alpha1": "Cloud TPU v1alpha1",
    },
    surfaces=(
        Surface(
            "google.cloud.tpu.v2.Tpu",
            "google.cloud.tpu_v2.services.tpu",
            "tpu",
            r"/v2/projects/",
            api=_ACCESS.host,
            refused=_REFUSED,
            has_explicit_operations=True,
            messages="tpuctl.emulator.tpu.extended_messages",
        ),
        Surface(
            "google.cloud.tpu.v1.Tpu",
            "google.cloud.tpu_v1.services.tpu",
            "tpu_v1",
            r"/v1/projects/[^/]+/locations",
            api=_ACCESS.host,
            refused=_REFUSED,
            has_explicit_operations=True,
            rest_rules=TPU_V1,
        ),
        Surface(
            "google.cloud.tpu.v2alpha1.Tpu",
            "google.cloud.tpu_v2alpha1.services.tpu",
            "tpu_alpha",
            r"/v2alpha1/",
            api=_ACCESS.host,
            refused=_REFUSED,
            has_explicit_operations=True,
            messages="tpuctl.emulator.tpu.extended_messages",
            rest_rules=TPU_V2ALPHA1,
        ),
    ),
    shared_surfaces=(
        Surface("google.longrunning.Operations", "", "operations", refused=("filter",)),
        Surface("google.cloud.location.Locations", "", "tpu", refused=("filter",)),
    ),
    aliases=(
        # Ray's name for v2alpha1 (ray/autoscaler/_private/gcp/config.py).
        (r"/v2alpha(?=/projects/[^/]+/locations)", "/v2alpha1"),
        # Cloud TPU's first version, the same as v1 for clients: used by `gcloud alpha compute
        # tpus execution-groups` (SDK 528, generated_clients/apis/tpu/v1alpha1) and early
        # TensorFlow.
        (r"/v1alpha1(?=/projects/[^/]+/locations)", "/v1"),
    ),
    with_machines={"tpu.node": "tpu", "tpu.v1.node": "tpu_v1"},
    paces=_PACES,
)
