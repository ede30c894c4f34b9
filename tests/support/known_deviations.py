"""Known deviations of Google's APIs from their discovery documents, with reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tests.support.value_validation import Complaint

__all__ = ["ALLOWANCES", "Allowance", "is_allowed"]


@dataclass(frozen=True)
class Allowance:
    """Patterns of allowed complaints: methods, side, location and rule."""

    methods: str
    side: str
    path: str
    rule: str
    because: str


ALLOWANCES: Sequence[Allowance] = (
    Allowance(
        "storage.*",
        "request",
        "*",
        "no string",
        because="numbers are taken for int64 too, as protobuf's JSON form says of all parsers; "
        "google-cloud-storage sends softDeletePolicy.retentionDurationSeconds so",
    ),
    Allowance(
        "*",
        "request",
        "[?]*",
        "no boolean",
        because="gcloud and google-cloud-storage write booleans in queries as Python does: "
        "`force=True`, `versions=True`",
    ),
    Allowance(
        "storage.objects.*",
        "request",
        "[?]tensorstore",
        "unknown parameter",
        because="TensorStore, on which checkpoints of JAX stand, sends it so that nothing on the "
        "way answers from memory (seen from the real one)",
    ),
    Allowance(
        "storage.*.update",
        "request",
        "acl",
        "missing",
        because="said to be required, which it cannot be where access is uniform: no object or "
        "bucket may have any then (cloud.google.com/storage/docs/uniform-bucket-level-access)",
    ),
    Allowance(
        "storage.*.setIamPolicy",
        "request",
        "bindings",
        "missing",
        because="google-api-core leaves the bindings of a policy without any out",
    ),
    Allowance(
        "compute.*.aggregatedList",
        "request",
        "[?]returnPartialSuccess",
        "unknown parameter",
        because="gcloud sends it; the description has it for some of these methods only",
    ),
    Allowance(
        "compute.imageFamilyViews.get",
        "request",
        "/zone",
        "not of its pattern",
        because="gcloud asks for the images of all zones as `zones/-/imageFamilyViews`",
    ),
    Allowance(
        "compute.*Operations.delete",
        "answer",
        "",
        "an answer where none is described",
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
