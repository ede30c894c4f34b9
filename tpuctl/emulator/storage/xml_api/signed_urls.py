"""Signed URLs: requests of the XML API that a service account's key authenticates.

V4 and V2, as cloud.google.com/storage/docs/authentication/canonical-requests describes them and
Google's clients make them (google/cloud/storage/_signing.py). Signatures with HMAC keys are not
emulated.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from urllib.parse import quote, unquote

from tpuctl.emulator.iam.tokens import AccessTokens
from tpuctl.emulator.state.errors import ApiError, unimplemented
from tpuctl.emulator.storage.xml_api.xml_documents import XmlError
from tpuctl.emulator.wire.http_request import Request

_ALGORITHM = "GOOG4-RSA-SHA256"
_MAX_SECONDS = 7 * 24 * 3600
_MAX_EARLY = timedelta(minutes=15)  # canonical-requests: how far X-Goog-Date may be in the future
_CREDENTIAL = re.compile(r"(.+)/([0-9]{8}/[\w-]+/storage/goog4_request)")
_V4_PARAMETERS = ("algorithm", "credential", "date", "expires", "signedheaders", "signature")
_V2_PARAMETERS = ("GoogleAccessId", "Expires", "Signature")
# Headers that V2 leaves out: cloud.google.com/storage/docs/access-control/signed-urls-v2.
_V2_UNSIGNED = ("x-goog-encryption-key", "x-goog-encryption-key-sha256")
# Parameters that belong to the resource that V2 signs.
_V2_SUBRESOURCES = frozenset(
    (
        *("acl", "billing", "compose", "cors", "defaultObjectAcl", "encryption", "lifecycle"),
        *("location", "logging", "partNumber", "storageClass", "tagging", "uploadId", "uploads"),
        *("versioning", "versions", "website"),
    )
)


def is_signed(query: Mapping[str, Sequence[str]]) -> bool:
    """Whether a request's parameters hold a signature, right or wrong."""
    return "x-goog-signature" in {name.lower() for name in query} or "Signature" in query


def signer_of(request: Request, bucket: str, access: AccessTokens) -> str:
    """The email of the account that signed the request. XmlError unless the signature is valid.

    `bucket` is that of the request's path or host.
    """
    if "Signature" in request.query:
        email = _check_v2(request, bucket, access)
    else:
        email = _check_v4(request, access)
    if access.is_disabled(email):
        raise denied("The account that signed the request is disabled.")
    return email


def _check_v4(request: Request, access: AccessTokens) -> str:
    parameters = {name.lower(): values[-1] for name, values in request.query.items()}
    for name in _V4_PARAMETERS:
        if not parameters.get(f"x-goog-{name}"):
            raise malformed(f"x-goog-{name}", "The parameter is missing.")
    algorithm, credential, date, expires, names, signature = (
        parameters[f"x-goog-{name}"] for name in _V4_PARAMETERS
    )
    if algorithm == "GOOG4-HMAC-SHA256":
        raise unimplemented("A signature with an HMAC key")
    if algorithm != _ALGORITHM:
        raise malformed("x-goog-algorithm", f"The algorithm {algorithm} is not supported.")
    match = _CREDENTIAL.fullmatch(credential)
    if match is None or match[2][:8] != date[:8]:
        raise malformed("x-goog-credential", f"The credential {credential} is invalid.")
    email, scope = match.groups()
    _check_time(date, expires)
    headers = _signed_headers(request, names.split(";"))
    payload = headers.get("x-goog-content-sha256", "UNSIGNED-PAYLOAD")
    canonical = "\n".join(
        (
            request.raw.method,
            quote(unquote(request.path), safe="/~"),
            _canonical_query(request.query),
            "".join(f"{name}:{value}\n" for name, value in sorted(headers.items())),
            names,
            payload,
        )
    )
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join((algorithm, date, scope, digest))
    try:
        value = bytes.fromhex(signature)
    except ValueError as error:
        raise malformed("signature", "Signature was not hex encoded") from error
    if not access.keys.verifies(email, text.encode(), value):
        raise mismatch(text, canonical)
    return email


def _check_time(date: str, expires: str) -> None:
    try:
        start = datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError as error:
        raise malformed("x-goog-date", f"The date {date} is invalid.") from error
    if not re.fullmatch(r"[0-9]{1,9}", expires) or not 0 < int(expires) <= _MAX_SECONDS:
        text = f"The lifetime must be from 1 to {_MAX_SECONDS} seconds."
        raise malformed("x-goog-expires", text)
    end, now = start + timedelta(seconds=int(expires)), datetime.now(UTC)
    if now > end:
        raise _expired(end)
    if start > now + _MAX_EARLY:
        raise denied(f"The request is not valid before {start.isoformat()}.")


def _signed_headers(request: Request, names: Sequence[str]) -> dict[str, str]:
    """The values of the signed headers, as they are signed."""
    if "host" not in names:
        raise malformed("x-goog-signedheaders", "The header host must be signed.")
    headers = {}
    for name in names:
        values = request.raw.headers.getall(name, None)
        if values is None:
            text = "Header was included in signedheaders, but not in the request."
            raise malformed(name, text)
        headers[name] = ",".join(" ".join(value.split()) for value in values)
    return headers


def _canonical_query(query: Mapping[str, Sequence[str]]) -> str:
    pairs = sorted(
        (quote(name, safe="~"), quote(value, safe="~"))
        for name, values in query.items()
        for value in values
        if name.lower() != "x-goog-signature"
    )
    return "&".join(f"{name}={value}" for name, value in pairs)


def _check_v2(request: Request, bucket: str, access: AccessTokens) -> str:
    for name in _V2_PARAMETERS:
        if not request.param(name):
            raise malformed(name.lower(), "The parameter is missing.")
    email, expires, signature = map(request.param, _V2_PARAMETERS)
    if not re.fullmatch(r"[0-9]{1,12}", expires):
        raise malformed("expires", f"The time {expires} is invalid.")
    if time.time() > int(expires):
        raise _expired(datetime.fromtimestamp(min(int(expires), 2**36), UTC))
    try:
        value = base64.b64decode(signature, validate=True)
    except ValueError as error:  # alexandrubagu/gcs_signed_url#7
        raise malformed("signature", "Signature was not base64 encoded") from error
    texts = _v2_texts(request, bucket, expires)
    if not any(access.keys.verifies(email, text.encode(), value) for text in texts):
        raise mismatch(texts[0])
    return email


def _v2_texts(request: Request, bucket: str, expires: str) -> list[str]:
    """What V2 signs: subresources without a value are written with or without the equals sign."""
    headers = request.raw.headers
    extensions = {
        name.lower(): ",".join(" ".join(value.split()) for value in headers.getall(name))
        for name in headers
        if name.lower().startswith("x-goog-") and name.lower() not in _V2_UNSIGNED
    }
    # Also where the host names the bucket, its path is part of what is signed.
    is_in_host = request.host.partition(":")[0] == f"{bucket}.storage.googleapis.com"
    path = f"/{bucket}{request.path}" if is_in_host else request.path
    subresources = sorted(_V2_SUBRESOURCES & request.query.keys())
    texts = []
    for equals in ("", "=") if subresources else ("",):
        values = (
            f"{name}={value}" if (value := request.param(name)) else name + equals
            for name in subresources
        )
        resource = f"{path}?{'&'.join(values)}" if subresources else path
        lines = [request.raw.method, headers.get("Content-MD5", "")]
        lines += [headers.get("Content-Type", ""), expires]
        lines += [f"{name}:{value}" for name, value in sorted(extensions.items())]
        texts.append("\n".join((*lines, resource)))
    return texts


def mismatch(text: str, canonical: str = "") -> XmlError:
    """As quoted at docs.claritycommissions.com/reference/gcs_signature_error_analysis in 2026."""
    details = (
        "The request signature we calculated does not match the signature you provided. Check "
        "your Google secret key and signing method."
    )
    elements = [("Details", details), ("StringToSign", text)]
    elements += [("CanonicalRequest", canonical)] if canonical else []
    return XmlError(403, "SignatureDoesNotMatch", "Access denied.", elements)


def _expired(end: datetime) -> XmlError:
    """Measured in public reports of September 2026; older ones have the first sentence as the
    message."""
    text = f"The provided token has expired. Request signature expired at: {end.isoformat()}"
    return XmlError(400, "ExpiredToken", "Invalid argument.", [("Details", text)])


def malformed(parameter: str, details: str) -> XmlError:
    """The form is that of alexandrubagu/gcs_signed_url#7; most details are guesses."""
    elements = [("ParameterName", parameter), ("Details", details)]
    text = "Your request has a malformed header."
    return XmlError(400, "MalformedSecurityHeader", text, elements)


def denied(details: str) -> ApiError:
    """The details are guesses."""
    return XmlError(403, "AccessDenied", "Access denied.", [("Details", details)])
