"""The methods of an API as defined by its official client, and JSON conversion of its messages.

Types and paths are read from the client's transports at run time, so the two never drift apart.
"""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from google.protobuf import empty_pb2, json_format

from tpuctl.emulator.state.errors import ApiError, invalid
from tpuctl.emulator.state.text import parse_json
from tpuctl.emulator.wire.rest_rules import Options

# Methods that every transport carries for services shared by all APIs.
MIXINS: Mapping[str, str] = {
    "get_operation": "google.longrunning.Operations",
    "list_operations": "google.longrunning.Operations",
    "delete_operation": "google.longrunning.Operations",
    "cancel_operation": "google.longrunning.Operations",
    "wait_operation": "google.longrunning.Operations",
    "get_location": "google.cloud.location.Locations",
    "list_locations": "google.cloud.location.Locations",
}
# Query parameters of Google's front end, not fields of requests.
_SYSTEM_PARAMETERS = frozenset(
    (
        "alt",
        "$alt",
        "key",
        "access_token",
        "oauth_token",
        "fields",
        "$fields",
        "prettyPrint",
        "$prettyPrint",
        "quotaUser",
        "userIp",
        "uploadType",
        "upload_protocol",
        "callback",
        "$.xgafv",
        "$userProject",
        "trace",
    )
)
# Fields that gcloud sends and the official Python clients' messages lack.
_IGNORED_PARAMETERS = frozenset(("returnPartialSuccess",))
_VARIABLE = re.compile(r"\{([a-zA-Z0-9_.]+)(?:=([^}]*))?\}")
_SEGMENTS = {"*": "[^/:]+", "**": ".+"}


class UnknownField(ApiError):
    """A field or query parameter that the client's message lacks, as Google reports it."""

    def __init__(self, field: Sequence[str], reason: str, *, is_in_body: bool) -> None:
        message = f'Invalid JSON payload received. Unknown name "{field[-1]}"{reason}'
        super().__init__("INVALID_ARGUMENT", message)
        self.field = tuple(field)  # from the root of the body
        self.is_in_body = is_in_body


@dataclass(frozen=True)
class Rule:
    """One HTTP rule of a method."""

    verb: str
    pattern: re.Pattern[str]
    variables: tuple[str, ...]
    body: str  # "", "*" or the field that the body is


@dataclass(frozen=True)
class Method:
    """One method of one service, with the message classes of its request and response."""

    service: str
    attribute: str  # create_node: the handler's name
    request: Any
    response: Any
    rules: tuple[Rule, ...] = field(default=())

    @cached_property
    def full_name(self) -> str:
        return f"{self.service}/{camel(self.attribute)}"


def camel(attribute: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in attribute.split("_"))


def methods_of(
    service: str, base: type, rest_base: type | None, rest_rules: Options
) -> list[Method]:
    """Every method of the service, from the type hints of the client's transport.

    `rest_base` is None for a client that supports only gRPC: then `rest_rules` apply.
    """
    methods = []
    for attribute, member in vars(base).items():
        if not isinstance(member, property) or attribute.startswith("_") or not member.fget:
            continue
        arguments = typing.get_args(typing.get_type_hints(member.fget).get("return"))
        if len(arguments) != 2 or not isinstance(arguments[0], list):
            continue
        answers = typing.get_args(arguments[1])
        methods.append(
            Method(
                service=MIXINS.get(attribute, service),
                attribute=attribute,
                request=_message_class(arguments[0][0]),
                response=_message_class(answers[0] if answers else arguments[1]),
                rules=tuple(_rules(rest_base, rest_rules, attribute)),
            )
        )
    return methods


def shared_methods() -> list[Method]:
    """The methods that every API's host serves in addition to its own, over gRPC."""
    from google.cloud.location import locations_pb2
    from google.longrunning import operations_pb2

    methods = []
    for attribute, service in MIXINS.items():
        module = locations_pb2 if "location" in attribute else operations_pb2
        request = getattr(module, f"{camel(attribute)}Request")
        if attribute.startswith("list_"):
            response = getattr(module, f"{camel(attribute)}Response")
        elif attribute.startswith(("cancel_", "delete_")):
            response = empty_pb2.Empty
        else:
            response = getattr(module, "Location" if "location" in attribute else "Operation")
        methods.append(Method(service, attribute, request, response))
    return methods


def _message_class(hint: Any) -> Any:
    if hint is type(None) or hint is None:
        return empty_pb2.Empty
    # proto-plus classes wrap the real message class; generated classes are it.
    return hint.pb() if hasattr(hint, "pb") else hint


def _rules(rest_base: type | None, rest_rules: Options, attribute: str) -> Iterable[Rule]:
    options = rest_rules.get(attribute, ()) if rest_base is None else ()
    holder = getattr(rest_base, f"_Base{camel(attribute)}", None)
    if holder is not None and hasattr(holder, "_get_http_options"):  # else served by gRPC alone
        options = holder._get_http_options()
    for option in options:
        pattern, variables = compile_path(option["uri"])
        yield Rule(option["method"].upper(), pattern, variables, option.get("body", ""))


def compile_path(template: str) -> tuple[re.Pattern[str], tuple[str, ...]]:
    """A regular expression for a google.api.http path template, and its variables in order."""
    pattern, position, variables = "", 0, []
    for match in _VARIABLE.finditer(template):
        pattern += re.escape(template[position : match.start()])
        segments = (match[2] or "*").split("/")
        pattern += f"({'/'.join(_SEGMENTS.get(part, re.escape(part)) for part in segments)})"
        variables.append(match[1])
        position = match.end()
    return re.compile(pattern + re.escape(template[position:])), tuple(variables)


def decode(
    method: Method,
    rule: Rule,
    captured: Sequence[str],
    query: Mapping[str, Sequence[str]],
    body: bytes,
) -> Any:
    """The request message of an HTTP request; ApiError if it is invalid."""
    message = method.request()
    document: dict[str, Any] = {}
    if rule.body:
        content = _parse(body)
        if rule.body == "*":
            if not isinstance(content, dict):
                raise invalid("Invalid JSON payload received. The root must be an object.")
            document = content
        else:
            document[rule.body] = content
    for key, values in query.items():
        is_known = key in message.DESCRIPTOR.fields_by_camelcase_name
        if key not in _SYSTEM_PARAMETERS and (is_known or key not in _IGNORED_PARAMETERS):
            _insert(document, key, _query_value(message.DESCRIPTOR, key, values))
    for variable, value in zip(rule.variables, captured, strict=True):
        _insert(document, variable, unquote(value))
    for descriptor in message.DESCRIPTOR.fields:
        if _is_field_mask(descriptor):
            for name in {descriptor.name, descriptor.json_name} & document.keys():
                document[name] = _camel_mask(document[name])
    try:
        json_format.ParseDict(document, message)
    except json_format.ParseError as error:
        raise _payload_error(str(error), rule.body) from error
    except (TypeError, ValueError, AttributeError, KeyError, RecursionError) as error:
        # Errors that json_format does not wrap.
        raise invalid(f"Invalid JSON payload received. {error}") from error
    return message


def encode(
    message: Any,
    query: Mapping[str, Sequence[str]],
    *,
    includes_defaults: bool = False,
    has_explicit_operations: bool = False,
) -> bytes:
    """The JSON of a response, with enums as numbers and without indentation if requested.

    Most APIs omit false and empty values; `includes_defaults` is for those that do not, and
    `has_explicit_operations` for those that include them in long-running operations.
    """
    style = (query.get("$alt") or query.get("alt") or ["json"])[-1]
    document = json_format.MessageToDict(
        message,
        use_integers_for_enums="enum-encoding=int" in style,
        always_print_fields_with_no_presence=includes_defaults,
    )
    if has_explicit_operations:
        if message.DESCRIPTOR.full_name == "google.longrunning.Operation":
            document = _explicit_operation(document)
        elif message.DESCRIPTOR.full_name == "google.longrunning.ListOperationsResponse":
            for index, operation in enumerate(document.get("operations", [])):
                document["operations"][index] = _explicit_operation(operation)
    pretty = (query.get("$prettyPrint") or query.get("prettyPrint") or ["true"])[-1]
    indent = None if pretty.lower() in ("false", "0") else 2
    return json.dumps(document, indent=indent, ensure_ascii=False).encode()


def _explicit_operation(operation: dict[str, Any]) -> dict[str, Any]:
    """An operation with its flags, in Google's order."""
    metadata = operation.get("metadata")
    if metadata is not None:
        version = {key: metadata[key] for key in ("apiVersion",) if key in metadata}
        others = {key: value for key, value in metadata.items() if key not in version}
        metadata = {"cancelRequested": False, **others}
        metadata = {**others, "cancelRequested": metadata["cancelRequested"], **version}
    return {
        "name": operation["name"],
        **({} if metadata is None else {"metadata": metadata}),
        "done": operation.get("done", False),
        **{key: operation[key] for key in ("error", "response") if key in operation},
    }


def _parse(body: bytes) -> Any:
    try:
        return parse_json(body)
    except ValueError as error:
        raise invalid(f"Invalid JSON payload received. {error}") from error


def _insert(document: dict[str, Any], path: str, value: Any) -> None:
    """Set a possibly nested field; the path takes precedence over the body."""
    *outer, last = path.split(".")
    for name in outer:
        inner = document.setdefault(name, {})
        if not isinstance(inner, dict):
            raise invalid(f"Invalid value at '{name}': expected an object.")
        document = inner
    document.pop(json_name(last), None)
    document[last] = value


def json_name(name: str) -> str:
    """A field's name in JSON, as in `storagePool` for `storage_pool`."""
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


def _query_value(descriptor: Any, key: str, values: Sequence[str]) -> Any:
    field_descriptor = None
    for name in key.split("."):
        fields = descriptor.fields if descriptor is not None else ()
        field_descriptor = next(
            (field for field in fields if name in (field.name, field.json_name)), None
        )
        if field_descriptor is None:
            reason = (
                f": Cannot bind query parameter. Field '{key}' could not be found in request "
                "message."
            )
            raise UnknownField([key], reason, is_in_body=False)
        descriptor = field_descriptor.message_type
    assert field_descriptor is not None
    converted = [_scalar(field_descriptor, key, value) for value in values]
    return converted if field_descriptor.is_repeated else converted[-1]


def _scalar(field_descriptor: Any, key: str, value: str) -> Any:
    if field_descriptor.type == field_descriptor.TYPE_BOOL:
        # Python clients send `True`.
        if value.lower() not in ("true", "false", "1", "0"):
            raise invalid(f"Invalid value at '{key}' (TYPE_BOOL), \"{value}\"")
        return value.lower() in ("true", "1")
    if field_descriptor.type == field_descriptor.TYPE_ENUM and value.lstrip("-").isdigit():
        return int(value)
    message_type = field_descriptor.message_type
    if message_type is not None and not message_type.full_name.startswith("google.protobuf."):
        raise invalid(f"Invalid value at '{key}': a message cannot be a query parameter.")
    return value


def _is_field_mask(field_descriptor: Any) -> bool:
    message_type = field_descriptor.message_type
    return message_type is not None and message_type.full_name == "google.protobuf.FieldMask"


def _camel_mask(mask: Any) -> Any:
    """Paths may be `network_config` or `networkConfig`; json_format knows only the second."""
    if not isinstance(mask, str):
        return mask
    paths = (path.strip().split(".") for path in mask.split(",") if path)
    return ",".join(".".join(map(json_name, path)) for path in paths)


def _payload_error(text: str, body: str) -> ApiError:
    unknown = re.search(r'has no field named "([^"]+)"(?: at "([^"]*)")?', text)
    if unknown is None:
        return invalid(f"Invalid JSON payload received. {text}")
    # The parser's location starts with the message's name; Google uses the proto's field names.
    place = (unknown[2] or "").partition(".")[2]
    proto_place = re.sub(r"([A-Z])", lambda match: "_" + match[1].lower(), place)
    where = f" at '{proto_place}'" if place else ""
    field = [*place.split("."), unknown[1]] if place else [unknown[1]]
    is_root = body == "*" or not place
    reason = f"{where}: Cannot find field."
    return UnknownField(field if is_root else field[1:], reason, is_in_body=True)


def parse_wire(method: Method, data: bytes) -> Any:
    """The request message of a gRPC call."""
    try:
        return method.request.FromString(data)
    except Exception as error:  # the parser's exception class differs between its back ends
        raise invalid(f"Request contains an invalid argument: {error}") from error
