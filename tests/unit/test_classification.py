"""Google's error texts, quoted as seen in public, and the scope of each.

The expected scope was decided by reading them: where would the same request have succeeded?
"""

from __future__ import annotations

import pytest
from google.api_core import exceptions as api
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from tpuctl.cloud.classification import (
    AlreadyExists,
    NodesClosed,
    RangeTaken,
    classify,
)
from tpuctl.cloud.errors import convert, from_status
from tpuctl.errors import (
    ApiDisabled,
    Denied,
    NoCapacity,
    NotFound,
    OperationFailed,
    QuotaExceeded,
    Scope,
    TpuctlError,
    Transient,
    Usage,
)
from tpuctl.model.troubleshooting.known_errors import table

SEEN = [
    (
        "stockout-1",
        "RESOURCE_EXHAUSTED",
        'There is no more capacity in the zone "europe-west4-a"; you can try in another zone '
        "where Cloud TPU Nodes are offered (see https://cloud.google.com/tpu/docs/regions) "
        "[EID: 0x1bc8f9d790be9142]",
        NoCapacity,
        Scope.ZONE,
    ),
    (
        "preempted-while-creating",
        "INVALID_ARGUMENT",
        "Cloud TPU received a bad request. update is not supported while in state PREEMPTED "
        "[EID: 0x73013519f5b7feb2]",
        NoCapacity,
        Scope.ZONE,
    ),
    (
        "quota-zone",
        "RESOURCE_EXHAUSTED",
        "Quota limit 'TPUV5sLitepodServingPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 4 "
        "in zone us-east5-a.",
        QuotaExceeded,
        Scope.ZONE,
    ),
    (
        "quota-region",
        "RESOURCE_EXHAUSTED",
        "Quota limit 'TPUV6EPreemptiblePerProjectPerRegionForTPUAPI' has been exceeded. Limit: 0 "
        "in region us-east5.",
        QuotaExceeded,
        Scope.REGION,
    ),
    (
        "quota-violation",
        "RESOURCE_EXHAUSTED",
        "Quota 'TPUV2sPreemptiblePodPerProjectPerRegionForTPUAPI' exhausted. Limit 32 in region "
        "europe-west4",
        QuotaExceeded,
        Scope.REGION,
    ),
    (
        "type-not-in-zone",
        "INVALID_ARGUMENT",
        "Cloud TPU received a bad request. The requested accelerator configuration for "
        'accelerator type, "v6e-4", could not be found in the zonal accelerator configurations '
        'for "asia-east1-a".; the accelerator v6e-4 was not found in zone asia-east1-a '
        "[EID: 0x3ee569ef3539e788]",
        Usage,
        Scope.ZONE,
    ),
    (
        "flex-start-not-in-zone",
        "INVALID_ARGUMENT",
        'FLEX_START provisioning model is not supported for accelerator type "v6e-8" in location '
        '"asia-east1-c"',
        Usage,
        Scope.ZONE,
    ),
    (
        "zone-unsupported",
        "INVALID_ARGUMENT",
        'Cloud TPU received a bad request. The requested zone "asia-northeast1-a" is not '
        "supported. [EID: 0x1]",
        Usage,
        Scope.ZONE,
    ),
    (
        "location-policy",
        "PERMISSION_DENIED",
        "Permission denied on 'locations/us-central2-b' (or it may not exist).",
        Denied,
        Scope.ZONE,
    ),
    (
        "node-denied",
        "FAILED_PRECONDITION",
        "Your request to provision TPU Node has been denied. Please migrate to TPU VM "
        "Architecture or contact Cloud TPU team to gain TPU Node access. "
        "https://cloud.google.com/tpu/docs/system-architecture-tpu-vm#from-tpu-node-to-tpu-vm",
        NodesClosed,
        Scope.PROJECT,
    ),
    (
        "bad-tf-version",
        "INVALID_ARGUMENT",
        'Cloud TPU received an invalid argument. The field "TensorflowVersion" cannot be "2.4". '
        "[EID: 0x90dfdfda32f61e59], badRequest",
        Usage,
        Scope.FATAL,
    ),
    (
        "cidr-conflict",
        "INVALID_ARGUMENT",
        "Cloud TPU received an invalid argument. The 'CIDR Range' value \"10.2.0.0/29\" on "
        'network "..." conflicts with another subnet or object in the (peered) customer network.',
        RangeTaken,
        Scope.FATAL,
    ),
    (
        "already-exists",
        "ALREADY_EXISTS",
        "Resource 'projects/intercloud-320520/locations/us-central1-a/nodes/sky_tpu' already "
        "exists",
        AlreadyExists,
        Scope.FATAL,
    ),
    (
        "api-disabled",
        "PERMISSION_DENIED",
        "Cloud TPU API has not been used in project 123456789 before or it is disabled. Enable it "
        "by visiting https://console.developers.google.com/apis/api/tpu.googleapis.com/overview"
        "?project=123456789 then retry. If you enabled this API recently, wait a few minutes for "
        "the action to propagate to our systems and retry.",
        ApiDisabled,
        Scope.PROJECT,
    ),
    (
        "billing-not-found",
        "FAILED_PRECONDITION",
        "Billing account for project '123456789' is not found. Billing must be enabled for "
        "activation of service(s) 'compute.googleapis.com,tpu.googleapis.com' to proceed.",
        Denied,
        Scope.PROJECT,
    ),
    (
        "actas",
        "INVALID_ARGUMENT",
        "The user does not have access to service account \"SA\". User: 'USER'. Ask a project "
        "owner to grant you the iam.serviceAccountUser role on the service account",
        Denied,
        Scope.PROJECT,
    ),
    ("reservation", "NOT_FOUND", "Reservation not found", NoCapacity, Scope.ZONE),
    (
        "no-default-network",
        "NOT_FOUND",
        "The resource 'projects/P/global/networks/default' was not found, notFound",
        NotFound,
        Scope.FATAL,
    ),
    (
        "domain-restricted",
        "FAILED_PRECONDITION",
        "One or more users named in the policy do not belong to a permitted customer, perhaps due "
        "to an organization policy.",
        Denied,
        Scope.PROJECT,
    ),
    (
        "gcs-403",
        "PERMISSION_DENIED",
        "service-PROJECT_NUMBER@cloud-tpu.iam.gserviceaccount.com does not have "
        "storage.objects.list access to the Google Cloud Storage bucket.",
        Denied,
        Scope.PROJECT,
    ),
    (
        "ce-v5e",
        "INVALID_ARGUMENT",
        "This user agent is not allowed to use the machine type [ct5lp-hightpu-1t].",
        Denied,
        Scope.PROJECT,
    ),
    (
        "insufficient-reserved",
        "FAILED_PRECONDITION",
        "Insufficient reserved capacity",
        NoCapacity,
        Scope.ZONE,
    ),
    (
        "external-addresses-forbidden",
        "FAILED_PRECONDITION",
        "Constraint constraints/compute.vmExternalIpAccess violated for project 123456789.",
        Denied,
        Scope.PROJECT,
    ),
    (  # API v1, in the words of "TensorflowVersion" in tensorflow/tpu#877
        "type-not-in-zone-v1",
        "INVALID_ARGUMENT",
        'Cloud TPU received an invalid argument. The field "AcceleratorType" cannot be "v3-64".',
        Usage,
        Scope.ZONE,
    ),
    (
        "flex-start-not-in-zone",
        "INVALID_ARGUMENT",
        'FLEX_START provisioning model is not supported for accelerator type "v3-8" in location '
        '"us-central1-a".',
        Usage,
        Scope.ZONE,
    ),
    (
        "flex-start-machine-type",
        "INVALID_ARGUMENT",
        "Invalid value for field 'resource.scheduling.provisioningModel': 'FLEX_START'. Flex-start "
        "is not supported for machine type ct5lp-hightpu-1t in zone us-west4-a.",
        Usage,
        Scope.ZONE,
    ),
    (
        "cidr-invalid",
        "INVALID_ARGUMENT",
        'Cloud TPU received an invalid argument. The field "CIDR Range" cannot be "10.2.0.0/33".',
        Usage,
        Scope.FATAL,
    ),
    (
        "cidr-invalid-subnetwork",
        "INVALID_ARGUMENT",
        "Invalid IPCidrRange: 10.2.0.1/24 is not a network address.",
        Usage,
        Scope.FATAL,
    ),
    (
        "cidr-invalid-firewall",
        "INVALID_ARGUMENT",
        "Invalid value for field 'resource.sourceRanges[0]': '1.2.3.4/33'. Must be a CIDR address "
        "range.",
        Usage,
        Scope.FATAL,
    ),
    (
        "guest-attribute",
        "NOT_FOUND",
        "The resource 'hostkeys/' of type 'Guest Attribute' was not found.",
        NotFound,
        Scope.FATAL,
    ),
    (
        "object-retention",
        "PERMISSION_DENIED",
        "Object 'b/o' is subject to bucket's retention policy or object retention and cannot be "
        "deleted or overwritten until 2026-03-01T00:00:00Z",
        Denied,
        Scope.FATAL,
    ),
    (
        "object-hold",
        "PERMISSION_DENIED",
        "Object 'b/o' is under active Event-Based hold and cannot be deleted, overwritten or "
        "archived until hold is removed.",
        Denied,
        Scope.FATAL,
    ),
    (
        "requester-pays",
        "INVALID_ARGUMENT",
        "Bucket is a requester pays bucket but no user project provided.",
        Denied,
        Scope.FATAL,
    ),
]


@pytest.mark.parametrize(
    ("status", "text", "error", "scope"), [row[1:] for row in SEEN], ids=[row[0] for row in SEEN]
)
def test_publicly_seen_texts_are_classified(
    status: str, text: str, error: type[TpuctlError], scope: Scope
) -> None:
    for has_ended in (False, True):  # in a response, and in a failed operation
        converted = classify(status, text, subject="node/bert-tpu", has_ended=has_ended)
        assert (type(converted), converted.scope) == (error, scope)


@pytest.mark.parametrize(
    ("reason", "error", "scope"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED", NoCapacity, Scope.ZONE),
        ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", NoCapacity, Scope.ZONE),
        ("insufficientCapacity", NoCapacity, Scope.ZONE),
        ("UNSUPPORTED_OPERATION", NoCapacity, Scope.ZONE),  # preempted during creation
        ("LOCATION_POLICY_VIOLATED", Denied, Scope.ZONE),
        ("UREQ_PROJECT_BILLING_NOT_FOUND", Denied, Scope.PROJECT),
        ("QUOTA_EXCEEDED", QuotaExceeded, Scope.PROJECT),  # without a location
    ],
)
def test_reasons_are_classified(reason: str, error: type[TpuctlError], scope: Scope) -> None:
    converted = classify("UNKNOWN", "words never seen", subject="x", reasons=[reason])
    assert (type(converted), converted.scope) == (error, scope)


@pytest.mark.parametrize(
    "status",
    ["INVALID_ARGUMENT", "FAILED_PRECONDITION", "NOT_FOUND", "INTERNAL", "UNAVAILABLE", "ODD"],
)
def test_unknown_text_is_fatal(status: str) -> None:
    """No other zone is tried after an unknown error: that would hide the reason."""
    error = classify(status, "Frobnication declined.", subject="x", has_ended=True)
    assert error.scope is Scope.FATAL
    assert not isinstance(error, Transient)  # the operation is over: repeating it cannot help


def test_unknown_exhaustion_of_operation_is_no_capacity() -> None:
    ended = classify("RESOURCE_EXHAUSTED", "Frobnication declined.", subject="x", has_ended=True)
    assert (type(ended), ended.scope) == (NoCapacity, Scope.ZONE)
    answered = classify("RESOURCE_EXHAUSTED", "Frobnication declined.", subject="x")
    assert isinstance(answered, Transient)


def test_rate_limit_is_not_quota() -> None:
    text = (
        "Quota exceeded for quota metric 'Default requests' and limit 'Default requests per "
        "minute' of service 'tpu.googleapis.com' for consumer 'project_number:1'."
    )
    assert isinstance(classify("RESOURCE_EXHAUSTED", text, subject="x"), Transient)


def test_details_of_operation_are_read() -> None:
    violation = error_details_pb2.QuotaFailure.Violation(
        subject="project:1", description="Quota 'X' exhausted. Limit 4 in zone us-east5-a"
    )
    packed = any_pb2.Any()
    packed.Pack(error_details_pb2.QuotaFailure(violations=[violation]))
    error = from_status(status_pb2.Status(code=8, message="No.", details=[packed]), "node/x")
    assert (type(error), error.scope) == (QuotaExceeded, Scope.ZONE)
    odd = from_status(status_pb2.Status(code=2, message="No."), "node/x")
    assert type(odd) is OperationFailed


def test_details_of_response_are_read_from_json_and_grpc() -> None:
    info = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "LOCATION_POLICY_VIOLATED",
    }
    rest = convert(api.Forbidden("no", details=[info]), "node/x")
    rpc = convert(
        api.PermissionDenied(
            "no", details=[error_details_pb2.ErrorInfo(reason="LOCATION_POLICY_VIOLATED")]
        ),
        "node/x",
    )
    assert rest.scope is rpc.scope is Scope.ZONE


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            "The resource 'hostkeys/' of type 'Guest Attribute' was not found.",
            "guest-attribute-missing",
        ),
        ('The field "AcceleratorType" cannot be "v3-64".', "not-offered"),
        ("FLEX_START is not supported for v5litepod-8 in us-west4-a", "not-offered"),
        (
            "Invalid value for field 'resource.sourceRanges[0]': '1.2.3.4/33'.",
            "source-range-malformed",
        ),
        ("Object 'b/o' is under active Temporary hold and cannot be deleted", "object-hold"),
    ],
)
def test_pasted_text_has_the_cause_of_the_answer(text: str, name: str) -> None:
    known_error = table().match_response("UNKNOWN", text)
    assert known_error is not None
    assert known_error.name == name
