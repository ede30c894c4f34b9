"""Enabled APIs of a project, through the official client."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import service_usage_v1

from tests.support.locations import PROJECT

NAME = f"projects/{PROJECT}"

both = pytest.mark.parametrize("transport", ["grpc", "rest"])


def services(cloud: Any, transport: str = "rest") -> Any:
    return cloud.client(service_usage_v1.ServiceUsageClient, transport)


@both
def test_new_cloud_has_no_enabled_api(new_cloud: Any, transport: str) -> None:
    request = {"parent": NAME, "filter": "state:ENABLED"}
    assert not list(services(new_cloud, transport).list_services(request=request, timeout=60))


@both
def test_enable_and_disable_services(new_cloud: Any, transport: str) -> None:
    client = services(new_cloud, transport)
    state = service_usage_v1.State
    name = f"{NAME}/services/tpu.googleapis.com"
    service = client.get_service(request={"name": name}, timeout=60)
    assert service.state is state.DISABLED
    apis = ["tpu.googleapis.com", "compute.googleapis.com"]
    request = {"parent": NAME, "service_ids": apis}
    enabled = client.batch_enable_services(request=request, timeout=60).result(timeout=60)
    assert [service.config.name for service in enabled.services] == apis
    assert client.get_service(request={"name": name}, timeout=60).state is state.ENABLED
    listed = client.list_services(request={"parent": NAME, "filter": "state:ENABLED"}, timeout=60)
    assert set(apis) <= {service.config.name for service in listed}
    client.disable_service(request={"name": name}, timeout=60).result(timeout=60)
    assert client.get_service(request={"name": name}, timeout=60).state is state.DISABLED
    for wrong in ("nonsense", "x.example.org"):
        with pytest.raises(exceptions.GoogleAPICallError):
            client.enable_service(request={"name": f"{NAME}/services/{wrong}"}, timeout=60)


@both
def test_batch_get_and_enable_services(cloud: Any, transport: str) -> None:
    client = services(cloud, transport)
    apis = ["tpu.googleapis.com", "logging.googleapis.com"]
    names = [f"{NAME}/services/{api}" for api in apis]
    response = client.batch_get_services(request={"parent": NAME, "names": names}, timeout=60)
    assert [(service.config.name, service.state.name) for service in response.services] == [
        (apis[0], "ENABLED"),
        (apis[1], "DISABLED"),
    ]
    with pytest.raises((exceptions.BadRequest, exceptions.InvalidArgument)):
        many = [f"{NAME}/services/a{number}.googleapis.com" for number in range(31)]
        client.batch_get_services(request={"parent": NAME, "names": many}, timeout=60)
    with pytest.raises((exceptions.BadRequest, exceptions.InvalidArgument)) as caught:
        many = [f"a{number}.googleapis.com" for number in range(21)]
        request = {"parent": NAME, "service_ids": many}
        client.batch_enable_services(request=request, timeout=60)
    assert "must not exceed the maximum batch size (20)" in caught.value.message


@both
def test_paid_services_require_billing(cloud: Any, transport: str) -> None:
    cloud.in_loop(cloud.server.registry.projects.add, "unpaid-project")

    client = services(cloud, transport)
    request = {"name": "projects/unpaid-project/services/compute.googleapis.com"}
    with pytest.raises(exceptions.BadRequest) as caught:
        client.enable_service(request=request, timeout=60)
    assert "Billing must be enabled for activation of service(s)" in caught.value.message
    assert caught.value.reason == "UREQ_PROJECT_BILLING_NOT_FOUND"
