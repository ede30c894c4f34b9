"""Faults, settings and calls of a running local cloud, from another process.

fault = add_fault(cloud, "hold", method="CreateNode")
wait_held(cloud, fault["id"], 10)      # a request is held
remove_fault(cloud, fault["id"])       # and continues
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from urllib.parse import quote

from tpuctl.errors import TimedOut
from tpuctl.local_cloud.server_process import LocalCloud, request, wait_until

Fields = dict[str, Any]


def add_fault(cloud: LocalCloud, kind: str, **fields: Any) -> Fields:
    """Create a fault and return it with its id; Usage if it is invalid. None fields are ignored."""
    return request(cloud, "POST", "/_local/faults", {"kind": kind, **fields})


def faults(cloud: LocalCloud) -> list[Fields]:
    """All faults in the order in which they were added, with how often each was `applied`."""
    return list(request(cloud, "GET", "/_local/faults")["faults"])


def fault(cloud: LocalCloud, fault_id: str) -> Fields:
    return request(cloud, "GET", _path(fault_id))


def remove_fault(cloud: LocalCloud, fault_id: str) -> Fields:
    """Remove a fault; requests it holds continue. Returns the fault as it was."""
    return request(cloud, "DELETE", _path(fault_id))


def remove_all_faults(cloud: LocalCloud) -> list[Fields]:
    return list(request(cloud, "DELETE", "/_local/faults")["faults"])


def release(cloud: LocalCloud, fault_id: str, *, drop: bool = False) -> int:
    """Continue the requests that a fault holds, or drop them; returns how many."""
    answer = request(cloud, "POST", f"{_path(fault_id)}/release", {"drop": drop})
    return int(answer["released"])


def wait_held(cloud: LocalCloud, fault_id: str, timeout: float) -> list[Fields]:
    """Wait until the fault holds a request, and return those it holds; TimedOut otherwise."""
    requests: list[Fields] = []

    def is_held() -> bool:
        requests.extend(fault(cloud, fault_id)["held_calls"])
        return bool(requests)

    if not wait_until(is_held, timeout):
        raise TimedOut(
            "No request held",
            f"no request matched {fault_id} within {timeout:g} s",
            hint="See how many requests each fault matched:\n    tpuctl local fault list",
        )
    return requests


def settings(cloud: LocalCloud) -> Fields:
    """All settings with their values."""
    return request(cloud, "GET", "/_local/settings")


def change_settings(cloud: LocalCloud, **changes: Any) -> Fields:
    """Change settings and return all, as in `change_settings(cloud, nodes="denied")`."""
    return request(cloud, "PATCH", "/_local/settings", changes)


def token(cloud: LocalCloud, member: str, scopes: Collection[str] = ()) -> str:
    """A token of another caller than the owner: `user:ann@example.com`, `serviceAccount:EMAIL`.

    It has the permissions that policies grant to that member, limited to the scopes, if any.
    """
    fields = {"member": member, "scopes": sorted(scopes)}
    return str(request(cloud, "POST", "/_local/tokens", fields)["token"])


def calls(cloud: LocalCloud, since: int = 0) -> list[Fields]:
    """The API calls answered after number `since`: method, project, caller, status, mutating.

    The last 10,000 are kept; numbers start at 1 with each start of the server.
    """
    return list(request(cloud, "GET", f"/_local/calls?since={since}")["calls"])


def _path(fault_id: str) -> str:
    return f"/_local/faults/{quote(fault_id, safe='')}"
