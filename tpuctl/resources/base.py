"""What the resources share: what a kind says of itself to whoever looks through a project, and
of each its stack, its cloud, and the words of its decisions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, TypeVar

from tpuctl.cloud.classification import AlreadyExists
from tpuctl.cloud.clients import Cloud
from tpuctl.engine.resource import Report, Resource
from tpuctl.errors import Conflict, NotFound, OperationFailed, TimedOut, TpuctlError, Usage
from tpuctl.model.inventory import InventoryItem, ResourceKind
from tpuctl.model.names import STACK_LABEL
from tpuctl.model.plan import Action, Change
from tpuctl.model.stack import Stack
from tpuctl.polling import Backoff, Clock, wait_until

__all__ = [
    "IAM_PROPAGATION_SECONDS",
    "STACK_UPDATE",
    "CloudKind",
    "Query",
    "StackResource",
    "name_taken",
    "retry_until_visible",
    "time_of",
    "wait_until_deleted",
]

T = TypeVar("T")
STACK_UPDATE = "changing a stack that is up"
IAM_PROPAGATION_SECONDS = (
    420.0  # seconds that Google's identity changes were seen to take: up to 7 minutes
)
ADOPT_SECONDS = 300.0  # as long as a creation of our own may take


@dataclass(frozen=True)
class Query:
    """A look through a whole project, for what one stack made or any. Used on a thread."""

    cloud: Cloud
    project: str
    stack: str | None
    options: Mapping[str, Any]  # for the calls: their deadline and retries

    @property
    def all_locations(self) -> dict[str, str]:
        """The request that lists all there is of something of the TPU API."""
        return {"parent": f"projects/{self.project}/locations/-"}

    def aggregated(self, collection: str) -> Iterator[tuple[str, Any]]:
        """Each labeled resource of a collection, with the zone or region it is in.

        An answer has every scope there is: those with nothing are passed over before they are
        wrapped.
        """
        request = {
            "project": self.project,
            "filter": f"labels.{STACK_LABEL}{f'={self.stack}' if self.stack else ':*'}",
        }
        client = self.cloud.client(collection)
        for page in client.aggregated_list(request, **self.options).pages:
            for scope, message in type(page).pb(page).items.items():
                if getattr(message, collection):
                    for resource in getattr(page.items[scope], collection):
                        yield scope.rpartition("/")[2], resource


class CloudKind(ResourceKind):
    """A kind of resource. Who adds one says all of this, or why there is nothing to be said."""

    unlisted_reason: ClassVar[str] = ""  # why nobody looks for things of it

    @classmethod
    def from_inventory(
        cls, item: InventoryItem, stack: Stack, cloud: Cloud, *, delete_bucket: bool
    ) -> Resource | None:
        """What can take a found thing away; None where that is no matter of one thing in one zone.

        `stack` is as it would be there.
        """
        return None

    # What bringing it up may need, a line for each: what is done to it (`look` for a plan, or an
    # action of one, `update:state` for some fields alone), a predefined role without `roles/`, and
    # permissions that this role has. What is created is also found again and deleted: who could
    # not do that would be left with it. The names are those of IAM's own record of permissions and
    # predefined roles (github.com/iann0036/iam-dataset, gcp/); what each call needs is from the
    # reference of that call ("IAM Permissions" on cloud.google.com/compute/docs/reference and its
    # siblings).
    permissions: ClassVar[str] = ""
    # The action that a first `up` in an ordinary project does without, and what it is for.
    optional: ClassVar[tuple[str, str]] = ("", "")

    @classmethod
    def may_need(cls, action: str, stack: Stack) -> bool:
        """Whether the stack can ever come to need what is there for an action."""
        return True

    @classmethod
    def list_all(cls, query: Query) -> Iterable[InventoryItem]:
        """All that stacks made of it in the project; others' things, too, where it is a TPU."""
        raise NotImplementedError(cls.unlisted_reason or f"{cls.kind} can be listed")


class StackResource(CloudKind):
    """A resource of one stack, reached through one cloud."""

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
        """Whether what is there was made for the stack. What cannot be labeled is described so."""
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

    async def create_or_adopt(
        self,
        create: Callable[[], Awaitable[None]],
        get: Callable[[], Awaitable[T | None]],
        report: Report,
        *,
        check: Callable[[T], object] | None = None,
        seconds: float | None = None,
    ) -> T | None:
        """None once `create` has succeeded; else what `look` sees, which another program created.

        A name is taken from the moment another creation of it begins, but the resource is visible
        only once that has ended, and never if it fails. So both are repeated in turn until
        `seconds` (else ADOPT_SECONDS) have passed; then the last refusal is raised. `check`
        refuses what is not ours, or of another kind; without it the caller does.
        """
        conflict: AlreadyExists | None = None

        async def probe() -> tuple[T | None] | None:
            nonlocal conflict
            try:
                await create()
            except Conflict as error:
                existing = await get()
                if existing is not None:
                    return (existing,)
                if not isinstance(error, AlreadyExists):
                    raise
                conflict = error
                report("waiting: another program is creating it", None)
                return None
            return (None,)

        try:
            (existing,) = await wait_until(
                probe,
                description=f"{self.address} being created",
                seconds=ADOPT_SECONDS if seconds is None else seconds,
                backoff=Backoff(initial=0.1, maximum=5.0),
                clock=self.cloud.clock,
            )
        except TimedOut:
            if conflict is None:
                raise
            raise conflict from None
        if existing is not None and check is not None:
            check(existing)
        return existing


def name_taken(resource: StackResource, owner: str | None) -> Conflict:
    """The refusal of a thing of our name that carries no label of ours."""
    return Conflict(
        "Name taken",
        f"{resource.address} exists and is not part of stack {resource.stack.name}"
        + (f" (it belongs to stack {owner})" if owner else ""),
        hint="Choose another stack name, or delete it yourself if it is yours.",
    )


async def retry_until_visible(
    work: Callable[[], Awaitable[T]],
    new: str | Collection[str],
    cloud: Cloud,
    report: Callable[[str], None],
) -> T:
    """`work`, repeated while Google does not see what was just made: an account, a role.

    Such a thing may be answered with "does not exist" by other services for minutes, by the call
    itself or by the operation that it began.
    """
    names = (new,) if isinstance(new, str) else tuple(new)

    async def probe() -> tuple[T] | None:  # of one, for what answers None is done too
        try:
            return (await work(),)
        except (Usage, NotFound, Conflict, OperationFailed) as error:
            missing = _missing(error, names)
            if missing is None:
                raise
            report(f"waiting until {missing} is seen")
            return None

    (result,) = await wait_until(
        probe,
        description=f"{' or '.join(names)} becoming usable",
        seconds=IAM_PROPAGATION_SECONDS,
        backoff=Backoff(initial=0.5, maximum=5.0, multiplier=1.25),
        clock=cloud.clock,
    )
    return result


async def wait_until_deleted(
    get: Callable[[], Awaitable[Any | None]],
    original: Any,
    *,
    description: str,
    seconds: float,
    backoff: Backoff,
    clock: Clock,
) -> None:
    """Wait until `look` finds what was seen no more: another of its name may have been made."""

    async def probe() -> bool | None:
        current = await get()
        return True if current is None or current.create_time != original.create_time else None

    await wait_until(
        probe,
        description=f"{description} being deleted",
        seconds=seconds,
        backoff=backoff,
        clock=clock,
    )


def _missing(error: TpuctlError, names: Iterable[str]) -> str | None:
    text = str(error)
    if "does not exist" not in text and "not found" not in text:
        return None
    return next((name for name in names if name in text), None)


def time_of(value: Any) -> datetime | None:
    """Of an API's timestamp: a message, or a text of Compute Engine's."""
    if not value:
        return None
    if isinstance(value, str):
        return datetime.fromisoformat(value)
    return datetime.fromtimestamp(value.timestamp(), UTC)
