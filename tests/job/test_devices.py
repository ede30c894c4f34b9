"""Which devices the job trains on, and what it may ask of them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest


@pytest.mark.parametrize(
    ("environment", "address"),
    [
        # The controller of a TPU node, as tpuctl tells it: no name has to be looked up.
        (
            {
                "TPU_NAME": "my-node",
                "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "grpc://10.0.0.2:8470,grpc://10.0.0.3:8470",
            },
            "grpc://10.0.0.2:8470,grpc://10.0.0.3:8470",
        ),
        # The local cloud's: there are endpoints for a node alone.
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
        ({"COLAB_TPU_1VM": ""}, None),  # as it is on Colab's other machines
        ({"ISTPUVM": "1", "TPU_PROCESS_ADDRESSES": "local"}, "local"),  # Kaggle
    ],
)
def test_which_tpu_is_meant_without_chips_in_sight(
    job: SimpleNamespace, environment: dict[str, str], address: str | None
) -> None:
    assert job.accelerators.tpu_address(environment, False) == address


def test_the_first_worker_of_a_slice_drives_the_whole_by_name(job: SimpleNamespace) -> None:
    environment = {"TPU_NAME": "my-slice", "TPU_LOAD_LIBRARY": "0", "TPU_ZONE": "us-central1-a"}
    assert job.accelerators.tpu_address(environment, True) == "my-slice"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--output", "here"], "--output here"),
        (["--output", "gs://bucket/bert", "--data", "here"], "--data here"),
    ],
)
def test_what_the_tpus_machines_cannot_see_is_refused(
    job: SimpleNamespace, arguments: list[str], named: str
) -> None:
    options = job.options.parse(arguments)
    job.options.check(options, 1)
    with pytest.raises(job.errors.JobError, match=f"^{named}: .*gs://") as refused:
        job.options.check(options, 1, is_remote=True)
    assert refused.value.exit_code == 2
    job.options.check(job.options.parse(["--output", "gs://bucket/bert"]), 1, is_remote=True)


@pytest.mark.tensorflow
def test_the_choice_its_errors_and_what_a_node_asks_for(run_check: Callable[[str], None]) -> None:
    run_check("devices.py")
