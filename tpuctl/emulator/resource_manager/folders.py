"""Resource Manager v3: the only organization and the only folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from google.cloud.resourcemanager_v3.types import folders, organizations
from google.iam.v1 import iam_policy_pb2

from tpuctl.emulator.state.errors import ApiError, invalid
from tpuctl.emulator.state.projects import DOMAIN, FOLDER, ORGANIZATION
from tpuctl.emulator.wire.filters import matches_pattern
from tpuctl.emulator.wire.paging import requested_page
from tpuctl.emulator.wire.policy_handlers import PolicyHandlers
from tpuctl.emulator.wire.registry import Caller

_CREATED = 1_700_000_000  # both are older than any project
_CUSTOMER = "C010ca1ld"
_FOLDER_TITLE = "Local folder"


class ContainersService(PolicyHandlers):
    """Handlers of google.cloud.resourcemanager.v3.Folders and .Organizations.

    Create, move and delete are not emulated.
    """

    async def get_organization(self, request: Any, caller: Caller) -> Any:
        self._check(request.name, "resourcemanager.organizations.get", (ORGANIZATION,))
        return _organization()

    async def search_organizations(self, request: Any, caller: Caller) -> Any:
        fields = {"domain": DOMAIN, "directorycustomerid": _CUSTOMER}
        results = [_organization()] if _matches(request.query, fields) else []
        if not self._may_get(ORGANIZATION, caller):
            results = []
        rows, token = requested_page(request, results)
        return organizations.SearchOrganizationsResponse.pb()(
            organizations=rows, next_page_token=token
        )

    async def get_folder(self, request: Any, caller: Caller) -> Any:
        self._check(request.name, "resourcemanager.folders.get", (FOLDER,))
        return _folder()

    async def list_folders(self, request: Any, caller: Caller) -> Any:
        self._check(request.parent, "resourcemanager.folders.list")
        results = [_folder()] if request.parent == ORGANIZATION else []
        rows, token = requested_page(request, results)
        return folders.ListFoldersResponse.pb()(folders=rows, next_page_token=token)

    async def search_folders(self, request: Any, caller: Caller) -> Any:
        fields = {"displayname": _FOLDER_TITLE, "parent": ORGANIZATION, "state": "ACTIVE"}
        results = [_folder()] if _matches(request.query, fields) else []
        if not self._may_get(FOLDER, caller):
            results = []
        rows, token = requested_page(request, results)
        return folders.SearchFoldersResponse.pb()(folders=rows, next_page_token=token)

    async def test_iam_permissions(self, request: Any, caller: Caller) -> Any:
        """No permissions for a missing container; Google's response for one is not known."""
        if not re.fullmatch(r"(?:organizations|folders)/[^/]+", request.resource):
            raise invalid("Request contains an invalid argument.")
        if request.resource not in (ORGANIZATION, FOLDER):
            return iam_policy_pb2.TestIamPermissionsResponse()
        return await super().test_iam_permissions(request, caller)

    def _policy_name(self, resource: str, verb: str) -> str:
        self._check(resource, f"{_kind(resource)}.{verb}")
        return resource

    def _may_get(self, name: str, caller: Caller) -> bool:
        """Whether searches include the container for this caller."""
        return self._registry.authority.allows(caller.email, f"{_kind(name)}.get", name)

    @staticmethod
    def _check(
        name: str, permission: str, existing: tuple[str, ...] = (ORGANIZATION, FOLDER)
    ) -> None:
        """The same error for missing and inaccessible, as in falcon-integration-gateway#98."""
        if name not in existing:
            raise ApiError(
                "PERMISSION_DENIED",
                f"Permission '{permission}' denied on resource "
                f"'//cloudresourcemanager.googleapis.com/{name}' (or it may not exist).",
            )


def _kind(name: str) -> str:
    return f"resourcemanager.{name.partition('/')[0]}"


def _matches(query: str, fields: Mapping[str, str]) -> bool:
    """Terms such as `domain:example.com` or `displayName=Test*`, joined by AND."""
    for key, value in re.findall(r'(\w+)\s*[:=]\s*("[^"]*"|\S*)', query):
        actual = fields.get(key.lower())
        if actual is None:
            raise invalid(f"Unknown field in query: {key}")
        if not matches_pattern(actual, value.strip('"')):
            return False
    return True


def _organization() -> Any:
    kind = organizations.Organization
    answer = kind.pb()(
        name=ORGANIZATION,
        display_name=DOMAIN,
        directory_customer_id=_CUSTOMER,
        state=kind.State.ACTIVE,
        etag='W/"1"',
    )
    answer.create_time.FromSeconds(_CREATED)
    answer.update_time.FromSeconds(_CREATED)
    return answer


def _folder() -> Any:
    kind = folders.Folder
    answer = kind.pb()(
        name=FOLDER,
        parent=ORGANIZATION,
        display_name=_FOLDER_TITLE,
        state=kind.State.ACTIVE,
        etag='W/"1"',
    )
    answer.create_time.FromSeconds(_CREATED)
    answer.update_time.FromSeconds(_CREATED)
    return answer
