"""How Google's APIs refuse: errors made of the texts in `google_messages.toml` beside this file."""

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

__all__ = ["REFUSING", "WORDINGS", "Wording", "refusal", "storage_denied"]


@dataclass(frozen=True)
class Wording:
    """A refusal with places for {zone}, {type} and such in its text and details."""

    status: str
    text: str
    source: str
    details: Sequence[Mapping[str, Any]] = ()
    http: int = 0
    reason: str = ""
    domain: str = "global"


_TEXTS = tomllib.loads(files(__package__).joinpath("google_messages.toml").read_text("utf-8"))
WORDINGS: Mapping[str, Wording] = {
    name: Wording(**fields) for name, fields in _TEXTS["messages"].items()
}
_OF_KIND: Mapping[str, str] = _TEXTS["kinds"]
REFUSING = (*_OF_KIND, "quota")  # kinds of faults that a call is refused by
_OF_CODE: Mapping[str, str] = _TEXTS["codes"]
_OF_HTTP = {int(status): code for status, code in _TEXTS["statuses"].items()}
_PAGES = {int(status): text for status, text in _TEXTS["pages"].items()}
_MUTATION = re.compile(r"storage\.objects\.(?:insert|patch|update|delete|compose|rewrite|copy)")
_DEFAULTS = {
    "limit": "TPUV5sLitepodServingPerProjectPerZoneForTPUAPI",
    "number": "0",
    "version": "2.4",
    "cidr": "10.2.0.0/29",
    "network": "default",
    "account": "tpu@project.iam.gserviceaccount.com",
}


def refusal(fault: Mapping[str, Any], facts: Mapping[str, Any]) -> ApiError:
    """The error that a fault answers a call with, the call's zone and such put into the text."""
    kind = fault["kind"]
    method, caller = str(facts.get("method")), str(facts.get("caller"))
    if kind == "deny" and method.startswith("storage.") and not fault.get("text"):
        return storage_denied(caller, str(facts["permission"]))
    name = str(fault.get("like") or _OF_KIND.get(kind, ""))
    if kind == "quota":
        name = "quota-region" if "region" in fault else "quota-zone"
        if ".compute." in str(facts.get("method")):
            name = "compute-quota"
    wording = WORDINGS[name]
    http = int(fault.get("http") or 0)
    is_page = False
    if kind == "error" and "like" not in fault:
        wording = _plain(fault, str(facts.get("method")))
        is_page = http in _PAGES and fault.keys().isdisjoint(("text", "code"))
    words = {**_DEFAULTS, **{key: value for key, value in facts.items() if value}}
    if name == "compute-quota":
        words["limit"] = "CPUS"
    words |= {key: fault[key] for key in ("limit", "number") if key in fault}
    words |= {"object": "/".join(filter(None, facts.get("name") or ()))}
    words["eid"] = f"0x{secrets.token_hex(8)}"
    text = str(fault.get("text") or _filled(wording.text, words))
    details = json.loads(
        json.dumps(wording.details), object_hook=lambda detail: _each(detail, words)
    )
    return ApiError(
        fault.get("code") or wording.status,
        text,
        details=details,
        http=http or wording.http,
        reason=wording.reason,
        domain=wording.domain,
        is_page=is_page,
    )


def _plain(fault: Mapping[str, Any], method: str) -> Wording:
    """What an error says of which no more is given than a code, an HTTP status, or nothing."""
    http = int(fault.get("http") or 0)
    if "code" in fault:
        return Wording(fault["code"], _OF_CODE[fault["code"]], "")
    if http == 429:
        if _MUTATION.fullmatch(method):
            return WORDINGS["storage-rate"]
        if not method.startswith("storage."):
            return WORDINGS["api-rate"]
    code = _OF_HTTP.get(http, "INTERNAL" if http >= 500 or not http else "INVALID_ARGUMENT")
    return Wording(code, _PAGES.get(http) or _OF_CODE[code], "")


def storage_denied(email: str, permission: str) -> ApiError:
    """InPars#13, ansible-collections/google.cloud#575, spaceml-org/STARCOP#6, and dozens more."""
    is_object = permission.startswith("storage.objects.") and permission != "storage.objects.list"
    thing = f"Google Cloud Storage {'object' if is_object else 'bucket'}"
    if permission in ("storage.buckets.list", "storage.buckets.create"):
        thing = "Google Cloud project"
    return ApiError(
        "PERMISSION_DENIED",
        f"{email} does not have {permission} access to the {thing}. Permission '{permission}' "
        "denied on resource (or it may not exist).",
        reason="forbidden",
    )


def _each(value: dict[str, Any], words: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _filled(text, words) if isinstance(text, str) else text for key, text in value.items()
    }


def _filled(text: str, words: Mapping[str, Any]) -> str:
    """The text with what is known in its places; a place about which nothing is known says so."""
    placeholders = (
        "zone",
        "region",
        "type",
        "project",
        "project_number",
        "caller",
        "object",
        "service",
    )
    for name in (*placeholders, *_DEFAULTS):
        text = text.replace(f"{{{name}}}", str(words.get(name, "unknown")))
    return text.replace("{eid}", str(words["eid"]))
