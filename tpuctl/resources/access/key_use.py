"""The Cloud KMS key that encrypts what the stack creates, and its use by Google's service agents.

Cloud Storage and Compute Engine encrypt with the key as service agents of the stack's project:
cloud.google.com/storage/docs/encryption/using-customer-managed-keys,
docs.cloud.google.com/compute/docs/disks/customer-managed-encryption; for boot disks of TPU VMs,
docs.cloud.google.com/tpu/docs/cmek-tpu.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tpuctl.engine.resource import Report
from tpuctl.errors import ApiDisabled, Conflict, Denied, Diagnostic, NotFound
from tpuctl.model.plan import Change
from tpuctl.model.stack.encryption import CryptoKey
from tpuctl.model.stack.stack import Stack
from tpuctl.resources.access.iam_policy import edit, granted_pairs, with_pairs
from tpuctl.resources.base import StackResource

ROLE = "roles/cloudkms.cryptoKeyEncrypterDecrypter"
VERSION = {"options.requestedPolicyVersion": "3"}
SET_POLICY = "cloudkms.cryptoKeys.setIamPolicy"


@dataclass(frozen=True)
class KeyState:
    """A key, as far as the caller may see it."""

    agents: tuple[str, ...]  # the members that encrypt with it
    state: str | None = None  # of its primary version; None: the key is not visible
    granted: frozenset[str] | None = None  # members of the role on the key; None: not visible
    may_grant: bool = False

    @property
    def missing(self) -> list[str]:
        """The agents without a grant on the key itself, which may have one on its project."""
        return [agent for agent in self.agents if agent not in (self.granted or ())]


class KeyUse(StackResource):
    """The role of the service agents on the key. It is never revoked: what was encrypted with the
    key, as a bucket that is kept, could not be read any more."""

    kind = "key"
    group = "bucket"
    label = "the use of the stack's Cloud KMS key"
    unlisted_reason = "neither the key nor its policy is the stack's"
    permissions = """
        read cloudkms.viewer cloudkms.cryptoKeys.get
        update cloudkms.admin cloudkms.cryptoKeys.getIamPolicy cloudkms.cryptoKeys.setIamPolicy
    """
    optional: ClassVar = {
        "read": "checking the Cloud KMS key",
        "update": "letting Google's service agents use the Cloud KMS key",
    }

    @classmethod
    def applies(cls, stack: Stack) -> bool:
        return stack.crypto_key is not None

    @classmethod
    def may_need(cls, action: str, stack: Stack) -> bool:
        """A role in the stack's project does not help with a key of another one."""
        key = stack.crypto_key
        return key is not None and key.project == stack.project

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._observed: KeyState | None = None
        self.has_granted = False  # just now, and so perhaps not in effect yet

    @property
    def key(self) -> CryptoKey:
        assert self.stack.crypto_key is not None, "it applies"
        return self.stack.crypto_key

    @property
    def name(self) -> str:
        return self.key.id

    @property
    def after(self) -> frozenset[str]:
        return frozenset({"apis/needed"})

    async def observe(self) -> KeyState | None:
        """None if the stack's project does not exist, or is the key's and has no Cloud KMS yet."""
        request = {"name": f"projects/{self.stack.project}"}
        project = await self.find("projects", "get_project", request)
        if project is None:
            return None
        try:
            self._observed = await self._state(project.name.partition("/")[2])
        except ApiDisabled:
            return None
        return self._observed

    async def _state(self, number: str) -> KeyState:
        agents = tuple(
            f"serviceAccount:service-{number}@{service}.iam.gserviceaccount.com"
            for service in ("gs-project-accounts", "compute-system")
        )
        try:
            key = await self._call("GET")
        except Denied as error:
            if isinstance(error, ApiDisabled) and self.key.project == self.stack.project:
                raise
            return KeyState(agents)
        except NotFound as error:
            raise self._no_key() from error
        state = key.get("primary", {}).get("state", "missing")
        try:
            policy = await self._call("GET", ":getIamPolicy", query=VERSION)
        except Denied:
            return KeyState(agents, state)
        body = {"permissions": [SET_POLICY]}
        tested = await self._call("POST", ":testIamPermissions", body)
        pairs = granted_pairs(policy.get("bindings", ()))
        granted = frozenset(member for role, member in pairs if role == ROLE)
        return KeyState(agents, state, granted, SET_POLICY in tested.get("permissions", ()))

    def diff(self, observed: KeyState | None) -> Change:
        if observed is None:
            return self.update(self._purpose, (ROLE,))
        if observed.state not in (None, "ENABLED"):
            raise Conflict(
                "Key cannot be used",
                f"encryption.kms_key: the primary version of {self.key.name} is {observed.state}",
                hint="Enable a version and make it primary. To list them:\n"
                f"    gcloud kms keys versions list --key={self.key.id} {self.key.options}",
            )
        if observed.missing and observed.may_grant:
            return self.update(self._purpose, (ROLE,))
        return self.nothing(self._purpose)

    @property
    def _purpose(self) -> str:
        exceptions = ["metadata", "labels", "logs"]
        if self.stack.is_node:
            exceptions.insert(0, "the TPU node's own disk")
        if any(disk.name is not None for disk in self.stack.file.tpu.data_disks):
            exceptions.insert(0, "existing data disks")
        return (
            "encrypts the bucket and the disks that `up` creates; Google's keys encrypt "
            f"{', '.join(exceptions[:-1])}, and {exceptions[-1]}"
        )

    @property
    def warnings(self) -> list[Diagnostic]:
        """What to know about the key as last observed."""
        observed = self._observed
        if observed is None or observed.may_grant or not observed.missing:
            return []
        reason = "has no grants for Google's service agents itself, and you may not grant them"
        if observed.granted is None:
            reason = "may lack grants for Google's service agents, which you may not see"
        return [
            Diagnostic(
                "Use of the key not verified",
                f"{self.key.name} {reason}; without them, nothing can be encrypted with it, and "
                "`up` fails",
                "Unless its project has them, ask an administrator of the key to run\n"
                + "\n".join(f"    {command}" for command in self.commands(observed.missing)),
            )
        ]

    def commands(self, members: Iterable[str]) -> list[str]:
        """What grants the role to members."""
        return [
            f"gcloud kms keys add-iam-policy-binding {self.key.id} {self.key.options} "
            f"--member={member} --role={ROLE}"
            for member in members
        ]

    def removal(self, observed: KeyState | None) -> Change:
        return self.leave("what it encrypted, such as a bucket that is kept, needs it")

    async def apply(self, change: Change, report: Report) -> None:
        observed = await self.observe()
        if observed is None or not observed.missing or not observed.may_grant:
            return
        # Cloud Storage's agent is created when it is first asked for.
        email = self.cloud.client("storage").get_service_account_email
        await self.cloud.call(self.address, email, project=self.stack.project)

        async def grant() -> None:
            policy = await self._call("GET", ":getIamPolicy", query=VERSION)
            pairs = [(ROLE, agent) for agent in observed.missing]
            bindings = [
                {**binding, "members": sorted(binding["members"])}
                for binding in with_pairs(policy.get("bindings", ()), pairs)
            ]
            await self._call(
                "POST", ":setIamPolicy", {"policy": {**policy, "version": 3, "bindings": bindings}}
            )

        await edit(self.cloud, self.address, grant, new=())
        self.has_granted = True

    async def _call(
        self,
        verb: str,
        method: str = "",
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Any:
        path = f"/v1/{self.key.name}{method}"
        call = self.cloud.client("rest").call
        return await self.cloud.call(
            self.address, call, verb, "cloudkms", path, body=body, query=query
        )

    def _no_key(self) -> NotFound:
        key = self.key
        return NotFound(
            "No such key",
            f"encryption.kms_key: {key.name} does not exist",
            hint="Correct the name, or create the key; a key ring cannot be deleted later:\n"
            f"    gcloud kms keyrings create {key.ring} --location={key.location} "
            f"--project={key.project}\n"
            f"    gcloud kms keys create {key.id} --purpose=encryption {key.options}",
        )
