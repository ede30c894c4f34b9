"""What the fork server of killable programs imports and computes once, for all of them."""

from __future__ import annotations

import gc
import importlib
import tempfile
from pathlib import Path

import tests.crash.killable_programs  # noqa: F401 - with what it imports
from tpuctl.catalog.compute import machine_types
from tpuctl.catalog.tpu import accelerator_types
from tpuctl.cloud.clients import RPC
from tpuctl.google_imports import client_module, compute_service
from tpuctl.model.stack.stack import read_stack
from tpuctl.model.troubleshooting import known_errors

for package, service, _ in RPC.values():
    client_module(f"google.cloud.{package}", service)
for module in (
    *("_strptime", "google.cloud.storage", "google.oauth2.credentials", "google_crc32c"),
    *(
        "grpc._interceptor",
        "tpuctl.flows.local_cloud",
        "tpuctl.flows.stack.down",
        "tpuctl.flows.stack.up",
    ),
):
    importlib.import_module(module)
for load_table in (accelerator_types, machine_types):
    load_table()  # fills a cache
for error in known_errors.table().errors:
    error.find("", "")  # finds its words
    _ = error.match, error.response  # compiles its patterns
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder, "tpuctl.yaml")
    file.write_text("project: {id: some-project}\ntpu: {type: v3-8, zones: [europe-west4-a]}\n")
    read_stack(file)  # compiles the models of stack files
for service in (
    "networks",
    "firewalls",
    "instances",
    "disks",
    "images",
    "addresses",
    "global_addresses",
    "subnetworks",
    "instance_group_managers",
    "region_instance_templates",
    "resource_policies",
):
    compute_service(service)
gc.freeze()
