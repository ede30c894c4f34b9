"""Google's libraries are loaded partially and lazily, with unchanged behavior.

Each program runs in a separate interpreter, since imports persist.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.locked_environment import OTHER_PYTHONS, own_environment

ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys
from tpuctl.google_imports import compute_service
compute_service("networks").NetworksClient
assert "google.cloud.compute_v1.services.instances" not in sys.modules  # that was all
from concurrent.futures import ThreadPoolExecutor
from google.cloud import compute_v1
names = ["Instance", "DisksClient", "InstancesClient", "Network"] * 2
with ThreadPoolExecutor(len(names)) as pool:  # each asks while another's asking loads it
    found = list(pool.map(lambda name: getattr(compute_v1, name), names))
assert [one.__name__ for one in found] == names
assert compute_v1.InstancesClient.__name__ == "InstancesClient"
assert compute_v1.Instance is compute_v1.types.Instance
assert compute_v1.NetworksClient is compute_service("networks").NetworksClient
try:
    compute_v1.NoSuchClient
except AttributeError as error:
    assert "NoSuchClient" in str(error)
else:
    raise AssertionError("any name would do")
"""

# Every message's protocol buffer descriptor, and its fields as seen by a program.
DESCRIBED = """
import hashlib, json, random
from google.cloud.compute_v1.types import compute
names = list(compute.__all__)
random.Random(2).shuffle(names)
found = {}
for name in names:
    made = getattr(compute, name)
    proto = made.pb().DESCRIPTOR
    fields = {key: [one.number, str(one.proto_type), one.repeated, one.optional, one.oneof,
                    getattr(one.message, "__name__", None), getattr(one.enum, "__name__", None)]
              for key, one in made.meta.fields.items()}
    enums = {key: sorted(value.__members__.items()) for key, value in vars(made).items()
             if hasattr(value, "__members__")}
    inside = sorted(one.full_name for one in proto.nested_types)
    as_text = json.dumps([proto.full_name, made.__qualname__, made.__module__, made.__doc__, inside,
                          sorted(fields.items()), sorted(enums.items())])
    found[name] = hashlib.sha256(as_text.encode()).hexdigest() + " " + hashlib.sha256(
        _copied(proto).SerializeToString(deterministic=True)).hexdigest()
print(json.dumps(found))
"""
COPIED = """
from google.protobuf import descriptor_pb2
def _copied(proto):
    one = descriptor_pb2.DescriptorProto()
    proto.CopyToProto(one)
    return one
"""
SINGLE = """
import sys
from tpuctl.google_imports import compute_types
types = compute_types()
assert not {"Firewall", "Allowed", "Instance", "UrlMap"} & {*vars(types)}
from google.cloud.compute_v1.types import Firewall
assert {"Firewall", "Allowed"} <= {*vars(types)}
assert not {"Instance", "UrlMap"} & {*vars(types)}
rule = Firewall(name="n", allowed=[{"I_p_protocol": "tcp", "ports": ["22"]}])
assert rule.allowed[0] == types.Allowed(I_p_protocol="tcp", ports=["22"])
again = Firewall.from_json(Firewall.to_json(rule))
assert again == rule and type(again.allowed[0]) is types.Allowed
import copy, pickle
assert pickle.loads(pickle.dumps(rule)) == rule
instance = types.Instance(disks=[{"source": "s"}], status="RUNNING")
assert instance.disks[0].source == "s" and types.Operation.Status.DONE.name == "DONE"
try:
    types.NoSuchMessage
except AttributeError as error:
    assert "NoSuchMessage" in str(error)
else:
    raise AssertionError("any name would do")
"""
AT_ONCE = """
import random, sys
from concurrent.futures import ThreadPoolExecutor
from tpuctl.google_imports import compute_types
sys.setswitchinterval(1e-5)
names = list(compute_types().__all__)[::9] * 8
random.Random(5).shuffle(names)
with ThreadPoolExecutor(8) as pool:
    made = dict(zip(names, pool.map(lambda name: getattr(compute_types(), name)(), names)))
assert all(type(one).__name__ == name for name, one in made.items())
"""
ASYNC_REST = """
import sys
from tpuctl.google_imports import disable_async_rest
disable_async_rest()
from google.api_core import operations_v1
from google.cloud.tpu_v2 import TpuClient
assert "aiohttp" not in sys.modules
assert operations_v1.OperationsRestTransport and operations_v1.OperationsAsyncClient
"""
SIGNING = """
import base64, sys
from tpuctl.google_imports import client_module, defer_signing
defer_signing()
client_module("google.cloud.tpu_v2", "tpu").TpuClient
import google.auth.transport.requests
assert "cryptography" not in sys.modules
from google.oauth2 import service_account  # whose credentials sign tokens
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                            serialization.NoEncryption()).decode()
public = key.public_key().public_bytes(serialization.Encoding.PEM,
                                       serialization.PublicFormat.SubjectPublicKeyInfo).decode()
email = "worker@project.iam.gserviceaccount.com"
credentials = service_account.Credentials.from_service_account_info(
    {"client_email": email, "private_key": private, "token_uri": "https://example.com/token"})
from google.auth import crypt, iam, jwt
token = jwt.encode(credentials.signer, {"iss": email, "iat": 1, "exp": 2})
claims = jwt.decode(token, verify=False)
assert claims["iss"] == email
signed, _, signature = token.rpartition(b".")
assert crypt.verify_signature(signed, base64.urlsafe_b64decode(signature + b"=="), public)
assert isinstance(credentials.signer, crypt.Signer) and issubclass(iam.Signer, crypt.Signer)
assert crypt.es.EsSigner is crypt.EsSigner
"""
LAZY_CLIENTS = """
import sys
from tpuctl.google_imports import client_module
client = client_module("google.cloud.resourcemanager_v3", "projects").ProjectsClient
loaded = {name for name in sys.modules if name.startswith("google.cloud.resourcemanager_v3.")}
services = "google.cloud.resourcemanager_v3.services."
assert services + "projects.client" in loaded
assert not [name for name in loaded if name.startswith(services + "folders")], loaded
assert not [name for name in loaded if name.endswith("async_client")], loaded
from google.cloud import resourcemanager_v3
from google.cloud.resourcemanager_v3 import FoldersClient, ProjectsAsyncClient, types
from google.cloud.resourcemanager_v3.services.projects import ProjectsClient
assert resourcemanager_v3.ProjectsClient is ProjectsClient is client
assert resourcemanager_v3.Folder is types.Folder
assert FoldersClient.__module__.endswith("folders.client")
assert ProjectsAsyncClient.__module__.endswith("projects.async_client")
from google.cloud import tpu_v2  # loaded eagerly
assert client_module("google.cloud.tpu_v2", "tpu").TpuClient is tpu_v2.TpuClient
try:
    resourcemanager_v3.NoSuchClient
except AttributeError as error:
    assert "NoSuchClient" in str(error)
else:
    raise AssertionError("any name would do")
"""


def run_program(program: str, python: str | Path = sys.executable) -> Any:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)} if python != sys.executable else None
    done = subprocess.run(
        [python, "-c", program],
        check=True,
        timeout=120,
        stdout=subprocess.PIPE,
        env=environment,
        cwd=ROOT.parent,
    )
    return json.loads(done.stdout or "null")


def check_messages(python: str | Path) -> None:
    """Every message's descriptor is as without lazy loading."""
    lazy = run_program(
        f"from tpuctl.google_imports import compute_types\ncompute_types(){COPIED}{DESCRIBED}",
        python,
    )
    real = run_program(COPIED + DESCRIBED, python)
    assert len(real) > 2000
    assert {name for name in real if lazy[name] != real[name]} == set()


@pytest.mark.soak
def test_messages_match_real_package() -> None:
    check_messages(sys.executable)


@pytest.mark.parametrize(
    "program",
    [SINGLE, AT_ONCE, ASYNC_REST, SIGNING, LAZY_CLIENTS],
    ids=["single", "at_once", "rest", "signing", "clients"],
)
def test_only_what_is_used_is_loaded(program: str) -> None:
    run_program(program)


@pytest.mark.soak
def test_whole_package_loads_on_access() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=120)


@pytest.mark.soak
@pytest.mark.parametrize("minor", OTHER_PYTHONS)
def test_other_pythons_load_the_same(minor: str) -> None:
    python = own_environment(minor)
    check_messages(python)
    for program in (PROGRAM, SINGLE, AT_ONCE, ASYNC_REST, SIGNING, LAZY_CLIENTS):
        run_program(program, python)
