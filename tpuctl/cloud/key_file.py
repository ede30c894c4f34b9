"""The file of the caller's credentials, checked before google-auth reads it.

google-auth's errors contain the variable's value, which may be the key itself, and bytes of a file
that is none. No message here contains anything of a file, or a value that is not clearly a path.
"""

from __future__ import annotations

import base64
import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpuctl.errors import Denied
from tpuctl.files import read_file
from tpuctl.model.text.names import CONTROL_CHARACTERS
from tpuctl.model.text.redaction import without_secrets

VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
MAX_BYTES = 1 << 20
# google-auth 2.62, google/auth/_default.py
TYPES = (
    *("authorized_user", "service_account", "external_account", "impersonated_service_account"),
    *("external_account_authorized_user", "gdch_service_account"),
)
PATH = re.compile(r"(?=.*/|.*\.json$)[\w./~@+ -]{1,255}", re.ASCII)
SIGN_IN = "    gcloud auth application-default login"


def require_key_file(environment: Mapping[str, str] = os.environ) -> None:
    """Raises Denied if the file that the environment names, or gcloud's, cannot be one."""
    path = environment.get(VARIABLE, "")
    if not path:
        path = _gcloud_file(environment)
        if not stat.S_ISREG(_mode(path)):  # google-auth looks elsewhere
            return
    elif not _mode(path):
        raise _missing(path)
    if problem := _problem(path):
        raise unusable_key_file(problem, environment)


def unusable_key_file(problem: str, environment: Mapping[str, str] = os.environ) -> Denied:
    """The error for a file that google-auth cannot use either; `problem` says why."""
    path = environment.get(VARIABLE, "")
    if not path:
        return Denied(
            "Credentials not usable",
            f"{_gcloud_file(environment)} {problem}",
            hint=f"Sign in again:\n{SIGN_IN}",
        )
    return Denied(
        "Key file not usable",
        f"{CONTROL_CHARACTERS.sub('?', path)} {problem}",
        hint=f"{VARIABLE} names it. Set it to the key's file, or unset it and sign in:\n{SIGN_IN}",
        where=VARIABLE,
    )


def _gcloud_file(environment: Mapping[str, str]) -> str:
    folder = environment.get("CLOUDSDK_CONFIG") or os.path.expanduser("~/.config/gcloud")  # noqa: PTH111
    return str(Path(folder, "application_default_credentials.json"))


def _mode(path: str) -> int:
    """The type of a file; 0 if there is none of this name."""
    try:
        return Path(path).stat().st_mode if path else 0
    except (OSError, ValueError):
        return 0


def _missing(value: str) -> Denied:
    summary, detail = "Key file not found", f"{value} does not exist"
    if _is_key(value):
        summary = "Key instead of a path"
        detail = "the variable holds a key, not a path"
    elif _mode(value.strip()):
        detail = "the path has a space or a line break at its beginning or end"
    elif not _is_path(value):
        detail = "the variable does not hold the path of a file"
    elif value.startswith("~"):
        detail += "; shells replace ~ only where it is not quoted"
    return Denied(
        summary,
        detail,
        hint="Set it to the path of the key's file:\n"
        f"    export {VARIABLE}=/path/to/key.json\nor unset it and sign in:\n{SIGN_IN}",
        where=VARIABLE,
    )


def _is_key(value: str) -> bool:
    """Whether it is a key, as JSON, as PEM, or one of them in base64."""
    texts = [value]
    compact = "".join(value.split())
    if re.fullmatch(r"[\w+/-]{16,}={0,2}", compact, re.ASCII):
        padded = compact.rstrip("=") + "=" * (-len(compact.rstrip("=")) % 4)
        texts.append(base64.b64decode(padded, altchars=b"-_").decode("utf-8", "replace"))
        texts.append(base64.b64decode(padded).decode("utf-8", "replace"))
    return any(re.match(r"\s*[\[{\"]", text) or "PRIVATE KEY" in text for text in texts)


def _is_path(value: str) -> bool:
    """Whether it may be shown: it has the form of a path, and no part of it may be a secret."""
    return (
        PATH.fullmatch(value) is not None
        and not _is_key(value)
        and max(map(len, value.split("/"))) <= 64
        and without_secrets(value) == value
    )


def _problem(path: str) -> str:
    """Why a file is no key; empty if it may be one. A pipe is left to google-auth: it can be read
    only once."""
    if stat.S_ISDIR(_mode(path)):
        return "is a folder, not a file"
    if stat.S_ISFIFO(_mode(path)):
        return ""
    try:
        text = read_file(Path(path), MAX_BYTES).decode("utf-8")
        if not text.strip():
            return "is empty"
        content: Any = json.loads(text)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        return "is not a key file: it is not UTF-8 text"
    except (ValueError, RecursionError):
        return "is not a key file: it is not JSON"
    if not isinstance(content, dict):
        return "is not a key file: it is JSON, but not an object"
    if "installed" in content or "web" in content:
        return "is an OAuth client, not a key file"
    if content.get("type") not in TYPES:
        return "is not a key file: it has no known type"
    source = content.get("credential_source")
    token = source.get("file") if isinstance(source, dict) else None
    if isinstance(token, str) and stat.S_ISDIR(_mode(token)):
        return "refers to a token file (credential_source.file) that is a folder"
    return ""
