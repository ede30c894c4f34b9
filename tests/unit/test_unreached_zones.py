"""Zones that Google could not reach are noted: a list without them proves nothing about them."""

from __future__ import annotations

from google.cloud import tpu_v2
from google.cloud.tpu_v2.services.tpu.pagers import ListNodesPager

from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.endpoints import Endpoint
from tpuctl.resources.base import Query

PLACES = "projects/my-project/locations"


def test_list_of_tpu_api() -> None:
    node = tpu_v2.Node(name=f"{PLACES}/us-east1-d/nodes/bert")
    page = tpu_v2.ListNodesResponse(nodes=[node], unreachable=[f"{PLACES}/us-west4-a"])
    query = Query(Cloud(Endpoint("local", "http://127.0.0.1:1", "token"), "my-project"), "", None)
    pager = ListNodesPager(lambda *_, **__: page, tpu_v2.ListNodesRequest(), page)
    assert [each.name for each in query.items(pager, "nodes")] == [node.name]
    assert query.unreached == {"us-west4-a"}
