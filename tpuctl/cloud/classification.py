"""Maps Google's errors (status, reasons and text) to TpuctlError, by the known errors.

That table holds texts and reasons seen in public. An unknown error is classified by its status
alone, with the widest scope: nothing else is tried.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from tpuctl import errors
from tpuctl.errors import ApiDisabled, Conflict, Denied, Scope, TpuctlError, Transient
from tpuctl.model.troubleshooting.known_errors import KnownError, extract_facts, table


class NodesClosed(Denied):
    """The project may not create TPU nodes (API v1); few projects may."""


class RangeTaken(Conflict):
    """The requested address range overlaps another one in the network."""


class AlreadyExists(Conflict):
    """A resource of that name exists, or another call has begun to create it."""


ERROR_CLASSES: Mapping[str, type[TpuctlError]] = {
    "ApiDisabled": ApiDisabled,
    "NodesClosed": NodesClosed,
    "RangeTaken": RangeTaken,
}
EID = re.compile(r"\s*\[EID: 0x[0-9a-f.]+\]")
EXISTS = "RESOURCE_ALREADY_EXISTS"  # in Compute Engine operations
NOT_READY = "resourceNotReady"  # from Compute Engine, with status 400, for a resource just created


def classify(
    status: str,
    message: str,
    *,
    subject: str,
    reasons: Collection[str] = (),
    has_ended: bool = False,
    facts: Mapping[str, str] | None = None,
) -> TpuctlError:
    """The TpuctlError for a canonical status, Google's text and the reasons in its details.

    `has_ended`: a finished operation failed with it, so retrying the call cannot help. `facts` name
    what the call was about (project, zone, …) for the hint's commands.
    """
    known_error = table().match_response(status, message, reasons)
    is_unknown = known_error is None
    if known_error is None and NOT_READY in reasons:
        known_error = table().by_status("UNAVAILABLE")
    elif known_error is None and has_ended and status == "RESOURCE_EXHAUSTED":
        known_error = table().by_name("no-capacity")  # with an unknown text
    elif known_error is None:
        known_error = table().by_status(status)
        if has_ended and issubclass(_error_class(known_error), Transient):
            known_error = table().by_status("")
    text = message.strip() if is_unknown else EID.sub("", message).strip()
    context = {**(facts or {}), **extract_facts(message, subject)}
    if facts and "project" in facts:  # texts name its number
        context["project"] = facts["project"]
    detail = f"{subject}: {text or 'Google gave no reason'}\n{known_error.cause}"
    error_class = _error_class(known_error)
    if error_class is Conflict and (status == "ALREADY_EXISTS" or EXISTS in reasons):
        error_class = AlreadyExists
    error = error_class(known_error.summary, detail, hint=known_error.hint(context))
    error.scope = _scope(known_error, message)
    return error


def _error_class(known_error: KnownError) -> type[TpuctlError]:
    error_class = ERROR_CLASSES.get(known_error.exception) or getattr(errors, known_error.exception)
    assert issubclass(error_class, TpuctlError)
    return error_class


def _scope(known_error: KnownError, text: str) -> Scope:
    """The scope of an error; quota applies to a zone, a region, or the whole project."""
    if known_error.scope != "quota":
        return Scope(known_error.scope)
    for word, scope in (("zone", Scope.ZONE), ("region", Scope.REGION)):
        if re.search(rf"\bin {word}\b", text):
            return scope
    return Scope.PROJECT
