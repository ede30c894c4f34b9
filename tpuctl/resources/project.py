"""The project that holds everything: used as it is, made only when the stack file says so."""

from __future__ import annotations

from typing import Any

from tpuctl.cloud.operations import long_operation
from tpuctl.engine.resource import Report
from tpuctl.errors import Denied, NotFound
from tpuctl.model.plan import Change
from tpuctl.resources.base import StackResource

__all__ = ["Project"]


class Project(StackResource):
    """Google answers 403, not 404, for a project that does not exist or that is not yours."""

    kind = "project"

    @property
    def name(self) -> str:
        return self.stack.project

    async def observe(self) -> Any | None:
        client = self.cloud.client("projects")
        try:
            return await self.cloud.call(
                self.address, client.get_project, {"name": f"projects/{self.name}"}
            )
        except NotFound:
            return None
        except Denied as error:
            if error.diagnostics[0].summary == "Permission denied":
                return None
            raise

    def diff(self, observed: Any | None) -> Change:
        if observed is not None:
            return self.nothing("the project is there")
        if self.stack.file.project.create:
            return self.create("the stack file asks for it")
        raise NotFound(
            "No such project",
            f"there is no project {self.name} that you may see",
            hint="Set project.id to one of yours (`gcloud projects list`), or have it made with\n"
            f"    project: {{id: {self.name}, create: true}}",
        )

    def removal(self, observed: Any | None) -> Change:
        return self.leave("projects are never deleted")

    async def apply(self, change: Change, report: Report) -> None:
        client = self.cloud.client("projects")
        operation = await self.cloud.call(
            self.address, client.create_project, {"project": {"project_id": self.name}}
        )
        await long_operation(
            self.cloud, "projects", operation.operation, what=self.address, seconds=300
        )
