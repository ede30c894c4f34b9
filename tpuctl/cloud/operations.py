"""The one waiter for long operations of every API."""

from __future__ import annotations

from typing import Any

from tpuctl.cloud.classification import classify
from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.errors import from_status
from tpuctl.errors import NotFound
from tpuctl.google_imports import compute_types
from tpuctl.model.known_errors import facts_of
from tpuctl.polling import Backoff, wait_until

__all__ = ["compute_operation", "long_operation"]

# Late by at most 15 % of what was waited for, and never by more than 2 seconds.
POLL = Backoff(first=0.05, most=2.0, factor=1.15)


async def long_operation(
    cloud: Cloud, client: str, operation: Any, *, what: str, seconds: float
) -> None:
    """Wait for a `google.longrunning` operation; raise what it failed with.

    Only the name, `done` and `error` are read. A vanished operation counts as ended: the caller
    looks at the resource itself afterwards.
    """
    name = operation.name
    if operation.done:
        _raise_if_failed(operation, what, cloud)
        return

    async def probe() -> bool | None:
        try:
            now = await cloud.call(what, cloud.client(client).get_operation, {"name": name})
        except NotFound:
            return True
        if not now.done:
            return None
        _raise_if_failed(now, what, cloud)
        return True

    await wait_until(probe, what=what, seconds=seconds, backoff=POLL, clock=cloud.clock)


def _raise_if_failed(operation: Any, what: str, cloud: Cloud) -> None:
    if operation.HasField("error"):
        around = {**cloud.around, **facts_of(operation.name, project=cloud.project)}
        whole = RuntimeError(f"operation {operation.name} ended with {operation.error}".rstrip())
        raise from_status(operation.error, what, around) from whole


async def compute_operation(cloud: Cloud, operation: Any, *, what: str, seconds: float) -> None:
    """Wait for a compute operation with the server's own long poll: of a zone, a region, or all."""
    done = compute_types().Operation.Status.DONE
    places = {"zone": operation.zone, "region": operation.region}
    where = {kind: link.rpartition("/")[2] for kind, link in places.items() if link}
    scope = next(iter(where), "global")

    async def probe() -> Any | None:
        now = await cloud.call(
            what,
            cloud.client(f"{scope}_operations").wait,
            project=cloud.project,
            operation=operation.name,
            timeout=150.0,
            **where,
        )
        return now if now.status == done else None

    ended = operation
    if operation.status != done:
        ended = await wait_until(probe, what=what, seconds=seconds, backoff=POLL, clock=cloud.clock)
    if ended.error.errors:
        first = ended.error.errors[0]
        if first.code == "RESOURCE_NOT_FOUND" and ended.operation_type == "delete":
            return  # somebody else has deleted it meanwhile
        text = f"{first.code}: {first.message}"
        around = {**cloud.around, "project": cloud.project, **where}
        whole = RuntimeError(f"operation {operation.name} ended with {ended.error}".rstrip())
        raise classify(
            "UNKNOWN", text, what=what, reasons=(first.code,), has_ended=True, facts=around
        ) from whole
    if ended.http_error_status_code >= 400:
        text = f"{ended.http_error_status_code} {ended.http_error_message}"
        raise classify("UNKNOWN", text, what=what, has_ended=True, facts=cloud.around)
