"""What Google's refusals mean: one table from status, reason and text to our errors.

Each row's text or reason was seen in public; tests/unit/test_classification.py quotes them. What
no row knows is judged by its status alone and reaches as far as possible: nothing else is tried.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from tpuctl.errors import (
    Conflict,
    Denied,
    NoCapacity,
    NotFound,
    OperationFailed,
    QuotaExceeded,
    Scope,
    TpuctlError,
    Transient,
    Unreachable,
    Usage,
)

__all__ = ["ApiDisabled", "NodesClosed", "RangeTaken", "classify"]


class ApiDisabled(Denied):
    """The API is not enabled in the project: nothing of its kind can exist there."""


class NodesClosed(Denied):
    """The project may make no TPU nodes of API v1, as most may not."""


class RangeTaken(Conflict):
    """The address range asked for overlaps another of the network."""


EID = re.compile(r"\s*\[EID: 0x[0-9a-f.]+\]")


def _quota_scope(text: str) -> Scope:
    """Quota is counted in a zone, in a region, or in the whole project."""
    for word, scope in (("zone", Scope.ZONE), ("region", Scope.REGION)):
        if re.search(rf"\bin {word}\b", text):
            return scope
    return Scope.PROJECT


@dataclass(frozen=True)
class Rule:
    """A row: matches by any of its reasons, or by its text (and status, where one is needed)."""

    error: type[TpuctlError]
    summary: str
    scope: Scope | Callable[[str], Scope]
    hint: str = ""
    text: re.Pattern[str] | None = None
    statuses: Collection[str] = ()
    reasons: Collection[str] = field(default=())

    def matches(self, status: str, text: str, reasons: Collection[str]) -> bool:
        if not {*self.reasons}.isdisjoint(reasons):
            return True
        if self.text is None or (self.statuses and status not in self.statuses):
            return False
        return self.text.search(text) is not None


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


RULES = (
    Rule(
        ApiDisabled,
        "API not enabled",
        Scope.PROJECT,
        "Enable it with\n    tpuctl up",
        _any("has not been used in project", "it is disabled"),
        ("PERMISSION_DENIED",),
        ("SERVICE_DISABLED",),
    ),
    Rule(
        Denied,
        "Zone not allowed",
        Scope.ZONE,
        "Try another zone; this one may be closed to the project, or to its organisation.",
        _any(r"denied on 'locations/[a-z0-9-]+'"),
        ("PERMISSION_DENIED",),
        ("LOCATION_POLICY_VIOLATED",),
    ),
    Rule(
        NoCapacity,
        "Taken away while it was made",
        Scope.ZONE,
        "Try another zone, on-demand capacity, or again later.",
        _any("while in state PREEMPTED"),
        reasons=("UNSUPPORTED_OPERATION",),
    ),
    Rule(
        NoCapacity,
        "No reservation",
        Scope.ZONE,
        "Reserve capacity in that zone, or take another kind with\n    tpu: {capacity: on-demand}",
        _any("^reservation not found", "insufficient reserved capacity"),
    ),
    Rule(
        NoCapacity,
        "No capacity",
        Scope.ZONE,
        "Try another zone, spot capacity, or again later.",
        _any(
            "no more capacity",
            "ZONE_RESOURCE_POOL_EXHAUSTED",
            "insufficient ?capacity",
            "not enough resources",
            "does not have enough resources",
            "stockout",
        ),
        reasons=(
            "ZONE_RESOURCE_POOL_EXHAUSTED",
            "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
            "insufficientCapacity",
            "stockout",
        ),
    ),
    Rule(
        Transient,
        "Too many requests",
        Scope.FATAL,
        "",
        _any(r"per (minute|second)\b", "rate ?limit"),
        ("RESOURCE_EXHAUSTED", "PERMISSION_DENIED"),
        ("RATE_LIMIT_EXCEEDED", "rateLimitExceeded", "userRateLimitExceeded"),
    ),
    Rule(
        QuotaExceeded,
        "Quota exceeded",
        _quota_scope,
        "Ask for more in the Cloud console, or use less. What is used and left:\n    tpuctl plan",
        _any("quota"),
        ("RESOURCE_EXHAUSTED",),
        ("quotaExceeded", "QUOTA_EXCEEDED", "QuotaFailure"),
    ),
    Rule(
        Usage,
        "Not offered in the zone",
        Scope.ZONE,
        "See which zones offer it with\n    tpuctl zones",
        _any(
            "could not be found in the zonal accelerator configurations",
            r"the requested zone \S+ is not supported",
            r"accelerator \S+ was not found in zone",
            r"provisioning model is not supported for accelerator type",
        ),
    ),
    Rule(
        NodesClosed,
        "TPU nodes are closed to this project",
        Scope.PROJECT,
        "Use a TPU VM instead:\n    tpu: {kind: vm}",
        _any("request to provision TPU Node has been denied"),
    ),
    Rule(
        Denied,
        "Forbidden by an organisation policy",
        Scope.PROJECT,
        "Ask who keeps the organisation's policies, or do without what it forbids. Workers "
        "without external addresses:\n    network: {ssh: internal}",
        _any(
            r"constraint \S+ violated",
            r"violates constraint",
            "organization policy",
            "do not belong to a permitted customer",
        ),
        reasons=("CONDITION_NOT_MET",),
    ),
    Rule(
        Denied,
        "Billing is not enabled",
        Scope.PROJECT,
        "Link a billing account to the project, yourself or with\n"
        "    project: {billing_account: XXXXXX-XXXXXX-XXXXXX}",
        _any("billing"),
        ("FAILED_PRECONDITION", "PERMISSION_DENIED"),
        ("UREQ_PROJECT_BILLING_NOT_FOUND", "BILLING_DISABLED"),
    ),
    Rule(
        Denied,
        "May not act as the service account",
        Scope.PROJECT,
        "Ask for roles/iam.serviceAccountUser on that account.",
        _any("does not have access to service account", r"iam\.serviceAccounts\.actAs"),
    ),
    Rule(
        Denied,
        "Machine type not allowed",
        Scope.PROJECT,
        "Choose another machine type.",
        _any("not allowed to use the machine type"),
    ),
    Rule(
        RangeTaken,
        "Address range taken",
        Scope.FATAL,
        "Leave network.node_range out to have a free one found.",
        _any("'CIDR Range' value .* conflicts"),
    ),
)
# By status alone, for what no rule knows.
STATUSES: dict[str, tuple[type[TpuctlError], str, Scope, str]] = {
    "PERMISSION_DENIED": (
        Denied,
        "Permission denied",
        Scope.PROJECT,
        "Ask the project's owner for that role.",
    ),
    "UNAUTHENTICATED": (
        Denied,
        "Not signed in",
        Scope.PROJECT,
        "Sign in with\n    gcloud auth application-default login",
    ),
    "RESOURCE_EXHAUSTED": (Transient, "Too many requests", Scope.FATAL, ""),
    "NOT_FOUND": (NotFound, "Not found", Scope.FATAL, ""),
    "ALREADY_EXISTS": (Conflict, "Conflict", Scope.FATAL, ""),
    "ABORTED": (Conflict, "Conflict", Scope.FATAL, ""),
    "FAILED_PRECONDITION": (Conflict, "Conflict", Scope.FATAL, ""),
    "UNAVAILABLE": (Transient, "The cloud did not answer properly", Scope.FATAL, ""),
    "INTERNAL": (Transient, "The cloud did not answer properly", Scope.FATAL, ""),
    "DEADLINE_EXCEEDED": (Transient, "The cloud did not answer properly", Scope.FATAL, ""),
    "UNIMPLEMENTED": (Unreachable, "The cloud does not offer this", Scope.FATAL, ""),
    "INVALID_ARGUMENT": (Usage, "The cloud refused the request", Scope.FATAL, ""),
}
UNKNOWN = (OperationFailed, "The cloud reported an error", Scope.FATAL, "")
NOT_READY = "resourceNotReady"  # of Compute, with status 400, for what was made a moment ago


def classify(
    status: str,
    message: str,
    *,
    what: str,
    reasons: Collection[str] = (),
    has_ended: bool = False,
) -> TpuctlError:
    """One of our errors for a canonical status, Google's text and the reasons in its details.

    `has_ended` says that an operation ended with it: repeating the same call cannot help then.
    """
    reasons = {*reasons}
    text = f"{what}: {EID.sub('', message).strip()}"
    for rule in RULES:
        if rule.matches(status, message, reasons):
            error = rule.error(rule.summary, text, hint=rule.hint)
            error.scope = rule.scope(message) if callable(rule.scope) else rule.scope
            return error
    if NOT_READY in reasons:
        return Transient("The cloud did not answer properly", text)
    if has_ended and status == "RESOURCE_EXHAUSTED":  # capacity, in words never seen before
        lacking = NoCapacity("No capacity", text, hint="Try another zone, or again later.")
        lacking.scope = Scope.ZONE
        return lacking
    kind, summary, scope, hint = STATUSES.get(status, UNKNOWN)
    if has_ended and issubclass(kind, Transient):
        kind, summary, scope, hint = UNKNOWN
    found = kind(summary, text, hint=hint)
    found.scope = scope
    return found
