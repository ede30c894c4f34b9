"""The project that holds everything: used as it is."""

from __future__ import annotations

from typing import Any

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
        if observed is None:
            raise NotFound(
                "No such project",
                f"there is no project {self.name} that you may see",
                hint="Set project.id to one of yours. They are listed by\n    gcloud projects list",
            )
        return self.nothing("the project is there")

    def removal(self, observed: Any | None) -> Change:
        return self.leave("projects are never deleted")

    async def apply(self, change: Change, report: Report) -> None:
        raise AssertionError("no plan has work for a project")
