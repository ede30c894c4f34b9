"""Compile lowered steps with the TPU's own compiler, which needs no TPU; print what they take.

    compile_for_tpu.py < REQUESTS

A request is a line of JSON, {"program": FILE.hlo, "generation": "v3"}; so is each answer: the peak
of memory per core, or the compiler's refusal. Needs jax[tpu]; its private parts: pin the version.
"""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TPU_SKIP_MDS_QUERY"] = "1"  # no metadata server is to be asked for a TPU
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"  # there is no TPU for two programs to dispute

import jax
import numpy
from jax._src import compiler
from jax._src.interpreters import mlir
from jax._src.lib import _jax, xla_client
from jax.experimental import topologies
from jaxlib.mlir import ir

# The least slice of each generation. Both TensorCores of a v4 work as one, as TensorFlow has it.
TOPOLOGIES = {
    "v2": {"topology_name": "v2:2x2"},
    "v3": {"topology_name": "v3:2x2"},
    "v4": {"topology_name": "v4:2x2x1", "chip_config_name": "megacore"},
    "v5e": {"topology_name": "v5e:2x2"},
    "v5p": {"topology_name": "v5p:2x2x1"},
    "v6e": {"topology_name": "v6e:2x2"},
}


def compiled(program: Path, generation: str) -> Any:
    """Compile for one core, which keeps the variables' memory for their new values."""
    about = json.loads(program.with_suffix(".json").read_text("utf-8"))
    stablehlo = _jax.mlir.hlo_to_stablehlo(program.read_bytes())
    device = topologies.get_topology_desc(platform="tpu", **TOPOLOGIES[generation]).devices[0]
    with mlir.make_ir_context():
        module = ir.Module.parse(stablehlo)
        main = next(one for one in module.body if one.attributes["sym_name"].value == "main")
        share(main, dict(zip(about["changed"], count(about["results"]), strict=False)))
        options = xla_client.CompileOptions()
        options.num_replicas = options.num_partitions = 1
        options.device_assignment = xla_client.DeviceAssignment.create(
            numpy.array([[device.id]], "int32")
        )
        devices = xla_client.DeviceList((device,))
        return device, compiler.backend_compile_and_load(
            device.client, module, devices, options, []
        )


def share(main: Any, results: dict[int, int]) -> None:
    """Let results take the place of arguments, as the new values of variables do on a TPU."""
    number = ir.IntegerType.get_signless(32)
    attributes = [{} for _ in ir.FunctionType(main.type).inputs]
    if "arg_attrs" in main.attributes:
        attributes = [
            {one.name: one.attr for one in ir.DictAttr(each)}
            for each in main.attributes["arg_attrs"]
        ]
    for argument, result in results.items():
        attributes[argument]["tf.aliasing_output"] = ir.IntegerAttr.get(number, result)
    main.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(one) for one in attributes])


def answer(program: str, generation: str) -> dict[str, Any]:
    began = time.monotonic()
    row: dict[str, Any] = {"program": program, "generation": generation}
    try:
        device, executable = compiled(Path(program), generation)
        sizes = executable.get_compiled_memory_stats()
        row |= {
            "device": device.device_kind,
            "arguments": sizes.argument_size_in_bytes,
            "results": sizes.output_size_in_bytes,
            "shared": sizes.alias_size_in_bytes,
            "temporary": sizes.temp_size_in_bytes,
            "code": sizes.generated_code_size_in_bytes,
        }
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        row["refused"] = str(error)[:1500]
    return {**row, "seconds": round(time.monotonic() - began, 1)}


def main() -> None:
    # What libtpu prints must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(answer(**json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
