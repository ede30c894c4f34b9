"""Makes a table of facts from a recording: `python -m tests.recorded.extract FILE SOURCE`.

Of every request it keeps what is needed to repeat it, and of every response the status, the reason
and text of an error, the paths of fields, and the values that any project would get. `SOURCE` says
where the recording is published. Review the table before adding it: it must hold nothing private.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from tpuctl.emulator.replay.comparison import (
    Response,
    is_random,
    is_transient,
    is_work_state,
    matching_items,
    parse_response,
)
from tpuctl.emulator.replay.recordings import RecordedCall, read_recording
from tpuctl.emulator.replay.replayer import APIS, KEPT_HEADERS

_CLIENT_PARAMETERS = ("prettyPrint", "key", "access_token")


def table_of(calls: Sequence[RecordedCall], source: str) -> str:
    """The table as TOML."""
    rows = [f"source = {_toml(source)}"]
    for number, call in enumerate(_distinct(calls), 1):
        rows.append("\n[[call]]")
        for name, value in _row(number, call, calls):
            if name == "constants":
                rows.append("[call.constants]")
                rows += [f"{json.dumps(path)} = {_toml(inner)}" for path, inner in value.items()]
            else:
                rows.append(f"{name} = {_toml(value)}")
    return "\n".join(rows) + "\n"


def _distinct(calls: Sequence[RecordedCall]) -> Iterator[RecordedCall]:
    """Calls of emulated APIs; of an operation's or resource's repeated reads only the last."""
    emulated = [call for call in calls if APIS.fullmatch(call.host)]
    for call, following in zip(emulated, [*emulated[1:], None], strict=True):
        is_repeated = following is not None and (following.verb, following.url) == ("GET", call.url)
        if not is_repeated or call.verb != "GET" or call.status != following.status:
            yield call


def _row(
    number: int, call: RecordedCall, calls: Sequence[RecordedCall]
) -> Iterator[tuple[str, Any]]:
    whole = content = call.answer_content
    if call.is_read and isinstance(content, dict):
        content, _ = matching_items(content, content)
    response = parse_response(
        call.status,
        call.answer_headers,
        call.answer if content is None else json.dumps(content).encode(),
        has_headers=call.is_of_storage,
        is_complete=call.has_all_fields and not call.is_rpc and content == whole,
        is_masked=call.is_masked,
    )
    name = call.method or f"{call.verb} of an object"
    yield "situation", f"{number}: {name.partition('.')[2] or name}"
    yield "request", f"{call.verb} {_plain_url(call.url)}"
    headers = {name: text for name, text in call.headers.items() if KEPT_HEADERS.match(name)}
    if not headers.get("content-type", "").startswith("multipart/"):
        headers.pop("content-type", None)
    if headers:
        yield "headers", headers
    if call.body:
        is_json = call.content is not None
        yield "body", json.dumps(call.content) if is_json else call.body.decode()
    yield "status", call.status
    if response.reasons:
        yield "reason", sorted(response.reasons)
    if response.text:
        yield "text", response.text
    if response.is_complete:
        yield "complete", True
    fields, constants = _facts(response)
    if fields:
        yield "fields", fields
    if learned := _identifiers(content, calls, call):
        yield "learn", learned
    if constants:
        yield "constants", constants


def _facts(response: Response) -> tuple[list[str], dict[str, Any]]:
    """Paths without, and with, a value that is the same in every project."""
    fields, constants = [], {}
    transient = is_transient(response.leaves)
    for path, values in sorted(response.leaves.items()):
        if transient and is_work_state(path):
            continue
        plain = [value for value in values if not isinstance(value, dict | list | type(None))]
        stable = list(dict.fromkeys(value for value in plain if not is_random(path, value)))
        if stable and len(stable) == len(set(map(str, values))):
            constants[path] = stable if "[]" in path or len(stable) > 1 else stable[0]
        else:
            fields.append(path)
    return fields, constants


def _identifiers(content: Any, calls: Sequence[RecordedCall], call: RecordedCall) -> dict[str, Any]:
    """What later requests repeat of the response, such as an operation's name or an etag."""
    if not isinstance(content, dict):
        return {}
    later = calls[calls.index(call) + 1 :]
    text = " ".join(f"{each.url} {each.body.decode('utf-8', 'replace')}" for each in later)
    return {
        name: value
        for name, value in content.items()
        if name in ("name", "id", "etag", "labelFingerprint", "fingerprint", "generation", "email")
        if isinstance(value, str)
        and (_is_operation(content, name) or value.strip('"').rpartition("/")[2] in text)
    }


def _is_operation(content: dict[str, Any], name: str) -> bool:
    is_operation = "operationType" in content or "operations/" in str(content.get("name"))
    return name == "name" and is_operation


def _plain_url(url: str) -> str:
    parts = urlsplit(url)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    identifying = [(name, value) for name, value in pairs if name not in _CLIENT_PARAMETERS]
    query = "?" + urlencode(identifying, safe="/:${},*") if identifying else ""
    return f"https://{parts.netloc}{parts.path}{query}"


def _toml(value: Any) -> str:
    """TOML, which is like JSON but for mappings; long lists take several lines."""
    if isinstance(value, dict):
        pairs = ", ".join(f"{json.dumps(name)} = {_toml(inner)}" for name, inner in value.items())
        return "{ " + pairs + " }"
    if isinstance(value, list):
        items = [_toml(inner) for inner in value]
        return "[" + ", ".join(items) + "]"
    if isinstance(value, str) and '"' in value and "'" not in value and value.isprintable():
        return f"'{value}'"
    return json.dumps(value, ensure_ascii=not str(value).isprintable())


if __name__ == "__main__":
    file, source = sys.argv[1:]
    print(table_of(read_recording(Path(file)).calls, source), end="")
