"""Google's error messages: builds errors from the texts in `google_messages.toml`."""

from __future__ import annotations

import json
import re
import secrets
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.state.projects import title_of


@dataclass(frozen=True)
class Message:
    """An error message with placeholders such as {zone} and {type} in its text and details."""

    status: str
    text: str
    source: str
    details: Sequence[Mapping[str, Any]] = ()
    http: int = 0
    reason: str = ""
    domain: str = "global"


_TEXTS = tomllib.loads(files(__package__).joinpath("google_messages.toml").read_text("utf-8"))
MESSAGES: Mapping[str, Message] = {
    name: Message(**fields) for name, fields in _TEXTS["messages"].items()
}
_MESSAGE_BY_KIND: Mapping[str, str] = _TEXTS["kinds"]
REJECTING_KINDS = (*_MESSAGE_BY_KIND, "quota")  # fault kinds that reject a call
_TEXT_BY_CODE: Mapping[str, str] = _TEXTS["codes"]
_CODE_BY_STATUS = {int(status): code for status, code in _TEXTS["statuses"].items()}
_PAGE_BY_STATUS = {int(status): text for status, text in _TEXTS["pages"].items()}
_OBJECT_MUTATION = re.compile(
    r"storage\.objects\.(?:insert|patch|update|delete|compose|rewrite|copy)"
)
_DEFAULTS = {
    "limit": "TPUV5sLitepodServingPerProjectPerZoneForTPUAPI",
    "number": "0",
    "version": "2.4",
    "cidr": "10.2.0.0/29",
    "network": "default",
    "account": "tpu@project.iam.gserviceaccount.com",
}


def fault_error(fault: Mapping[str, Any], attributes: Mapping[str, Any]) -> ApiError:
    """The error that a fault returns for a call, with the call's attributes filled in."""
    kind = fault["kind"]
    method, caller = str(attributes.get("method")), str(attributes.get("caller"))
    if kind == "deny" and method.startswith("storage.") and not fault.get("text"):
        return storage_denied(caller, str(attributes["permission"]))
    name = str(fault.get("google_error") or _MESSAGE_BY_KIND.get(kind, ""))
    if kind == "quota":
        name = "quota-region" if "region" in fault else "quota-zone"
        if ".compute." in str(attributes.get("method")):
            name = "compute-quota"
    if kind == "billing-disabled" and method.startswith("storage."):
        name = "billing-absent"
    elif kind == "billing-disabled" and ".serviceusage." in method:
        name = "billing-not-found"
    message = MESSAGES[name]
    http = int(fault.get("http") or 0)
    is_page = False
    if kind == "error" and "google_error" not in fault:
        message = _default_message(fault, str(attributes.get("method")))
        is_page = http in _PAGE_BY_STATUS and fault.keys().isdisjoint(("text", "code"))
    values = {**_DEFAULTS, **{key: value for key, value in attributes.items() if value}}
    if name == "compute-quota":
        values["limit"] = "CPUS"
    values |= {key: fault[key] for key in ("limit", "number") if key in fault}
    values["title"] = title_of(str(values.get("service") or "unknown"))
    values |= {"object": "/".join(filter(None, attributes.get("name") or ()))}
    values["eid"] = f"0x{secrets.token_hex(8)}"
    text = str(fault.get("text") or _fill(message.text, values))
    details = json.loads(
        json.dumps(message.details), object_hook=lambda detail: _fill_values(detail, values)
    )
    return ApiError(
        fault.get("code") or message.status,
        text,
        details=details,
        http=http or message.http,
        reason=message.reason,
        domain=message.domain,
        is_page=is_page,
    )


def _default_message(fault: Mapping[str, Any], method: str) -> Message:
    """The message of an error fault that names only a code, an HTTP status, or neither."""
    http = int(fault.get("http") or 0)
    if "code" in fault:
        return Message(fault["code"], _TEXT_BY_CODE[fault["code"]], "")
    if http == 429:
        if _OBJECT_MUTATION.fullmatch(method):
            return MESSAGES["storage-rate"]
        if not method.startswith("storage."):
            return MESSAGES["api-rate"]
    code = _CODE_BY_STATUS.get(http, "INTERNAL" if http >= 500 or not http else "INVALID_ARGUMENT")
    return Message(code, _PAGE_BY_STATUS.get(http) or _TEXT_BY_CODE[code], "")


def storage_denied(email: str, permission: str) -> ApiError:
    """InPars#13, ansible-collections/google.cloud#575, spaceml-org/STARCOP#6, and dozens more."""
    is_object = permission.startswith("storage.objects.") and permission != "storage.objects.list"
    target = f"Google Cloud Storage {'object' if is_object else 'bucket'}"
    in_project = permission in ("storage.buckets.list", "storage.buckets.create")
    if in_project or not permission.startswith("storage."):
        target = "Google Cloud project"
    return ApiError(
        "PERMISSION_DENIED",
        f"{email} does not have {permission} access to the {target}. Permission '{permission}' "
        "denied on resource (or it may not exist).",
        reason="forbidden",
    )


def _fill_values(value: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _fill(text, values) if isinstance(text, str) else text for key, text in value.items()
    }


def _fill(text: str, values: Mapping[str, Any]) -> str:
    """The text with its placeholders filled in; missing values become `unknown`."""
    placeholders = (
        "zone",
        "region",
        "type",
        "project",
        "project_number",
        "caller",
        "object",
        "service",
        "title",
    )
    for name in (*placeholders, *_DEFAULTS):
        text = text.replace(f"{{{name}}}", str(values.get(name, "unknown")))
    return text.replace("{eid}", str(values["eid"]))
