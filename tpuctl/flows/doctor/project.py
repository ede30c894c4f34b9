"""What is asked of the cloud: the caller, the project, and what a stack needs in it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from ipaddress import IPv4Network

from tpuctl.catalog import node_cidr_prefix
from tpuctl.cloud.caller_identity import Identity, identity_of
from tpuctl.cloud.classification import ApiDisabled
from tpuctl.cloud.clients import Cloud
from tpuctl.errors import Conflict, Denied, NotFound, QuotaExceeded, TpuctlError
from tpuctl.flows.doctor.checks import Check
from tpuctl.flows.doctor.org_policies import policies_finding
from tpuctl.flows.permissions import Missing, missing_permissions, told_and_granted
from tpuctl.flows.plan import Prepared, access_warnings, prepare_up, sources_of
from tpuctl.flows.role import path_of
from tpuctl.model.diagnosis import DENIED, CheckState, Finding, failed
from tpuctl.model.stack import Stack
from tpuctl.resources.cidr import free_range, ranges_in_use
from tpuctl.resources.enabled_apis import Services, needed
from tpuctl.resources.network import Network
from tpuctl.resources.project import Project

__all__ = ["ProjectChecks"]

ENABLE = "serviceusage.services.enable"
COMPUTE, TPU = "compute.googleapis.com", "tpu.googleapis.com"
WAYS = {"external": "at external addresses", "internal": "at internal ones", "iap": "by IAP"}
WIF = (
    "In a pipeline, let the step before it sign in by Workload Identity Federation, and give the "
    "job the right to ask for a token; a pipeline that does both is written by\n"
    "    tpuctl ci github"
)


class ProjectChecks:
    """Checks of one stack in one project; what one finds out the others use."""

    def __init__(
        self,
        stack: Stack,
        cloud: Callable[[], Cloud],
        *,
        has_file: bool = True,
        public_key: Callable[[], str] = str,
    ) -> None:
        """Without a file the stack only says which project; `public_key` is not to make one.

        The cloud is asked for when the first check needs it: a local one may not run before.
        """
        self.stack = stack
        self._cloud = cloud
        self.has_file = has_file
        self._public_key = public_key
        self._sources: tuple[str, ...] = ()
        self._has_billing = True
        self._who = Identity("", "user")
        self._is_made_by_up = False
        self._apis_off: frozenset[str] = frozenset()
        self._network = ""
        self._prepared: Prepared | None = None

    def checks(self) -> list[Check]:
        """In order, the most basic first."""
        base = ("credentials", "project")
        return [
            Check("credentials", self.credentials, ("local cloud",)),
            Check("project", self.project, ("credentials",)),
            Check("billing", self._of_project("billing", self.billing), base),
            Check("APIs", self._of_project("APIs", self.apis), base),
            Check(
                "permissions",
                self._of_project("permissions", self.permissions),
                base,
                ("billing", "APIs", "network"),
            ),
            Check("network", self._of_project("network", self.network), base, ("APIs",)),
            Check("org policies", self._of_project("org policies", self.policies), base),
            Check("plan", self._of_project("plan", self.plan), (*base, "permissions", "network")),
            Check("quota", self._of_project("quota", self.quota), ("plan",)),
        ]

    def _of_project(
        self, name: str, ask: Callable[[], Awaitable[Finding]]
    ) -> Callable[[], Awaitable[Finding]]:
        """The same, where there is a project to ask about."""

        async def asked() -> Finding:
            if self._is_made_by_up:
                told = f"`up` makes project {self.stack.project} first"
                return Finding(name, CheckState.UNASKED, told)
            return await ask()

        return asked

    @property
    def cloud(self) -> Cloud:
        return self._cloud()

    @property
    def is_up(self) -> bool:
        """Whether there is nothing left for `up` to do."""
        return self._prepared is not None and self._prepared.plan.is_empty

    async def credentials(self) -> Finding:
        try:
            self._who = await identity_of(self.cloud)
        except Denied as error:
            found = failed("credentials", error)
            return replace(found, hint=WIF) if os.environ.get("CI") else found
        who = self._who
        told = f"{who.email or 'signed in'} ({who.kind})"
        if self.cloud.endpoint.is_local or who.quota_project or not who.is_user:
            return Finding("credentials", CheckState.OK, told)
        return Finding(
            "credentials",
            CheckState.WARNING,
            f"{told}; no quota project is set, without which some APIs refuse a user's calls",
            "Set it with\n"
            f"    gcloud auth application-default set-quota-project {self.stack.project}",
        )

    async def project(self) -> Finding:
        name, project = self.stack.project, Project(self.stack, self.cloud)
        try:
            observed = await project.observe()
            if observed is not None:
                project.diff(observed)
                return Finding("project", CheckState.OK, f"{name} is active")
            if self.stack.file.project.create:
                return await self._project_to_make()
            project.diff(None)
        except ApiDisabled as error:
            return self._api_off("project", error, "cloudresourcemanager")
        except NotFound as error:
            found = failed("project", error, DENIED)
            return replace(
                found,
                hint=f"{found.hint}\nIf it is there, its owner lets you see it with\n"
                f"    gcloud projects add-iam-policy-binding {name} --member={self._who.member} "
                "--role=roles/browser",
            )
        except Conflict as error:
            return failed("project", error, DENIED)
        raise AssertionError("a project that is neither there nor to be made is not found")

    async def _project_to_make(self) -> Finding:
        missing = await missing_permissions(self.stack, self.cloud)
        if missing:
            return self._lacking("project", missing)
        self._is_made_by_up = True
        return Finding("project", CheckState.OK, f"`up` makes {self.stack.project}")

    async def billing(self) -> Finding:
        project, wanted = self.stack.project, self.stack.file.project.billing_account
        try:
            found = await self.cloud.call(
                "billing",
                self.cloud.client("billing").get_project_billing_info,
                {"name": f"projects/{project}"},
            )
        except ApiDisabled as error:
            return replace(
                self._api_off("billing", error, "cloudbilling"),
                state=CheckState.UNASKED,
                exit_code=0,
            )
        account = str(found.billing_account_name).removeprefix("billingAccounts/")
        self._has_billing = bool(found.billing_enabled)
        if found.billing_enabled:
            return Finding("billing", CheckState.OK, f"account {account or 'not to be seen'} pays")
        if wanted and not account:
            return Finding("billing", CheckState.OK, f"`up` links account {wanted}")
        link = f"gcloud billing projects link {project} --billing-account=XXXXXX-XXXXXX-XXXXXX"
        told = f"account {account} is closed" if account else "no account is linked"
        return Finding(
            "billing",
            CheckState.PROBLEM,
            f"{told}: nothing can be made in {project}",
            f"Link one that is open, of those you may use:\n    {link}\n"
            "    gcloud billing accounts list --filter=open=true",
            exit_code=DENIED,
        )

    async def apis(self) -> Finding:
        wanted = needed(self.stack)
        enabled = await Services(self.stack, self.cloud).observe()
        if enabled is None:
            raise Denied(
                "Permission denied",
                "which APIs are enabled may not be seen",
                hint="Somebody who may grants you\n"
                f"    gcloud projects add-iam-policy-binding {self.stack.project} "
                f"--member={self._who.member} --role=roles/serviceusage.serviceUsageConsumer",
            )
        self._apis_off = wanted - enabled
        if not self._apis_off:
            return Finding("APIs", CheckState.OK, f"all {len(wanted)} are enabled")
        off = ", ".join(sorted(one.partition(".")[0] for one in self._apis_off))
        if await self._may(ENABLE):
            return Finding("APIs", CheckState.OK, f"`up` enables {off}")
        names = " ".join(sorted(self._apis_off))
        return Finding(
            "APIs",
            CheckState.PROBLEM,
            f"not enabled, and you may not enable them: {off}",
            "Somebody who may enables them with\n"
            f"    gcloud services enable {names} --project={self.stack.project}",
            exit_code=DENIED,
        )

    async def permissions(self) -> Finding:
        missing = await missing_permissions(self.stack, self.cloud)
        now = [one for one in missing if self._is_needed_now(one)]
        if now:
            return self._lacking("permissions", now)
        told = "all that `up`, `run` and `down` need"
        if not missing:
            return Finding("permissions", CheckState.OK, told)
        later: dict[str, set[str]] = {}
        for one in missing:
            later.setdefault(path_of(one.permission), set()).add(one.permission.name)
        paths = "; ".join(f"{path} ({', '.join(sorted(of))})" for path, of in later.items())
        return Finding("permissions", CheckState.OK, f"{told} now; not for {paths}")

    def _is_needed_now(self, missing: Missing) -> bool:
        kind, action = missing.permission.kind, missing.permission.action
        if (kind, action) == ("apis", "update"):
            return bool(self._apis_off)
        if (kind, action) == ("network", "create"):
            return not self._network and COMPUTE not in self._apis_off
        if (kind, action) == ("project", "update"):
            return not self._has_billing
        return not path_of(missing.permission)

    def _lacking(self, check: str, missing: Sequence[Missing]) -> Finding:
        lines, commands = told_and_granted(missing, self._who.member)
        hint = "Somebody who may grants you\n" + "\n".join(f"    {one}" for one in commands)
        if self.has_file:
            hint += "\nOr a role of exactly what is needed, which is printed by\n"
            hint += "    tpuctl doctor --role"
        count = len({one.permission.name for one in missing})
        told = "\n".join([f"{count} missing, which these roles have:", *lines])
        return Finding(check, CheckState.PROBLEM, told, hint, exit_code=DENIED)

    async def network(self) -> Finding:
        network = Network(self.stack, self.cloud)
        observed = await network.observe()
        if observed is None and network.name != "main" and COMPUTE not in self._apis_off:
            return Finding(
                "network",
                CheckState.PROBLEM,
                f"project {self.stack.project} has no network {network.name}",
                "Leave network.name out to use `default` or have one made; or make it with\n"
                f"    gcloud compute networks create {network.name} "
                f"--project={self.stack.project}",
                exit_code=1,
            )
        if observed is not None:
            network.diff(observed)
            self._network = observed.usable or ""
            told = self._network
        elif COMPUTE in self._apis_off:
            told = "`default` comes with Compute Engine"
        else:
            told = f"`up` makes {self.stack.names.network}"
        self._sources = await sources_of(self.stack, self.cloud)
        told += f"; SSH {WAYS[self.stack.file.network.ssh]} from {', '.join(self._sources)}"
        if self.stack.is_node and self._network and TPU not in self._apis_off:
            return await self._node_range(told)
        return Finding("network", CheckState.OK, told)

    async def _node_range(self, told: str) -> Finding:
        """The addresses of a TPU node, which must be free in its network."""
        wanted = self.stack.file.network.node_range
        if wanted == "service-networking":
            return Finding("network", CheckState.OK, told)
        taken = await ranges_in_use(self.stack, self.cloud, self._network)
        free = free_range(taken, node_cidr_prefix(self.stack.accelerator))
        if wanted == "auto":
            return Finding("network", CheckState.OK, f"{told}; {free} is free for the node")
        asked = IPv4Network(wanted, strict=False)
        others = [
            one
            for one in taken
            if "." in one and one != wanted and asked.overlaps(IPv4Network(one, strict=False))
        ]
        if not others:
            return Finding("network", CheckState.OK, f"{told}; the node at {wanted}")
        return Finding(
            "network",
            CheckState.PROBLEM,
            f"{wanted}, which is to be the node's, overlaps {', '.join(sorted(others))}",
            f"Leave network.node_range out, or take one that is free:\n"
            f"    network: {{node_range: {free}}}",
            exit_code=1,
        )

    async def policies(self) -> Finding:
        return await policies_finding(self.stack, self.cloud, self._who.member)

    async def plan(self) -> Finding:
        sources = self._sources
        self._prepared = prepared = await prepare_up(
            self.stack, self.cloud, sources=sources, public_key=self._public_key
        )
        warned = await access_warnings(self.stack, self.cloud, prepared.plan)
        if prepared.plan.is_empty:
            return Finding("plan", CheckState.OK, "the stack is up; there is nothing to do")
        count = sum(one.is_work for one in prepared.plan)
        told = f"`up` has {count} thing{'s' if count != 1 else ''} to do"
        if not warned:
            return Finding("plan", CheckState.OK, told)
        return Finding(
            "plan",
            CheckState.WARNING,
            "; ".join([told, *(f"{one.summary}: {one.detail}" for one in warned)]),
            "\n".join(one.hint for one in warned),
        )

    async def quota(self) -> Finding:
        if not self.has_file:
            return Finding("quota", CheckState.UNASKED, "no stack file says which TPU")
        prepared = self._prepared
        assert prepared is not None, "the plan was made before"
        report = prepared.quota
        if report.shortfalls:
            short = "; ".join(one.detail for one in report.shortfalls)
            hint = report.shortfalls[0].hint
            return Finding("quota", CheckState.PROBLEM, short, hint, QuotaExceeded.exit_code)
        known = [one for one in report.lines if one.allowed is not None and one.added]
        told = "; ".join(
            f"{one.limit}: {one.used:g} of {one.allowed:g}{f' {one.unit}' if one.unit else ''} "
            f"used in {one.place}, {one.added:g} more needed"
            for one in known
        )
        if report.unread and not known:
            if self._apis_off:
                return Finding(
                    "quota", CheckState.UNASKED, "it can be read once `up` enabled the APIs"
                )
            return Finding("quota", CheckState.UNASKED, "; ".join(report.unread))
        return Finding("quota", CheckState.OK, told or "nothing of it is needed")

    async def _may(self, permission: str) -> bool:
        answer = await self.cloud.call(
            "permissions",
            self.cloud.client("projects").test_iam_permissions,
            {"resource": f"projects/{self.stack.project}", "permissions": [permission]},
        )
        return permission in answer.permissions

    def _api_off(self, check: str, error: TpuctlError, api: str) -> Finding:
        project = self._who.quota_project or self.stack.project
        command = f"gcloud services enable {api}.googleapis.com --project={project}"
        return replace(failed(check, error), hint=f"Enable it with\n    {command}")
