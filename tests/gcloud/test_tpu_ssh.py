"""Logging in to the workers of TPU VMs and copying files, through the real gcloud and OpenSSH."""

from __future__ import annotations

import pytest

from tests.support.gcloud import Gcloud

TPUS = ("compute", "tpus", "tpu-vm")
QUEUED = ("compute", "tpus", "queued-resources")
VERSION = "tpu-ubuntu2204-base"
WORKERS = 4  # of a v2-32
POD_ZONE = "us-central1-a"


@pytest.mark.soak
def test_ssh_to_every_worker(machine_gcloud: Gcloud) -> None:
    gcloud, zone = machine_gcloud, f"--zone={POD_ZONE}"
    gcloud.make_key()
    gcloud.run(*TPUS, "create", "pod", "--accelerator-type=v2-32", f"--version={VERSION}", zone)

    first = gcloud.run(*TPUS, "ssh", "pod", zone, "--command=echo output; exit 7", check=False)
    assert (first.returncode, first.stdout) == (7, "output\n")
    assert "Propagating SSH public key to all TPU workers" in first.stderr

    folder = gcloud.folder / "sent"
    (folder / "below").mkdir(parents=True)
    (folder / "top.txt").write_text("top\n")
    (folder / "below" / "bytes").write_bytes(bytes(range(256)) * 1000)
    gcloud.run(*TPUS, "scp", "--recurse", "sent", "pod:got", zone, "--worker=all")
    script = "cat got/top.txt; echo $HOSTNAME; echo worker > got/own"
    output = gcloud.run(*TPUS, "ssh", "pod", zone, "--worker=all", f"--command={script}").stdout
    assert output.count("top\n") == WORKERS
    names = {line for line in output.splitlines() if line != "top"}
    assert {name.rpartition("-")[2] for name in names} == set(map(str, range(WORKERS)))

    gcloud.run(*TPUS, "scp", "--recurse", "pod:got", "back", zone, "--worker=2")
    back = gcloud.folder / "back"
    assert (back / "own").read_text() == "worker\n"
    assert (back / "below" / "bytes").read_bytes() == (folder / "below" / "bytes").read_bytes()

    rows = gcloud.run(*TPUS, "get-guest-attributes", "pod", zone).stdout.splitlines()
    assert rows[0].split() == ["NAMESPACE", "KEY", "WORKER_ID", "VALUE"]
    known_hosts = (gcloud.folder / ".ssh" / "google_compute_known_hosts").read_text()
    output = {tuple(row.split()[:3]): row.split()[3] for row in rows[1:]}
    workers = list(map(str, range(WORKERS)))
    assert len(output) == 2 * WORKERS
    for worker in workers:
        assert output["hostkeys", "ssh-ed25519", worker] in known_hosts
        assert output["tpu", "hostname", worker]


@pytest.mark.soak
def test_project_key_is_accepted_on_tpu_vms(machine_gcloud: Gcloud) -> None:
    """gcloud does not add it to the node: it relies on project metadata."""
    gcloud = machine_gcloud
    (gcloud.folder / "keys").write_text(gcloud.make_key())
    options = ("--accelerator-type=v2-8", f"--version={VERSION}")
    gcloud.run(*TPUS, "create", "bert", *options)
    # It applies to running machines.
    gcloud.run("compute", "project-info", "add-metadata", "--metadata-from-file=ssh-keys=keys")
    done = gcloud.run(*TPUS, "ssh", "bert", "--command=hostname")
    assert "SSH key found in project metadata; not updating instance." in done.stderr
    assert done.stdout.strip().endswith("-w-0")


@pytest.mark.soak
def test_stopped_machines_keep_files_and_keys(machine_gcloud: Gcloud) -> None:
    gcloud = machine_gcloud
    options = ("--accelerator-type=v2-8", f"--version={VERSION}")
    gcloud.run(*TPUS, "create", "bert", *options)
    gcloud.run(*TPUS, "ssh", "bert", "--command=echo kept > file")  # gcloud generates the key
    gcloud.run(*TPUS, "stop", "bert")
    gcloud.run(*TPUS, "start", "bert")
    assert gcloud.run(*TPUS, "ssh", "bert", "--command=cat file").stdout == "kept\n"
    shell = gcloud.run(*TPUS, "ssh", "bert", stdin="echo from a shell\nexit 5\n", check=False)
    assert (shell.returncode, shell.stdout) == (5, "from a shell\n")
    (gcloud.folder / "one").write_text("one")
    gcloud.run(*TPUS, "scp", "one", "bert:two")
    gcloud.run(*TPUS, "scp", "bert:two", "bert:file", ".")
    assert (gcloud.folder / "two").read_text() == "one"
    assert (gcloud.folder / "file").read_text() == "kept\n"


@pytest.mark.soak
def test_ssh_to_every_node_of_queued_resource(machine_gcloud: Gcloud) -> None:
    gcloud = machine_gcloud
    options = ("--accelerator-type=v2-8", f"--runtime-version={VERSION}")
    gcloud.run(*QUEUED, "create", "request", *options, "--node-prefix=w", "--node-count=2")
    (gcloud.folder / "one").write_text("one\n")
    all_nodes = ("--worker=all", "--node=all")
    gcloud.run(*QUEUED, "ssh", "request", *all_nodes, "--command=true")
    gcloud.run(*QUEUED, "scp", "one", "request:", *all_nodes)
    assert (
        gcloud.run(*QUEUED, "ssh", "request", *all_nodes, "--command=cat one").stdout == "one\n" * 2
    )
    gcloud.run("alpha", *QUEUED, "reset", "request")
    output = gcloud.run(*QUEUED, "ssh", "request", "--node=1", "--command=cat one").stdout
    assert output == "one\n"  # their disks were kept
    gcloud.run(*QUEUED, "delete", "request", "--force")
