"""What a kind of resource says of itself to whoever looks through a project."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

from tpuctl.cloud.clients import Cloud
from tpuctl.engine.resource import Resource
from tpuctl.model.inventory import Found, Kind
from tpuctl.model.names import STACK_LABEL
from tpuctl.model.stack import Stack

__all__ = ["CHANGES", "CloudKind", "Query", "time_of"]

CHANGES = "changing a stack that is up"


@dataclass(frozen=True)
class Query:
    """A look through a whole project, for what one stack made or any. Used on a thread."""

    cloud: Cloud
    project: str
    stack: str | None
    options: Mapping[str, Any]  # for the calls: their deadline and retries

    @property
    def every_location(self) -> dict[str, str]:
        """The request that lists all there is of something of the TPU API."""
        return {"parent": f"projects/{self.project}/locations/-"}

    def aggregated(self, collection: str) -> Iterator[tuple[str, Any]]:
        """Each labelled resource of a collection, with the zone or region it is in.

        An answer has every scope there is: those with nothing are passed over before they are
        wrapped.
        """
        request = {
            "project": self.project,
            "filter": f"labels.{STACK_LABEL}{f'={self.stack}' if self.stack else ':*'}",
        }
        client = self.cloud.client(collection)
        for page in client.aggregated_list(request, **self.options).pages:
            for scope, bare in type(page).pb(page).items.items():
                if getattr(bare, collection):
                    for one in getattr(page.items[scope], collection):
                        yield scope.rpartition("/")[2], one


class CloudKind(Kind):
    """A kind of resource. Who adds one says all of this, or why there is nothing to be said."""

    unlisted: ClassVar[str] = ""  # why nobody looks for things of it

    @classmethod
    def of_found(
        cls, found: Found, stack: Stack, cloud: Cloud, *, delete_bucket: bool
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
    def list_all(cls, query: Query) -> Iterable[Found]:
        """All that stacks made of it in the project; others' things, too, where it is a TPU."""
        raise NotImplementedError(cls.unlisted or f"{cls.kind} can be listed")


def time_of(value: Any) -> datetime | None:
    """Of an API's timestamp: a message, or a text of Compute Engine's."""
    if not value:
        return None
    if isinstance(value, str):
        return datetime.fromisoformat(value)
    return datetime.fromtimestamp(value.timestamp(), UTC)
