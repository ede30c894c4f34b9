"""Encryption keys of disks and images. Content is not encrypted here.

docs.cloud.google.com/compute/docs/disks/customer-managed-encryption; the errors of Cloud KMS are
from kubernetes-sigs/gcp-compute-persistent-disk-csi-driver#590 and public logs.
"""

from __future__ import annotations

import base64
import hashlib

from tpuctl.emulator.compute.core.collection import Row
from tpuctl.emulator.compute.core.context import ComputeContext
from tpuctl.emulator.compute.core.errors import bad_field, condition_not_met
from tpuctl.emulator.iam.crypto_keys import KEY, UnusableKey
from tpuctl.emulator.state.errors import ApiError, invalid
from tpuctl.emulator.state.locations import region_of_name
from tpuctl.emulator.state.projects import Project


def shown_key(key: Row, field: str = "resource.diskEncryptionKey") -> Row:
    """An encryption key as responses show it: a customer's own key only by its hash.

    CustomerEncryptionKey.sha256: of the key itself, in base64.
    """
    resource = {name: value for name, value in key.items() if name != "rawKey"}
    if "rawKey" in key:
        try:
            digest = hashlib.sha256(base64.b64decode(key["rawKey"], validate=True)).digest()
        except ValueError:
            reason = "The key must be encoded in base64."
            raise bad_field(f"{field}.rawKey", "", reason) from None
        resource["sha256"] = base64.b64encode(digest).decode()
    return resource


def usable_version(context: ComputeContext, disk: str, key: str, field: str) -> str:
    """The version of a Cloud KMS key that encrypts a disk, or a bad key's error."""
    match = KEY.fullmatch(key.partition("/cryptoKeyVersions/")[0])
    if match is None:
        raise bad_field(field, key, "It must be the name of a Cloud KMS key.")
    region = region_of_name(disk)
    if match["location"] not in (region, "global"):  # the wording is a guess
        reason = f"The key's location must be that of the disk, '{region}', or 'global'."
        raise bad_field(field, key, reason)
    check_key_policy(context, disk, key)
    project = context.registry.projects.require(disk.split("/")[1])
    try:
        return context.registry.keys.usable_version(match[0], _agent_of(project))
    except UnusableKey as problem:
        raise _kms_error(problem) from problem


def check_decryption(context: ComputeContext, instance: str, key: Row) -> None:
    """Refuse to start an instance with a disk whose Cloud KMS key cannot be used any more."""
    if "kmsKeyName" not in key:
        return
    project = context.registry.projects.require(instance.split("/")[1])
    try:
        context.registry.keys.check_version(key["kmsKeyName"], _agent_of(project))
    except UnusableKey as problem:
        raise _kms_error(problem) from problem


def _agent_of(project: Project) -> str:
    return f"service-{project['number']}@compute-system.iam.gserviceaccount.com"


def _kms_error(problem: UnusableKey) -> ApiError:
    return invalid(f"Cloud KMS error when using key {problem.name}: {problem.explanation}")


def check_key_policy(context: ComputeContext, disk: str, key: str) -> None:
    """Organization policies; the first wording: hashicorp/terraform-provider-google#14189."""
    project = context.registry.projects.require(disk.split("/")[1])
    constraint = context.registry.keys.violation(project, "compute.googleapis.com", key)
    if constraint:
        effort = f"protected by the key {key}" if key else "not protected by CMEK crypto key"
        raise condition_not_met(
            f"Constraint constraints/{constraint} violated for project {project['id']} attempting "
            f"to create a resource {effort}."
        )
