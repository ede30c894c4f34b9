"""Checks of the cloud: the caller, the project, and what a stack needs in it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from ipaddress import IPv4Network

from tpuctl.catalog import node_cidr_prefix
from tpuctl.cloud.caller_identity import Identity, granted_on_project, identity_of
from tpuctl.cloud.clients import Cloud
from tpuctl.errors import ApiDisabled, Conflict, Denied, Diagnostic, NotFound, TpuctlError
from tpuctl.flows.doctor.checks import Check
from tpuctl.flows.doctor.role import path_of
from tpuctl.flows.machines.os_login import login_warnings, with_os_login
from tpuctl.flows.stack.org_policies import policies_finding
from tpuctl.flows.stack.permissions import Missing, describe_missing, missing_permissions
from tpuctl.flows.stack.plan import (
    Prepared,
    access_warnings,
    allowed_sources,
    host_warnings,
    prepare_up,
    resource_warnings,
    unread_warnings,
)
from tpuctl.model.stack.stack import Stack
from tpuctl.model.troubleshooting.diagnosis import DENIED, CheckState, Finding, failed
from tpuctl.resources.network.cidr import free_range, ranges_in_use
from tpuctl.resources.network.network import Network
from tpuctl.resources.network.worker_rule import closed_ports_warning
from tpuctl.resources.project.enabled_apis import Services, needed
from tpuctl.resources.project.project import Project
from tpuctl.units import counted

ENABLE = "serviceusage.services.enable"
COMPUTE, TPU = "compute.googleapis.com", "tpu.googleapis.com"
SSH_PATHS = {
    "external": "to external addresses",
    "internal": "to internal addresses",
    "iap": "through IAP",
}
WIF = (
    "In a pipeline, sign in with Workload Identity Federation in an earlier step, and allow the "
    "job to request a token. To generate a pipeline that does both:\n"
    "    tpuctl ci github"
)


class ProjectChecks:
    """Checks of one stack in one project; later checks use the results of earlier ones."""

    def __init__(
        self,
        stack: Stack,
        cloud: Callable[[], Cloud],
        *,
        has_file: bool = True,
        public_key: Callable[[], str] = str,
    ) -> None:
        """Without a file only the project of the stack is used. `public_key` must not create a key.

        `cloud` is called when the first check needs it: the local cloud may not run before.
        """
        self.stack = stack
        self._cloud = cloud
        self.has_file = has_file
        self._public_key = public_key
        self._sources: tuple[str, ...] = ()
        self._has_billing = True
        self._identity = Identity("", "user")
        self._is_created_by_up = False
        self._apis_off: frozenset[str] = frozenset()
        self._network = ""
        self._prepared: Prepared | None = None

    def checks(self) -> list[Check]:
        """The checks in order, the most basic first."""
        base = ("credentials", "project")
        return [
            Check("credentials", self.credentials, ("local cloud",)),
            Check("project", self.project, ("credentials",)),
            Check("billing", self._with_project("billing", self.billing), base),
            Check("APIs", self._with_project("APIs", self.apis), base),
            Check(
                "permissions",
                self._with_project("permissions", self.permissions),
                base,
                ("billing", "APIs", "network"),
            ),
            Check("network", self._with_project("network", self.network), base, ("APIs",)),
            Check("org policies", self._with_project("org policies", self.policies), base),
            Check("plan", self._with_project("plan", self.plan), (*base, "permissions", "network")),
            Check("quota", self._with_project("quota", self.quota), ("plan",)),
            Check("clock", self.clock, ("project",), ("billing", "network")),
        ]

    def _with_project(
        self, name: str, check: Callable[[], Awaitable[Finding]]
    ) -> Callable[[], Awaitable[Finding]]:
        """The check, skipped if the project does not exist yet."""

        async def check_project() -> Finding:
            if self._is_created_by_up:
                detail = f"`up` creates project {self.stack.project} first"
                return Finding(name, CheckState.SKIPPED, detail)
            return await check()

        return check_project

    @property
    def cloud(self) -> Cloud:
        return self._cloud()

    @property
    def is_up(self) -> bool:
        """Whether `up` has nothing to do."""
        return self._prepared is not None and self._prepared.plan.is_empty

    async def clock(self) -> Finding:
        """Whether this computer's clock agrees with the responses to the checks before."""
        server_clock = self.cloud.server_clock
        warning = server_clock.warning
        if not server_clock.is_known:
            return Finding("clock", CheckState.SKIPPED, "there was no response to compare it with")
        if warning is None:
            return Finding("clock", CheckState.OK, "agrees with Google's")
        return Finding("clock", CheckState.WARNING, warning.detail, warning.hint)

    async def credentials(self) -> Finding:
        try:
            self._identity = await identity_of(self.cloud)
        except Denied as error:
            finding = failed("credentials", error)
            return replace(finding, hint=WIF) if os.environ.get("CI") else finding
        identity = self._identity
        detail = f"{identity.email or 'signed in'} ({identity.kind})"
        if self.cloud.endpoint.is_local or identity.quota_project or not identity.is_user:
            return Finding("credentials", CheckState.OK, detail)
        return Finding(
            "credentials",
            CheckState.WARNING,
            f"{detail}; no quota project set, without which some APIs reject user credentials",
            f"Set it:\n    gcloud auth application-default set-quota-project {self.stack.project}",
        )

    async def project(self) -> Finding:
        name, project = self.stack.project, Project(self.stack, self.cloud)
        try:
            observed = await project.observe()
            if observed is not None:
                project.diff(observed)
                return Finding("project", CheckState.OK, f"{name} is active")
            if self.stack.file.project.create:
                return await self._project_to_create()
            project.diff(None)
        except ApiDisabled as error:
            return self._api_off("project", error, "cloudresourcemanager")
        except NotFound as error:
            finding = failed("project", error, DENIED)
            return replace(
                finding,
                hint=f"{finding.hint}\nIf it exists, ask its owner for access:\n"
                f"    gcloud projects add-iam-policy-binding {name} "
                f"--member={self._identity.member} --role=roles/browser",
            )
        except Conflict as error:
            return failed("project", error, DENIED)
        raise AssertionError("a missing project that `up` does not create raises NotFound")

    async def _project_to_create(self) -> Finding:
        missing = await missing_permissions(self.stack, self.cloud)
        if missing:
            return self._missing_finding("project", missing)
        self._is_created_by_up = True
        return Finding("project", CheckState.OK, f"`up` creates {self.stack.project}")

    async def billing(self) -> Finding:
        project, requested_account = self.stack.project, self.stack.file.project.billing_account
        try:
            billing_info = await self.cloud.call(
                "billing",
                self.cloud.client("billing").get_project_billing_info,
                {"name": f"projects/{project}"},
            )
        except ApiDisabled as error:
            return replace(
                self._api_off("billing", error, "cloudbilling"),
                state=CheckState.SKIPPED,
                exit_code=0,
            )
        account = str(billing_info.billing_account_name).removeprefix("billingAccounts/")
        self._has_billing = bool(billing_info.billing_enabled)
        if billing_info.billing_enabled:
            return Finding("billing", CheckState.OK, f"account {account or '(not visible)'}")
        if requested_account and not account:
            return Finding("billing", CheckState.OK, f"`up` links account {requested_account}")
        link = f"gcloud billing projects link {project} --billing-account=XXXXXX-XXXXXX-XXXXXX"
        reason = f"account {account} is closed" if account else "no billing account is linked"
        return Finding(
            "billing",
            CheckState.PROBLEM,
            f"{reason}: no resources can be created in {project}",
            f"Link an open billing account:\n    {link}\n"
            "    gcloud billing accounts list --filter=open=true",
            exit_code=DENIED,
        )

    async def apis(self) -> Finding:
        required = needed(self.stack)
        enabled = await Services(self.stack, self.cloud).observe()
        if enabled is None:
            raise Denied(
                "Permission denied",
                "cannot list enabled APIs",
                hint="Ask an administrator to run\n"
                f"    gcloud projects add-iam-policy-binding {self.stack.project} "
                f"--member={self._identity.member} --role=roles/serviceusage.serviceUsageConsumer",
            )
        self._apis_off = required - enabled
        if not self._apis_off:
            return Finding("APIs", CheckState.OK, f"all {len(required)} are enabled")
        off = ", ".join(sorted(api.partition(".")[0] for api in self._apis_off))
        if await self._has_permission(ENABLE):
            return Finding("APIs", CheckState.OK, f"`up` enables {off}")
        names = " ".join(sorted(self._apis_off))
        return Finding(
            "APIs",
            CheckState.PROBLEM,
            f"not enabled, and you have no permission to enable them: {off}",
            "Ask an administrator to run\n"
            f"    gcloud services enable {names} --project={self.stack.project}",
            exit_code=DENIED,
        )

    async def permissions(self) -> Finding:
        missing = await missing_permissions(self.stack, self.cloud)
        now = [item for item in missing if self._is_needed_now(item)]
        if now:
            return self._missing_finding("permissions", now)
        if warnings := await login_warnings(
            await with_os_login(self.stack, self.cloud), self.cloud
        ):
            return Finding(
                "permissions", CheckState.WARNING, warnings[0].detail, self._for_caller(warnings[0])
            )
        detail = "everything that `up`, `run` and `down` need"
        if not missing:
            return Finding("permissions", CheckState.OK, detail)
        later: dict[str, set[str]] = {}
        for entry in missing:
            later.setdefault(path_of(entry.permission), set()).add(entry.permission.name)
        paths = "; ".join(f"{path} ({', '.join(sorted(of))})" for path, of in later.items())
        return Finding("permissions", CheckState.OK, f"{detail} now; missing for {paths}")

    def _for_caller(self, warning: Diagnostic) -> str:
        return warning.hint.replace("user:YOU", self._identity.member)

    def _is_needed_now(self, missing: Missing) -> bool:
        kind, action = missing.permission.kind, missing.permission.action
        if (kind, action) == ("apis", "update"):
            return bool(self._apis_off)
        if (kind, action) == ("network", "create"):
            return not self._network and COMPUTE not in self._apis_off
        if (kind, action) == ("project", "update"):
            return not self._has_billing
        return not path_of(missing.permission)

    def _missing_finding(self, check: str, missing: Sequence[Missing]) -> Finding:
        lines, commands = describe_missing(missing, self._identity.member)
        hint = "Ask an administrator to run\n" + "\n".join(f"    {command}" for command in commands)
        if self.has_file:
            hint += "\nor to grant a custom role with exactly what is needed, printed by\n"
            hint += "    tpuctl doctor --role"
        count = len({item.permission.name for item in missing})
        detail = "\n".join([f"{count} missing; granted by these roles:", *lines])
        return Finding(check, CheckState.PROBLEM, detail, hint, exit_code=DENIED)

    async def network(self) -> Finding:
        network = Network(self.stack, self.cloud)
        observed = None if COMPUTE in self._apis_off else await network.observe()
        if self.stack.has_shared_network and COMPUTE not in self._apis_off:
            network.diff(observed)  # raises what is wrong
        elif observed is None and network.name != "main" and COMPUTE not in self._apis_off:
            return Finding(
                "network",
                CheckState.PROBLEM,
                f"project {self.stack.project} has no network {network.name}",
                "Remove network.name to use `default` or a new network, or create it:\n"
                f"    gcloud compute networks create {network.name} "
                f"--project={self.stack.project}",
                exit_code=1,
            )
        if observed is not None:
            network.diff(observed)
            self._network = observed.usable or ""
            detail = self._network
        elif COMPUTE in self._apis_off:
            detail = "`default` comes with Compute Engine"
        else:
            detail = f"`up` creates {self.stack.names.network}"
        self._sources = await allowed_sources(self.stack, self.cloud)
        detail += f"; SSH {SSH_PATHS[self.stack.file.network.ssh]} from {', '.join(self._sources)}"
        if self.stack.is_node and self._network and TPU not in self._apis_off:
            return await self._node_range(detail)
        if self._network and COMPUTE not in self._apis_off:
            warning = await closed_ports_warning(self.stack, self.cloud, self._network)
            if warning is not None:
                return Finding("network", CheckState.WARNING, warning.detail, warning.hint)
        return Finding("network", CheckState.OK, detail)

    async def _node_range(self, detail: str) -> Finding:
        """Check that the TPU node's address range is free in its network."""
        requested = self.stack.file.network.node_range
        if requested == "service-networking":
            return Finding("network", CheckState.OK, detail)
        used_ranges = await ranges_in_use(self.stack, self.cloud, self._network)
        free = free_range(used_ranges, node_cidr_prefix(self.stack.accelerator))
        if requested == "auto":
            return Finding("network", CheckState.OK, f"{detail}; {free} is free for the node")
        requested_range = IPv4Network(requested, strict=False)
        overlapping = [
            cidr
            for cidr in used_ranges
            if "." in cidr
            and cidr != requested
            and requested_range.overlaps(IPv4Network(cidr, strict=False))
        ]
        if not overlapping:
            return Finding("network", CheckState.OK, f"{detail}; the node at {requested}")
        return Finding(
            "network",
            CheckState.PROBLEM,
            f"node range {requested} overlaps {', '.join(sorted(overlapping))}",
            f"Remove network.node_range, or set a free range:\n    network: {{node_range: {free}}}",
            exit_code=1,
        )

    async def policies(self) -> Finding:
        return await policies_finding(self.stack, self.cloud, self._identity.member)

    async def plan(self) -> Finding:
        sources = self._sources
        self._prepared = prepared = await prepare_up(
            self.stack, self.cloud, sources=sources, public_key=self._public_key
        )
        warnings = [
            *unread_warnings(prepared),
            *await access_warnings(self.stack, self.cloud, prepared.plan),
            *await host_warnings(prepared, self.cloud),
            *resource_warnings(prepared),
        ]
        count = sum(change.is_work for change in prepared.plan)
        detail = f"`up` makes {counted(count, 'change')}"
        if prepared.plan.is_empty:
            detail = "the stack is up; nothing to do"
        if not warnings:
            return Finding("plan", CheckState.OK, detail)
        return Finding(
            "plan",
            CheckState.WARNING,
            "; ".join([detail, *(f"{warning.summary}: {warning.detail}" for warning in warnings)]),
            "\n".join(warning.hint for warning in warnings),
        )

    async def quota(self) -> Finding:
        if not self.has_file:
            return Finding("quota", CheckState.SKIPPED, "no stack file, so the TPU is unknown")
        prepared = self._prepared
        assert prepared is not None, "the plan check ran before"
        report = prepared.quota
        error = report.error(self.stack.project, is_local=self.cloud.endpoint.is_local)
        if error is not None:
            return failed("quota", error)
        if report.shortfalls:
            short = "; ".join(shortfall.detail for shortfall in report.shortfalls)
            return Finding("quota", CheckState.WARNING, short, report.shortfalls[0].hint)
        counted = [line for line in report.lines if line.allowed is not None and line.added]
        detail = "; ".join(
            f"{line.limit}: {line.used:g} of {line.allowed:g}"
            f"{f' {line.unit}' if line.unit else ''} "
            f"used in {line.place}, {line.added:g} more needed"
            for line in counted
        )
        if report.unread and not counted:
            if self._apis_off:
                return Finding(
                    "quota", CheckState.SKIPPED, "available once `up` has enabled the APIs"
                )
            return Finding("quota", CheckState.SKIPPED, "; ".join(report.unread))
        return Finding("quota", CheckState.OK, detail or "no quota needed")

    async def _has_permission(self, permission: str) -> bool:
        return permission in await granted_on_project(self.cloud, self.stack.project, [permission])

    def _api_off(self, check: str, error: TpuctlError, api: str) -> Finding:
        project = self._identity.quota_project or self.stack.project
        command = f"gcloud services enable {api}.googleapis.com --project={project}"
        return replace(failed(check, error), hint=f"Enable it:\n    {command}")
