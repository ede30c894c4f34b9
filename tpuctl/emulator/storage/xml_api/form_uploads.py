"""Uploads by HTML forms with a signed policy document, V4 or V2.

cloud.google.com/storage/docs/xml-api/post-object-forms and
/storage/docs/authentication/signatures#policy-document. What errors say is a guess.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from aiohttp import BodyPartReader, MultipartReader, web

from tpuctl.emulator.iam.tokens import AccessTokens
from tpuctl.emulator.state.errors import invalid, unimplemented
from tpuctl.emulator.storage.objects.object_row import StoredObject
from tpuctl.emulator.storage.xml_api.signed_urls import denied, malformed, mismatch
from tpuctl.emulator.storage.xml_api.xml_documents import XmlError, document
from tpuctl.emulator.wire.http_request import Request

_MAX_FIELD_BYTES = 1 << 20
_CREDENTIAL = re.compile(r"(.+)/[0-9]{8}/[\w-]+/storage/goog4_request")
_OF_OBJECT = {
    "cache-control": "cacheControl",
    "content-disposition": "contentDisposition",
    "content-encoding": "contentEncoding",
    "content-language": "contentLanguage",
    "content-type": "contentType",
    "x-goog-custom-time": "customTime",
    "x-goog-storage-class": "storageClass",
}
_OF_SIGNATURE = frozenset(("file", "googleaccessid", "policy", "signature", "x-goog-signature"))
_OTHERS = frozenset(
    (
        *("acl", "bucket", "key", "success_action_redirect", "success_action_status"),
        *("x-goog-algorithm", "x-goog-credential", "x-goog-date"),
    )
)


@dataclass(frozen=True)
class Form:
    """The fields before the file, by lower-case names, and the file as a stream."""

    fields: Mapping[str, str]
    file: BodyPartReader

    @property
    def key(self) -> str:
        name = self.fields.get("key", "")
        if not name:
            raise malformed("key", "The field is missing.")
        return name.replace("${filename}", self.file.filename or "")

    @property
    def resource(self) -> dict[str, Any]:
        """The metadata of the object."""
        resource: dict[str, Any] = {
            _OF_OBJECT[name]: value for name, value in self.fields.items() if name in _OF_OBJECT
        }
        prefix = "x-goog-meta-"
        custom = {
            name.removeprefix(prefix): value
            for name, value in self.fields.items()
            if name.startswith(prefix)
        }
        return resource | ({"metadata": custom} if custom else {})

    @property
    def predefined_list(self) -> str:
        """As the JSON API names it: publicRead for public-read."""
        return re.sub(r"-(\w)", lambda match: match[1].upper(), self.fields.get("acl", ""))

    async def chunks(self) -> AsyncIterator[bytes]:
        """The file's content."""
        while chunk := await self.file.read_chunk():
            yield chunk


def is_form(request: Request) -> bool:
    kind = request.raw.headers.get("Content-Type", "")
    return request.verb == "POST" and kind.lower().startswith("multipart/form-data")


async def read_form(request: Request) -> Form:
    """Read a form up to its file."""
    await request.send_continue()
    fields: dict[str, str] = {}
    try:
        reader = MultipartReader(request.raw.headers, request.raw.content)
        while isinstance(part := await reader.next(), BodyPartReader):
            name = (part.name or "").lower()
            if name == "file":
                _check_names(fields)
                return Form(fields, part)
            content = bytearray()
            while chunk := await part.read_chunk():
                content += chunk
                if len(content) > _MAX_FIELD_BYTES:
                    raise malformed(name, "The field is too large.")
            fields[name] = content.decode()
    except ValueError as error:
        raise invalid(f"Malformed form: {error}") from error
    raise malformed("file", "The field is missing.")


def _check_names(fields: Mapping[str, str]) -> None:
    for name in fields:
        is_used = name in _OF_OBJECT or name in _OF_SIGNATURE or name in _OTHERS
        if not is_used and not name.startswith(("x-goog-meta-", "x-ignore-")):
            text = "Invalid argument."
            raise XmlError(400, "InvalidArgument", text, [("Details", f"Unknown field: {name}")])


def signer_of_form(form: Form, bucket: str, access: AccessTokens) -> tuple[str, range]:
    """The account that signed a form's policy, and the sizes that the policy permits.

    XmlError unless the signature is valid and the policy permits the form.
    """
    policy, fields = form.fields.get("policy", ""), form.fields
    if not policy:
        raise unimplemented("An upload by a form without a policy document")
    try:
        if "x-goog-signature" in fields:
            match = _CREDENTIAL.fullmatch(fields.get("x-goog-credential", ""))
            email = match[1] if match else ""
            signature = bytes.fromhex(fields["x-goog-signature"])
            if fields.get("x-goog-algorithm") != "GOOG4-RSA-SHA256":
                raise malformed("x-goog-algorithm", "The algorithm is not supported.")
        else:
            email = fields.get("googleaccessid", "")
            signature = base64.b64decode(fields.get("signature", ""), validate=True)
        parsed = json.loads(base64.b64decode(policy, validate=True))
        expiration = datetime.fromisoformat(parsed["expiration"])
        conditions = list(parsed["conditions"])
    except (ValueError, KeyError, TypeError) as error:
        raise malformed("policy", f"The policy or its signature is malformed: {error}") from error
    if not email or not access.keys.verifies(email, policy.encode(), signature):
        raise mismatch(policy)
    if access.is_disabled(email):
        raise denied("The account that signed the request is disabled.")
    if expiration.tzinfo is None or datetime.now(UTC) > expiration:
        raise _forbidden("Policy expired.")
    return email, _check(conditions, {**fields, "bucket": bucket})


def _check(conditions: list[Any], fields: Mapping[str, str]) -> range:
    """The sizes that conditions permit. XmlError if one is not met, or none covers a field."""
    sizes, covered = range(1 << 62), set(_OF_SIGNATURE | {"bucket"})
    for condition in conditions:
        if isinstance(condition, dict):
            rows: list[Any] = [["eq", f"${name}", value] for name, value in condition.items()]
        else:
            rows = [condition]
        for row in rows:
            if not isinstance(row, list) or len(row) != 3:
                raise malformed("policy", f"Invalid condition: {json.dumps(row)}")
            operator, name, value = row
            if operator == "content-length-range" and isinstance(value, int):
                sizes = range(int(name), value + 1)
                continue
            name = str(name).removeprefix("$").lower()
            covered.add(name)
            actual = fields.get(name, "")
            is_met = {"eq": actual == value, "starts-with": actual.startswith(str(value))}
            if not is_met.get(operator, False):
                raise _forbidden(f"Failed condition: {json.dumps(row)}")
    for name in fields.keys() - covered:
        if not name.startswith("x-ignore-"):
            raise _forbidden(f"Policy did not reference these fields: {name}")
    return sizes


def check_size(size: int, sizes: range) -> None:
    if size in sizes:
        return
    is_small = size < sizes.start
    code = "EntityTooSmall" if is_small else "EntityTooLarge"
    word = "smaller than the minimum" if is_small else "larger than the maximum"
    raise XmlError(400, code, f"Your proposed upload is {word} object size.")


def form_response(form: Form, stored: StoredObject, base_url: str) -> web.Response:
    """As the form asks; by default without content."""
    etag = f'"{stored.generation}"'
    status = form.fields.get("success_action_status", "")
    if redirect := form.fields.get("success_action_redirect"):
        return web.Response(status=303, headers={"Location": redirect, "ETag": etag})
    if status != "201":
        return web.Response(status=200 if status == "200" else 204, headers={"ETag": etag})
    location = f"{base_url}/{stored.bucket}/{stored.name}"
    elements = [("Location", location), ("Bucket", stored.bucket), ("Key", stored.name)]
    response = document("PostResponse", [*elements, ("ETag", etag)])
    response.set_status(201)
    return response


def _forbidden(details: str) -> XmlError:
    text = "Invalid according to Policy"
    return XmlError(403, "AccessDenied", "Access denied.", [("Details", f"{text}: {details}")])
