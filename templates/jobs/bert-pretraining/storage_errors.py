"""Explains Cloud Storage access errors, and how to fix them, from the text of the response."""

from __future__ import annotations

import re

__all__ = ["explain"]

# "a@b does not have storage.objects.create access to the Google Cloud Storage object."
ACCESS = re.compile(r"([^\s'\">;]+@[\w.-]+\w) does not have (storage\.\w+\.\w+) access")
DENIED = re.compile(r"HTTP response code 403|does not have storage\.\S+ access|AccessDenied")
ANONYMOUS = re.compile(r"HTTP response code 401|Anonymous caller")
NO_BUCKET = re.compile(r"The specified bucket does not exist|notFound.*bucket", re.IGNORECASE)
READ, WRITE = "roles/storage.objectViewer", "roles/storage.objectAdmin"


def explain(path: str, text: str, *, is_written: bool) -> str | None:
    """Return a one-line explanation of an access error for gs://BUCKET/…, or None.

    The account and the permission are quoted from the response if it has them: tpuctl searches
    the job's log for them.
    """
    bucket = "/".join(path.split("/")[:3])
    if ANONYMOUS.search(text):
        return (
            f"{bucket} requires authentication, but no credentials were found: "
            "gcloud auth application-default login"
        )
    if DENIED.search(text):
        role = WRITE if is_written else READ
        match = ACCESS.search(text)
        account = match[1] if match else "the account of this machine"
        problem = (
            f"{account} does not have {match[2]} access" if match else f"{account} has no access"
        )
        kind = "serviceAccount" if account.endswith("gserviceaccount.com") else "user"
        member = f"{kind}:{account}" if match else "serviceAccount:ACCOUNT"
        return (
            f"{problem} to {bucket}; grant {role}: gcloud storage buckets add-iam-policy-binding "
            f"{bucket} --member={member} --role={role}"
        )
    if NO_BUCKET.search(text):
        return f"bucket {bucket} not found"
    return None
