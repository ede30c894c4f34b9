"""What Google's refusals mean: from status, reason and text to our errors, by the one table.

The table is `tpuctl.model.known_errors`; its texts and reasons were seen in public. What it does
not know is judged by its status alone and reaches as far as possible: nothing else is tried.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from tpuctl import errors
from tpuctl.errors import Conflict, Denied, Scope, TpuctlError, Transient
from tpuctl.model.known_errors import Known, facts_of, table

__all__ = ["AlreadyExists", "ApiDisabled", "NodesClosed", "RangeTaken", "classify"]


class ApiDisabled(Denied):
    """The API is not enabled in the project: nothing of its kind can exist there."""


class NodesClosed(Denied):
    """The project may make no TPU nodes of API v1, as most may not."""


class RangeTaken(Conflict):
    """The address range asked for overlaps another of the network."""


class AlreadyExists(Conflict):
    """There is a resource of that name, or another call has begun to create it."""


OURS: Mapping[str, type[TpuctlError]] = {
    "ApiDisabled": ApiDisabled,
    "NodesClosed": NodesClosed,
    "RangeTaken": RangeTaken,
}
EID = re.compile(r"\s*\[EID: 0x[0-9a-f.]+\]")
EXISTS = "RESOURCE_ALREADY_EXISTS"  # of Compute's operations
NOT_READY = "resourceNotReady"  # of Compute, with status 400, for what was made a moment ago


def classify(
    status: str,
    message: str,
    *,
    what: str,
    reasons: Collection[str] = (),
    has_ended: bool = False,
    facts: Mapping[str, str] | None = None,
) -> TpuctlError:
    """One of our errors for a canonical status, Google's text and the reasons in its details.

    `has_ended` says that an operation ended with it: repeating the same call cannot help then.
    `facts` are what the call was about, as project and zone, for the hint's commands.
    """
    known = table().answer(status, message, reasons)
    is_unknown = known is None
    if known is None and NOT_READY in reasons:
        known = table().of_status("UNAVAILABLE")
    elif known is None and has_ended and status == "RESOURCE_EXHAUSTED":
        known = table().named("no-capacity")  # in words never seen before
    elif known is None:
        known = table().of_status(status)
        if has_ended and issubclass(_raised(known), Transient):
            known = table().of_status("")
    words = message.strip() if is_unknown else EID.sub("", message).strip()
    around = {**(facts or {}), **facts_of(message, what)}
    if facts and "project" in facts:  # texts tell its number
        around["project"] = facts["project"]
    detail = f"{what}: {words or 'Google gave no reason'}\n{known.why}"
    raised = _raised(known)
    if raised is Conflict and (status == "ALREADY_EXISTS" or EXISTS in reasons):
        raised = AlreadyExists
    error = raised(known.summary, detail, hint=known.hint(around))
    error.scope = _scope(known, message)
    return error


def _raised(known: Known) -> type[TpuctlError]:
    found = OURS.get(known.raised) or getattr(errors, known.raised)
    assert issubclass(found, TpuctlError)
    return found


def _scope(known: Known, text: str) -> Scope:
    """Quota is counted in a zone, in a region, or in the whole project."""
    if known.scope != "quota":
        return Scope(known.scope)
    for word, scope in (("zone", Scope.ZONE), ("region", Scope.REGION)):
        if re.search(rf"\bin {word}\b", text):
            return scope
    return Scope.PROJECT
