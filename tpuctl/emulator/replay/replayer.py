"""Sends a recording's calls to a local cloud, and reports how its responses differ."""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import requests

from tpuctl.emulator.replay.comparison import (
    Difference,
    Response,
    compare,
    matching_items,
    parse_response,
    response_of_facts,
)
from tpuctl.emulator.replay.identifiers import Identifiers
from tpuctl.emulator.replay.recordings import RecordedCall, Recording, json_content
from tpuctl.emulator.state.projects import FOLDER, OPEN_ACCOUNT, ORGANIZATION
from tpuctl.local_cloud import remote_control, server_process

_WAIT_SECONDS = 10.0  # for work that the recording saw finished
_TIMEOUT_SECONDS = 60.0
APIS = re.compile(
    r"(?:[\w-]+\.)?(cloudbilling|cloudresourcemanager|compute|iam|orgpolicy|secretmanager|"
    r"serviceusage|storage|tpu|www)\.googleapis\.com"
)
# Request headers that change the answer; others are the client's own.
KEPT_HEADERS = re.compile(
    r"content-(?!length|md5)|range|if-|x-goog-(?!user-project|api-client|request-params|gcs-idem)"
    r"|x-upload-content|x-http-method-override|accept$"
)
_SERVICES = tuple(
    f"{name}.googleapis.com"
    for name in (
        *("cloudbilling", "cloudresourcemanager", "compute", "iam", "orgpolicy", "secretmanager"),
        *("serviceusage", "storage", "tpu"),
    )
)
_UNFINISHED = (
    *("PENDING", "CREATING", "PROVISIONING", "STAGING", "STOPPING", "DELETING"),
    *("ACCEPTED", "WAITING_FOR_RESOURCES"),
)
_PARENTS = {"organization": ORGANIZATION, "folder": FOLDER}
_CREATED_PROJECT = re.compile(r"/v[13]/projects")
_ACCOUNT = re.compile(r"([\w${}-]+)@([\w${}-]+)\.iam\.gserviceaccount\.com")
_STORAGE_CLASS = re.compile(r"\b(MULTI_REGIONAL|REGIONAL|STANDARD|NEARLINE|COLDLINE|ARCHIVE)\b")
_PLACEHOLDER = re.compile(r"\$\{\w+\}")
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class ReplayedCall:
    """A call and how its response differed; `skipped` says why none was compared."""

    call: RecordedCall
    method: str
    differences: tuple[Difference, ...] = ()
    skipped: str = ""

    @property
    def is_alike(self) -> bool:
        return not self.differences and not self.skipped


def replay(recording: Recording, **settings: Any) -> list[ReplayedCall]:
    """Replay against an empty local cloud with these settings, started for it and stopped."""
    with tempfile.TemporaryDirectory(prefix="tpuctl-replay-", ignore_cleanup_errors=True) as folder:
        cloud = server_process.start(Path(folder), pace="instant", ssh="high")
        try:
            if settings:
                remote_control.change_settings(cloud, **settings)
            replayer = Replayer(cloud.url, cloud.token)
            try:
                return list(replayer.replay(recording))
            finally:
                replayer.close()
        finally:
            server_process.stop(cloud.home)


@dataclass
class Replayer:
    """Replays one recording against an empty local cloud."""

    url: str
    token: str
    identifiers: Identifiers = field(default_factory=Identifiers)
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.headers.clear()
        self._session.headers["Authorization"] = f"Bearer {self.token}"
        self._created: set[str] = set()
        self._taken: dict[str, bool] = {}  # whether a resource exists, by recorded URL
        self._repeated: set[str] = set()  # placeholders of several resources

    def replay(self, recording: Recording) -> Iterator[ReplayedCall]:
        """The calls in their order, after creating what existed before the recording."""
        self._prepare(recording.calls)
        for call in recording.calls:
            yield self._replay(call)

    def close(self) -> None:
        self._session.close()

    def _replay(self, call: RecordedCall) -> ReplayedCall:
        method = call.method or f"{call.verb} {call.path}"
        if not APIS.fullmatch(call.host):
            return ReplayedCall(call, method, skipped="another API")
        if "=CLEARED" in call.url:
            return ReplayedCall(call, method, skipped="signed with a key that is not recorded")
        if self.identifiers.is_lost(call.url):
            return ReplayedCall(call, method, skipped="follows a call that was not compared")
        self._rename_repeated(call)
        answer = self._send(call)
        if (
            answer.status_code == 501
            or _is_unknown_path(answer)
            or b"not emulated" in answer.content
        ):
            self.identifiers.lose(call.answer_content)
            return ReplayedCall(call, method, skipped="not emulated")
        expected = (
            response_of_facts(call.expected)
            if call.expected is not None
            else _parse(call, call, call.answer)
        )
        answer = self._wait_for(call, answer)
        content, local_content = call.answer_content, json_content(answer.content)
        learned = content if call.expected is None else call.expected.get("learn")
        self.identifiers.learn(learned, local_content)
        text = self.identifiers.to_recorded(answer.content.decode("utf-8", "replace"))
        local = _parse(call, answer, text.encode())
        if expected.status < 300 and local.status == 404 and not self._is_created(answer.url):
            self.identifiers.lose(content)
            return ReplayedCall(call, method, skipped="existed before the recording")
        if local.status != expected.status:
            self.identifiers.lose(content)
            if any(name in call.url for name in self._repeated):
                return ReplayedCall(call, method, skipped="ambiguous placeholder")
        if call.verb in ("POST", "PUT", "PATCH") and local.status < 300:
            self._created.update(_names_in(answer.url, local_content))
        is_whole = call.expected is None and isinstance(content, dict)
        if call.is_read and is_whole and local.status == call.status:
            local_content = json_content(text.encode())
            if _lists_nothing_of(content, local_content):
                return ReplayedCall(call, method, skipped="existed before the recording")
            content, local_content = matching_items(content, local_content)
            expected = _parse(call, call, json.dumps(content).encode())
            local = _parse(call, answer, json.dumps(local_content).encode())
        return ReplayedCall(call, method, tuple(compare(expected, local)))

    def _rename_repeated(self, call: RecordedCall) -> None:
        """Give a placeholder another name where the recording meets a second resource of it."""
        content = call.content
        if call.verb == "POST" and isinstance(content, dict) and call.status < 300:
            name = content.get("name")
            place = f"{call.path}/{name}"
            if self._taken.get(place):
                self._rename(str(name))
            self._taken[place] = True
        elif call.verb == "DELETE" and call.status < 300:
            self._taken[call.path] = False
        elif call.verb == "GET" and call.status == 404 and self._taken.get(call.path):
            self._rename(call.path.rpartition("/")[2])
            self._taken[call.path] = False

    def _rename(self, placeholder: str) -> None:
        if not _PLACEHOLDER.fullmatch(placeholder):
            return
        self._repeated.add(placeholder)
        local = self.identifiers.to_local(placeholder)
        self.identifiers.rename(placeholder, f"{local}-{len(self._repeated)}")

    def _send(self, call: RecordedCall) -> requests.Response:
        url = urlsplit(call.url)
        path = "/".join(
            quote(self.identifiers.to_local(part), safe="%:@!$&'()*+,;=~${}")
            for part in url.path.split("/")
        )
        pairs = parse_qsl(url.query, keep_blank_values=True)
        query = urlencode(
            [(name, self.identifiers.value_to_local(name, value)) for name, value in pairs]
        )
        headers = {
            name: self.identifiers.to_local(value)
            for name, value in call.headers.items()
            if KEPT_HEADERS.match(name)
        }
        headers |= {"Host": call.host, "X-Forwarded-Proto": "https"}
        request = requests.Request(
            call.verb,
            self.url + path + (f"?{query}" if query else ""),
            headers=headers,
            data=self._local_body(call.body),
        )
        prepared = self._session.prepare_request(request)
        return self._session.send(prepared, timeout=_TIMEOUT_SECONDS, allow_redirects=False)

    def _local_body(self, body: bytes) -> bytes:
        content = json_content(body)
        if content is not None:
            return json.dumps(self._local_value(content)).encode()
        try:
            return self.identifiers.to_local(body.decode()).encode()
        except UnicodeDecodeError:
            return body

    def _local_value(self, value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {
                self.identifiers.to_local(name): self._local_value(inner, name)
                for name, inner in value.items()
            }
        if isinstance(value, list):
            return [self._local_value(inner, key) for inner in value]
        return self.identifiers.value_to_local(key, value) if isinstance(value, str) else value

    def _wait_for(self, call: RecordedCall, answer: requests.Response) -> requests.Response:
        """Repeat a read until the work that the recording saw finished is finished here, too."""
        pause = 0.02
        deadline = time.monotonic() + _WAIT_SECONDS
        while call.verb == "GET" and time.monotonic() < deadline:
            if not _is_unfinished(answer) or _is_unfinished(call):
                break
            self.sleep(pause)
            pause = min(pause * 2, 0.5)
            answer = self._send(call)
        return answer

    def _is_created(self, url: str) -> bool:
        path = urlsplit(url).path
        bucket, _, object_name = path.partition("/o/")
        if "/b/" in bucket and object_name:
            return unquote(object_name).rpartition("/")[2] in self._created
        parts = unquote(path).split("/")
        of_project = {after for before, after in pairwise(parts[:-1]) if before == "projects"}
        names = {part.partition(":")[0] for part in parts} - of_project
        return not names.isdisjoint(self._created)

    # What the recording takes for granted.

    def _prepare(self, calls: Sequence[RecordedCall]) -> None:
        calls = [call for call in calls if APIS.fullmatch(call.host)]
        texts = [
            " ".join(
                (call.url, *(part.decode("utf-8", "replace") for part in (call.body, call.answer)))
            )
            for call in calls
        ]
        for kind, local in (("organization", ORGANIZATION), ("folder", FOLDER)):
            number = r"(\d+|\$\{\w+\})"
            pattern = "|".join(
                (
                    rf"{kind}s/{number}",
                    rf'"{kind}",\s*"id":\s*"{number}"',
                    rf'"id":\s*"{number}",\s*"type":\s*"{kind}"',
                )
            )
            for numbers in re.findall(pattern, " ".join(texts)):
                self.identifiers.assign("".join(numbers), local.partition("/")[2])
        for text in texts:
            for account in re.findall(
                r"billingAccounts/([0-9A-F]{6}-[0-9A-F]{6}-[0-9A-F]{6}|\$\{\w+\})", text
            ):
                self.identifiers.assign(account, OPEN_ACCOUNT.partition("/")[2])
        self._prepare_projects(calls)
        self._prepare_buckets(calls)
        self._prepare_accounts(calls)

    def _prepare_projects(self, calls: Sequence[RecordedCall]) -> None:
        created = {
            body.get("projectId", "")
            for call in calls
            if call.verb == "POST" and _CREATED_PROJECT.fullmatch(call.path)
            if isinstance(body := call.content, dict)
        }
        projects = dict.fromkeys(
            name
            for call in calls
            for name in re.findall(r"[/?&]projects?[/=]([\w${}.-]+)", call.url)
            if name not in created and name not in ("-", "_")
        )
        number = next((name for name in projects if _is_number(name)), None)
        for position, name in enumerate(name for name in projects if not _is_number(name)):
            local = re.sub(r"[^a-z0-9-]", "", name.lower())
            if not 6 <= len(local) <= 30 or "$" in name:
                local = f"recorded-project-{position}"
            self.identifiers.assign(name, local)
            self._create_project(local, name, calls)
            if number is not None and position == 0:
                self.identifiers.assign(number, self._number_of(local))
        if not [name for name in projects if not _is_number(name)]:
            self._create_project("recorded-project")
            for name in projects:
                self.identifiers.assign(name, self._number_of("recorded-project"))
        if "${projectNumber}" not in projects and projects:
            first = next(iter(projects))
            local = self.identifiers.to_local(first)
            self.identifiers.assign("${projectNumber}", self._number_of(local))

    def _create_project(
        self, project: str, recorded: str = "", calls: Sequence[RecordedCall] = ()
    ) -> None:
        """Create a project as the recording first saw it, with the APIs enabled that answer."""
        first: dict[str, Any] = {}
        has_billing = True
        for call in reversed(calls):
            content = call.answer_content
            if call.verb == "GET" and call.status < 300 and isinstance(content, dict):
                if call.path in (f"/v1/projects/{recorded}", f"/v3/projects/{recorded}"):
                    first = content
                elif call.path == f"/v1/projects/{recorded}/billingInfo":
                    has_billing = bool(content.get("billingEnabled"))
        parent = first.get("parent", "" if first else ORGANIZATION)
        if isinstance(parent, dict):
            kind = parent["type"]
            parent = f"{kind}s/{parent['id']}" if "id" in parent else _PARENTS[kind]
        self._call(
            *("POST", "/v3/projects"),
            projectId=project,
            **({"parent": self.identifiers.to_local(parent)} if parent else {}),
            labels=first.get("labels", {}),
            displayName=first.get("displayName") or first.get("name", "Recorded project"),
        )
        billing = f"/v1/projects/{project}/billingInfo"
        self._call("PUT", billing, billingAccountName=OPEN_ACCOUNT)
        disabled = _disabled_services(calls)
        self._call(
            *("POST", f"/v1/projects/{project}/services:batchEnable"),
            serviceIds=[service for service in _SERVICES if service not in disabled],
        )
        if not has_billing:
            self._call("PUT", billing, billingAccountName="")

    def _number_of(self, project: str) -> str:
        name = self._call("GET", f"/v3/projects/{project}").get("name", "")
        return str(name).partition("/")[2]

    def _prepare_buckets(self, calls: Sequence[RecordedCall]) -> None:
        """Create the buckets that are used without their creation, with their storage class, and
        with uniform access if their objects show no access controls."""
        created: set[str] = set()
        for call in calls:
            body = call.content
            if call.verb == "POST" and call.path.endswith("/storage/v1/b"):
                created.add(body.get("name", "") if isinstance(body, dict) else "")
            name = _bucket_of(call)
            if name and name not in created:
                created.add(name)
                if "bucket does not exist" in f"{call.answer!r} {call.expected}":
                    continue
                of_bucket = [other for other in calls if _bucket_of(other) == name]
                texts = (
                    str(other.answer) + other.answer_headers.get("x-goog-storage-class", "")
                    for other in of_bucket
                )
                storage_class = _STORAGE_CLASS.search(" ".join(texts))
                is_uniform = not any(
                    "acl" in f"{other.answer!r} {other.expected}" for other in of_bucket
                )
                self._call(
                    *("POST", "/storage/v1/b?project=recorded-project"),
                    name=self.identifiers.to_local(name),
                    location="us-central1",
                    storageClass=storage_class[0] if storage_class else "STANDARD",
                    iamConfiguration={"uniformBucketLevelAccess": {"enabled": is_uniform}},
                )

    def _prepare_accounts(self, calls: Sequence[RecordedCall]) -> None:
        """Create the service accounts that are used before, or without, their creation."""
        bodies = [call.content for call in calls if call.path.endswith("/serviceAccounts")]
        created = {body["accountId"] for body in bodies if body and "accountId" in body}
        for call in calls:
            if call.status >= 300:
                continue
            text = f"{call.path} {call.body.decode('utf-8', 'replace')}"
            for account, project in _ACCOUNT.findall(text):
                if account not in created:
                    created.add(account)
                    parent = f"/v1/projects/{self.identifiers.to_local(project)}"
                    name = self.identifiers.to_local(account)
                    self._call("POST", f"{parent}/serviceAccounts", accountId=name)

    def _call(self, verb: str, path: str, **body: Any) -> dict[str, Any]:
        answer = self._session.request(
            verb, self.url + path, json=body or None, timeout=_TIMEOUT_SECONDS
        )
        content = json_content(answer.content)
        name = str(content.get("name", "")) if isinstance(content, dict) else ""
        while name.startswith("operations/") and not content.get("done"):
            self.sleep(0.02)
            version = path.split("/")[1]
            answer = self._session.get(f"{self.url}/{version}/{name}", timeout=_TIMEOUT_SECONDS)
            content = json_content(answer.content) or {"done": True}
        return content if isinstance(content, dict) else {}


def _is_unfinished(response: RecordedCall | requests.Response) -> bool:
    """Whether a response describes work in progress, or a resource that is to be deleted."""
    if isinstance(response, RecordedCall):
        status, body = response.status, response.answer
        if response.expected is not None:
            return False
    else:
        status, body = response.status_code, response.content
    content = json_content(body)
    if status >= 300 or not isinstance(content, dict):
        return False
    state = content.get("state")  # of a queued resource, an object
    states = {content.get("status"), state.get("state") if isinstance(state, dict) else state}
    is_operation = "operation" in str(content.get("name", "")).rpartition("projects")[2]
    if content.get("kind") == "compute#operation":
        return content.get("status") != "DONE"
    is_running = is_operation and "metadata" in content and content.get("done") is not True
    return is_running or not states.isdisjoint(_UNFINISHED)


def _lists_nothing_of(recorded: dict[str, Any], local: Any) -> bool:
    """Whether the recorded list has items or prefixes, and the local one none."""
    lists = ("items", "prefixes")
    return any(name in recorded for name in lists) and not any(name in local for name in lists)


def _bucket_of(call: RecordedCall) -> str:
    """The bucket that a call is about, else "": also if only the object was missing."""
    exists = call.status < 403 or b"NoSuchKey" in call.answer or b"No such object" in call.answer
    match = re.search(r"/b/([^/?]+)", call.path)
    if match is None and call.host == "storage.googleapis.com":
        match = re.match(r"/(?!storage/|upload/|download/|batch/|resumable/)([^/]+)", call.path)
    return match[1] if match and exists else ""


def _is_number(project: str) -> bool:
    return bool(_DIGITS.fullmatch(project)) or project == "${projectNumber}"


def _is_unknown_path(answer: requests.Response) -> bool:
    return answer.status_code == 404 and "text/html" in answer.headers.get("Content-Type", "")


def _disabled_services(calls: Iterable[RecordedCall]) -> set[str]:
    """The APIs whose first response says that they are not enabled, by their hosts' names."""
    first: dict[str, bool] = {}
    for call in calls:
        is_disabled = call.status == 403 and (
            b"SERVICE_DISABLED" in call.answer or b"or it is disabled" in call.answer
        )
        first.setdefault(call.host, is_disabled)
    return {service for service, is_disabled in first.items() if is_disabled}


def _names_in(url: str, content: Any) -> set[str]:
    """The names of the resources that a successful call created or changed."""
    names = {urlsplit(url).path.rpartition("/")[2].partition(":")[0]}
    if isinstance(content, dict):
        for key in ("name", "targetLink", "email", "projectId"):
            names.add(str(content.get(key, "")).rpartition("/")[2])
        metadata = content.get("metadata")
        if isinstance(metadata, dict):
            names.add(str(metadata.get("target", "")).rpartition("/")[2])
    return names - {""}


def _parse(call: RecordedCall, response: RecordedCall | requests.Response, body: bytes) -> Response:
    """The comparable parts of the call's response, recorded or local, with this body."""
    if isinstance(response, RecordedCall):
        status, headers = response.status, response.answer_headers
    else:
        status, headers = (
            response.status_code,
            {name.lower(): value for name, value in response.headers.items()},
        )
    if call.expected is None:  # only storage's headers are compared
        has_headers = call.is_of_storage
    else:
        paths = (*call.expected.get("fields", ()), *call.expected.get("constants", ()))
        has_headers = any(path.startswith("header ") for path in paths)
    parsed = parse_response(
        *(status, headers, body),
        has_headers=has_headers,
        is_complete=call.has_all_fields,
        is_masked=call.is_masked and response is call,
    )
    return replace(parsed, omits_defaults=call.is_rpc)
