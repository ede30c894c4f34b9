"""The names that people use for TPU types, wherever a type can be named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.stacks import stack_from
from tpuctl.catalog import (
    accelerator_type,
    accelerator_types,
    canonical_type,
    cheapest_to_train,
    cheapest_zones,
    nearest_types,
    type_named,
)
from tpuctl.cli.main import run
from tpuctl.errors import InvalidStack
from tpuctl.model.stack.schema import StackFile

# From issues and pages of users; the API's names are those of the facts about types.
NAMES = {
    "v5e-8": "v5litepod-8",
    "V5LITEPOD-4": "v5litepod-4",
    "tpu-v5e-16": "v5litepod-16",
    "v5lite-1": "v5litepod-1",
    "TPU v5 lite-8": "v5litepod-8",
    "Trillium-8": "v6e-8",
    "ironwood-16": "tpu7x-16",
    "v5e": "v5litepod-1",
    "v6e": "v6e-1",
    "trillium": "v6e-1",
    "ironwood": "tpu7x-8",
    "v5p": "v5p-8",  # the Cloud TPU API does not sell v5p-2 and v5p-4
}
MISTYPED = {
    "v5e-7": "v5e",
    "v5e8": "v5e",
    "v55e-8": "v5e",
    "v5litepd-8": "v5e",
    "v5litepod-3": "v5e",
    "trilium-8": "v6e",
    "v6e-7": "v6e",
    "v5p-9": "v5p",
    "ironwod-8": "tpu7x",
}
UNCLEAR = ("v5-8", "v9-8", "v6p-8", "gpu", "")


@pytest.mark.parametrize("name", NAMES)
def test_usual_name_is_accepted(name: str) -> None:
    accelerator = type_named(name)
    assert accelerator is not None
    assert accelerator.name == NAMES[name]


def test_name_in_catalog_means_itself() -> None:
    assert {name: canonical_type(name) for name in accelerator_types()} == {
        name: name for name in accelerator_types()
    }
    assert nearest_types("v5e-7")[0] == "v5litepod-8"
    assert nearest_types("v5e-130")[0] == "v5litepod-128"


@pytest.mark.parametrize("name", MISTYPED)
def test_suggestions_are_of_one_generation(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    types = [accelerator_types()[like] for like in nearest_types(name)]
    assert {accelerator.generation for accelerator in types} == {MISTYPED[name]}
    assert run(["types", name]) == 2
    assert f"Did you mean {types[0].name}" in capsys.readouterr().err


@pytest.mark.parametrize("name", UNCLEAR)
def test_nothing_is_suggested_if_generation_is_unclear(name: str) -> None:
    assert nearest_types(name) == ()


@pytest.mark.parametrize(
    ("words", "key", "types"),
    [
        (["types", "v5e-8"], "types", {"v5litepod-8"}),
        (["types", "V5LITEPOD-4,trillium-1"], "types", {"v5litepod-4", "v6e-1"}),
        (["types", "v5e-1*"], "types", {"v5litepod-1", "v5litepod-16", "v5litepod-128"}),
        (["types", "--generation", "Trillium", "--max-chips", "1"], "types", {"v6e-1"}),
        (["types", "ironwood", "--max-chips", "4"], "types", {"tpu7x-8"}),
    ],
)
def test_catalog_shows_canonical_names(
    words: list[str], key: str, types: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert {row["type"] for row in data[key]} == types


@pytest.mark.parametrize(
    ("command", "canonical"),
    [
        ("zones {}", "v5litepod-8"),
        ("runtimes {}", "v5litepod-8"),
        ("prices {}", "v5litepod-8"),
        ("quota {}", "v5litepod-8"),
        ("quota {}", "v5e"),
    ],
)
def test_commands_answer_as_for_canonical_name(
    command: str, canonical: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = []
    for name in (canonical, {"v5litepod-8": "V5E-8", "v5e": "v5lite"}[canonical]):
        assert run([*command.format(name).split(), "--json"]) == 0
        answers.append(json.loads(capsys.readouterr().out)["data"])
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("text", "type_name", "capacity"),
    [
        ("tpu: v5e-8\n", "v5litepod-8", "on-demand"),
        ("tpu: trillium\nspot: true\n", "v6e-1", "spot"),
        ("tpu: {type: V5LITEPOD-4, spot: true}\n", "v5litepod-4", "spot"),
        ("tpu: {type: v5e-4, capacity: preemptible}\nspot: true\n", "v5litepod-4", "preemptible"),
        ("tpu: {type: v3-8, kind: node, spot: true}\n", "v3-8", "preemptible"),
        ("tpu: {type: v5e-4, capacity: reserved}\nspot: false\n", "v5litepod-4", "reserved"),
    ],
)
def test_short_forms_of_stack_file(
    text: str, type_name: str, capacity: str, tmp_path: Path
) -> None:
    stack = stack_from(tmp_path, f"stack: short\nproject: my-project\n{text}")
    assert stack.project == "my-project"
    assert (stack.accelerator.name, stack.file.tpu.type) == (type_name, type_name)
    assert stack.file.tpu.capacity == capacity
    long_form = stack.file.model_dump(mode="json", exclude_defaults=True)
    assert StackFile.model_validate(long_form).tpu.capacity == capacity, "as the controller reads"


@pytest.mark.parametrize(
    ("text", "detail", "line"),
    [
        ("tpu: {type: v5e-4, capacity: on-demand}\nspot: true\n", "spot is true", 3),
        ("tpu: {type: v5e-4, capacity: spot}\nspot: false\n", "spot is false", 3),
        ("tpu: {type: v5e-4, spot: false}\nspot: true\n", "tpu.spot is false", 2),
        ("tpu: v5e-4\nspot: maybe\n", "spot must be true or false", 3),
        ("tpu: 8\n", "tpu cannot be 8", 2),
        ("tpu: v5e-5\n", "TPU type v5e-5 does not exist", 2),
        ("tpu:\n", "tpu cannot be empty", 2),
    ],
)
def test_invalid_short_form_is_one_problem(
    text: str, detail: str, line: int, tmp_path: Path
) -> None:
    with pytest.raises(InvalidStack) as caught:
        stack_from(tmp_path, f"project: my-project\n{text}")
    (problem,) = caught.value.diagnostics
    assert problem.detail.startswith(detail)
    assert problem.where.endswith(f":{line}")


def test_key_of_tpu_beside_short_form_is_explained(tmp_path: Path) -> None:
    with pytest.raises(InvalidStack) as caught:
        stack_from(tmp_path, "project: my-project\ntpu: v5e-4\nzones: [us-west4-a]\n")
    assert "tpu: {zones: ...}" in caught.value.diagnostics[0].hint


def test_json_schema_allows_short_forms() -> None:
    schema = StackFile.model_json_schema()
    for key in ("project", "tpu"):
        assert {"type": "string"} in schema["properties"][key]["anyOf"]
    assert schema["properties"]["spot"]["type"] == "boolean"


def test_cheapest_type_and_zones() -> None:
    offer = cheapest_to_train()
    assert offer is not None
    assert (offer.accelerator.name, offer.per_hour) == ("v5litepod-1", 1.2)
    in_v4_zone = cheapest_to_train(("us-central2-b",))
    assert in_v4_zone is not None
    assert in_v4_zone.zone == "us-central2-b"
    slice_type = accelerator_type("v3-8")
    assert slice_type is not None
    # 2.0 dollars per chip in us-central1 and us-east1, according to the catalog's source.
    assert cheapest_zones(slice_type, "on-demand") == (
        "us-central1-a",
        "us-central1-b",
        "us-central1-f",
    )
