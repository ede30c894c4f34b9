"""The project: an existing one, or created first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.operations import long_operation
from tpuctl.engine.resource import Report
from tpuctl.errors import ApiDisabled, Conflict, Denied, NotFound
from tpuctl.model.plan import Action, Change
from tpuctl.model.stack.stack import Stack
from tpuctl.polling import Backoff
from tpuctl.resources.base import StackResource

SECONDS = 600.0
# Creation by another program takes some 20 seconds; another user's project ID causes the same
# error.
ADOPT_SECONDS = 40.0
DELETED = "DELETE_REQUESTED"
MAX_TITLE_LENGTH = 30  # of a project's display name, in characters


@dataclass(frozen=True)
class ProjectState:
    """A project's state, and its billing account if that was queried."""

    state: str = "ACTIVE"
    billing: str = ""  # account ID; empty if there is none


class Project(StackResource):
    """Created if the stack file says so; never deleted, and its billing never unlinked."""

    kind = "project"
    group = "project"
    label = "the project"
    unlisted_reason = "listings are within a project"
    permissions = """
        read browser resourcemanager.projects.get
        update billing.projectManager resourcemanager.projects.createBillingAssignment
    """
    optional: ClassVar = {"update": "linking the billing account"}

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
        try:
            project = await self.call("projects", "get_project", {"name": f"projects/{self.name}"})
        except NotFound:
            return None
        except Denied as error:
            # Google returns 403, not 404, for a project that does not exist or is not yours.
            if error.diagnostics[0].summary == "Permission denied":
                return None
            raise
        state = project.state.name
        # Of a project that is being deleted, Google denies access to the rest.
        asks = self.wanted_billing and state != DELETED
        return ProjectState(state, await self._billing() if asks else "")

    async def _billing(self) -> str:
        """The linked account; empty if unknown because the API is disabled (linking reports
        errors)."""
        request = {"name": f"projects/{self.name}"}
        try:
            info = await self.call("billing", "get_project_billing_info", request)
        except ApiDisabled:
            return ""
        return str(info.billing_account_name).removeprefix("billingAccounts/")

    def diff(self, observed: ProjectState | None) -> Change:
        if observed is None:
            return self._absent()
        if observed.state == DELETED:
            raise _being_deleted(self.name)
        if not self.wanted_billing or observed.billing == self.wanted_billing:
            return self.nothing("the project exists")
        if observed.billing:
            raise Conflict(
                "Different billing account",
                f"project {self.name} is linked to {observed.billing}, the stack file says "
                f"{self.wanted_billing}",
                hint="tpuctl does not change the link. Remove project.billing_account, or change "
                "the link:\n"
                f"    gcloud billing projects link {self.name} "
                f"--billing-account={self.wanted_billing}",
            )
        return self.update(f"linking billing account {self.wanted_billing}", ["billing_account"])

    def _absent(self) -> Change:
        if not self.stack.file.project.create:
            raise NotFound(
                "No such project",
                f"project {self.name} does not exist, or you may not see it",
                hint="Set project.id to one of your projects. To list them:\n"
                "    gcloud projects list\nOr let tpuctl create it:\n    project: {create: true}",
            )
        where = self.stack.file.project.parent
        billing = f", with billing account {self.wanted_billing}" if self.wanted_billing else ""
        return self.create(f"{f'in {where}' if where else 'without a parent'}{billing}")

    def removal(self, observed: ProjectState | None) -> Change:
        return self.leave("projects are never deleted")

    async def apply(self, change: Change, report: Report) -> None:
        if change.action is Action.CREATE:
            await self._create(report)
        project = await self._visible()
        if self.wanted_billing and project.billing != self.wanted_billing:
            self.diff(project)  # rejects another account that was linked meanwhile
            await self._link(report)

    async def _create(self, report: Report) -> None:
        project = {
            "project_id": self.name,
            "display_name": self.name[:MAX_TITLE_LENGTH],
            "parent": self.stack.file.project.parent or "",
            "labels": self.stack.new_labels,
        }

        async def create() -> None:
            report("creating the project", None)
            operation = await self.call("projects", "create_project", {"project": project})
            await long_operation(
                self.cloud, "projects", operation.operation, subject=self.address, seconds=SECONDS
            )

        try:
            await self.create_or_adopt(create, self.observe, report, seconds=ADOPT_SECONDS)
        except Conflict as error:
            raise Conflict(
                "Project ID taken",
                f"{self.name} is the ID of a project that you may not see",
                hint="Project IDs are unique across Google Cloud and cannot be reused. Choose "
                "another project.id.",
            ) from error

    async def _visible(self) -> ProjectState:
        """Wait until the project is visible: even its creator may get 403 at first."""
        description = f"project {self.name} being visible"
        return await self.poll(self.observe, description, SECONDS, Backoff())

    async def _link(self, report: Report) -> None:
        report(f"linking billing account {self.wanted_billing}", None)
        request: dict[str, Any] = {
            "name": f"projects/{self.name}",
            "project_billing_info": {
                "billing_account_name": f"billingAccounts/{self.wanted_billing}"
            },
        }
        await self.call("billing", "update_project_billing_info", request)


async def is_active(cloud: Cloud, project: str) -> bool:
    """Whether a project exists; False if it is not visible. Raises Conflict if it is being
    deleted."""
    client = cloud.client("projects")
    try:
        answer = await cloud.call(
            f"project {project}", client.get_project, {"name": f"projects/{project}"}
        )
    except ApiDisabled:  # only of a project that exists
        return True
    except (NotFound, Denied):
        return False
    if answer.state.name == DELETED:
        raise _being_deleted(project)
    return True


def _being_deleted(project: str) -> Conflict:
    return Conflict(
        "Project is being deleted",
        f"project {project} is marked for deletion: what is in it stops, and is deleted with it",
        hint=f"Restore it with\n    gcloud projects undelete {project}\n"
        "or choose another project.id.",
    )
