"""Known deviations of Google's APIs from their discovery documents, with reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tests.support.value_validation import Complaint


@dataclass(frozen=True)
class Allowance:
    """Patterns of allowed complaints: methods, side, location and rule."""

    methods: str
    side: str
    path: str
    rule: str
    because: str


ALLOWANCES: Sequence[Allowance] = (
    *(
        Allowance(
            "tpu.projects.locations.queuedResources.*",
            "answer",
            f"*{field}",
            "unknown field of Node",
            because="not in the description, but in the outputs of `queued-resources describe` in "
            'docs.cloud.google.com/tpu/docs ("Serve Qwen3-8B-Base with vLLM" and others)',
        )
        for field in ("bootDisk", "useTpuVm")
    ),
    Allowance(
        "compute.*nstanceTemplates.*",
        "answer",
        "*properties.disks[[][]].initializeParams",
        "input-only field in a response",
        because="a template's answer has what its instances are created with: the example of "
        "docs.cloud.google.com/compute/docs/instance-templates/get-list-delete-instance-templates",
    ),
    Allowance(
        "compute.projects.getXpnHost",
        "answer",
        "kind",
        "missing",
        because='"May be empty if no link exists": the description of the method',
    ),
    Allowance(
        "storage.objects.rewrite",
        "request",
        "",
        "not a valid object",
        because="Go's client sends `null` where it has no metadata for the copy: rclone",
    ),
    Allowance(
        "storage.*",
        "request",
        "*",
        "not a valid string",
        because="int64 may also be a number, as protobuf's JSON format requires of all parsers; "
        "google-cloud-storage sends softDeletePolicy.retentionDurationSeconds so",
    ),
    Allowance(
        "*",
        "request",
        "[?]*",
        "not a valid boolean",
        because="gcloud and google-cloud-storage write booleans in queries as Python does: "
        "`force=True`, `versions=True`",
    ),
    Allowance(
        "storage.objects.*",
        "request",
        "[?]tensorstore",
        "unknown parameter",
        because="TensorStore, used by JAX checkpoints, sends it so that no proxy answers from its "
        "cache (observed with the real library)",
    ),
    Allowance(
        "storage.*.update",
        "request",
        "acl",
        "missing",
        because="marked as required, which is impossible with uniform access: no object or "
        "bucket may have any then (cloud.google.com/storage/docs/uniform-bucket-level-access)",
    ),
    Allowance(
        "storage.*.setIamPolicy",
        "request",
        "bindings",
        "missing",
        because="google-api-core omits `bindings` if a policy has none",
    ),
    Allowance(
        "compute.*.aggregatedList",
        "request",
        "[?]returnPartialSuccess",
        "unknown parameter",
        because="gcloud sends it; the document lists it only for some of these methods",
    ),
    Allowance(
        "compute.imageFamilyViews.get",
        "request",
        "/zone",
        "does not match its pattern",
        because="gcloud requests the images of all zones as `zones/-/imageFamilyViews`",
    ),
    Allowance(
        "compute.*Operations.delete",
        "answer",
        "",
        "unexpected response body",
        because="an empty object, without which the official Python client cannot read the answer",
    ),
)


def is_allowed(method: str, side: str, complaint: Complaint) -> bool:
    return any(
        fnmatchcase(method, allowance.methods)
        and side == allowance.side
        and fnmatchcase(complaint.path, allowance.path)
        and complaint.rule == allowance.rule
        for allowance in ALLOWANCES
    )
