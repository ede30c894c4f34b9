"""The meaning of Cloud Storage's denials, from real responses seen in public."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

PATH = "gs://my-bucket/tpuctl/jobs/1/output/options.json"
GRANT = "gcloud storage buckets add-iam-policy-binding gs://my-bucket"
# google-research/lasertagger issue 7, google/colab of 2019
OF_A_USER = """Error executing an HTTP request: HTTP response code 403 with body '{
  "error": {
    "code": 403,
    "message": "somebody@gmail.com does not have storage.objects.get access to my-bucket/output.",
    "errors": [
      {
        "message": "somebody@gmail.com does not have storage.objects.get access to my-bucket.",
        "domain": "global",
        "reason": "forbidden"
      }
    ]
  }
}
'
\t when reading metadata of gs://my-bucket/output"""
# nyu-dl/dl4marco-bert issue 19
OF_A_TPU = (
    "From /job:worker/replica:0/task:0: Failed to get matching files on gs://my-bucket/output: "
    "Permission denied: Error executing an HTTP request: HTTP response code 403 with body "
    '\'{"error": {"errors": [{"message": "service-495559152420@cloud-tpu.iam.gserviceaccount.com '
    "does not have storage.objects.list access to my-bucket.\"}]}}'"
)
# kingoflolz/mesh-transformer-jax issue 152: what reading gets, in XML
IN_XML = (
    "Error executing an HTTP request: HTTP response code 403 with body '<?xml version='1.0' "
    "encoding='UTF-8'?><Error><Code>AccessDenied</Code><Message>Access denied.</Message><Details>"
    "job@my-project.iam.gserviceaccount.com does not have storage.objects.create access to the "
    "Google Cloud Storage object.</Details></Error>'"
)
# GoogleCloudPlatform/cloudml-samples issue 45
WITHOUT_WORDS = "Error executing an HTTP request: HTTP response code 403 with body ''"
# EleutherAI/gpt-neo issue 160
ANONYMOUS = """Error executing an HTTP request: HTTP response code 401 with body '{
  "error": {
    "code": 401,
    "message": "Anonymous caller does not have storage.objects.get access to the Google Cloud"""


@pytest.mark.parametrize(
    ("text", "account", "permission"),
    [
        (OF_A_USER, "user:somebody@gmail.com", "storage.objects.get"),
        (
            OF_A_TPU,
            "serviceAccount:service-495559152420@cloud-tpu.iam.gserviceaccount.com",
            "storage.objects.list",
        ),
        (
            IN_XML,
            "serviceAccount:job@my-project.iam.gserviceaccount.com",
            "storage.objects.create",
        ),
    ],
)
@pytest.mark.parametrize("is_written", [True, False])
def test_access_error_names_account_permission_and_fix(
    job: SimpleNamespace, text: str, account: str, permission: str, is_written: bool
) -> None:
    explanation = job.storage_errors.explain(PATH, text, is_written=is_written)
    role = "roles/storage.objectAdmin" if is_written else "roles/storage.objectViewer"
    # tpuctl's supervisor and `tpuctl explain` search for these words.
    assert explanation.startswith(
        f"{account.partition(':')[2]} does not have {permission} access to "
    )
    assert "\n" not in explanation
    assert explanation.endswith(f"{GRANT} --member={account} --role={role}")


def test_unknown_account_is_not_guessed(job: SimpleNamespace) -> None:
    explanation = job.storage_errors.explain(PATH, WITHOUT_WORDS, is_written=True)
    assert explanation.startswith("the account of this machine has no access to gs://my-bucket; ")
    assert "--member=serviceAccount:ACCOUNT " in explanation


def test_other_storage_errors(job: SimpleNamespace) -> None:
    explanation = job.storage_errors.explain(PATH, ANONYMOUS, is_written=False)
    assert explanation.startswith("gs://my-bucket requires authentication")
    text = 'Error executing an HTTP request: HTTP response code 404 with body \'{"error": {'
    text += '"code": 404, "message": "The specified bucket does not exist."}}\''
    assert (
        job.storage_errors.explain(PATH, text, is_written=True) == "bucket gs://my-bucket not found"
    )
    text = "Error executing an HTTP request: HTTP response code 503 with body ''"
    assert job.storage_errors.explain(PATH, text, is_written=True) is None
