"""Messages and methods of APIs that no client here defines, such as Resource Manager v1.

They are served as JSON only: the numbers of their fields are not those of public protos.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tpuctl.emulator.wire.messages import Method, Rule, compile_path

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS: Mapping[str, Any] = {
    "string": _Field.TYPE_STRING,
    "int64": _Field.TYPE_INT64,
    "int32": _Field.TYPE_INT32,
    "bool": _Field.TYPE_BOOL,
}
_IMPORTS = (
    "google/iam/v1/policy.proto",
    "google/protobuf/field_mask.proto",
    "google/protobuf/timestamp.proto",
    "google/longrunning/operations.proto",
)
# Messages of those files, by the names that definitions use.
_IMPORTED = {
    "Empty": "google.protobuf.Empty",
    "FieldMask": "google.protobuf.FieldMask",
    "GetIamPolicyRequest": "google.iam.v1.GetIamPolicyRequest",
    "Operation": "google.longrunning.Operation",
    "Policy": "google.iam.v1.Policy",
    "SetIamPolicyRequest": "google.iam.v1.SetIamPolicyRequest",
    "TestIamPermissionsRequest": "google.iam.v1.TestIamPermissionsRequest",
    "TestIamPermissionsResponse": "google.iam.v1.TestIamPermissionsResponse",
    "Timestamp": "google.protobuf.Timestamp",
}
_METHOD = re.compile(r"(\S+) (\S+)(?: (\S+))?: (\S+) -> (\S+)")


@dataclass(frozen=True)
class Definition:
    """A concise definition of an API.

    `messages` lists fields separated by spaces: `name`, `done:bool`, `parent:ResourceId`,
    `projects:[Project]`, `labels:map` (strings to strings), `keys:map:SshPublicKey`,
    `create_time:Timestamp`. Fields are numbered in sequence. `services` has methods by service and
    attribute, as `create_project`: verb, path, body, if any, and messages, as
    `POST /v1/projects project: CreateProjectRequest -> Operation`.
    """

    package: str
    messages: Mapping[str, str]
    enums: Mapping[str, Sequence[str]]
    services: Mapping[str, Mapping[str, str]]

    def message(self, name: str) -> Any:
        """The class of a message, of the API or imported."""
        pool = descriptor_pool.Default()
        full = self._full_name(name)
        try:
            found = pool.FindMessageTypeByName(full)
        except KeyError:
            pool.AddSerializedFile(self._file().SerializeToString())
            found = pool.FindMessageTypeByName(full)
        return message_factory.GetMessageClass(found)

    def methods(self, service: str) -> list[Method]:
        """The methods of a service, given in full: `google.cloudresourcemanager.v1.Projects`."""
        methods = []
        for attribute, text in self.services[service.rpartition(".")[2]].items():
            match = _METHOD.fullmatch(text)
            assert match is not None, text
            verb, path, body, *messages = match.groups("")
            request, response = map(self.message, messages)
            rule = Rule(verb, *compile_path(path), body)
            methods.append(Method(service, attribute, request, response, (rule,)))
        return methods

    def _full_name(self, name: str) -> str:
        return _IMPORTED.get(name, f"{self.package}.{name}")

    def _file(self) -> Any:
        # The file's imports must be in the pool before it.
        from google.iam.v1 import iam_policy_pb2
        from google.longrunning import operations_pb2
        from google.protobuf import field_mask_pb2, timestamp_pb2

        needed = (iam_policy_pb2, operations_pb2, field_mask_pb2, timestamp_pb2)
        assert all(needed)
        file = descriptor_pb2.FileDescriptorProto(
            name=f"tpuctl/{self.package.replace('.', '/')}.proto",
            package=self.package,
            syntax="proto3",
            dependency=_IMPORTS,
        )
        for name, values in self.enums.items():
            kind = file.enum_type.add(name=name)
            for number, value in enumerate(values):
                kind.value.add(name=value, number=number)
        for name, fields in self.messages.items():
            message = file.message_type.add(name=name)
            for number, field in enumerate(fields.split(), 1):
                self._add(message, number, field)
        return file

    def _add(self, message: Any, number: int, text: str) -> None:
        name, _, kind = text.partition(":")
        field = message.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL)
        kind, _, values = kind.partition(":")
        if kind == "map":
            entry = message.nested_type.add(name=_entry_name(name))
            entry.options.map_entry = True
            self._add(entry, 1, "key")
            self._add(entry, 2, f"value:{values}")
            kind = f"[.{self.package}.{message.name}.{entry.name}]"
        if kind.startswith("["):
            field.label = _Field.LABEL_REPEATED
            kind = kind.strip("[]")
        if (kind or "string") in _SCALARS:
            field.type = _SCALARS[kind or "string"]
            return
        field.type = _Field.TYPE_ENUM if kind in self.enums else _Field.TYPE_MESSAGE
        field.type_name = kind if kind.startswith(".") else f".{self._full_name(kind)}"


def _entry_name(field: str) -> str:
    return re.sub(r"(?:^|_)(\w)", lambda match: match[1].upper(), field) + "Entry"
