"""The messages of v2 and v2alpha1 with fields that their official Python client lacks.

Nodes of queued resources show `bootDisk` and `useTpuVm`, which no description has (the outputs of
`queued-resources describe` in docs.cloud.google.com/tpu/docs, "Serve Qwen3-8B-Base with vLLM").

google-cloud-tpu 1.28 (and google/cloud/tpu/v2alpha1/cloud_tpu.proto, its source) has neither
flex-start nor run durations. Google's discovery document of v2alpha1 does, as included in the
Google Cloud SDK (generated_clients/apis/tpu/v2alpha1/tpu_v2alpha1_messages.py, SDK 528:
QueuedResource.provisioningModel, QueuedResource.runDuration, SchedulingConfig.provisioningModel,
.reservationName, .terminationTimestamp). Python programs can only request them over REST:

    POST /v2alpha1/projects/P/locations/ZONE/queuedResources?queuedResourceId=ID
    {"tpu": {"nodeSpec": [{"parent": …, "nodeId": …, "node": {…}}]},
     "provisioningModel": "FLEX_START", "runDuration": {"maxRunDuration": "14400s"}}

The field numbers are not public: the ones below serve JSON, and no client sends them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from google.cloud.tpu_v2.types import cloud_tpu as cloud_tpu_v2
from google.cloud.tpu_v2alpha1.types import cloud_tpu as cloud_tpu_v2alpha1
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIRST_NUMBER = 9001
_CLIENTS: Mapping[str, Any] = {
    "google.cloud.tpu.v2": cloud_tpu_v2,
    "google.cloud.tpu.v2alpha1": cloud_tpu_v2alpha1,
}
_Field = descriptor_pb2.FieldDescriptorProto
_MODELS = (
    "PROVISIONING_MODEL_UNSPECIFIED",
    "STANDARD",
    "SPOT",
    "RESERVATION_BOUND",
    "FLEX_START",
)


def extended(message: Any) -> Any:
    """The extended class of a message; messages of other APIs are returned unchanged."""
    file, name = message.DESCRIPTOR.file, message.DESCRIPTOR.full_name
    if file.package not in _CLIENTS:
        return message
    return message_factory.GetMessageClass(_pool(file.package).FindMessageTypeByName(name))


@cache
def _pool(package: str) -> Any:
    """A separate pool, since the client's must not be changed."""
    source = _CLIENTS[package].QueuedResource.pb().DESCRIPTOR.file
    file = descriptor_pb2.FileDescriptorProto()
    source.CopyToProto(file)
    file.message_type.add(name="BootDisk")
    for message in file.message_type:
        if message.name == "Node":
            _add(message, "boot_disk", f".{package}.BootDisk")
            _add(message, "use_tpu_vm", "", _Field.TYPE_BOOL)
    if source.package == "google.cloud.tpu.v2alpha1":
        _add_flex_start(file)
    else:
        _add_boot_disk_config(file)
    pool = descriptor_pool.DescriptorPool()
    _copy_dependencies(source, pool, set())
    pool.AddSerializedFile(file.SerializeToString())
    return pool


def _add_boot_disk_config(file: Any) -> None:
    """In Google's discovery document of v2: tpuctl/emulator/wire/discovery/tpu.v2.json."""
    prefix = f".{file.package}"
    _add(
        file.message_type.add(name="CustomerEncryptionKey"), "kms_key_name", "", _Field.TYPE_STRING
    )
    config = file.message_type.add(name="BootDiskConfig")
    _add(config, "customer_encryption_key", f"{prefix}.CustomerEncryptionKey")
    for message in file.message_type:
        if message.name == "Node":
            _add(message, "boot_disk_config", f"{prefix}.BootDiskConfig")


def _add_flex_start(file: Any) -> None:
    model = file.enum_type.add(name="ProvisioningModel")
    for number, name in enumerate(_MODELS):
        model.value.add(name=name, number=number)
    duration = file.message_type.add(name="RunDuration")
    prefix = f".{file.package}"
    _add(duration, "max_run_duration", ".google.protobuf.Duration")
    _add(duration, "termination_time", ".google.protobuf.Timestamp")
    for message in file.message_type:
        if message.name == "QueuedResource":
            _add(message, "provisioning_model", f"{prefix}.ProvisioningModel", _Field.TYPE_ENUM)
            _add(message, "run_duration", f"{prefix}.RunDuration")
        if message.name == "SchedulingConfig":
            _add(message, "provisioning_model", f"{prefix}.ProvisioningModel", _Field.TYPE_ENUM)
            _add(message, "termination_timestamp", ".google.protobuf.Timestamp")
            _add(message, "reservation_name", "", _Field.TYPE_STRING)


def _add(message: Any, name: str, type_name: str, kind: Any = _Field.TYPE_MESSAGE) -> None:
    number = max([_FIRST_NUMBER - 1, *(field.number for field in message.field)]) + 1
    field = message.field.add(
        name=name, number=number, type=kind, label=_Field.LABEL_OPTIONAL, json_name=_camel(name)
    )
    if type_name:
        field.type_name = type_name


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def _copy_dependencies(file: Any, pool: Any, copied: set[str]) -> None:
    for dependency in file.dependencies:
        if dependency.name not in copied:
            copied.add(dependency.name)
            _copy_dependencies(dependency, pool, copied)
            pool.AddSerializedFile(dependency.serialized_pb)
