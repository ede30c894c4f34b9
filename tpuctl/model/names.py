"""Every name a stack's resources have, derived: the same laptop or another finds them again."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = [
    "BUCKET_NAME",
    "BUNDLES",
    "JOBS",
    "RECORDS",
    "RECOVERY_ROLE",
    "STACK_LABEL",
    "STACK_NAME",
    "USER_NAME",
    "WATCH_ROLE",
    "Names",
    "bucket_name_problem",
    "ownership",
    "record_name",
    "stack_of_account",
]

STACK_LABEL = "tpuctl-stack"  # on every resource that can carry labels
STACK_NAME = r"[a-z]([-a-z0-9]{0,24}[a-z0-9])?"  # leaves room for "-tpu" in 30 characters
# POSIX 3.437 (User Name), as far as useradd makes them: no digit first, at most 32 characters.
USER_NAME = r"^[A-Za-z_][A-Za-z0-9._-]{0,31}$"
# cloud.google.com/storage/docs/buckets (naming requirements), with `bucket_name_problem`.
_LABEL = r"[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?"
BUCKET_NAME = rf"^{_LABEL}(\.{_LABEL})*$"
JOBS = "tpuctl/jobs"
BUNDLES = "tpuctl/bundles"
RECORDS = "tpuctl/stacks"
# One custom role for all stacks of a project: a deleted role's id cannot be used again for weeks.
WATCH_ROLE = "tpuctl.watch"
# Another: who may only delete machines is not to gain the right to make some.
RECOVERY_ROLE = "tpuctl.recovery"


def bucket_name_problem(name: str) -> str:
    """Why Google refuses a bucket of that name, whatever its letters; empty where it does not."""
    if name.startswith("goog"):
        return "it begins with goog"
    if "google" in name or "g00gle" in name:
        return "it has google in it"
    if re.fullmatch(r"\d+(\.\d+){3}", name):
        return "it is an IP address"
    return ""


def ownership(stack: str) -> str:
    """The description of what a stack made and that cannot carry labels."""
    return f"Made by tpuctl for stack {stack}"


def stack_of_account(account: str) -> str | None:
    """The stack whose workers' account is called that; None for another kind of account."""
    stack, dash, rest = account.rpartition("-")
    if not dash or rest != "tpu":
        return None
    return stack.removesuffix("-stack") if len(stack) == len("x-stack") else stack


def record_name(stack: str) -> str:
    """The object of its bucket in which a stack's record is."""
    return f"{RECORDS}/{stack}.json"


@dataclass(frozen=True)
class Names:
    """The derived names of one stack in one project."""

    stack: str
    project: str

    @property
    def labels(self) -> dict[str, str]:
        return {STACK_LABEL: self.stack}

    @property
    def ownership(self) -> str:
        """The description of what cannot carry labels."""
        return ownership(self.stack)

    @property
    def node(self) -> str:
        return f"{self.stack}-tpu"

    def nodes(self, count: int) -> tuple[str, ...]:
        """The names of so many nodes: the only one has no number."""
        return (self.node,) if count == 1 else tuple(f"{self.node}-{i}" for i in range(count))

    @property
    def queued(self) -> str:
        """The queued resource that asks for the nodes."""
        return f"{self.stack}-queue"

    @property
    def controller(self) -> str:
        """The VM that drives a TPU node."""
        return f"{self.stack}-controller"

    def disk(self, index: int) -> str:
        """A data disk made for the stack."""
        return f"{self.stack}-data-{index}"

    @property
    def record(self) -> str:
        """The object that remembers what no label can say."""
        return record_name(self.stack)

    @property
    def watch_role(self) -> str:
        return f"projects/{self.project}/roles/{WATCH_ROLE}"

    @property
    def recovery_role(self) -> str:
        return f"projects/{self.project}/roles/{RECOVERY_ROLE}"

    @property
    def tag(self) -> str:
        """The network tag that the stack's firewall rules select."""
        return f"{self.stack}-tpu"

    @property
    def network(self) -> str:
        return f"{self.stack}-net"

    @property
    def ssh_rule(self) -> str:
        return f"{self.stack}-ssh"

    @property
    def ssh_deny_rule(self) -> str:
        return f"{self.stack}-ssh-only"

    @property
    def service_account(self) -> str:
        """The part of the e-mail before the @; 6 to 30 characters."""
        return f"{self.stack}-tpu" if len(self.stack) > 1 else f"{self.stack}-stack-tpu"

    @property
    def service_account_email(self) -> str:
        return f"{self.service_account}@{self.project}.iam.gserviceaccount.com"

    @property
    def bucket(self) -> str:
        """Bucket names are global: the project's id, itself global, makes this one unique.

        At most 63 characters; both parts are within 26 and 30.
        """
        return f"{self.stack}-{self.project.replace(':', '-').replace('.', '-')}"
