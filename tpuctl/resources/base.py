"""What the resources share: their stack, their cloud, and the words of their decisions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, ClassVar, TypeVar

from tpuctl.cloud.clients import Cloud
from tpuctl.errors import Conflict, NotFound, TpuctlError, Usage
from tpuctl.model.plan import Action, Change
from tpuctl.model.stack import Stack
from tpuctl.waiting import Backoff, wait_until

__all__ = ["SETTLING", "StackResource", "once_visible"]

T = TypeVar("T")
SETTLING = 420.0  # seconds that Google's identity changes were seen to take: up to 7 minutes


class StackResource:
    """A resource of one stack, reached through one cloud."""

    kind: ClassVar[str]
    is_billable: bool = False

    def __init__(self, stack: Stack, cloud: Cloud) -> None:
        self.stack = stack
        self.cloud = cloud

    @property
    def name(self) -> str:
        raise NotImplementedError

    @property
    def address(self) -> str:
        return f"{self.kind}/{self.name}"

    @property
    def after(self) -> frozenset[str]:
        return frozenset()

    def is_ours(self, observed: Any) -> bool:
        """Whether what is there was made for the stack. What cannot be labelled is described so."""
        return bool(observed.description == self.stack.names.ownership)

    def removal(self, observed: Any | None) -> Change:
        """What is ours goes, what is another's stays."""
        if observed is None:
            return self.nothing("there is none")
        if not self.is_ours(observed):
            return self.leave("it was not made for this stack")
        return self.delete("made for this stack")

    def nothing(self, because: str) -> Change:
        return Change(self.address, Action.NOTHING, because)

    def create(self, because: str) -> Change:
        return Change(self.address, Action.CREATE, because)

    def update(self, because: str, fields: Iterable[str]) -> Change:
        return Change(self.address, Action.UPDATE, because, tuple(fields))

    def delete(self, because: str) -> Change:
        return Change(self.address, Action.DELETE, because)

    def leave(self, because: str) -> Change:
        return Change(self.address, Action.LEAVE, because)


async def once_visible(
    work: Callable[[], Awaitable[T]], account: str, cloud: Cloud, report: Callable[[str], None]
) -> T:
    """`work`, repeated while Google does not see the new `account` yet.

    A service account just made may be answered with "does not exist" by other services.
    """

    async def probe() -> T | None:
        try:
            return await work()
        except (Usage, NotFound, Conflict) as error:
            if not _names_missing(error, account):
                raise
            report("waiting until the new service account is seen")
            return None

    return await wait_until(
        probe,
        what=f"service account {account} becoming usable",
        seconds=SETTLING,
        backoff=Backoff(first=1.0, most=15.0),
        clock=cloud.clock,
    )


def _names_missing(error: TpuctlError, account: str) -> bool:
    text = str(error)
    return account in text and ("does not exist" in text or "not found" in text)
