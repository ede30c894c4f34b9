"""The control API under `/_local/`, for the local cloud's owner: faults, settings, calls."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from tpuctl.emulator.faults.fault import Fault
from tpuctl.emulator.faults.scheduled_faults import ScheduledFaults
from tpuctl.emulator.iam.predefined_roles import require_role
from tpuctl.emulator.state.errors import ApiError, invalid
from tpuctl.emulator.state.members import email_of, member_of
from tpuctl.emulator.state.text import parse_json
from tpuctl.emulator.wire.http_request import Request, json_response
from tpuctl.emulator.wire.registry import Registry
from tpuctl.emulator.wire.retry_tests import ROOT as RETRY_TESTS
from tpuctl.emulator.wire.retry_tests import RetryTests
from tpuctl.local_cloud.pace import PACES

_FAULT = re.compile(r"/_local/faults/([^/]+?)(/release)?")

Answer = Callable[[Request], Awaitable[Any] | Any]


class ControlApi:
    """Answers `/_local/…`. `pace_changed` is called when the pace has changed.

    `require_method` rejects a pattern that matches no method.
    """

    def __init__(
        self,
        registry: Registry,
        pace_changed: Callable[[], None],
        require_method: Callable[[str], None],
        scheduled: ScheduledFaults,
    ) -> None:
        self._registry = registry
        self._scheduled = scheduled
        self._retry_tests = RetryTests(registry.faults)
        self._pace_changed = pace_changed
        self._require_method = require_method
        self._answers: dict[tuple[str, str], Answer] = {
            ("GET", "/_local/faults"): lambda request: {
                "faults": [self._show(fault) for fault in registry.faults.all()]
            },
            ("POST", "/_local/faults"): self._add,
            ("DELETE", "/_local/faults"): self._remove_all,
            ("GET", "/_local/settings"): lambda request: self._settings(),
            ("PATCH", "/_local/settings"): self._change_settings,
            ("GET", "/_local/calls"): self._calls,
            ("POST", "/_local/tokens"): self._token,
        }

    async def handle(self, request: Request) -> web.StreamResponse:
        answer = self._answers.get((request.verb, request.path))
        match = _FAULT.fullmatch(request.path)
        if answer is not None:
            value = answer(request)
        elif request.path.startswith(RETRY_TESTS):
            value = self._retry_tests.answer(request)
        elif match is not None and request.verb == "GET" and not match[2]:
            value = self._show(self._registry.faults.get(match[1]))
        elif match is not None and request.verb == "DELETE" and not match[2]:
            value = self._remove(match[1])
        elif match is not None and request.verb == "POST" and match[2]:
            value = self._release(match[1], request)
        else:
            raise ApiError("NOT_FOUND", f"{request.verb} {request.path} not found.")
        return json_response(await value if inspect.isawaitable(value) else value)

    # Faults.

    def _show(self, fault: Fault) -> dict[str, Any]:
        held_calls = self._registry.traffic.held_calls(fault.id)
        fields = {**fault.fields, **self._scheduled.describe(fault)}
        fields |= self._registry.weather.describe(fault)
        return {**fields, "exhausted": fault.is_exhausted(), "held_calls": held_calls}

    async def _add(self, request: Request) -> dict[str, Any]:
        spec = await _body(request)
        method = spec.get("method")
        if isinstance(method, str) and method:
            self._require_method(method)
        if spec.get("role"):
            spec["role"] = require_role(str(spec["role"]))
        fault = self._registry.faults.add(spec)
        try:
            self._scheduled.schedule(fault)
            self._registry.weather.begin(fault)
        except ApiError:
            self._registry.faults.remove(fault.id)
            raise
        return self._show(fault)

    async def _remove(self, fault_id: str) -> dict[str, Any]:
        fault = self._registry.faults.get(fault_id)
        description = self._show(fault)
        self._registry.faults.remove(fault_id)
        self._registry.traffic.release(fault_id)
        await self._scheduled.undo(fault)
        return {**description, "held_calls": []}

    async def _remove_all(self, request: Request) -> dict[str, Any]:
        return {"faults": [await self._remove(fault.id) for fault in self._registry.faults.all()]}

    async def _release(self, fault_id: str, request: Request) -> dict[str, Any]:
        fault = self._registry.faults.get(fault_id)
        drop = (await _body(request)).get("drop", False)
        if not isinstance(drop, bool):
            raise invalid(f"drop must be true or false, not {drop!r}.")
        return {"released": self._registry.traffic.release(fault.id, drop=drop)}

    # Settings and calls.

    def _settings(self) -> dict[str, Any]:
        return {"pace": self._registry.pace.name, **self._registry.settings.all()}

    async def _change_settings(self, request: Request) -> dict[str, Any]:
        changes = await _body(request)
        pace = changes.pop("pace", None)
        if pace is not None and pace not in PACES:
            raise invalid(f"Unknown pace {pace!r}. Use one of {', '.join(PACES)}.")
        self._registry.settings.change(changes)
        if pace is not None:
            self._registry.pace.name = pace
            self._pace_changed()
        return self._settings()

    async def _token(self, request: Request) -> dict[str, Any]:
        body = await _body(request)
        email = email_of(str(body.get("member", "")))
        scopes = body.get("scopes", [])
        if not isinstance(scopes, list) or not all(isinstance(scope, str) for scope in scopes):
            raise invalid("scopes must be a list of strings.")
        token = self._registry.access.token_for(email, scopes)
        return {"member": member_of(email), "token": token}

    def _calls(self, request: Request) -> dict[str, Any]:
        since = request.param("since", "0")
        if not since.isascii() or not since.isdigit():
            raise invalid(f"since must be a number, not {since!r}.")
        return self._registry.traffic.calls(int(since))


async def _body(request: Request) -> dict[str, Any]:
    try:
        value = parse_json(await request.read())
    except ValueError as error:
        raise invalid(f"The body is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise invalid("The body must be an object.")
    return value
