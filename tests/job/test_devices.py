"""The choice of devices that the job trains on, and its restrictions."""

from __future__ import annotations

from types import SimpleNamespace

import pytest


@pytest.mark.parametrize(
    ("environment", "address"),
    [
        # The controller of a TPU node, with tpuctl's environment: no name lookup is needed.
        (
            {
                "TPU_NAME": "my-node",
                "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "grpc://10.0.0.2:8470,grpc://10.0.0.3:8470",
            },
            "grpc://10.0.0.2:8470,grpc://10.0.0.3:8470",
        ),
        # On the local cloud, only a node has endpoints.
        (
            {
                "TPU_NAME": "my-node",
                "TPUCTL_CLOUD": "local",
                "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "grpc://127.65.0.2:8470",
            },
            "grpc://127.65.0.2:8470",
        ),
        ({"TPU_NAME": "grpc://10.0.0.2:8470"}, "grpc://10.0.0.2:8470"),
        ({"COLAB_TPU_ADDR": "10.0.0.2:8470"}, "grpc://10.0.0.2:8470"),
        ({"COLAB_TPU_1VM": "1"}, "local"),
        ({"COLAB_TPU_1VM": ""}, None),  # as on Colab's other machines
        ({"ISTPUVM": "1", "TPU_PROCESS_ADDRESSES": "local"}, "local"),  # Kaggle
    ],
)
def test_tpu_address_without_chips(
    job: SimpleNamespace, environment: dict[str, str], address: str | None
) -> None:
    assert job.devices.tpu_address(environment, False) == address


def test_tpu_address_of_a_slice_is_its_name(job: SimpleNamespace) -> None:
    environment = {"TPU_NAME": "my-slice", "TPU_LOAD_LIBRARY": "0", "TPU_ZONE": "us-central1-a"}
    assert job.devices.tpu_address(environment, True) == "my-slice"


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["--output", "here"], "--output here"),
        (["--output", "gs://bucket/bert", "--data", "here"], "--data here"),
    ],
)
def test_local_folders_are_rejected_for_remote_tpu(
    job: SimpleNamespace, arguments: list[str], option: str
) -> None:
    options = job.pretrain.parse(arguments)
    job.pretrain.check(options, 1)
    with pytest.raises(job.files.JobError, match=f"^{option}: .*gs://") as refused:
        job.pretrain.check(options, 1, is_remote=True)
    assert refused.value.exit_code == 2
    job.pretrain.check(job.pretrain.parse(["--output", "gs://bucket/bert"]), 1, is_remote=True)
