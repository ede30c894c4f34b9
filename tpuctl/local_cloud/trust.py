"""Certificates that clients of a local cloud trust, and hosts that bypass its proxy."""

from __future__ import annotations

import contextlib
import os
import re
import ssl
from collections.abc import Mapping
from pathlib import Path

import certifi

# Certificate files of: curl and TensorFlow, Python and Go, requests, gRPC, Node, httplib2,
# TensorStore.
CERTIFICATE_VARIABLES = (
    *("CURL_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"),
    *("NODE_EXTRA_CA_CERTS", "HTTPLIB2_CA_CERTS", "TENSORSTORE_CA_BUNDLE"),
)
# gcsfs queries Storage Control for hierarchical buckets (gcsfs/extended_gcsfs.py), over gRPC with
# TLS even at an endpoint without it. It finds them at Google's address, through the proxy.
GCSFS_SETTINGS = {"GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}


def local_hosts() -> list[str]:
    """The hosts for no_proxy."""
    return ["localhost", "127.0.0.1", "::1", "127.0.0.0/8", "metadata.google.internal"]


def trusted_certificates(authority: bytes, environ: Mapping[str, str] | None = None) -> bytes:
    """The certificates that the host's clients trust with this environment, and `authority`."""
    defaults = ssl.get_default_verify_paths()
    variable_names = (
        *("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE"),
        *("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "NODE_EXTRA_CA_CERTS", "HTTPLIB2_CA_CERTS"),
        "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
    )
    files = [(os.environ if environ is None else environ).get(name) for name in variable_names]
    files += [defaults.cafile, "/etc/ssl/certs/ca-certificates.crt", certifi.where()]
    certificates: dict[bytes, None] = {}
    pattern = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
    for file in dict.fromkeys(file for file in files if file):
        with contextlib.suppress(OSError):
            certificates |= dict.fromkeys(pattern.findall(Path(file).read_bytes()))
    certificates |= dict.fromkeys(pattern.findall(authority))
    return b"\n".join(certificates) + b"\n"
