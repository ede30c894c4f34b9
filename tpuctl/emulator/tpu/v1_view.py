"""Conversion of nodes between Cloud TPU v1 and v2.

Both versions return all nodes, each in its own form, distinguished by `apiVersion`: v2 reports
V1, by which `gcloud compute tpus tpu-vm list` filters out TPU nodes (tpu_vm/util.py,
FilterTPUVMNodes), v1 reports V2_ALPHA1, which `gcloud alpha compute tpus list` prints in a column
(surface/compute/tpus/list.yaml). A v2 form in a v1 response would crash gcloud.
"""

from __future__ import annotations

import re
from typing import Any

from google.cloud.tpu_v1.types import cloud_tpu as v1
from google.cloud.tpu_v2.types import cloud_tpu as v2

KIND = "tpu.v1.node"

NodeV1 = v1.Node.pb()
_NodeV2 = v2.Node.pb()
# States and healths have the same numbers in both versions.
_COMMON_FIELDS = (
    *("name", "description", "accelerator_type", "cidr_block"),
    *("state", "health", "health_description"),
)


def as_v2(node: Any) -> Any:
    """A node created by v1, in v2's form."""
    view = _NodeV2(
        runtime_version=node.tensorflow_version,
        api_version=v2.Node.ApiVersion.V1,
    )
    _copy_common_fields(node, view)
    project = node.name.split("/")[1]
    text = node.network
    view.network_config.network = (
        text if text.startswith("projects/") else f"projects/{project}/{text}"
    )
    view.service_account.email = node.service_account
    return view


def as_v1(node: Any) -> Any:
    """A node created by v2, in v1's form."""
    view = NodeV1(
        tensorflow_version=node.runtime_version,
        api_version=v1.Node.ApiVersion.V2_ALPHA1,
        service_account=node.service_account.email,
        network=re.sub(
            rf"^projects/{re.escape(node.name.split('/')[1])}/", "", node.network_config.network
        ),
    )
    _copy_common_fields(node, view)
    if view.network_endpoints:
        view.ip_address = view.network_endpoints[0].ip_address
        view.port = str(view.network_endpoints[0].port)
    return view


def _copy_common_fields(node: Any, view: Any) -> None:
    for field in _COMMON_FIELDS:
        setattr(view, field, getattr(node, field))
    view.create_time.CopyFrom(node.create_time)
    view.labels.update(node.labels)
    view.scheduling_config.preemptible = node.scheduling_config.preemptible
    view.scheduling_config.reserved = node.scheduling_config.reserved
    for endpoint in node.network_endpoints:
        view.network_endpoints.add(ip_address=endpoint.ip_address, port=endpoint.port)
