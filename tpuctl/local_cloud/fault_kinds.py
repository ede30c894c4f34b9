"""Kinds of faults of the local cloud, and their fields: of requests, and options of a command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Field:
    """A field of a fault, and its option's help."""

    help: str
    type: type = str
    panel: str | None = None
    metavar: str | None = None


# Attributes that select calls; a fault applies to calls that match all it names.
MATCHES = ("method", "project", "zone", "region", "type", "name", "caller")

# The fields of each kind besides `times` and `at`. `*` marks required ones.
KINDS: Mapping[str, tuple[str, ...]] = {
    "stockout": ("project", "zone", "type", "text"),
    "queue-failure": ("project", "zone", "type", "name", "text", "code"),
    "stuck-provisioning": ("project", "zone", "type", "name"),
    "provisioning-failure": ("project", "zone", "type", "name", "text"),
    "partial-group": ("project", "zone", "type", "name", "number"),
    "weather": ("trace*", "speed", "hours", "zone", "type"),
    "quota": (*MATCHES, "limit", "number", "text"),
    "deny": (*MATCHES, "text"),
    "billing-disabled": MATCHES,
    "api-disabled": MATCHES,
    "missing-role": ("role*", "caller"),
    "unavailable": (*MATCHES, "text"),
    "error": (
        *MATCHES,
        "code",
        "http",
        "text",
        "google_error",
        "fail_operation",
        "limit",
        "number",
    ),
    "drop-request": MATCHES,
    "drop-response": MATCHES,
    "truncate": (*MATCHES, "after_bytes", "body", "code"),
    "hold": (*MATCHES, "hold_response"),
    "slow": (*MATCHES, "seconds*"),
    "preempt": ("node*", "seconds"),
    "maintenance": ("node*", "seconds"),
    "ssh-key-refused": ("node", "worker"),
    "host-unreachable": ("node*", "worker", "seconds", "mode"),
    "disk-full": ("node*", "worker", "seconds", "after_bytes"),
}

_LIMIT, _ERROR, _ONE_KIND = "Limit to", "For error", "For one kind"
FIELDS: Mapping[str, Field] = {
    "method": Field("Calls to match, such as CreateNode or Networks/*.", metavar="METHOD"),
    "project": Field("Limit to this project.", str, _LIMIT, "PROJECT"),
    "zone": Field("Limit to this zone (wildcards allowed).", str, _LIMIT, "ZONE"),
    "region": Field("Limit to this region.", str, _LIMIT, "REGION"),
    "type": Field("Limit to nodes of this type or generation.", str, _LIMIT, "TYPE"),
    "name": Field("Limit to names that contain this text.", str, _LIMIT, "NAME"),
    "caller": Field("Limit to this caller's email (wildcards allowed).", str, _LIMIT, "EMAIL"),
    "times": Field("How many times it applies. [1]", metavar="N|unlimited"),
    "at": Field("Trigger on the Nth matching call.", int, metavar="N"),
    "text": Field("Error message.", panel=_ERROR),
    "google_error": Field(
        "For error: one of Google's errors by name, such as quota-zone.", str, _ERROR, "NAME"
    ),
    "code": Field("For error: a google.rpc code, such as ABORTED.", str, _ERROR, "CODE"),
    "http": Field("For error: HTTP status.", int, _ERROR),
    "fail_operation": Field("For error: accept the call and fail its operation.", bool, _ERROR),
    "hold_response": Field("For hold: hold the response instead of the request.", bool, _ONE_KIND),
    "body": Field("For truncate: body to truncate.", str, _ONE_KIND, "request|response"),
    "after_bytes": Field(
        "For truncate: bytes to pass first (default: half). For disk-full: bytes that can still be "
        "written (default: 0).",
        int,
        _ONE_KIND,
    ),
    "role": Field("For missing-role: the role, such as tpu.admin.", str, _ONE_KIND, "ROLE"),
    "limit": Field("For quota: id of the limit.", str, _ONE_KIND, "LIMIT"),
    "number": Field(
        "For quota: value of the limit. For partial-group: instances created. [1]", int, _ONE_KIND
    ),
    "node": Field(
        "Node or instance, for preempt, maintenance, ssh-key-refused, host-unreachable and "
        "disk-full; for preempt also a managed group.",
        str,
        _ONE_KIND,
        "NODE",
    ),
    "worker": Field(
        "Worker index, for ssh-key-refused, host-unreachable, disk-full.", int, _ONE_KIND, "WORKER"
    ),
    "mode": Field(
        "For host-unreachable: silent (no reply) or refused (connection refused). [silent]",
        str,
        _ONE_KIND,
        "silent|refused",
    ),
    "trace": Field("For weather: file of capacity over time.", str, _ONE_KIND, "FILE"),
    "speed": Field(
        "For weather: how many times faster than the clock it passes. [1]", float, _ONE_KIND, "N"
    ),
    "hours": Field("For weather: hour of the trace to begin with. [0]", float, _ONE_KIND, "N"),
    "seconds": Field(
        "For slow: delay to add. For other kinds: start in this many seconds.", float, _ONE_KIND
    ),
}
