"""Derived names of a stack's resources, so that any machine can find them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

STACK_LABEL = "tpuctl-stack"  # on every resource that supports labels
USER_LABEL = "tpuctl-user"  # who created it; later users do not change it
STACK_NAME = r"[a-z]([-a-z0-9]{0,24}[a-z0-9])?"  # leaves room for "-tpu" in 30 characters
# POSIX 3.437 (User Name) with the limits of useradd: no leading digit, up to 32 characters.
USER_NAME = r"^[A-Za-z_][A-Za-z0-9._-]{0,31}$"
# cloud.google.com/storage/docs/buckets (naming requirements), with `bucket_name_problem`.
_LABEL = r"[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?"
BUCKET_NAME = rf"^{_LABEL}(\.{_LABEL})*$"
# Line breaks of any grammar (YAML's include U+0085, U+2028 and U+2029), what terminals obey, and
# what no file can contain (surrogates).
CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff]")
JOBS = "tpuctl/jobs"
BUNDLES = "tpuctl/bundles"
CACHE = "tpuctl/cache"  # environments and compiled programs
TOOLS = f"{CACHE}/tools"  # Pythons and uv, which jobs bring
NOTEBOOKS = "tpuctl/notebooks"
ACTIVITIES = "tpuctl/activity"
QUEUES = "tpuctl/queues"
NOTIFICATIONS = "tpuctl/notifications"
RECORDS = "tpuctl/stacks"
SPENDING = "tpuctl/spending"
BUDGET_LEDGER = f"{SPENDING}/budget.json"
BUDGET_LABEL = "tpuctl-budget"  # of the bucket that all stacks of a project share
# One custom role for all stacks of a project: the ID of a deleted role is blocked for weeks.
WATCHDOG_ROLE = "tpuctl.watchdog"
# Separate, so that machines that may only delete machines cannot create any.
RECOVERY_ROLE = "tpuctl.recovery"


def bucket_name_problem(name: str) -> str:
    """Why Google rejects a bucket name of valid syntax; empty if it is accepted."""
    if name.startswith("goog"):
        return "it starts with goog"
    if "google" in name or "g00gle" in name:
        return "it contains google"
    if re.fullmatch(r"\d+(\.\d+){3}", name):
        return "it is an IP address"
    return ""


def account_email(name: str, project: str) -> str:
    """The email of a project's service account. The ID of a project of a domain, example.com:p,
    is reversed in it (kubeflow/kubeflow#2244, google/clusterfuzz#538)."""
    domain, _, short_id = project.rpartition(":")
    return f"{name}@{short_id}{domain and f'.{domain}'}.iam.gserviceaccount.com"


def notebooks_prefix(stack: str) -> str:
    """The prefix of a stack's notebooks in the bucket, which stacks may share."""
    return f"{NOTEBOOKS}/{stack}"


def ownership(stack: str) -> str:
    """The description of a stack's resources that do not support labels."""
    return f"Created by tpuctl for stack {stack}"


def stack_of_account(account: str) -> str | None:
    """The stack of a workers' service account, by its name; None for other accounts."""
    stack, dash, rest = account.rpartition("-")
    if not dash or rest != "tpu":
        return None
    return stack.removesuffix("-stack") if len(stack) == len("x-stack") else stack


def turns_name(stack: str) -> str:
    """The object with the jobs of a stack's queue that have their turns."""
    return f"{QUEUES}/{stack}/turns"


def queued_stack_file(stack: str, digest: str) -> str:
    """The object with the stack file of queued jobs, by its content; `*` for all."""
    return f"{QUEUES}/{stack}/{digest}.json"


def record_name(stack: str) -> str:
    """The object name of a stack's record in its bucket."""
    return f"{RECORDS}/{stack}.json"


@dataclass(frozen=True)
class Names:
    """The derived names of one stack in one project."""

    stack: str
    project: str
    shares_network: bool = False  # with the stacks of other projects (Shared VPC)
    sharing: str = ""  # the stack that owns all but the TPU, if that is not this one

    @property
    def owner(self) -> str:
        """The stack of the bucket, controller, account, network and ledger."""
        return self.sharing or self.stack

    def parallel(self, number: int) -> Names:
        """The names of the owner's TPU of this number; the first is the owner's own."""
        if number == 1:
            return replace(self, stack=self.owner, sharing="")
        return replace(self, stack=f"{self.owner}-{number}", sharing=self.owner)

    @property
    def number(self) -> int:
        """The number of the TPU among those of its owner."""
        return int(self.stack.removeprefix(f"{self.owner}-")) if self.sharing else 1

    @property
    def labels(self) -> dict[str, str]:
        return {STACK_LABEL: self.stack}

    @property
    def ownership(self) -> str:
        """The description of resources that do not support labels."""
        return ownership(self.stack)

    @property
    def node(self) -> str:
        return f"{self.stack}-tpu"

    def nodes(self, count: int) -> tuple[str, ...]:
        """The names of `count` nodes; a single one has no index."""
        return (self.node,) if count == 1 else tuple(f"{self.node}-{i}" for i in range(count))

    @property
    def queued(self) -> str:
        """The queued resource that requests the nodes."""
        return f"{self.stack}-queue"

    @property
    def controller(self) -> str:
        """The controller VM."""
        return f"{self.owner}-controller"

    def disk(self, index: int) -> str:
        """A data disk created for the stack."""
        return f"{self.stack}-data-{index}"

    @property
    def record(self) -> str:
        """The object with state that labels cannot hold."""
        return record_name(self.owner)

    @property
    def ledger(self) -> str:
        """The object with what the stack has spent."""
        return f"{SPENDING}/{self.owner}.json"

    @property
    def budget_bucket(self) -> str:
        """The bucket with what all stacks of the project spend; unique, as `bucket`."""
        return f"{BUDGET_LABEL}-{self.project.replace(':', '-').replace('.', '-')}"

    @property
    def notifications(self) -> str:
        """The prefix of events for the stack's webhook."""
        return f"{NOTIFICATIONS}/{self.owner}"

    @property
    def watchdog_role(self) -> str:
        return f"projects/{self.project}/roles/{WATCHDOG_ROLE}"

    @property
    def recovery_role(self) -> str:
        return f"projects/{self.project}/roles/{RECOVERY_ROLE}"

    @property
    def tag(self) -> str:
        """The network tag that the stack's firewall rules select."""
        return f"{self._in_network}-tpu"

    @property
    def _in_network(self) -> str:
        """Unique in the network: other projects may have stacks of that name."""
        project = self.project.replace(":", "-").replace(".", "-")
        return f"{project}-{self.owner}" if self.shares_network else self.owner

    @property
    def network(self) -> str:
        return f"{self.owner}-net"

    @property
    def nat(self) -> str:
        """The Cloud Router with the NAT of the stack's machines, and that NAT."""
        return f"{self.owner}-nat"

    @property
    def ssh_rule(self) -> str:
        return f"{self._in_network}-ssh"

    @property
    def ssh_deny_rule(self) -> str:
        return f"{self.owner}-ssh-only"

    @property
    def worker_rule(self) -> str:
        return f"{self.owner}-workers"

    @property
    def service_account(self) -> str:
        """The part of the email before the @; 6 to 30 characters."""
        return f"{self.owner}-tpu" if len(self.owner) > 1 else f"{self.owner}-stack-tpu"

    @property
    def service_account_email(self) -> str:
        return account_email(self.service_account, self.project)

    @property
    def bucket(self) -> str:
        """Unique, since bucket names and project IDs are global.

        Up to 63 characters; both parts are within 26 and 30.
        """
        return f"{self.owner}-{self.project.replace(':', '-').replace('.', '-')}"
