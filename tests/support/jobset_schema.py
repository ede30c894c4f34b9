"""The schema of a JobSet, with those of the Job and Pod templates in it, from its CRD.

`python -m tests.support.jobset_schema CRD COMMIT` writes `tests/recorded/kubernetes/jobset.json`
from config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml in a checkout of
kubernetes-sigs/jobset.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

FILE = Path(__file__).parents[1] / "recorded/kubernetes/jobset.json"
NAME = "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml"
# Parts that no exported job has, and that are most of the schema.
OMITTED = {
    *("affinity", "ephemeralContainers", "initContainers", "lifecycle", "livenessProbe"),
    *("readinessProbe", "securityContext", "startupProbe", "topologySpreadConstraints"),
    "volumeClaimPolicies",
}
VOLUME = ("name", "emptyDir")  # of the many kinds of volumes


def jobset_validator() -> Draft202012Validator:
    """A validator that also rejects unknown fields, which Kubernetes would drop."""
    return Draft202012Validator(_closed(json.loads(FILE.read_text("utf-8"))["schema"]))


def extract(crd: str, commit: str) -> dict[str, Any]:
    """The schema without descriptions, and its source."""
    (version,) = yaml.safe_load(crd)["spec"]["versions"]
    source = f"https://github.com/kubernetes-sigs/jobset/blob/{commit}/{NAME}"
    schema = _essence(version["schema"]["openAPIV3Schema"])
    del schema["properties"]["status"]
    return {"source": source, "schema": schema}


def _essence(schema: dict[str, Any]) -> dict[str, Any]:
    """What decides about validity."""
    essence = {}
    for key, value in schema.items():
        if key == "properties":
            parts = {name: part for name, part in value.items() if name not in OMITTED}
            if "emptyDir" in parts:
                parts = {name: parts[name] for name in VOLUME}
            essence[key] = {name: _essence(part) for name, part in parts.items()}
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            essence[key] = _essence(value)
        elif key == "anyOf":
            essence[key] = [_essence(part) for part in value]
        elif key in ("type", "required", "enum", "pattern", "minimum", "maximum", "maxItems"):
            essence[key] = value
        elif key == "x-kubernetes-int-or-string":
            essence["type"] = ["integer", "string"]
    return essence


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict):
        closed.setdefault("additionalProperties", False)
    return closed


if __name__ == "__main__":
    text = json.dumps(extract(Path(sys.argv[1]).read_text("utf-8"), sys.argv[2]), indent=1)
    FILE.write_text(text + "\n", "utf-8")
