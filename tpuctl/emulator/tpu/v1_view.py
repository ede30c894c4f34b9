"""Nodes of one version of Cloud TPU as the other version shows them.

Both versions look at the same nodes, each in its own shape, told apart by `apiVersion`: v2's has
V1, by which `gcloud compute tpus tpu-vm list` leaves TPU nodes out (tpu_vm/util.py,
FilterTPUVMNodes), v1's has V2_ALPHA1, which `gcloud alpha compute tpus list` prints in a column
of its own (surface/compute/tpus/list.yaml). A v2 shape in a v1 answer would crash gcloud.
"""

from __future__ import annotations

import re
from typing import Any

from google.cloud.tpu_v1.types import cloud_tpu as v1
from google.cloud.tpu_v2.types import cloud_tpu as v2

from tpuctl.emulator.state.store import Store

__all__ = ["KIND", "NodeV1", "as_v1", "as_v2", "find_v1", "list_v1"]

KIND = "tpu.v1.node"

NodeV1 = v1.Node.pb()
_NodeV2 = v2.Node.pb()
# States and healths have the same numbers in both.
_ALIKE = (
    *("name", "description", "accelerator_type", "cidr_block"),
    *("state", "health", "health_description"),
)


def find_v1(store: Store, name: str) -> Any | None:
    """The node of that full name in v1's shape, if v1 made it."""
    body = store.get(KIND, name)
    return None if body is None else NodeV1.FromString(body)


def list_v1(store: Store, prefix: str = "") -> list[Any]:
    """Those whose name starts with the prefix, in order of name."""
    return [NodeV1.FromString(body) for _, body in store.items(KIND, prefix)]


def as_v2(node: Any) -> Any:
    """A node that v1 made, as v2 shows it."""
    shown = _NodeV2(
        runtime_version=node.tensorflow_version,
        api_version=v2.Node.ApiVersion.V1,
    )
    _copy_alike(node, shown)
    project = node.name.split("/")[1]
    text = node.network
    shown.network_config.network = (
        text if text.startswith("projects/") else f"projects/{project}/{text}"
    )
    shown.service_account.email = node.service_account
    return shown


def as_v1(node: Any) -> Any:
    """A node that v2 made, as v1 shows it."""
    shown = NodeV1(
        tensorflow_version=node.runtime_version,
        api_version=v1.Node.ApiVersion.V2_ALPHA1,
        service_account=node.service_account.email,
        network=re.sub(
            rf"^projects/{re.escape(node.name.split('/')[1])}/", "", node.network_config.network
        ),
    )
    _copy_alike(node, shown)
    if shown.network_endpoints:
        shown.ip_address = shown.network_endpoints[0].ip_address
        shown.port = str(shown.network_endpoints[0].port)
    return shown


def _copy_alike(node: Any, shown: Any) -> None:
    for field in _ALIKE:
        setattr(shown, field, getattr(node, field))
    shown.create_time.CopyFrom(node.create_time)
    shown.labels.update(node.labels)
    shown.scheduling_config.preemptible = node.scheduling_config.preemptible
    shown.scheduling_config.reserved = node.scheduling_config.reserved
    for endpoint in node.network_endpoints:
        shown.network_endpoints.add(ip_address=endpoint.ip_address, port=endpoint.port)
