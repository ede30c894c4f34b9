"""How Google's APIs refuse: the texts that public reports quote, and the errors made of them."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tpuctl.emulator.state.errors import ApiError

__all__ = ["WORDINGS", "Wording", "refusal", "storage_denied"]

_TYPE = "type.googleapis.com/google.rpc."


@dataclass(frozen=True)
class Wording:
    """A refusal with places for {zone}, {type} and such in its text and details."""

    status: str
    text: str
    source: str
    details: tuple[Mapping[str, Any], ...] = ()
    http: int = 0
    reason: str = ""
    domain: str = "global"


def _info(reason: str, domain: str, **metadata: str) -> Mapping[str, Any]:
    return {
        "@type": f"{_TYPE}ErrorInfo",
        "reason": reason,
        "domain": domain,
        "metadata": metadata,
    }


def _quota(place: str) -> tuple[Mapping[str, Any], ...]:
    text = "Quota '{limit}' exhausted. Limit {number} in " + f"{place} {{{place}}}"
    violation = {"subject": "project:{project_number}", "description": text}
    return ({"@type": f"{_TYPE}QuotaFailure", "violations": [violation]},)


# Where no source is named: "many public issues" quote it, not one of them alone.
WORDINGS: Mapping[str, Wording] = {
    "unavailable": Wording("UNAVAILABLE", "The service is currently unavailable.", ""),
    "internal": Wording("INTERNAL", "Internal error encountered.", ""),
    "denied": Wording("PERMISSION_DENIED", "The caller does not have permission", ""),
    "stockout": Wording(
        "RESOURCE_EXHAUSTED",
        'There is no more capacity in the zone "{zone}"; you can try in another zone where Cloud '
        "TPU Nodes are offered (see https://cloud.google.com/tpu/docs/regions) [EID: {eid}]",
        "skypilot 0.14.1 cloud_vm_ray_backend.py; thevasudevgupta/gsoc-wav2vec2#11",
    ),
    "preempted-while-creating": Wording(
        "INVALID_ARGUMENT",
        "Cloud TPU received a bad request. update is not supported while in state PREEMPTED "
        "[EID: {eid}]",
        "skypilot 0.14.1 cloud_vm_ray_backend.py",
    ),
    "quota-zone": Wording(
        "RESOURCE_EXHAUSTED",
        "Quota limit '{limit}' has been exceeded. Limit: {number} in zone {zone}.",
        "a report of 2025-08",
        _quota("zone"),
    ),
    "quota-region": Wording(
        "RESOURCE_EXHAUSTED",
        "Quota limit '{limit}' has been exceeded. Limit: {number} in region {region}.",
        "marin-community/marin#1612",
        _quota("region"),
    ),
    "type-not-in-zone": Wording(
        "INVALID_ARGUMENT",
        "Cloud TPU received a bad request. The requested accelerator configuration for accelerator "
        'type, "{type}", could not be found in the zonal accelerator configurations for "{zone}".; '
        "the accelerator {type} was not found in zone {zone} [EID: {eid}]",
        "a zone table of 2026-06",
    ),
    "zone-unsupported": Wording(
        "INVALID_ARGUMENT",
        'Cloud TPU received a bad request. The requested zone "{zone}" is not supported. '
        "[EID: {eid}]",
        "a zone table of 2026-06",
    ),
    "location-policy": Wording(
        "PERMISSION_DENIED",
        "Permission denied on 'locations/{zone}' (or it may not exist).",
        "a report of 2025",
        (
            _info(
                "LOCATION_POLICY_VIOLATED",
                "googleapis.com",
                consumer="projects/{project_number}",
                location="{zone}",
                service="tpu.googleapis.com",
            ),
        ),
    ),
    "node-denied": Wording(
        "FAILED_PRECONDITION",
        "Your request to provision TPU Node has been denied. Please migrate to TPU VM Architecture "
        "or contact Cloud TPU team to gain TPU Node access. https://cloud.google.com/tpu/docs/"
        "system-architecture-tpu-vm#from-tpu-node-to-tpu-vm",
        "terraform-provider-google#22526; skypilot#5593",
    ),
    "bad-tf-version": Wording(
        "INVALID_ARGUMENT",
        'Cloud TPU received an invalid argument. The field "TensorflowVersion" cannot be '
        '"{version}". [EID: {eid}], badRequest',
        "tensorflow/tpu#877",
    ),
    "cidr-conflict": Wording(
        "INVALID_ARGUMENT",
        "Cloud TPU received an invalid argument. The 'CIDR Range' value \"{cidr}\" on network "
        '"{network}" conflicts with another subnet or object in the (peered) customer network.',
        "terraform-provider-google#12523",
    ),
    "api-disabled": Wording(
        "PERMISSION_DENIED",
        "Cloud TPU API has not been used in project {project_number} before or it is disabled. "
        "Enable it by visiting https://console.developers.google.com/apis/api/tpu.googleapis.com/"
        "overview?project={project_number} then retry. If you enabled this API recently, wait a "
        "few minutes for the action to propagate to our systems and retry.",
        "",
        (
            _info(
                "SERVICE_DISABLED",
                "googleapis.com",
                service="tpu.googleapis.com",
                consumer="projects/{project_number}",
            ),
        ),
        reason="accessNotConfigured",
    ),
    "billing-not-found": Wording(
        "FAILED_PRECONDITION",
        "Billing account for project '{project_number}' is not found. Billing must be enabled for "
        "activation of service(s) 'compute.googleapis.com,tpu.googleapis.com' to proceed.",
        "",
        (_info("UREQ_PROJECT_BILLING_NOT_FOUND", "serviceusage.googleapis.com"),),
    ),
    "actas": Wording(
        "INVALID_ARGUMENT",
        "The user does not have access to service account \"{account}\". User: '{caller}'. Ask a "
        "project owner to grant you the iam.serviceAccountUser role on the service account",
        "",
        reason="badRequest",
    ),
    "reservation": Wording("NOT_FOUND", "Reservation not found", ""),
    "domain-restricted": Wording(
        "FAILED_PRECONDITION",
        "One or more users named in the policy do not belong to a permitted customer, perhaps due "
        "to an organization policy.",
        "",
    ),
    "no-default-network": Wording(
        "NOT_FOUND",
        "The resource 'projects/{project}/global/networks/default' was not found",
        "",
        reason="notFound",
    ),
    "compute-stockout": Wording(
        "UNAVAILABLE",
        "The zone 'projects/{project}/zones/{zone}' does not have enough resources available to "
        "fulfill the request.  Try a different zone, or try again later.",
        "CCExtractor/sample-platform#901 (2024-06)",
        (_info("ZONE_RESOURCE_POOL_EXHAUSTED", "compute.googleapis.com", http="503"),),
    ),
    "compute-stockout-details": Wording(
        "UNAVAILABLE",
        "The zone 'projects/{project}/zones/{zone}' does not have enough resources available to "
        "fulfill the request, '(resource type:compute)'.",
        "skypilot 0.14.1 cloud_vm_ray_backend.py: the code",
        (_info("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "compute.googleapis.com", http="503"),),
    ),
    "compute-insufficient-capacity": Wording(
        "UNAVAILABLE",
        "The zone {zone} has too little left.",
        "skypilot 0.14.1 cloud_vm_ray_backend.py: the code",
        (_info("insufficientCapacity", "compute.googleapis.com", http="503"),),
    ),
    "compute-preempted": Wording(
        "FAILED_PRECONDITION",
        "Instance failed to start due to preemption.",
        "skypilot 0.14.1 cloud_vm_ray_backend.py: the code",
        (_info("UNSUPPORTED_OPERATION", "compute.googleapis.com", http="412"),),
    ),
    # 403 in kelseyhightower/kubernetes-the-hard-way#47.
    "compute-quota": Wording(
        "PERMISSION_DENIED",
        "Quota '{limit}' exceeded.  Limit: {number}.0 in region {region}.",
        "mesosphere-backup/terraform-dcos#61",
        reason="quotaExceeded",
    ),
    "api-rate": Wording(
        "RESOURCE_EXHAUSTED",
        "Quota exceeded for quota metric 'Read requests' and limit 'Read requests per minute' of "
        "service '{service}' for consumer 'project_number:{project_number}'.",
        "GoogleCloudPlatform/marketing-analytics-jumpstart#163",
        (
            _info(
                "RATE_LIMIT_EXCEEDED",
                "googleapis.com",
                consumer="projects/{project_number}",
                quota_location="global",
                service="{service}",
            ),
        ),
    ),
    "storage-rate": Wording(
        "RESOURCE_EXHAUSTED",
        "The object {object} exceeded the rate limit for object mutation operations (create, "
        "update, and delete). Please reduce your request rate. See "
        "https://cloud.google.com/storage/docs/gcs429.",
        "trinodb/trino#19943",
        domain="usageLimits",
    ),
}
# What Google's APIs say of a code in general: many public issues.
_OF_CODE: Mapping[str, str] = {
    "CANCELLED": "The operation was cancelled.",
    "UNKNOWN": "Unknown Error.",
    "INVALID_ARGUMENT": "Request contains an invalid argument.",
    "DEADLINE_EXCEEDED": "Deadline expired before operation could complete.",
    "NOT_FOUND": "Requested entity was not found.",
    "ALREADY_EXISTS": "Requested entity already exists",
    "PERMISSION_DENIED": WORDINGS["denied"].text,
    "RESOURCE_EXHAUSTED": "Resource has been exhausted (e.g. check quota).",
    "FAILED_PRECONDITION": "Precondition check failed.",
    "ABORTED": "The operation was aborted.",
    "OUT_OF_RANGE": "Operation was attempted past the valid range.",
    "UNIMPLEMENTED": "Operation is not implemented, or supported, or enabled.",
    "INTERNAL": WORDINGS["internal"].text,
    "UNAVAILABLE": WORDINGS["unavailable"].text,
    "DATA_LOSS": "Unrecoverable data loss or corruption.",
    "UNAUTHENTICATED": "Request had invalid authentication credentials.",
}
# The code that an HTTP status stands for, where google/rpc/code.proto maps no code to it or
# several: what gRPC clients are told then.
_OF_HTTP: Mapping[int, str] = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    412: "FAILED_PRECONDITION",
    416: "OUT_OF_RANGE",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_MUTATION = re.compile(r"storage\.objects\.(?:insert|patch|update|delete|compose|rewrite|copy)")
# Statuses that Google's front end answers with a page: world-federation-of-advertisers/
# cross-media-measurement#1644 (502), googleapis/nodejs-storage#1360 (408).
_PAGES: Mapping[int, str] = {
    408: "Your client has taken too long to issue its request.",
    502: "The server encountered a temporary error and could not complete your request.",
}
_DEFAULTS = {
    "limit": "TPUV5sLitepodServingPerProjectPerZoneForTPUAPI",
    "number": "0",
    "version": "2.4",
    "cidr": "10.2.0.0/29",
    "network": "default",
    "account": "tpu@project.iam.gserviceaccount.com",
}
# What a kind of fault says unless told otherwise.
_OF_KIND = {"unavailable": "unavailable", "deny": "denied", "error": "internal"}


def refusal(fault: Mapping[str, Any], facts: Mapping[str, Any]) -> ApiError:
    """The error that a fault answers a call with, the call's zone and such put into the text."""
    kind = fault["kind"]
    method, caller = str(facts.get("method")), str(facts.get("caller"))
    if kind == "deny" and method.startswith("storage.") and not fault.get("text"):
        return storage_denied(caller, str(facts["permission"]))
    name = str(fault.get("like") or _OF_KIND.get(kind, ""))
    if kind == "quota":
        name = "quota-region" if "region" in fault else "quota-zone"
        if ".compute." in str(facts.get("method")):
            name = "compute-quota"
    wording = WORDINGS[name]
    http = int(fault.get("http") or 0)
    is_page = False
    if kind == "error" and "like" not in fault:
        wording = _plain(fault, str(facts.get("method")))
        is_page = http in _PAGES and fault.keys().isdisjoint(("text", "code"))
    words = {**_DEFAULTS, **{key: value for key, value in facts.items() if value}}
    if name == "compute-quota":
        words["limit"] = "CPUS"
    words |= {key: fault[key] for key in ("limit", "number") if key in fault}
    words |= {"object": "/".join(filter(None, facts.get("name") or ()))}
    words["eid"] = f"0x{secrets.token_hex(8)}"
    text = str(fault.get("text") or _filled(wording.text, words))
    details = json.loads(json.dumps(wording.details), object_hook=lambda one: _each(one, words))
    return ApiError(
        fault.get("code") or wording.status,
        text,
        details=details,
        http=http or wording.http,
        reason=wording.reason,
        domain=wording.domain,
        is_page=is_page,
    )


def _plain(fault: Mapping[str, Any], method: str) -> Wording:
    """What an error says of which no more is given than a code, an HTTP status, or nothing."""
    http = int(fault.get("http") or 0)
    if "code" in fault:
        return Wording(fault["code"], _OF_CODE[fault["code"]], "")
    if http == 429:
        if _MUTATION.fullmatch(method):
            return WORDINGS["storage-rate"]
        if not method.startswith("storage."):
            return WORDINGS["api-rate"]
    code = _OF_HTTP.get(http, "INTERNAL" if http >= 500 or not http else "INVALID_ARGUMENT")
    return Wording(code, _PAGES.get(http) or _OF_CODE[code], "")


def storage_denied(email: str, permission: str) -> ApiError:
    """InPars#13, ansible-collections/google.cloud#575, spaceml-org/STARCOP#6, and dozens more."""
    is_object = permission.startswith("storage.objects.") and permission != "storage.objects.list"
    thing = f"Google Cloud Storage {'object' if is_object else 'bucket'}"
    if permission in ("storage.buckets.list", "storage.buckets.create"):
        thing = "Google Cloud project"
    return ApiError(
        "PERMISSION_DENIED",
        f"{email} does not have {permission} access to the {thing}. Permission '{permission}' "
        "denied on resource (or it may not exist).",
        reason="forbidden",
    )


def _each(value: dict[str, Any], words: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _filled(text, words) if isinstance(text, str) else text for key, text in value.items()
    }


def _filled(text: str, words: Mapping[str, Any]) -> str:
    """The text with what is known in its places; a place about which nothing is known says so."""
    known = ("zone", "region", "type", "project", "project_number", "caller", "object", "service")
    for name in (*known, *_DEFAULTS):
        text = text.replace(f"{{{name}}}", str(words.get(name, "unknown")))
    return text.replace("{eid}", str(words["eid"]))
