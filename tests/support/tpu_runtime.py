"""A runtime's server of chip metrics, by the protocol of tpu-info, whose package it needs.

`tpu_runtime.py REQUESTS CHIPS`: answers at libtpu's port of loopback until it is killed, and
appends the name of each requested metric to the file REQUESTS. CHIPS is a JSON list of objects
with the values of each chip by metric.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from tpu_info.proto import tpu_metric_service_pb2 as messages
from tpu_info.proto import tpu_metric_service_pb2_grpc as service

ADDRESS = "127.0.0.1:8431"


class Runtime(service.RuntimeMetricServiceServicer):  # type: ignore[misc]
    def __init__(self, requests: Path, chips: list[dict[str, float]]) -> None:
        self.requests = requests
        self.chips = chips

    def GetRuntimeMetric(self, request: Any, context: grpc.ServicerContext) -> Any:
        name = request.metric_name
        with self.requests.open("a", encoding="utf-8") as file:
            print(name, file=file)
        metrics = [
            messages.Metric(
                attribute=messages.Attribute(
                    key="device-id", value=messages.AttrValue(int_attr=number)
                ),
                gauge=messages.Gauge(
                    **{"as_int" if name.endswith(".bytes") else "as_double": chip[name]}
                ),
            )
            for number, chip in enumerate(self.chips)
        ]
        return messages.MetricResponse(metric=messages.TPUMetric(name=name, metrics=metrics))


def main(requests: str, chips: str) -> None:
    server = grpc.server(ThreadPoolExecutor(), options=[("grpc.so_reuseport", 0)])
    service.add_RuntimeMetricServiceServicer_to_server(
        Runtime(Path(requests), json.loads(chips)), server
    )
    server.add_secure_port(ADDRESS, grpc.local_server_credentials())
    server.start()
    print("serving", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main(*sys.argv[1:])
