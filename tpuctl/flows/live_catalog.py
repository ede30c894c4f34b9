"""What Cloud TPU offers now: its zones, and the types and versions that each of them lists."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tpuctl.cloud.clients import Cloud
from tpuctl.engine.step import step
from tpuctl.errors import TpuctlError
from tpuctl.model.events import Emit
from tpuctl.model.live_catalog import Listed

__all__ = ["What", "listed_in", "listed_zones"]

What = Literal["types", "runtimes", "node versions"]
AT_ONCE = 8
SECONDS = 30.0
PAGE = 1000


@dataclass(frozen=True)
class _Question:
    """A listing method of a client, and what of each row is its name."""

    client: str
    method: str
    name: Callable[[Any], str]


QUESTIONS: Mapping[What, _Question] = {
    "types": _Question("tpu", "list_accelerator_types", lambda row: str(row.type_)),
    "runtimes": _Question("tpu", "list_runtime_versions", lambda row: str(row.version)),
    "node versions": _Question("tpu_v1", "list_tensor_flow_versions", lambda row: str(row.version)),
}


async def listed_zones(cloud: Cloud) -> tuple[str, ...]:
    """Every zone that Cloud TPU knows, whatever it offers there. Raises TpuctlError."""
    client = cloud.client("tpu")
    found: list[str] = []
    token = ""
    while True:
        request = {"name": f"projects/{cloud.project}", "page_size": PAGE, "page_token": token}
        answer = await cloud.call(
            "the zones of Cloud TPU", client.list_locations, request, timeout=SECONDS
        )
        found += (one.location_id for one in answer.locations)
        token = answer.next_page_token
        if not token:
            return tuple(sorted(found))


async def listed_in(cloud: Cloud, what: What, zones: Iterable[str], emit: Emit) -> Listed:
    """The names that each zone lists; the zones are asked several at a time.

    A zone that refuses is told of in `unread`. Raises TpuctlError where none would answer.
    """
    wanted = tuple(zones)
    turns = asyncio.Semaphore(AT_ONCE)
    answers: dict[str, frozenset[str] | TpuctlError] = {}
    where = wanted[0] if len(wanted) == 1 else f"{len(wanted)} zones"
    with step(emit, f"{what} in {where}", "find") as told:

        async def ask(zone: str) -> None:
            async with turns:
                try:
                    answers[zone] = await _ask(cloud, QUESTIONS[what], what, zone)
                except TpuctlError as error:  # some zones are closed to some projects
                    answers[zone] = error
            done = len(answers)
            told.report(f"{done} of {len(wanted)} zones", done / len(wanted))

        await asyncio.gather(*(ask(zone) for zone in wanted))
        refusals = {z: one for z, one in answers.items() if isinstance(one, TpuctlError)}
        if wanted and len(refusals) == len(wanted):
            raise next(iter(refusals.values()))
        names = {zone: one for zone in wanted if isinstance(one := answers[zone], frozenset)}
        told.result = f"{len(frozenset().union(*names.values()))} listed"
    return Listed(names, {zone: _reason(error) for zone, error in sorted(refusals.items())})


async def _ask(cloud: Cloud, question: _Question, what: What, zone: str) -> frozenset[str]:
    parent = f"projects/{cloud.project}/locations/{zone}"

    def every_page(**options: Any) -> frozenset[str]:
        method = getattr(cloud.client(question.client), question.method)
        pages = method(request={"parent": parent, "page_size": PAGE}, **options)
        return frozenset(question.name(row) for row in pages)

    return await cloud.call(f"the {what} of {zone}", every_page, timeout=SECONDS)


def _reason(error: TpuctlError) -> str:
    summary = error.diagnostics[0].summary
    return summary[:1].lower() + summary[1:]
