"""Changes of policies: which bindings a grant adds, and which a revocation takes away.

A binding is a mapping with `role`, `members` and, where it has one, `condition`. Others' grants,
and those under a condition, are never touched.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any

from tpuctl.cloud.clients import Cloud
from tpuctl.errors import Conflict
from tpuctl.polling import Backoff

__all__ = ["Binding", "Pair", "edit", "granted_pairs", "with_pairs", "without_pairs"]

Binding = Mapping[str, Any]
Pair = tuple[str, str]  # role and member

MAX_ATTEMPTS = 20  # with the delays about three quarters of a minute
RETRY = Backoff(initial=0.1, maximum=3.0, multiplier=1.7)


def granted_pairs(bindings: Iterable[Binding]) -> frozenset[Pair]:
    """Every role with every member that has it without a condition."""
    return frozenset(
        (binding["role"], member)
        for binding in bindings
        if not binding.get("condition")
        for member in binding["members"]
    )


def with_pairs(bindings: Iterable[Binding], pairs: Iterable[Pair]) -> list[dict[str, Any]]:
    """The bindings with these grants among them."""
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
    """The bindings without these grants, nor what is left of them once an account is deleted.

    Google then writes its member `deleted:serviceAccount:EMAIL?uid=NUMBER`
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
    """Repeat read, change and write until nobody else wrote in between.

    `attempt` raises Conflict for a lost race. A refusal that names something `new` is none: it
    is not visible yet, which is the caller's to wait for.
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
                    "Policy keeps changing",
                    f"{subject}: {error}",
                    hint="Others change it all the time. Repeat the command in a minute: "
                    "it goes on from here.",
                ) from error
        await cloud.clock.sleep(next(delays))
