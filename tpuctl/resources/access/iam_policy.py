"""Edits IAM policies: adds and removes bindings.

A binding is a mapping with `role`, `members` and an optional `condition`. Other grants, and
conditional ones, are never changed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any

from tpuctl.cloud.clients import Cloud
from tpuctl.errors import Conflict
from tpuctl.polling import Backoff

Binding = Mapping[str, Any]
Pair = tuple[str, str]  # role and member

MAX_ATTEMPTS = 20  # about 45 seconds with the delays
RETRY = Backoff(initial=0.1, maximum=3.0, multiplier=1.7)


def granted_pairs(bindings: Iterable[Binding]) -> frozenset[Pair]:
    """All unconditional (role, member) pairs."""
    return frozenset(
        (binding["role"], member)
        for binding in bindings
        if not binding.get("condition")
        for member in binding["members"]
    )


def with_pairs(bindings: Iterable[Binding], pairs: Iterable[Pair]) -> list[dict[str, Any]]:
    """The bindings with these pairs added."""
    result = [{**binding, "members": {*binding["members"]}} for binding in bindings]
    for role, member in pairs:
        for binding in result:
            if binding["role"] == role and not binding.get("condition"):
                binding["members"].add(member)
                break
        else:
            result.append({"role": role, "members": {member}})
    return result


def without_pairs(bindings: Iterable[Binding], pairs: Collection[Pair]) -> list[dict[str, Any]]:
    """The bindings without these pairs, including those of deleted accounts.

    Google renames such a member to `deleted:serviceAccount:EMAIL?uid=NUMBER`
    (cloud.google.com/iam/docs/principal-identifiers).
    """
    result = []
    for binding in bindings:
        members = {*binding["members"]}
        if not binding.get("condition"):
            members = {
                member for member in members if (binding["role"], _undeleted(member)) not in pairs
            }
        if members:
            result.append({**binding, "members": members})
    return result


def _undeleted(member: str) -> str:
    if not member.startswith("deleted:"):
        return member
    return member.removeprefix("deleted:").partition("?uid=")[0]


async def edit(
    cloud: Cloud, subject: str, attempt: Callable[[], Awaitable[None]], *, new: Collection[str]
) -> None:
    """Retry read-modify-write until there is no concurrent change.

    `attempt` raises Conflict for a lost race. A conflict that names something in `new` is raised:
    it is not visible yet, and the caller waits for it.
    """
    delays = RETRY.delays()
    for attempts in range(1, MAX_ATTEMPTS + 1):
        try:
            await attempt()
            return
        except Conflict as error:
            if any(name in str(error) for name in new):
                raise
            if attempts == MAX_ATTEMPTS:
                raise Conflict(
                    "Too many concurrent policy changes",
                    f"{subject}: {error}",
                    hint="Repeat the command in a minute; it continues from here.",
                ) from error
        await cloud.clock.sleep(next(delays))
