"""Projects and their enabled APIs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from tpuctl.emulator.state.errors import ApiError, error_info
from tpuctl.emulator.state.store import Store
from tpuctl.local_cloud.defaults import DEFAULT_PROJECT, OWNER

ORGANIZATION = "organizations/400000000001"
FOLDER = "folders/500000000001"
DOMAIN = OWNER.partition("@")[2]  # the organization's
OPEN_ACCOUNT = "billingAccounts/010CA1-010CA1-010CA1"
CLOSED_ACCOUNT = "billingAccounts/0C105E-0C105E-0C105E"
BILLING_ACCOUNTS = {OPEN_ACCOUNT: "Local billing account", CLOSED_ACCOUNT: "Closed account"}
_FIRST_NUMBER = 100000000001

# id, number, display_name, parent, state, labels, created, billing (enabled or not), account
Project = dict[str, Any]

# API titles in Google's messages; for other APIs the title is the name.
_TITLES = {
    "aiplatform.googleapis.com": "Vertex AI API",
    "bigquery.googleapis.com": "BigQuery API",
    "billingbudgets.googleapis.com": "Cloud Billing Budget API",
    "cloudapis.googleapis.com": "Google Cloud APIs",
    "cloudbilling.googleapis.com": "Cloud Billing API",
    "cloudbuild.googleapis.com": "Cloud Build API",
    "cloudkms.googleapis.com": "Cloud Key Management Service (KMS) API",
    "cloudquotas.googleapis.com": "Cloud Quotas API",
    "cloudresourcemanager.googleapis.com": "Cloud Resource Manager API",
    "compute.googleapis.com": "Compute Engine API",
    "iam.googleapis.com": "Identity and Access Management (IAM) API",
    "iamcredentials.googleapis.com": "IAM Service Account Credentials API",
    "iap.googleapis.com": "Cloud Identity-Aware Proxy API",
    "logging.googleapis.com": "Cloud Logging API",
    "monitoring.googleapis.com": "Cloud Monitoring API",
    "oslogin.googleapis.com": "Cloud OS Login API",
    "secretmanager.googleapis.com": "Secret Manager API",
    "orgpolicy.googleapis.com": "Organization Policy API",
    "serviceusage.googleapis.com": "Service Usage API",
    "storage-api.googleapis.com": "Google Cloud Storage JSON API",
    "storage-component.googleapis.com": "Cloud Storage",
    "storage.googleapis.com": "Cloud Storage API",
    "sts.googleapis.com": "Security Token Service API",
    "tpu.googleapis.com": "Cloud TPU API",
}


def title_of(api: str) -> str:
    """The title of an API in Google's messages."""
    return _TITLES.get(api, api)


def now_text() -> str:
    """The current time in RFC 3339 with milliseconds, in UTC."""
    return time_text(datetime.now(UTC))


def time_text(moment: datetime) -> str:
    """A time in UTC in that form."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Directory:
    """The projects of the local cloud, by ID or number."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # Called when an API is enabled in a project for the first time.
        self.on_first_enabled: Callable[[Project, str], None] = lambda project, api: None

    def ensure_default(self) -> None:
        """Create the default project of a new local cloud, with billing and no APIs enabled."""
        if self._store.count("project") == 0:
            self.add(
                DEFAULT_PROJECT, display_name="Local project", parent=ORGANIZATION, billing=True
            )

    def add(
        self,
        project_id: str,
        *,
        display_name: str = "",
        parent: str = "",
        labels: dict[str, str] | None = None,
        billing: bool = False,
        owner: str = OWNER,
    ) -> Project:
        """Create a project. Its `default` network is created when Compute Engine is enabled.

        Organizations can forbid that network; this one does not.
        """
        project: Project = {
            "id": project_id,
            "number": self._store.next("project-number", _FIRST_NUMBER),
            "display_name": display_name or project_id,
            "parent": parent,
            "labels": labels or {},
            "state": "ACTIVE",
            "created": time.time(),
            "updated": time.time(),
            "billing": billing,
            "owner": owner,
            "account": OPEN_ACCOUNT if billing else "",
        }
        self.save(project)
        return project

    def link(self, project: Project, account: str) -> None:
        """Link a billing account, '' for none. A closed one does not enable billing."""
        project["account"] = account
        project["billing"] = account == OPEN_ACCOUNT
        self.save(project)

    def save(self, project: Project) -> None:
        with self._store.transaction():
            self._store.put_json("project", project["id"], project)
            self._store.put("project-number", str(project["number"]), project["id"].encode())

    def find(self, project: str) -> Project | None:
        """By ID or number, including deleted projects; None if not found."""
        record = self._store.get_json("project", project)
        if record is None and project.isdigit():
            name = self._store.get("project-number", project)
            record = self._store.get_json("project", name.decode()) if name else None
        return record

    def all(self) -> list[Project]:
        return self._store.list_json("project")

    def require(self, project: str, api: str = "") -> Project:
        """The project, which must be active with the API enabled; otherwise Google's error."""
        record = self.find(project)
        if record is None or record["state"] != "ACTIVE":
            metadata = {"service": api, "consumer": f"projects/{project}"}
            raise ApiError(
                "PERMISSION_DENIED",
                f"Permission denied on resource project {project}.",
                details=[error_info("CONSUMER_INVALID", "googleapis.com", **metadata)],
            )
        if api and not self.has_enabled(record, api):
            raise _disabled(record, api)
        return record

    def has_enabled(self, project: Project, api: str) -> bool:
        return self._store.get("enabled", f"{project['id']}/{api}") is not None

    def enable(self, project: Project, api: str) -> None:
        name = f"{project['id']}/{api}"
        self._store.put("enabled", name, b"")
        if self._store.get("once-enabled", name) is None:
            self._store.put("once-enabled", name, b"")
            self.on_first_enabled(project, api)

    def disable(self, project: Project, api: str) -> None:
        self._store.delete("enabled", f"{project['id']}/{api}")

    def enabled(self, project: Project) -> list[str]:
        prefix = f"{project['id']}/"
        return [name.removeprefix(prefix) for name, _ in self._store.items("enabled", prefix)]


def consumer_of(request: Any) -> str | None:
    """The project that a request names, by ID or number, in any of its name fields."""
    for name in ("parent", "name", "resource", "project", "node"):
        if name not in request.DESCRIPTOR.fields_by_name:
            continue
        value = getattr(request, name)
        if name == "node":
            value = getattr(value, "name", "")
        if isinstance(value, str):
            if name == "project" and value:
                return value
            match = re.match(r"projects/([^/]+)", value)
            if match is not None and match[1] != "-":
                return match[1]
    return None


def _disabled(project: Project, api: str) -> ApiError:
    number = project["number"]
    url = f"https://console.developers.google.com/apis/api/{api}/overview?project={number}"
    return ApiError(
        "PERMISSION_DENIED",
        f"{title_of(api)} has not been used in project {number} before or it is disabled. Enable "
        f"it by visiting {url} then retry. If you enabled this API recently, wait a few minutes "
        "for the action to propagate to our systems and retry.",
        reason="accessNotConfigured",
        domain="usageLimits",
        details=[
            error_info(
                *("SERVICE_DISABLED", "googleapis.com"),
                service=api,
                consumer=f"projects/{number}",
                activationUrl=url,
                serviceTitle=title_of(api),
                containerInfo=str(number),
            )
        ],
    )
