"""Effective organization policies of the project that block a stack.

Read with Organization Policy v2, policies.getEffectivePolicy. The meaning of each constraint is
from cloud.google.com/resource-manager/docs/organization-policy/org-policy-constraints; location
groups are from …/organization-policy/defining-locations.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tpuctl.catalog import region_of, zones
from tpuctl.cloud.clients import Cloud
from tpuctl.errors import ApiDisabled, Denied, TpuctlError
from tpuctl.model.plan import Action, Plan
from tpuctl.model.stack.stack import Stack
from tpuctl.model.text.names import account_email
from tpuctl.model.text.os_login import OS_LOGIN, os_login_in
from tpuctl.model.troubleshooting.diagnosis import DENIED, CheckState, Finding
from tpuctl.resources.access.service_account import ServiceAccount
from tpuctl.resources.composition import kind_of
from tpuctl.resources.project.bucket import Bucket

CHECK = "org policies"
GROUP = re.compile(r"in:([a-z0-9-]+)-locations")
ADMIN = "Ask an organization policy administrator to exempt the project:\n"


@dataclass(frozen=True)
class Verdict:
    """The effect of a policy on the stack."""

    detail: str
    hint: str
    is_problem: bool = True
    is_certain: bool = True  # whether Google will refuse, as far as the policy says
    refused: str = ""  # the kind of resource that cannot be created; "" for machines


Rules = Sequence[Any]  # google.cloud.orgpolicy.v2.PolicySpec.PolicyRule
Verdicts = Sequence[tuple[str, Verdict]]
Evaluate = Callable[[Stack, Rules], Verdict | None]


async def require_policies(stack: Stack, cloud: Cloud, plan: Plan) -> None:
    """Raise Denied if it is certain that policies will refuse what the plan creates, machines among
    it, with what to set or to ask for. What cannot be read may refuse it later."""
    try:
        verdicts = await _verdicts(stack, cloud)
    except TpuctlError:
        return
    kinds = {kind_of(change.address).kind for change in plan if change.action is Action.CREATE}
    certain = [
        (name, each)
        for name, each in verdicts or ()
        if each.is_problem and each.is_certain and each.refused in ("", *kinds)
    ]
    if certain:
        raise Denied(
            "Refused by organization policies",
            "\n".join(f"{name}: {verdict.detail}" for name, verdict in certain),
            hint=_hints(stack, certain),
        )


async def policies_finding(stack: Stack, cloud: Cloud, member: str) -> Finding:
    """Evaluate all policies. A project without an organization has none."""
    try:
        verdicts = await _verdicts(stack, cloud)
    except ApiDisabled:
        return Finding(
            CHECK,
            CheckState.SKIPPED,
            "the Organization Policy API is not enabled in the project",
            "To check them, enable it:\n"
            f"    gcloud services enable orgpolicy.googleapis.com --project={stack.project}",
        )
    except Denied:
        return Finding(
            CHECK,
            CheckState.SKIPPED,
            "permission denied",
            "To check them, ask an administrator to run\n"
            f"    gcloud projects add-iam-policy-binding {stack.project} --member={member} "
            "--role=roles/orgpolicy.policyViewer",
        )
    if verdicts is None:
        return Finding(CHECK, CheckState.OK, "none: the project does not belong to an organization")
    if not verdicts:
        return Finding(CHECK, CheckState.OK, f"none of {len(POLICIES)} blocks the stack")
    verdicts = sorted(verdicts, key=lambda pair: not pair[1].is_problem)
    is_problem = verdicts[0][1].is_problem
    return Finding(
        CHECK,
        CheckState.PROBLEM if is_problem else CheckState.WARNING,
        "; ".join(f"{name}: {verdict.detail}" for name, verdict in verdicts),
        _hints(stack, verdicts),
        exit_code=DENIED if is_problem else 0,
    )


def _hints(stack: Stack, verdicts: Verdicts) -> str:
    return "\n".join(
        f"{verdict.hint}\n{ADMIN}    gcloud org-policies reset {name} --project={stack.project}"
        for name, verdict in verdicts
    )


async def _verdicts(stack: Stack, cloud: Cloud) -> Verdicts | None:
    """By constraint; None for a project without an organization. Raises ApiDisabled, Denied."""
    project = await cloud.call(
        "the project",
        cloud.client("projects").get_project,
        {"name": f"projects/{stack.project}"},
    )
    if not project.parent:
        return None
    answers = await asyncio.gather(*(_rules(stack, cloud, name) for name in POLICIES))
    return [
        (name, replace(verdict, is_certain=verdict.is_certain and _is_clear(rules)))
        for (name, evaluate), rules in zip(POLICIES.items(), answers, strict=True)
        if (verdict := evaluate(stack, rules)) is not None
    ]


def _is_clear(rules: Rules) -> bool:
    """Whether what the rules refuse is known: without conditions, and sets of values that have
    names of their own."""
    values = [
        entry
        for rule in rules
        for entry in (*rule.values.allowed_values, *rule.values.denied_values)
    ]
    return not any(rule.condition.expression for rule in rules) and all(map(_is_known, values))


def _is_known(entry: str) -> bool:
    """Whether it names one value, or a group of locations by a part of their names."""
    group = GROUP.fullmatch(entry)
    if group is None:
        return not entry.startswith(("in:", "under:"))
    return group[1] == "eu" or any(_matches(zone, [entry]) for zone in zones())


async def _rules(stack: Stack, cloud: Cloud, constraint: str) -> Rules:
    request = {"name": f"projects/{stack.project}/policies/{constraint}"}
    method = cloud.client("org_policies").get_effective_policy
    policy = await cloud.call("organization policies", method, request)
    return list(policy.spec.rules)


def _is_enforced(rules: Rules) -> bool:
    return any(rule.enforce for rule in rules)


def _limited(rules: Rules) -> bool:
    """Whether a list constraint restricts any value."""
    return any(rule.deny_all or "values" in rule for rule in rules)


def _external(stack: Stack, rules: Rules) -> Verdict | None:
    if stack.file.network.ssh != "external" or not _limited(rules):
        return None
    return Verdict(
        "external IP addresses are not allowed",
        "Reach the machines through Identity-Aware Proxy instead:\n    network: {ssh: iap}",
        is_certain=any(rule.deny_all for rule in rules),  # otherwise single machines are allowed
    )


def _locations(stack: Stack, rules: Rules) -> Verdict | None:
    closed = [zone for zone in stack.zones if not _is_allowed(zone, rules)]
    bucket = [] if _is_allowed(stack.bucket_location, rules) else [stack.bucket_location]
    if not closed and not bucket:
        return None
    detail = "resources are not allowed in " + ", ".join(dict.fromkeys([*closed, *bucket]))
    allowed = sorted(zone for zone in stack.accelerator.zones if _is_allowed(zone, rules))
    hint = f"{stack.accelerator.name} is allowed in\n    tpu: {{zones: [{', '.join(allowed[:3])}]}}"
    if not allowed:
        hint = f"No zone that offers {stack.accelerator.name} is allowed."
    is_problem = len(closed) == len(stack.zones) or bool(bucket)
    refused = "" if len(closed) == len(stack.zones) else Bucket.kind
    return Verdict(detail, hint, is_problem, refused=refused)


def _is_allowed(value: str, rules: Rules) -> bool:
    """Whether the rules allow a value: of locations, a zone, region or multi-region."""
    if any(rule.deny_all for rule in rules):
        return False
    denied = [entry for rule in rules for entry in rule.values.denied_values]
    allowed = [entry for rule in rules for entry in rule.values.allowed_values]
    return not _matches(value, denied) and (not allowed or _matches(value, allowed))


def _matches(location: str, entries: Iterable[str]) -> bool:
    names = {location, region_of(location)} if location in zones() else {location}
    for entry in entries:
        group = GROUP.fullmatch(entry)
        if group is None:
            if entry.removeprefix("is:") == location:
                return True
        else:
            part = "europe" if group[1] == "eu" else group[1]
            if any(name in (part, group[1]) or name.startswith(f"{part}-") for name in names):
                return True
    return False


def _accounts(stack: Stack, rules: Rules) -> Verdict | None:
    if not stack.creates_service_account or not _is_enforced(rules):
        return None
    return Verdict(
        "service accounts cannot be created in the project",
        "Let the machines use an existing one:\n"
        f"    tpu: {{service_account: {account_email('NAME', stack.project)}}}",
        refused=ServiceAccount.kind,
    )


def _members(stack: Stack, rules: Rules) -> Verdict | None:
    if not stack.is_node or not _limited(rules):
        return None
    return Verdict(
        "the TPU node's service agent, a Google account, may be denied access to the bucket",
        "Use a TPU VM, which runs as a service account of the project:\n    tpu: {kind: vm}",
        is_problem=False,
    )


def _os_login(stack: Stack, rules: Rules) -> Verdict | None:
    if not _is_enforced(rules) or os_login_in(stack.file.tpu.metadata) is not False:
        return None
    return Verdict(
        "tpu.metadata turns OS Login off, which is not allowed",
        f"Remove {OS_LOGIN} from `tpu.metadata`: tpuctl logs in with OS Login.",
    )


def _shielded(stack: Stack, rules: Rules) -> Verdict | None:
    if not _is_enforced(rules):
        return None
    keys = []
    if stack.is_compute and not stack.file.tpu.secure_boot:
        keys.append("tpu: {secure_boot: true}")
    if stack.controller is not None and not stack.controller.secure_boot:
        keys.append("controller: {secure_boot: true}")
    if not keys:
        return None
    return Verdict(
        "machines of Compute Engine need Secure Boot",
        "Turn it on; their images must support it:\n" + "\n".join(f"    {key}" for key in keys),
    )


def _images(stack: Stack, rules: Rules) -> Verdict | None:
    if not stack.is_compute:
        return None
    project = f"projects/{stack.machine.image.partition('/')[0]}"
    if _is_allowed(project, rules):
        return None
    return Verdict(
        f"images of {project} cannot be used",
        "Compute Engine's TPU machines have no other images.",
    )


def _without_key(stack: Stack, rules: Rules) -> Verdict | None:
    """Services that may not create what only Google's keys encrypt."""
    services = ["storage.googleapis.com"]
    if stack.is_compute or stack.controller is not None or stack.file.tpu.data_disks:
        services.append("compute.googleapis.com")
    if not stack.is_compute:
        services.append("tpu.googleapis.com")
    closed = [service for service in services if not _is_allowed(service, rules)]
    if stack.crypto_key is not None or not closed:
        return None
    return Verdict(
        f"{', '.join(closed)} may not encrypt with Google's own keys",
        "Set a key of your organization:\n"
        f"    encryption: {{kms_key: projects/P/locations/{stack.region}/keyRings/R/cryptoKeys/K}}",
        refused=Bucket.kind if closed == services[:1] else "",
    )


def _keys_of_projects(stack: Stack, rules: Rules) -> Verdict | None:
    """Folders and organizations are not looked up: the key's project may be in one."""
    key = stack.crypto_key
    allowed = [entry for rule in rules for entry in rule.values.allowed_values]
    names = [entry.removeprefix("is:").removeprefix("under:") for entry in allowed]
    is_project = all(name.startswith("projects/") for name in names)
    if key is None or not names or not is_project or f"projects/{key.project}" in names:
        return None
    return Verdict(
        f"keys of project {key.project} are not allowed",
        f"Set encryption.kms_key to a key of {', '.join(names)}.",
    )


POLICIES: Mapping[str, Evaluate] = {
    "compute.vmExternalIpAccess": _external,
    "compute.requireOsLogin": _os_login,
    "compute.requireShieldedVm": _shielded,
    "compute.trustedImageProjects": _images,
    "gcp.resourceLocations": _locations,
    "gcp.restrictCmekCryptoKeyProjects": _keys_of_projects,
    "gcp.restrictNonCmekServices": _without_key,
    "iam.disableServiceAccountCreation": _accounts,
    "iam.allowedPolicyMemberDomains": _members,
}
