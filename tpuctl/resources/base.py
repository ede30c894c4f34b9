"""Base classes of resources: what each kind declares about itself, and the parts that all
resources of a stack share."""

from __future__ import annotations

import threading
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, TypeVar

from tpuctl.cloud.classification import AlreadyExists
from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.operations import compute_operation
from tpuctl.engine.resource import Report, Resource
from tpuctl.errors import (
    Conflict,
    Denied,
    NotFound,
    OperationFailed,
    TimedOut,
    TpuctlError,
    Unreachable,
    Usage,
)
from tpuctl.model.plan import Action, Change
from tpuctl.model.stack.stack import Stack
from tpuctl.model.status.inventory import InventoryItem, ResourceKind
from tpuctl.model.text.names import STACK_LABEL, ownership
from tpuctl.polling import Backoff, wait_until

T = TypeVar("T")
STACK_UPDATE = "updating a running stack"
IAM_PROPAGATION_SECONDS = 420.0  # IAM changes take up to 7 minutes to propagate
COMPUTE_SECONDS = 300.0  # for operations of Compute Engine
POLL = Backoff(initial=0.1, maximum=5.0, multiplier=1.15)  # detects completion at most 15% late
ADOPT_SECONDS = 300.0  # how long another program's creation may take


class SharedLists:
    """Lists that several kinds read at the same time, each read once."""

    def __init__(self) -> None:
        self._locks: dict[str, threading.Lock] = defaultdict(threading.Lock)
        self._lists: dict[str, list[tuple[str, dict[str, Any]]]] = {}

    def get(
        self, name: str, read: Callable[[], Iterable[tuple[str, dict[str, Any]]]]
    ) -> list[tuple[str, dict[str, Any]]]:
        """The list of this name, from `read` if it is the first time."""
        with self._locks[name]:
            if name not in self._lists:
                self._lists[name] = [*read()]
            return self._lists[name]


@dataclass(frozen=True)
class Query:
    """A query for the resources of one stack, or of all, in a project. Used on a thread."""

    cloud: Cloud
    project: str
    stack: str | None
    options: Mapping[str, Any] = field(default_factory=dict)  # of the calls: timeout and retry
    lists: SharedLists = field(default_factory=SharedLists)
    unreached: set[str] = field(default_factory=set)  # zones and regions that a list left out

    def items(self, pager: Any, field: str) -> Iterator[Any]:
        """All items of a list of the TPU API, noting the locations that it could not reach."""
        for page in pager.pages:
            self.unreached.update(name.rpartition("/")[2] for name in page.unreachable)
            yield from getattr(page, field)

    @property
    def all_locations(self) -> dict[str, str]:
        """The request that lists a collection of the TPU API in all locations."""
        return {"parent": f"projects/{self.project}/locations/-"}

    def aggregated(self, collection: str) -> list[tuple[str, dict[str, Any]]]:
        """(zone or region, resource as JSON) for each labeled resource of a Compute Engine
        collection.

        Read without the official client: importing three of them takes as long as all other
        requests of `status`, and few stacks have such resources.
        """
        labels = f"labels.{STACK_LABEL}{f'={self.stack}' if self.stack else ':*'}"
        return self._aggregated(collection, labels)

    def described(self, collection: str) -> list[tuple[str, dict[str, Any]]]:
        """Like `aggregated`, for a collection without labels: each with an owner's description."""
        texts = ownership(self.stack or ".*")
        return self._aggregated(collection, f'description eq "{texts}"')

    def _aggregated(self, collection: str, filter_text: str) -> list[tuple[str, dict[str, Any]]]:
        return self.lists.get(collection, lambda: self._pages(collection, filter_text))

    def _pages(self, collection: str, filter_text: str) -> Iterator[tuple[str, dict[str, Any]]]:
        path = f"/compute/v1/projects/{self.project}/aggregated/{collection}"
        pages = self.cloud.client("rest").pages(
            "compute", path, query={"filter": filter_text}, **self.options
        )
        for page in pages:
            scopes = [*page.get("unreachables", ())]
            for scope, contents in page.get("items", {}).items():
                if contents.get("warning", {}).get("code") == "UNREACHABLE":
                    scopes.append(scope)
                for resource in contents.get(collection, ()):
                    yield scope.rpartition("/")[2], resource
            self.unreached.update(scope.rpartition("/")[2] for scope in scopes)


class CloudKind(ResourceKind):
    """A kind of resource. A new kind must define all of this, or say why not."""

    unlisted_reason: ClassVar[str] = ""  # why it has no `list_all`

    @classmethod
    def applies(cls, stack: Stack) -> bool:
        """Whether the stack has resources of this kind, or needs its permissions."""
        return True

    @classmethod
    def may_be_left(cls, stack: Stack) -> bool:
        """Whether `up` looks for one that is left over: in another zone, or of another API."""
        if not cls.is_zonal or cls.is_tpu:
            return cls.is_zonal
        return cls.api in stack.apis if cls.api is not None else cls.applies(stack)

    @classmethod
    def from_inventory(
        cls, item: InventoryItem, stack: Stack, cloud: Cloud, *, delete_bucket: bool
    ) -> Resource | None:
        """A resource that can delete a listed item; None if it is not deleted by zone.

        `stack` is the stack as it would be in the item's zone.
        """
        return None

    # Permissions that `up` may need, one line each: the step (`read` for planning, or an action;
    # `update:state` for certain fields only), a predefined role without `roles/`, and permissions
    # of that role. Creating includes listing and deleting: otherwise the user could not clean up.
    # Names are from github.com/iann0036/iam-dataset (gcp/); what each call needs is from its
    # reference ("IAM Permissions" on cloud.google.com/compute/docs/reference and its siblings).
    permissions: ClassVar[str] = ""
    # The purposes of actions that the first `up` in an ordinary project does not need.
    optional: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def may_need(cls, action: str, stack: Stack) -> bool:
        """Whether the stack can ever need the permissions for an action."""
        return True

    @classmethod
    def list_all(cls, query: Query) -> Iterable[InventoryItem]:
        """All items that stacks created in the project; for TPUs, others' too."""
        raise NotImplementedError(cls.unlisted_reason or f"{cls.kind} does not define list_all")


class StackResource(CloudKind, Resource):
    """A resource of one stack, in one cloud."""

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
        """Whether it was created for the stack; resources without labels carry a description."""
        return bool(observed.description == self.stack.names.ownership)

    def removal(self, observed: Any | None) -> Change:
        """Delete what belongs to the stack, leave the rest."""
        if observed is None:
            return self.nothing("does not exist")
        if not self.is_ours(observed):
            return self.leave("not created for this stack")
        return self.delete("created for this stack")

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

    async def revised(self, change: Change) -> Change:
        return change

    async def call(self, client: str, method: str, *args: Any, **fields: Any) -> Any:
        """Call a method of an official client; errors name the resource."""
        function = getattr(self.cloud.client(client), method)
        return await self.cloud.call(self.address, function, *args, **fields)

    async def find(self, client: str, method: str, *args: Any, **fields: Any) -> Any | None:
        """The result of a call; None if what it is about does not exist."""
        try:
            return await self.call(client, method, *args, **fields)
        except NotFound:
            return None

    async def finish(self, operation: Any | None, seconds: float = COMPUTE_SECONDS) -> None:
        """Wait for an operation of Compute Engine, if there is one."""
        if operation is not None:
            await compute_operation(self.cloud, operation, subject=self.address, seconds=seconds)

    async def poll(
        self,
        probe: Callable[[], Awaitable[T | None]],
        description: str,
        seconds: float,
        backoff: Backoff = POLL,
    ) -> T:
        """Wait until `probe` returns something, on the cloud's clock."""
        return await wait_until(
            probe,
            description=description,
            seconds=seconds,
            backoff=backoff,
            clock=self.cloud.clock,
        )

    async def confirm_deletion(
        self,
        operation: Awaitable[None],
        get: Callable[[], Awaitable[Any | None]],
        name: str,
        seconds: float,
    ) -> None:
        """Await the operation of a deletion. If it cannot be read, wait until `get` returns
        nothing."""
        try:
            await operation
        except (Denied, Unreachable):
            await self.wait_until_gone(get, name, seconds, backoff=Backoff())

    async def wait_until_gone(
        self,
        get: Callable[[], Awaitable[Any | None]],
        name: str,
        seconds: float,
        *,
        original: Any | None = None,
        backoff: Backoff = POLL,
    ) -> None:
        """Wait until `get` returns nothing, or another resource than the original of that name."""

        async def probe() -> bool | None:
            now = await get()
            if now is None or (original is not None and now.create_time != original.create_time):
                return True
            return None

        await self.poll(probe, f"{name} being deleted", seconds, backoff)

    async def insert(
        self,
        client: str,
        request: Mapping[str, Any],
        report: Report,
        *,
        before: str = "",
        after: str = "",
        seconds: float = COMPUTE_SECONDS,
    ) -> None:
        """Create it at Compute Engine; the texts are reported before and after the request."""

        async def create() -> None:
            # One request ID per attempt: a retry after a lost response finds its own operation. A
            # program that was killed and restarted finds its own instance. An ID derived from the
            # name would, for the hour that Google remembers it, match an instance deleted since.
            unique = {**request, "request_id": str(uuid.uuid4())}
            if before:
                report(before, None)
            operation = await self.call(client, "insert_unary", unique)
            if after:
                report(after, None)
            await self.finish(operation, seconds)

        await self.retry_until_visible(create, report)

    async def retry_until_visible(
        self, work: Callable[[], Awaitable[T]], report: Report, names: Collection[str] = ()
    ) -> T:
        """Run `work`, retrying while Google does not see a new account or role yet: those of these
        names, or else the stack's account.

        Other services may report it as "does not exist" for minutes, in the response to the call or
        in the operation that it starts.
        """
        names = names or (self.stack.service_account,)

        async def probe() -> tuple[T] | None:  # a tuple, since None is a valid result
            try:
                return (await work(),)
            except (Usage, NotFound, Conflict, OperationFailed) as error:
                missing = _missing(error, names)
                if missing is None:
                    raise
                report(f"waiting for {missing} to propagate", None)
                return None

        description = f"{' or '.join(names)} becoming usable"
        backoff = Backoff(initial=0.5, maximum=5.0, multiplier=1.25)
        (result,) = await self.poll(probe, description, IAM_PROPAGATION_SECONDS, backoff)
        return result

    async def create_or_adopt(
        self,
        create: Callable[[], Awaitable[None]],
        get: Callable[[], Awaitable[T | None]],
        report: Report,
        *,
        check: Callable[[T], object] | None = None,
        seconds: float | None = None,
    ) -> T | None:
        """Create the resource; if another program created it first, return what `get` finds.

        Returns None once `create` has succeeded. A name is taken as soon as another creation
        begins, but the resource is visible only once that has ended, and never if it fails. So both
        are retried alternately for `seconds` (default: ADOPT_SECONDS), then the last conflict is
        raised. `check` rejects a resource that is not ours or differs; without it the caller must
        do so.
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
                report("waiting for another program that is creating it", None)
                return None
            return (None,)

        try:
            (existing,) = await self.poll(
                probe,
                f"{self.address} being created",
                ADOPT_SECONDS if seconds is None else seconds,
                Backoff(initial=0.1, maximum=5.0),
            )
        except TimedOut:
            if conflict is None:
                raise
            raise conflict from None
        if existing is not None and check is not None:
            check(existing)
        return existing


class LabeledResource(StackResource):
    """A resource that the stack's label identifies."""

    def is_ours(self, observed: Any) -> bool:
        return bool(observed.labels.get(STACK_LABEL) == self.stack.name)

    def check(self, observed: Any) -> None:
        """Reject one without our label."""
        if not self.is_ours(observed):
            raise name_taken(self, observed.labels.get(STACK_LABEL))


def name_taken(resource: StackResource, owner: str | None) -> Conflict:
    """The error for an existing resource with our name but without our label."""
    return Conflict(
        "Name taken",
        f"{resource.address} exists and is not part of stack {resource.stack.name}"
        + (f" (it belongs to stack {owner})" if owner else ""),
        hint="Choose another stack name, or delete the resource if it is yours.",
    )


def _missing(error: TpuctlError, names: Iterable[str]) -> str | None:
    text = str(error)
    if "does not exist" not in text and "not found" not in text:
        return None
    return next((name for name in names if name in text), None)


def min_time(times: Iterable[datetime | None]) -> datetime | None:
    """The earliest of those that are known."""
    return min((time for time in times if time is not None), default=None)


def time_of(value: Any) -> datetime | None:
    """Convert an API timestamp: a message, or a string from Compute Engine, in Pacific time."""
    if not value:
        return None
    if isinstance(value, str):
        return datetime.fromisoformat(value).astimezone(UTC)
    return datetime.fromtimestamp(value.timestamp(), UTC)
