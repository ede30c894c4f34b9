"""Compute Engine errors, of requests and of operations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tpuctl.emulator.state.errors import ApiError, error_info, invalid, missing


def not_found(name: str) -> ApiError:
    return missing(f"The resource '{name}' was not found")


def already_exists(name: str) -> ApiError:
    return ApiError("ALREADY_EXISTS", f"The resource '{name}' already exists")


def bad_field(field: str, value: str, reason: str) -> ApiError:
    text = f"Invalid value for field '{field}': '{value}'. {reason}"
    return invalid(text)


def unknown_reference(field: str, value: str, noun: str) -> ApiError:
    """A field refers to what does not exist: networks (btcpayserver/btcpayserver-googlecloud#7),
    subnetworks (hashicorp/terraform-provider-google#2140), images (docker-archive/infrakit.gcp#1),
    disks (arunoda/fastai-shell#5), and disk types (broadinstitute/cromwell#3776)."""
    return bad_field(field, value, f"The referenced {noun} resource cannot be found.")


def not_ready(name: str) -> ApiError:
    """Another operation is pending on the resource."""
    text = f"The resource '{name}' is not ready"
    return invalid(text, reason="resourceNotReady")


def in_use(noun: str, name: str, user: str) -> ApiError:
    """Error 400 before the operation, as for deleting an attached disk (public reports)."""
    text = f"The {noun} resource '{name}' is already being used by '{user}'"
    return invalid(text, reason="resourceInUseByAnotherResource")


def failed_in_use(noun: str, name: str, user: str) -> ApiError:
    """The same, as the error of a failed operation."""
    text = f"The {noun} resource '{name}' is already being used by '{user}'"
    return failed("RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", text)


def condition_not_met(text: str) -> ApiError:
    """Error 412: fingerprint mismatch, or an organization policy violation."""
    return ApiError("FAILED_PRECONDITION", text, reason="conditionNotMet", http=412)


def failed(
    code: str, message: str, http: int = 400, more: Sequence[Mapping[str, Any]] = ()
) -> ApiError:
    """The error of a failed operation, with Compute's own code; `more` becomes errorDetails."""
    metadata = {"http": str(http)}
    if more:
        metadata["more"] = json.dumps(list(more))
    info = error_info(code, "compute.googleapis.com", **metadata)
    return ApiError("FAILED_PRECONDITION", message, details=[info])
