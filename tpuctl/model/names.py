"""Every name a stack's resources have, derived: the same laptop or another finds them again."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BUNDLES", "JOBS", "STACK_LABEL", "STACK_NAME", "Names"]

STACK_LABEL = "tpuctl-stack"  # on every resource that can carry labels
STACK_NAME = r"[a-z]([-a-z0-9]{0,24}[a-z0-9])?"  # leaves room for "-tpu" in 30 characters
JOBS = "tpuctl/jobs"
BUNDLES = "tpuctl/bundles"


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
        return f"Made by tpuctl for stack {self.stack}"

    @property
    def node(self) -> str:
        return f"{self.stack}-tpu"

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
