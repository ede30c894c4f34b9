"""What failures look like in logs: one table of texts, what each means, and what mends it.

Every entry was seen in public, where `source` says, or is what the system's own libraries print.
A line is compared with the entries in order. An entry that is too wide costs money: it has a
failing script tried again. So each names what a machine or Google says, never what anybody might.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["SIGNATURES", "Signature"]


@dataclass(frozen=True)
class Signature:
    """A class of failure that one line of a log gives away."""

    name: str
    kind: Literal["infrastructure", "failure"]
    pattern: str  # searched for in one line
    cause: str  # in a sentence
    hint: str  # what mends it, a command on its own indented line
    source: str


WHO_HOLDS_THE_CHIPS = (
    "See who holds the chips of a worker:\n"
    "    tpuctl ssh 0 -- sudo lsof -w /dev/accel0 /dev/vfio/0 /tmp/libtpu_lockfile"
)
TRY_AGAIN = "It is tried again within job.retries.infrastructure. By hand:\n    tpuctl run"
FIT = "Make the batch, the sequences or the model smaller, or take a larger type:\n    tpuctl types"

SIGNATURES: tuple[Signature, ...] = (
    # The chips and their library
    Signature(
        "libtpu-lock",
        "infrastructure",
        r"TPU is already in use by|libtpu\.so (is )?already in used? by|libtpu_lockfile"
        r"|libtpu multi-process lockfile",
        "Another process holds the TPU, or one that was killed has left its lock behind.",
        WHO_HOLDS_THE_CHIPS,
        "jax-ml/jax#10192, #22070; pytorch/xla#3214",
    ),
    Signature(
        "chips-busy",
        "infrastructure",
        r"open\(/dev/(accel|vfio/)\d+\): (Device or resource busy|Operation not permitted)"
        r"|Couldn't open (device: /dev/accel|iommu group /dev/vfio/)\d+",
        "The chips are held by another process.",
        WHO_HOLDS_THE_CHIPS,
        "google/gvisor#11545; pytorch/xla#9604, #3165",
    ),
    Signature(
        "one-of-many",
        "failure",
        r"slice_builder_worker_addresses specified\. Expected \d+ worker addresses, got \d+"
        r"|Failed to establish SliceBuilder grpc channel",
        "The chips of the slice did not find each other: the script ran on a part of the workers.",
        "Start it on every worker, with this in the stack file:\n    job: {workers: all}",
        "Lightning-AI/litgpt#866; Lightning-AI/pytorch-lightning#20244",
    ),
    Signature(
        "local-file",
        "failure",
        r"File system scheme '\[local\]' not implemented",
        "A TPU node cannot read the controller's files.",
        "Put the data into the bucket, and name it as gs://$TPUCTL_BUCKET/…",
        "TensorFlow on TPU nodes, many public issues",
    ),
    # Memory
    Signature(
        "hbm",
        "failure",
        r"[Rr]an out of memory in memory space|Exceeded hbm capacity"
        r"|RESOURCE_EXHAUSTED: .*([Oo]ut of memory|[Aa]ttempting to (allocate|reserve))"
        r"|ResourceExhaustedError.*OOM when allocating|OOM when allocating tensor",
        "The program does not fit into the chips' memory.",
        FIT,
        "EasyDeL#78; LargeWorldModel/LWM#60; pytorch/xla#9524",
    ),
    Signature(
        "host-memory",
        "failure",
        r"^MemoryError\b|numpy\.\S*_ArrayMemoryError|Cannot allocate memory|std::bad_alloc"
        r"|oom-kill:|Out of memory: Killed process|DataLoader worker \(pid.*(exited|killed)",
        "The worker's own memory was used up.",
        "Load less at a time, or with fewer processes; see how much there is with\n"
        "    tpuctl ssh 0 -- free -g",
        "google-research/jax3d#121; pytorch/xla#2359",
    ),
    # Google's services, as the machine sees them
    Signature(
        "metadata",
        "infrastructure",
        r"Failed to get TPU metadata .*(connect|[Tt]imeout|timed out)"
        r"|[Mm]etadata [Ss]erver unavailable"
        r"|host='metadata\.google\.internal'.*Max retries exceeded"
        r"|Failed to retrieve http://metadata\.google\.internal\S* .*Status: 5\d\d",
        "The machine's metadata server did not answer.",
        TRY_AGAIN,
        "google/gvisor#10795; vllm-project/vllm#9538; cloud-custodian/cloud-custodian#9405",
    ),
    Signature(
        "bucket-permission",
        "failure",
        r"does not have storage\.\S+ access|HTTP response code 40[13]|AccessDeniedException: 403"
        r"|google\.api_core\.exceptions\.(Forbidden|Unauthorized)|HTTP Error 40[13]",
        "The machine's account may not use that bucket.",
        "The stack's own bucket is open to it, as gs://$TPUCTL_BUCKET. For another one, allow the "
        "account that this tells:\n    tpuctl status",
        "tensorflow/models#10828, #10976; google-research/bert#98",
    ),
    Signature(
        "storage",
        "infrastructure",
        r"HTTP response code (429|50[0-4])|HTTP Error 50[0-4]"
        r"|google\.api_core\.exceptions\.(ServiceUnavailable|InternalServerError|GatewayTimeout"
        r"|BadGateway|RetryError)",
        "Cloud Storage, or another of Google's services, did not answer.",
        TRY_AGAIN,
        "the classes of google-api-core; TensorFlow's Cloud Storage file system",
    ),
    # The other workers
    Signature(
        "peer-gone",
        "infrastructure",
        r"\b(UNAVAILABLE|Unavailable|UnavailableError|AbortedError|ABORTED)\b.*"
        r"(Socket closed|[Cc]onnection reset by peer|failed to connect to all addresses"
        r"|device incarnation|[Kk]eepalive watchdog|heartbeat)"
        r"|Unable to find a context_id matching|tasks are unhealthy \(stopped sending heartbeats\)"
        r"|heartbeat timeout.*coordination|[Cc]oordination service.*heartbeat timeout",
        "Another worker, or the TPU's server, stopped answering: it was restarted, or is gone.",
        TRY_AGAIN,
        "tensorflow/tensorflow#47460, #38257, #46007; wangcongcong123/ttt#2",
    ),
    # Network and disk
    Signature(
        "network",
        "infrastructure",
        r"Temporary failure in name resolution|Network is unreachable|No route to host"
        r"|\[Errno 110\] Connection timed out|Could not resolve host|TLS handshake timeout",
        "The network did not answer.",
        "Without an external address a machine reaches the internet through Cloud NAT alone. "
        + TRY_AGAIN,
        "pangeo-data/pangeo#148; messages of the C library and of curl",
    ),
    Signature(
        "broken-disk",
        "infrastructure",
        r"\[Errno 5\] Input/output error|\[Errno 30\] Read-only file system"
        r"|Transport endpoint is not connected|Remote I/O error",
        "The machine's disk, or one that is mounted, failed.",
        TRY_AGAIN,
        "messages of the C library",
    ),
    Signature(
        "image-busy",
        "infrastructure",
        r"Could not get lock /var/lib/(dpkg|apt)/"
        r"|Unable to acquire the dpkg frontend lock.*is another process using it",
        "The machine was still installing its own packages.",
        TRY_AGAIN,
        "messages of apt",
    ),
    Signature(
        "disk-full",
        "failure",
        r"No space left on device|Disk quota exceeded|the machine's disk is full",
        "The machine's disk is full.",
        "Write to the bucket ($TPUCTL_OUTPUT), or attach a disk with tpu.data_disks. See what "
        "is on it:\n    tpuctl ssh 0 -- df -h",
        "messages of the C library",
    ),
    # The script
    Signature(
        "import",
        "failure",
        r"^(ModuleNotFoundError|ImportError): ",
        "The script imports what is not installed on the workers.",
        "Add it to requirements.txt, then submit again:\n    tpuctl run",
        "Python",
    ),
    Signature(
        "syntax",
        "failure",
        r"^(SyntaxError|IndentationError|TabError): ",
        "The script is not Python that this machine's version reads.",
        "Look at it before it is sent:\n    tpuctl check SCRIPT",
        "Python",
    ),
    Signature(
        "missing-data",
        "failure",
        r"FileNotFoundError|No such file or directory|HTTP response code 404|No such object: "
        r"|google\.api_core\.exceptions\.NotFound: 404",
        "A file that the script reads is not there.",
        "What lies beside the script is sent unless ignored; data belongs into the bucket:\n"
        "    tpuctl check SCRIPT",
        "nyu-dl/dl4marco-bert#19; Python",
    ),
    Signature(
        "nan",
        "failure",
        r"FloatingPointError|NaN loss during training|Tensor had (NaN|Inf|Nan)"
        r"|NanLossDuringTrainingError",
        "The numbers became infinite, or none at all.",
        "Lower the learning rate, warm up longer, or clip gradients.",
        "TensorFlow's check_numerics and NanTensorHook; jax_debug_nans",
    ),
    Signature(
        "no-such-package",
        "failure",
        r"No matching distribution found for|Could not find a version that satisfies",
        "A package that is required does not exist for this machine's Python.",
        "Mend requirements.txt. See the machine's version with\n    tpuctl ssh 0 -- python3 -V",
        "pip",
    ),
)
