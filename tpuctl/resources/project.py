"""The project that everything is made in: used as it is, or made first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tpuctl.cloud.classification import ApiDisabled
from tpuctl.cloud.operations import long_operation
from tpuctl.engine.resource import Report
from tpuctl.errors import Conflict, Denied, NotFound
from tpuctl.model.plan import Action, Change
from tpuctl.model.stack import Stack
from tpuctl.polling import wait_until
from tpuctl.resources.base import StackResource

__all__ = ["Project", "ProjectState"]

SECONDS = 600.0
# Another program's creation was seen to take some 20 seconds; another user's id is
# refused in the same words.
ADOPT_SECONDS = 40.0
MAX_TITLE_LENGTH = 30  # of a project's display name


@dataclass(frozen=True)
class ProjectState:
    """A project, and the billing account that pays for it where that was asked."""

    state: str = "ACTIVE"
    billing: str = ""  # its id, "" where there is none


class Project(StackResource):
    """Made when the stack file says so; never deleted, and its billing never unlinked."""

    kind = "project"
    group = "project"
    label = "the project"
    unlisted_reason = "it is what is looked through"
    permissions = """
        look browser resourcemanager.projects.get
        update billing.projectManager resourcemanager.projects.createBillingAssignment
    """
    optional = ("update", "linking the billing account")

    @classmethod
    def may_need(cls, action: str, stack: Stack) -> bool:
        return action != "update" or stack.file.project.billing_account is not None

    @property
    def name(self) -> str:
        return self.stack.project

    @property
    def wanted_billing(self) -> str:
        return self.stack.file.project.billing_account or ""

    async def observe(self) -> ProjectState | None:
        client = self.cloud.client("projects")
        try:
            project = await self.cloud.call(
                self.address, client.get_project, {"name": f"projects/{self.name}"}
            )
        except NotFound:
            return None
        except Denied as error:
            # Google answers 403, not 404, for a project that does not exist or is not yours.
            if error.diagnostics[0].summary == "Permission denied":
                return None
            raise
        return ProjectState(
            project.state.name, await self._billing() if self.wanted_billing else ""
        )

    async def _billing(self) -> str:
        """The account in use. Where the API is off nothing is known: linking will tell."""
        client = self.cloud.client("billing")
        try:
            info = await self.cloud.call(
                self.address, client.get_project_billing_info, {"name": f"projects/{self.name}"}
            )
        except ApiDisabled:
            return ""
        return str(info.billing_account_name).removeprefix("billingAccounts/")

    def diff(self, observed: ProjectState | None) -> Change:
        if observed is None:
            return self._absent()
        if observed.state == "DELETE_REQUESTED":
            raise Conflict(
                "Project is being deleted",
                f"project {self.name} is marked for deletion",
                hint=f"Take it back with\n    gcloud projects undelete {self.name}\n"
                "or choose another project.id.",
            )
        if not self.wanted_billing or observed.billing == self.wanted_billing:
            return self.nothing("the project is there")
        if observed.billing:
            raise Conflict(
                "Another billing account pays",
                f"project {self.name} is linked to {observed.billing}, the stack file says "
                f"{self.wanted_billing}",
                hint="tpuctl changes no link. Take project.billing_account out, or change it with\n"
                f"    gcloud billing projects link {self.name} "
                f"--billing-account={self.wanted_billing}",
            )
        return self.update(f"billing account {self.wanted_billing} is linked", ["billing_account"])

    def _absent(self) -> Change:
        if not self.stack.file.project.create:
            raise NotFound(
                "No such project",
                f"there is no project {self.name} that you may see",
                hint="Set project.id to one of yours. They are listed by\n"
                "    gcloud projects list\nOr have it made with\n    project: {create: true}",
            )
        where = self.stack.file.project.parent
        billing = f", paid by billing account {self.wanted_billing}" if self.wanted_billing else ""
        return self.create(f"made {f'in {where}' if where else 'without a parent'}{billing}")

    def removal(self, observed: ProjectState | None) -> Change:
        return self.leave("projects are never deleted")

    async def apply(self, change: Change, report: Report) -> None:
        if change.action is Action.CREATE:
            await self._create(report)
        project = await self._visible()
        if self.wanted_billing and project.billing != self.wanted_billing:
            self.diff(project)  # refuses another account, which may have come meanwhile
            await self._link(report)

    async def _create(self, report: Report) -> None:
        client = self.cloud.client("projects")
        project = {
            "project_id": self.name,
            "display_name": self.name[:MAX_TITLE_LENGTH],
            "parent": self.stack.file.project.parent or "",
            "labels": self.stack.labels,
        }

        async def create() -> None:
            report("making the project", None)
            operation = await self.cloud.call(
                self.address, client.create_project, {"project": project}
            )
            await long_operation(
                self.cloud,
                "projects",
                operation.operation,
                subject=self.address,
                seconds=SECONDS,
            )

        try:
            await self.create_or_adopt(create, self.observe, report, seconds=ADOPT_SECONDS)
        except Conflict as error:
            raise Conflict(
                "Project id taken",
                f"{self.name} is the id of a project that you may not see",
                hint="Project ids are unique across Google Cloud and cannot be reused. Choose "
                "another project.id.",
            ) from error

    async def _visible(self) -> ProjectState:
        """A new project may be denied for a moment even to its creator."""
        return await wait_until(
            self.observe,
            description=f"project {self.name} being visible",
            seconds=SECONDS,
            clock=self.cloud.clock,
        )

    async def _link(self, report: Report) -> None:
        report(f"linking billing account {self.wanted_billing}", None)
        request: dict[str, Any] = {
            "name": f"projects/{self.name}",
            "project_billing_info": {
                "billing_account_name": f"billingAccounts/{self.wanted_billing}"
            },
        }
        client = self.cloud.client("billing")
        await self.cloud.call(self.address, client.update_project_billing_info, request)
