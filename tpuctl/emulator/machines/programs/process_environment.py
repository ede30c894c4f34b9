"""The environment of programs on a machine: folder, Python, variables, certificates."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import venv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import tpuctl.simulated_tpu
from tpuctl.emulator.machines.interface import MachineError, MachineSpec
from tpuctl.emulator.machines.programs.processes import user_ids
from tpuctl.interpreters import current
from tpuctl.local_cloud.gateway_address import with_next_proxy
from tpuctl.local_cloud.machine_images import image_interpreter, site_packages
from tpuctl.local_cloud.trust import CERTIFICATE_VARIABLES, GCSFS_SETTINGS, local_hosts

SHELL = "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"
NOTES_SETTING = "TPUCTL_LOCAL_NOTES"  # "off" leaves the note out of jobs' logs
NOTE_VARIABLE = "TPUCTL_MACHINE_NOTE"  # read by tpuctl/jobs/shipped/supervision/attempt.py
GATEWAY_VARIABLE = (
    "TPUCTL_LOCAL_GATEWAY"  # read by tpuctl/jobs/shipped/machine/network_variables.py
)
ROOT = "root"  # the user name of startup scripts and sudo


def hostname(spec: MachineSpec) -> str:
    """An instance's own name; for a TPU worker one derived from, but different from, the node's.

    The guest agent sets only the first part of a custom hostname.
    """
    if spec.hostname:
        return spec.hostname.partition(".")[0]
    if spec.kind == "instance":
        name = spec.members[spec.worker] if spec.members else spec.name
        return name.rpartition("/")[2]
    node = spec.name.rpartition("/workers/")[0]
    return f"t1v-n-{hashlib.sha256(node.encode()).hexdigest()[:8]}-w-{spec.worker}"


class MachineFolder:
    """The machine's disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.homes = path / "home"
        self.temporary = path / "tmp"
        self.python = path / "python"
        self.image = path / "image"  # a link to the image's folder
        self.settings = path / "etc"
        self.host_key = path / "hostkey"
        self.program = path / "node_server.py"  # of a TPU node
        # Where Python finds the hooks that give it a TPU's devices.
        self.simulated_tpu = self.python / "simulated_tpu"
        self.console = path / "console.log"
        self.sudo = self.settings / "sudo"  # the program mounted over this computer's sudo
        self.root_passwd = self.settings / "passwd-of-root"  # root's /etc/passwd under sudo
        # Exists while the machine's host has failed; contains how its addresses behave.
        self.failed_marker = path / "lost"
        self.disk_limit = path / "limit"  # an empty folder for a disk limit's bookkeeping

    @classmethod
    def of(cls, home: Path, name: str) -> MachineFolder:
        """`name` is the machine's full resource name."""
        short = "-".join(re.sub(r"[^a-z0-9-]", "-", part) for part in name.split("/")[-3::2])
        return cls(home / "machines" / f"{short}-{hashlib.sha256(name.encode()).hexdigest()[:8]}")

    def home(self, user: str) -> Path:
        """The user's home, created on first use."""
        home = self.homes / user
        if not home.exists():
            home.mkdir(parents=True)
            profile = _PROFILE.format(python=self.python, image=self.image)
            (home / ".profile").write_text(profile, "utf-8")
            (home / ".bashrc").write_text(_BASHRC, "utf-8")
        return home

    def create(self, image: Path, *, has_chips: bool) -> None:
        """Create the machine's disk; existing files stay."""
        for folder in (self.homes, self.temporary, self.settings):
            folder.mkdir(parents=True, exist_ok=True)
        self.path.chmod(0o700)
        self.image.unlink(missing_ok=True)
        self.image.symlink_to(image)
        self.temporary.chmod(0o1777)
        self._create_python(image)
        if has_chips:
            self._install_simulated_tpu(image)

    def _install_simulated_tpu(self, image: Path) -> None:
        """Copy the hooks, and let the machine's Python start them, whatever PYTHONPATH is.

        The folder is the machine's, so that its Python stores the compiled modules there.
        """
        source = Path(tpuctl.simulated_tpu.__file__).parent
        self.simulated_tpu.mkdir(exist_ok=True)
        for module in source.glob("*.py"):
            shutil.copy2(module, self.simulated_tpu)
        packages = site_packages(self.python, image_interpreter(image).minor)
        line = f"import sys; sys.path.insert(0, {str(self.simulated_tpu)!r})\n"
        (packages / "simulated_tpu.pth").write_text(line, "utf-8")

    def _create_python(self, image: Path) -> None:
        """A virtual environment on top of the image's packages: pip cannot change the image."""
        interpreter = image_interpreter(image)
        layer = site_packages(self.python, interpreter.minor) / "image.pth"
        packages = site_packages(image, interpreter.minor)
        content = f"import site; site.addsitedir({str(packages)!r})\n"
        if layer.exists() and layer.read_text("utf-8") == content:
            return
        if interpreter.version == current().version:
            venv.EnvBuilder(symlinks=True, clear=True).create(self.python)
        else:
            options = ("--symlinks", "--clear", "--without-pip")
            command = [interpreter.path, "-I", "-m", "venv", *options, str(self.python)]
            completed = subprocess.run(command, check=False, capture_output=True, text=True)
            if completed.returncode:
                output = f"{completed.stdout}{completed.stderr}".strip()
                raise MachineError(
                    f"{interpreter.path} failed to create a virtual environment: {output}"
                )
        layer.write_text(content, "utf-8")
        for name in ("pip", "pip3"):
            script = self.python / "bin" / name
            script.write_text(_PIP.format(folder=self.python), "utf-8")
            script.chmod(0o755)

    def write_settings(self, spec: MachineSpec, users: Iterable[str], metadata_port: int) -> None:
        """Write the files of /etc that differ between machines."""
        machine_hostname = hostname(spec)
        host_accounts = [
            line for line in _lines_of("/etc/passwd") if not line.startswith(f"{ROOT}:")
        ]
        # The first line with a uid names it: users precede the host's. For root, who shares its
        # uid with all users in its namespace, root precedes them.
        user_accounts = [self._account(user, *user_ids()) for user in users]
        root_accounts = [self._account(user, 0, 0) for user in dict.fromkeys([ROOT, *users])]
        passwd = [*user_accounts, root_accounts[0], *host_accounts]
        (self.settings / "passwd").write_text("\n".join(passwd) + "\n", "utf-8")
        self.root_passwd.write_text("\n".join([*root_accounts, *host_accounts]) + "\n", "utf-8")
        hosts = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
        for worker, endpoint in enumerate(spec.endpoints):
            names = [hostname(replace(spec, worker=worker))]
            if worker == spec.worker and spec.hostname:
                names.insert(0, spec.hostname)
            hosts.append(f"{endpoint.address} {' '.join(names)}")
        if metadata_port == 80:
            hosts.append(f"{spec.endpoint.address} metadata.google.internal metadata")
        hosts += [line for line in _lines_of("/etc/hosts") if "localhost" not in line.split()]
        (self.settings / "hosts").write_text("\n".join(hosts) + "\n", "utf-8")
        (self.settings / "hostname").write_text(machine_hostname + "\n", "utf-8")
        (self.settings / "empty").touch()

    def _account(self, user: str, user_id: int, group_id: int) -> str:
        return f"{user}:x:{user_id}:{group_id}::{self.homes / user}:{SHELL}"


@dataclass(frozen=True)
class SharedEnvironment:
    """The settings shared by all machines of a local cloud."""

    certificates: Path  # the system's and the local cloud's, for every client library
    certificate_folder: Path  # the local cloud's alone, for programs that search a folder first
    pip_settings: Path
    index_variables: Mapping[str, str]  # where pip and uv find packages
    downloads: Path
    proxy: Callable[[str], str]  # URL of the gateway for a machine, with credentials
    device_limit: Callable[[], int]  # of TPU devices that a program sees; 0 for no limit

    def variables(
        self, spec: MachineSpec, folder: MachineFolder, metadata_port: int, user: str, note: str
    ) -> dict[str, str]:
        """The whole environment of a program on the machine; nothing is inherited.

        `note` is printed at the start of jobs, if not empty.
        """
        has_note = note and os.environ.get(NOTES_SETTING) != "off"
        home = str(folder.home(user))
        address = spec.endpoint.address
        local = [*local_hosts(), *sorted({endpoint.address for endpoint in spec.endpoints})]
        variables = {
            "HOME": home,
            "USER": user,
            "LOGNAME": user,
            "SHELL": SHELL,
            "LANG": "C.UTF-8",
            "PATH": f"{folder.python}/bin:{folder.image}/bin:/usr/local/bin:/usr/bin:/bin",
            "GCE_METADATA_HOST": f"{address}:{metadata_port}",
            "GCE_METADATA_IP": f"{address}:{metadata_port}",
            "no_proxy": ",".join(local),
            "NO_PROXY": ",".join(local),
            # gRPC matches no_proxy by suffix, without networks, and would use the proxy for TPU
            # nodes: this matches every numeric address.
            "no_grpc_proxy": ",".join(["localhost", *"0123456789"]),
            **({NOTE_VARIABLE: note} if has_note else {}),
            **(_tpu_variables(spec, folder, self.device_limit()) if spec.has_chips else {}),
            # Modules are compiled when they are imported, not all thousands of a library's.
            "PIP_COMPILE": "0",
            **dict(self.index_variables),
            "PIP_CONFIG_FILE": str(self.pip_settings),
            "PIP_CACHE_DIR": str(self.downloads),
            "UV_CACHE_DIR": str(self.downloads / "uv"),
            "PIP_CERT": str(self.certificates),
            "SSL_CERT_DIR": str(self.certificate_folder),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            # gcsfs ignores proxies without aiohttp's trust_env.
            "FSSPEC_GS": '{"session_kwargs": {"trust_env": true}}',
            **GCSFS_SETTINGS,
        }
        for name in CERTIFICATE_VARIABLES:
            variables[name] = str(self.certificates)
        proxy = self.proxy(spec.name)
        gateway = with_next_proxy(proxy, "{}")
        return variables | {"https_proxy": proxy, "HTTPS_PROXY": proxy, GATEWAY_VARIABLE: gateway}


def _tpu_variables(spec: MachineSpec, folder: MachineFolder, limit: int) -> dict[str, str]:
    """What stands in for chips: CPU devices, as many as the worker and its slice have.

    `tpuctl.simulated_tpu` reads their numbers. JAX_FORCE_TPU_INIT is for
    `jax.distributed.initialize()`, which finds the other workers: JAX detects TPU VMs by chips.
    Told to run as on one, it takes the workers from variables, as on GKE (jax 0.10:
    cloud_tpu_init.py, clusters/cloud_tpu_cluster.py).
    """
    counts = (spec.devices, spec.slice_devices)
    devices, in_slice = (min(count, limit or count) for count in counts)
    return {
        "TPU_WORKER_ID": str(spec.worker),
        "TPU_WORKER_HOSTNAMES": ",".join(endpoint.address for endpoint in spec.endpoints),
        "TPUCTL_TPU_DEVICES": str(devices),
        "TPUCTL_TPU_SLICE_DEVICES": str(in_slice),
        "PYTHONPATH": str(folder.simulated_tpu),
        "JAX_FORCE_TPU_INIT": "1",
        "JAX_PLATFORMS": "cpu",
        "PJRT_DEVICE": "CPU",
    }


def _lines_of(file: str) -> list[str]:
    with contextlib.suppress(OSError):
        return [line for line in Path(file).read_text("utf-8", "replace").splitlines() if line]
    return []


_PIP = """#!/bin/sh
exec {folder}/bin/python3 -m pip "$@"
"""

# Login shells read the system's profile, which resets PATH.
_PROFILE = """PATH="{python}/bin:{image}/bin:$PATH"
[ -n "$BASH_VERSION" ] && [ -f ~/.bashrc ] && . ~/.bashrc
"""

_BASHRC = """case $- in *i*) ;; *) return ;; esac
PS1='\\u@\\h:\\w\\$ '
"""
