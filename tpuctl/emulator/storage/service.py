"""Cloud Storage: dispatches the requests of the JSON and XML APIs."""

from __future__ import annotations

import contextlib
import inspect
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import quote, unquote, urlencode

from aiohttp import web

from tpuctl.emulator.state.errors import ApiError, invalid, unimplemented
from tpuctl.emulator.storage.buckets.buckets import Buckets
from tpuctl.emulator.storage.buckets.folder_methods import FolderMethods
from tpuctl.emulator.storage.buckets.folders import Folders
from tpuctl.emulator.storage.buckets.hmac_keys import HmacKeys
from tpuctl.emulator.storage.buckets.managed_folders import ManagedFolders
from tpuctl.emulator.storage.buckets.notifications import Notifications
from tpuctl.emulator.storage.objects.access_controls import access_control_methods
from tpuctl.emulator.storage.objects.copies import Copies
from tpuctl.emulator.storage.objects.object_lists import ObjectLists
from tpuctl.emulator.storage.objects.objects import Objects
from tpuctl.emulator.storage.objects.unsupported import check_fields, check_parameters
from tpuctl.emulator.storage.requests.batch import answer_batch
from tpuctl.emulator.storage.requests.partial_response import select_fields
from tpuctl.emulator.storage.requests.primitives import (
    Answer,
    Call,
    NotModified,
    ObjectFiles,
    split_path,
)
from tpuctl.emulator.storage.requests.user_project import check_user_project
from tpuctl.emulator.storage.transfers.download import send_media
from tpuctl.emulator.storage.transfers.uploads import Uploads
from tpuctl.emulator.storage.xml_api.form_uploads import is_form
from tpuctl.emulator.storage.xml_api.signed_urls import is_signed
from tpuctl.emulator.storage.xml_api.xml import METHODS as XML_METHODS
from tpuctl.emulator.storage.xml_api.xml import Xml
from tpuctl.emulator.storage.xml_api.xml_buckets import XmlBuckets
from tpuctl.emulator.storage.xml_api.xml_uploads import MultipartUploads
from tpuctl.emulator.wire.discovery.method_list import method_name
from tpuctl.emulator.wire.http_request import Request
from tpuctl.emulator.wire.registry import Caller, Registry, Service
from tpuctl.emulator.wire.routes import NoSuchPath

Handler = Callable[[Call], Answer | Awaitable[Answer]]

_TEXT_ERRORS = (400, 403, 404, 412)  # errors of downloads with a plain text body
_UPLOAD_PATH = re.compile(r"(?:/resumable)?/upload/storage/v1/b/([^/]+)/o/?")
# Node's client omits `/storage/v1` at an emulator's address.
_SHORT_PATH = r"/(b(?:/.*)?|projects/[^/]+/(?:hmacKeys(?:/.*)?|serviceAccount))"
_JSON_PATH = re.compile(
    rf"/(?:resumable/|upload/|download/|batch/)*storage/v1(?:/.*)?|{_SHORT_PATH}"
)
_CONFIGS = "notificationConfigs"
_ETAGS = ("If-Match", "If-None-Match")


class StorageService(Service):
    """The handlers of storage v1."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self._buckets = buckets = Buckets(registry)
        self.buckets = buckets
        self.folders = Folders(registry.store, buckets, registry.operations)
        files = ObjectFiles(registry.home)
        self._objects = Objects(registry.store, buckets, self.folders, files)
        copies = Copies(registry.store, buckets, self._objects)
        lists = ObjectLists(registry.store, buckets, self._objects)
        self._uploads = Uploads(registry.store, self._objects)
        self._parts = MultipartUploads(registry.home, registry.store, self._objects, self._uploads)
        managed = ManagedFolders(registry.store, buckets)
        folders = FolderMethods(self.folders, registry.operations)
        notifications = Notifications(registry.store, buckets)
        keys = HmacKeys(registry.store, buckets)
        xml_buckets = XmlBuckets(buckets, lists)
        self._xml = Xml(self._objects, self._uploads, xml_buckets, self._parts, copies, self._track)
        objects = self._objects
        # By verb and path pattern; * matches one segment.
        self._table: dict[tuple[str, str], tuple[str, Handler]] = {
            ("GET", "b"): ("buckets.list", buckets.list_all),
            ("POST", "b"): ("buckets.insert", buckets.insert),
            ("GET", "b/*"): ("buckets.get", buckets.get),
            ("PATCH", "b/*"): ("buckets.patch", buckets.patch),
            ("PUT", "b/*"): ("buckets.update", buckets.update),
            ("DELETE", "b/*"): ("buckets.delete", buckets.delete),
            ("GET", "b/*/iam"): ("buckets.getIamPolicy", buckets.get_policy),
            ("PUT", "b/*/iam"): ("buckets.setIamPolicy", buckets.set_policy),
            ("GET", "b/*/iam/testPermissions"): (
                "buckets.testIamPermissions",
                buckets.test_permissions,
            ),
            ("POST", "b/*/lockRetentionPolicy"): (
                "buckets.lockRetentionPolicy",
                buckets.lock_retention,
            ),
            ("GET", "b/*/storageLayout"): ("buckets.getStorageLayout", buckets.storage_layout),
            ("POST", "b/*/restore"): ("buckets.restore", buckets.restore),
            ("GET", "b/*/managedFolders"): ("managedFolders.list", managed.list_all),
            ("POST", "b/*/managedFolders"): ("managedFolders.insert", managed.insert),
            ("GET", "b/*/managedFolders/*"): ("managedFolders.get", managed.get),
            ("DELETE", "b/*/managedFolders/*"): ("managedFolders.delete", managed.delete),
            ("GET", "b/*/folders"): ("folders.list", folders.list_all),
            ("POST", "b/*/folders"): ("folders.insert", folders.insert),
            ("GET", "b/*/folders/*"): ("folders.get", folders.get),
            ("DELETE", "b/*/folders/*"): ("folders.delete", folders.delete),
            ("POST", "b/*/folders/*/renameTo/folders/*"): ("folders.rename", folders.rename),
            ("POST", "b/*/folders/*/deleteRecursive"): (
                "folders.deleteRecursive",
                folders.delete_recursive,
            ),
            ("GET", "b/*/operations"): ("buckets.operations.list", folders.list_operations),
            ("GET", "b/*/operations/*"): ("buckets.operations.get", folders.get_operation),
            ("GET", f"b/*/{_CONFIGS}"): ("notifications.list", notifications.list_all),
            ("POST", f"b/*/{_CONFIGS}"): ("notifications.insert", notifications.insert),
            ("GET", f"b/*/{_CONFIGS}/*"): ("notifications.get", notifications.get),
            ("DELETE", f"b/*/{_CONFIGS}/*"): ("notifications.delete", notifications.delete),
            ("GET", "b/*/o"): ("objects.list", lists.list_all),
            ("POST", "b/*/o"): ("objects.insert", _reject_upload),
            ("GET", "b/*/o/*"): ("objects.get", objects.get),
            ("PATCH", "b/*/o/*"): ("objects.patch", objects.patch),
            ("PUT", "b/*/o/*"): ("objects.update", objects.update),
            ("DELETE", "b/*/o/*"): ("objects.delete", objects.delete),
            ("POST", "b/*/o/*/compose"): ("objects.compose", copies.compose),
            ("POST", "b/*/o/*/rewriteTo/b/*/o/*"): ("objects.rewrite", copies.copy),
            ("POST", "b/*/o/*/copyTo/b/*/o/*"): ("objects.copy", copies.copy),
            ("POST", "b/*/o/*/moveTo/o/*"): ("objects.move", copies.move),
            ("POST", "b/*/o/*/restore"): ("objects.restore", copies.restore),
            ("POST", "projects/*/hmacKeys"): ("projects.hmacKeys.create", keys.create),
            ("GET", "projects/*/hmacKeys"): ("projects.hmacKeys.list", keys.list_all),
            ("GET", "projects/*/hmacKeys/*"): ("projects.hmacKeys.get", keys.get),
            ("PUT", "projects/*/hmacKeys/*"): ("projects.hmacKeys.update", keys.update),
            ("DELETE", "projects/*/hmacKeys/*"): ("projects.hmacKeys.delete", keys.delete),
            ("GET", "projects/*/serviceAccount"): (
                "projects.serviceAccount.get",
                buckets.service_account,
            ),
            **access_control_methods(buckets, objects),
        }
        registry.guard.object_allows = lambda email, permission, bucket, name: (
            registry.authority.bound(email, permission, objects.granted(bucket, name))
        )

    def handler(self, service: str) -> None:
        """None: it serves only HTTP, by `handle`."""

    def names(self) -> set[str]:
        """The names of all its methods, as `storage.objects.get`."""
        methods = {"objects.insert", "objects.cancelUpload", *XML_METHODS}
        methods.update(method for method, _ in self._table.values())
        return {f"storage.{method}" for method in methods}

    def remove_object(self, bucket: str, name: str) -> None:
        self._objects.remove({}, bucket, name)

    def sweep(self) -> None:
        """Remove leftovers of a killed process."""
        self._uploads.sweep()
        self._parts.sweep()
        self._objects.sweep()

    async def handle(self, request: Request) -> web.StreamResponse | None:
        """Answer a request, or return None if the path is not Cloud Storage's."""
        path, headers = request.path, request.raw.headers
        if request.verb in ("GET", "HEAD"):
            for header in _ETAGS:
                if header in headers:
                    request.query[header] = [headers[header]]
        if "userProject" not in request.query and (header := "X-Goog-User-Project") in headers:
            request.query["userProject"] = [headers[header]]  # the parameter overrides it
        upload = _UPLOAD_PATH.fullmatch(path)
        try:
            if upload is not None:
                return await self._upload(request, unquote(upload[1]))
            if path == "/batch/storage/v1":
                return await answer_batch(request, self._answer)
            match = re.fullmatch(rf"(?:/download)?/storage/v1/(.+)|{_SHORT_PATH}", path)
            if match is not None:
                parts = split_path(match[1] or match[2])
                is_media = request.param("alt") == "media" or path.startswith("/download/")
                if request.verb in ("GET", "HEAD") and is_media and _shape(parts) == "b/*/o/*":
                    return await self._download(request, parts[1], parts[3])
                return await self._json(request, parts)
            return await self._answer_path(request)
        except NotModified:
            response = web.Response(status=304)
            if not request.raw.content.is_eof():
                response.force_close()  # do not read the rest of the body
            return response

    async def handle_anonymous(self, request: Request) -> web.StreamResponse | None:
        """Answer a request whose URL is its only credential: a signed one, or one of an upload.

        None for any other request.
        """
        is_json = bool(_JSON_PATH.fullmatch(request.path))
        target = None if is_json else self._target(request)
        if target is not None or _UPLOAD_PATH.fullmatch(request.path):
            object_name = None if target is None else (target[0], unquote(target[1]))
            session = self._uploads.caller_of(request.param("upload_id"), object_name)
            if session is not None and request.verb in ("PUT", "POST", "DELETE"):
                request.email, request.scopes = session
                return await self.handle(request)
        if target is not None and not target[1] and is_form(request):
            return await self._xml.handle_form(request, target[0], self._registry.access)
        if target is None or not is_signed(request.query):
            return None
        return await self._xml.handle_signed(request, *target, self._registry.access)

    async def _upload(self, request: Request, bucket: str) -> web.StreamResponse:
        names = (bucket, request.param("name"), request.param("userProject"))
        is_session = bool(request.param("upload_id"))
        if is_session and request.verb == "DELETE":
            async with self._track("objects.cancelUpload", request.caller, *names):
                return self._uploads.cancel(request)
        try:
            async with self._track("objects.insert", request.caller, *names, uploads=True):
                if is_session and request.verb in ("PUT", "POST"):
                    return await self._uploads.resume(request)
                check_parameters("objects.insert", request.query)
                if request.verb in ("POST", "PUT"):
                    return await self._uploads.start(request, bucket)
                raise unimplemented(f"storage.objects {request.verb} on an upload path")
        except ApiError as error:
            if not error.message.startswith("Invalid request."):
                raise
            # Plain text: google-resumable-media, tests/system/utils.py.
            response = web.Response(status=error.http, text=error.message)
            if not request.raw.content.is_eof():
                response.force_close()  # do not read the rest of the body
            return response

    async def _download(self, request: Request, bucket: str, name: str) -> web.StreamResponse:
        try:
            names = (bucket, name, request.param("userProject"))
            async with self._track("objects.get", request.caller, *names, streams=True):
                check_parameters("objects.get", request.query)
                stored = self._objects.load_readable(request.query, bucket, name)
                with self._objects.files.open(stored.file) as file:
                    return await send_media(request, stored, file)
        except ApiError as error:
            # Plain text with an HTML content type: firebase/firebase-tools#3647.
            if error.is_page or error.http not in _TEXT_ERRORS:
                raise
            text = b"" if request.verb == "HEAD" else error.message.encode()
            kind = "text/html"
            return web.Response(status=error.http, body=text, content_type=kind, charset="UTF-8")

    @contextlib.asynccontextmanager
    async def _track(
        self,
        method: str,
        caller: Caller,
        bucket: str,
        name: str = "",
        user_project: str = "",
        *,
        streams: bool = False,
        uploads: bool = False,
    ) -> AsyncIterator[None]:
        """Track one call of a method, as `objects.insert`."""
        async with self._registry.traffic.track(f"storage.{method}", caller) as call:
            bucket_record = self._registry.store.get_json("bucket", bucket)
            owner = (
                self._registry.projects.find(bucket_record["projectNumber"])
                if bucket_record
                else None
            )
            call.project = owner["id"] if owner else ""
            attributes = {"project": call.project, "name": [bucket, name]}
            await call.arrive(lambda: attributes, streams=streams, uploads=uploads)
            check_user_project(self._registry, caller, bucket_record, user_project)
            self._registry.guard.check_storage(call.method, caller, bucket, name)
            try:
                yield
            except NotModified:
                call.status = "NOT_MODIFIED"
                raise

    async def _json(self, request: Request, parts: list[str]) -> web.StreamResponse:
        call = Call(
            verb=request.raw.headers.get("X-HTTP-Method-Override", request.verb).upper(),
            parts=parts,
            query=request.query,
            body=await request.read(),
            base_url=request.base_url,
            caller=request.caller,
            headers=request.raw.headers,
        )
        answer = await self._answer(call)
        if answer.value is None:
            return web.Response(status=answer.status, content_type="application/json")
        headers = {"Cache-Control": "no-cache, no-store, max-age=0, must-revalidate"}
        if isinstance(answer.value, dict) and answer.value.get("etag"):
            headers["ETag"] = str(answer.value["etag"])
        return web.Response(
            status=answer.status,
            body=json.dumps(answer.value).encode(),
            content_type="application/json",
            charset="UTF-8",
            headers=headers,
        )

    async def _answer(self, call: Call) -> Answer:
        shape = _shape(call.parts)
        verb = "GET" if call.verb == "HEAD" else call.verb
        method, handler = self._table.get((verb, shape)) or (_unsupported_method(call), None)
        names = dict(enumerate(call.parts))
        bucket, name = names.get(1, call.param("project")), names.get(3, "")
        async with self._track(method, call.caller, bucket, name, call.param("userProject")):
            if handler is None:
                raise unimplemented(f"storage.{method} ({call.verb})")
            check_parameters(method, call.query)
            if handler is not _reject_upload:
                check_fields(method, call.body)
            answer = handler(call)
            if inspect.isawaitable(answer):
                answer = await answer
            if isinstance(answer.value, dict):
                if call.param("projection") == "full":
                    self._buckets.add_access_controls(answer.value)
                return Answer(select_fields(answer.value, call.param("fields")), answer.status)
            return answer

    async def _answer_path(self, request: Request) -> web.StreamResponse | None:
        target = self._target(request)
        if target is not None and not target[1] and is_form(request):
            return await self._xml.handle_form(request, target[0], self._registry.access)
        return None if target is None else await self._xml.handle(request, *target)

    def _target(self, request: Request) -> tuple[str, str] | None:
        """The bucket, and the percent-encoded object, of the XML API's `/BUCKET/OBJECT`.

        At storage's host or, for existing buckets, at any host.
        """
        host = request.host.partition(":")[0]
        path = request.path.removeprefix("/")
        if host.endswith(".storage.googleapis.com"):
            bucket, rest = host.removesuffix(".storage.googleapis.com"), path
        else:
            bucket, _, rest = path.partition("/")
            bucket = unquote(bucket)
            is_ours = self._registry.store.get("bucket", bucket) is not None
            is_new = request.verb == "PUT" and bool(bucket) and not rest
            if host != "storage.googleapis.com" and not is_ours and not is_new:
                return None
        return bucket, rest


def _reject_upload(call: Call) -> Answer:
    """Measured: fsouza/fake-gcs-server#1251 and google/google-api-javascript-client#200."""
    if not call.query.get("uploadType"):
        message = (
            "Upload requests must include an uploadType URL parameter and a URL path beginning "
            "with /upload/"
        )
        raise invalid(message, reason="wrongUrlForUpload")
    query = urlencode({key: values[-1] for key, values in call.query.items()})
    url = f"{call.base_url}/upload/storage/v1/b/{quote(call.parts[1], safe='')}/o?{query}"
    raise invalid(
        f"Uploads must be sent to the upload URL. Re-send this request to {url}",
        reason="wrongUrlForUpload",
    )


def _shape(parts: list[str]) -> str:
    """The path pattern: names, which are every second segment, are replaced by *."""
    name_positions: tuple[int, ...] = (1, 3, 6, 8) if parts[2:3] == ["o"] else (1, 3)
    if parts[4:5] == ["acl"]:
        name_positions = (1, 3, 5)
    if parts[4:5] == ["renameTo"]:
        name_positions = (1, 3, 6)
    if parts[2:3] == ["iam"]:
        name_positions = (1,)
    return "/".join("*" if index in name_positions else part for index, part in enumerate(parts))


def _unsupported_method(call: Call) -> str:
    """The name of a method that is not emulated. Raises NoSuchPath if Google has none either, as
    for an object's name with an unescaped slash."""
    path = "/".join(quote(part, safe="") for part in call.parts)
    name = method_name(call.verb, f"/storage/v1/{path}", "storage")
    if name is None:
        raise NoSuchPath
    return name.removeprefix("storage.")
