"""Why Cloud Storage refused, and what puts it right: from the text of its answer alone."""

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
    """Return in one line what a refusal of gs://BUCKET/… means, or None when it is none.

    The account and the permission are named where the answer names them, in its own words: those
    who watch the job look for them.
    """
    bucket = "/".join(path.split("/")[:3])
    if ANONYMOUS.search(text):
        return (
            f"{bucket} wants to know who asks, and there are no credentials here: "
            "gcloud auth application-default login"
        )
    if DENIED.search(text):
        role = WRITE if is_written else READ
        match = ACCESS.search(text)
        account = match[1] if match else "the account of this machine"
        said = f"{account} does not have {match[2]} access" if match else f"{account} is not let in"
        kind = "serviceAccount" if account.endswith("gserviceaccount.com") else "user"
        member = f"{kind}:{account}" if match else "serviceAccount:ACCOUNT"
        return (
            f"{said} to {bucket}; it needs {role}: gcloud storage buckets add-iam-policy-binding "
            f"{bucket} --member={member} --role={role}"
        )
    if NO_BUCKET.search(text):
        return f"there is no bucket {bucket}"
    return None
