"""Folders of the local cloud that stand for the hosts of Google's APIs.

gcloud recognizes an API by the host of a link, or by what precedes the version in its path: on one
host for all of them, the second (SplitEndpointUrl in its api_lib/util/resource.py, version 528).
"""

from __future__ import annotations

import re

# By their names in gcloud's settings.
APIS = (
    *("cloudbilling", "cloudkms", "cloudresourcemanager", "compute", "iam", "iamcredentials"),
    *("logging", "oslogin", "secretmanager", "servicemanagement", "serviceusage", "storage"),
    "tpu",
)
# These have such a path at Google, too. gcloud adds that of Cloud Storage to a bare host.
_PATHS_AT_GOOGLE = {"compute": "/compute/v1/", "storage": "/"}
_FOLDER = re.compile(rf"/(?:{'|'.join(sorted({*APIS} - {*_PATHS_AT_GOOGLE}))})(?=/v\d)")


def endpoint_path(api: str) -> str:
    """The path of an API's endpoint for gcloud, with its slash."""
    return _PATHS_AT_GOOGLE.get(api, f"/{api}/")


def without_folder(path: str) -> str:
    """The path as on the host of the API."""
    match = _FOLDER.match(path)
    return path if match is None else path[match.end() :]
