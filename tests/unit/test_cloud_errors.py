"""Google's real error texts, as seen in public, end in the branch that a caller can act on."""

from __future__ import annotations

import pytest
from google.api_core import exceptions as api

from tpuctl.cloud.errors import ApiDisabled, classify, convert
from tpuctl.errors import (
    Conflict,
    Denied,
    NoCapacity,
    NotFound,
    QuotaExceeded,
    TpuctlError,
    Transient,
    Usage,
)

CASES = [
    (
        "RESOURCE_EXHAUSTED",
        'There is no more capacity in the zone "europe-west4-a"; you can try in another zone '
        "where Cloud TPU Nodes are offered (see https://cloud.google.com/tpu/docs/regions) "
        "[EID: 0x1bc8f9d790be9142]",
        NoCapacity,
    ),
    (
        "RESOURCE_EXHAUSTED",
        "Quota limit 'TPUV6EPreemptiblePerProjectPerRegionForTPUAPI' has been exceeded. "
        "Limit: 0 in region us-east5.",
        QuotaExceeded,
    ),
    (
        "INVALID_ARGUMENT",
        'Cloud TPU received a bad request. The requested zone "asia-northeast1-a" is not '
        "supported. [EID: 0x1]",
        Usage,
    ),
    (
        "PERMISSION_DENIED",
        "Permission denied on 'locations/us-central2-b' (or it may not exist).",
        Denied,
    ),
    (
        "PERMISSION_DENIED",
        "Cloud TPU API has not been used in project 123456789 before or it is disabled.",
        ApiDisabled,
    ),
    (
        "FAILED_PRECONDITION",
        "Billing account for project '123456789' is not found. Billing must be enabled for "
        "activation of service(s) 'compute.googleapis.com,tpu.googleapis.com' to proceed.",
        Denied,
    ),
    ("ALREADY_EXISTS", "Resource 'projects/p/locations/z/nodes/n' already exists", Conflict),
    ("NOT_FOUND", "The resource 'projects/P/global/networks/default' was not found", NotFound),
    ("UNKNOWN", "ZONE_RESOURCE_POOL_EXHAUSTED: no resources", NoCapacity),
    ("UNAVAILABLE", "The service is currently unavailable.", Transient),
]


@pytest.mark.parametrize(("status", "text", "expected"), CASES)
def test_texts_seen_in_public(status: str, text: str, expected: type[TpuctlError]) -> None:
    error = classify(status, text, what="node/bert-tpu")
    assert type(error) is expected
    assert "node/bert-tpu" in str(error)
    assert "EID" not in str(error)


def test_exit_codes_are_the_documented_ones() -> None:
    assert (NoCapacity.exit_code, QuotaExceeded.exit_code, Denied.exit_code) == (75, 76, 77)
    assert (Transient.exit_code, Usage.exit_code) == (69, 2)


@pytest.mark.parametrize(
    ("foreign", "expected"),
    [
        (api.NotFound("no bucket"), NotFound),
        (api.Conflict("already own it"), Conflict),
        (api.PreconditionFailed("conditionNotMet"), Conflict),
        (api.Forbidden("no access"), Denied),
        (api.ServiceUnavailable("later"), Transient),
        (api.TooManyRequests("slow down"), Transient),
        (api.Unauthorized("who"), Denied),
    ],
)
def test_http_answers(foreign: Exception, expected: type[TpuctlError]) -> None:
    assert isinstance(convert(foreign, "bucket/b"), expected)
