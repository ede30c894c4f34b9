"""The one-time setup of a pipeline, as commands for the user to run."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from tpuctl.flows.ci.git_checkout import Checkout
from tpuctl.flows.ci.pipelines import Pipeline, PipelineOptions

GITHUB = "https://token.actions.githubusercontent.com"


@dataclass(frozen=True)
class SetupStep:
    """Shell commands, one per line (continued lines end with a backslash), and their purpose."""

    title: str
    commands: tuple[str, ...]


def setup_steps(
    pipeline: Pipeline, checkout: Checkout, options: PipelineOptions, file: str, typed: str
) -> list[SetupStep]:
    """The steps in order. They share shell variables, so paste them into one shell."""
    name = pipeline.system.name
    steps = [_names(pipeline)]
    steps.append(_account(pipeline))
    steps.append(_role(pipeline, typed))
    if name == "cloudbuild":
        return [*steps, *_cloudbuild(checkout, options, file)]
    steps.append(_trust(pipeline, checkout))
    if "PROJECT_NUMBER" in pipeline.placeholders:
        fill = f'perl -pi -e "s/PROJECT_NUMBER/$NUMBER/" {shlex.quote(file)}'
        steps.append(SetupStep("Insert the project number into the pipeline", (fill,)))
    if name == "gitlab":
        steps.append(_gitlab(pipeline, checkout))
    return steps


def _names(pipeline: Pipeline) -> SetupStep:
    return SetupStep(
        "Variables for the commands below",
        (
            f"PROJECT={pipeline.stack.project}",
            f"ACCOUNT={pipeline.account}",
            "NUMBER=$(gcloud projects describe $PROJECT --format='value(projectNumber)')",
        ),
    )


def _account(pipeline: Pipeline) -> SetupStep:
    apis = "iam iamcredentials sts cloudresourcemanager serviceusage"
    if pipeline.system.name == "cloudbuild":
        apis = "iam cloudbuild cloudresourcemanager serviceusage"
    return SetupStep(
        "Create a service account for the pipeline",
        (
            "gcloud services enable --project=$PROJECT \\",
            f"  {{{','.join(apis.split())}}}.googleapis.com",
            "gcloud iam service-accounts create ${ACCOUNT%%@*} --project=$PROJECT",
        ),
    )


def _role(pipeline: Pipeline, typed: str) -> SetupStep:
    role = f"tpuctl_{pipeline.stack.name.replace('-', '_')}"
    return SetupStep(
        "Grant it exactly the permissions it needs",
        (
            f"{typed} doctor --role > tpuctl-ci-role.yaml",
            f"gcloud iam roles create {role} --project=$PROJECT \\",
            "  --file=tpuctl-ci-role.yaml",
            "gcloud projects add-iam-policy-binding $PROJECT --condition=None \\",
            "  --member=serviceAccount:$ACCOUNT \\",
            f"  --role=projects/$PROJECT/roles/{role}",
        ),
    )


def _trust(pipeline: Pipeline, checkout: Checkout) -> SetupStep:
    """Trust one branch of the repository, but no pull requests: anyone can open those."""
    is_github = pipeline.system.name == "github"
    pool, provider = pipeline.provider.split("/")[5], pipeline.provider.split("/")[7]
    host, repository = _hosted(checkout, "github" if is_github else "gitlab")
    claim = "repository" if is_github else "project_path"
    issuer = f"https://{host}/_services/token" if is_github else f"https://{host}"
    issuer = GITHUB if host == "github.com" else issuer
    branch = checkout.branch or "main"
    if is_github:
        condition = f"assertion.ref == 'refs/heads/{branch}'"
    else:
        condition = f"assertion.ref_path == 'refs/heads/{branch}'"
    pools = "gcloud iam workload-identity-pools"
    return SetupStep(
        f"Trust {repository}, branch {branch}",
        (
            f"REPOSITORY={shlex.quote(repository)}",
            f"POOL=projects/$NUMBER/locations/global/workloadIdentityPools/{pool}",
            "MAPPING=google.subject=assertion.sub",
            f"MAPPING=$MAPPING,attribute.repository=assertion.{claim}",
            f"CONDITION=\"assertion.{claim} == '$REPOSITORY'\"",
            f'CONDITION="$CONDITION && {condition}"',
            f"{pools} create {pool} \\",
            "  --project=$PROJECT --location=global",
            f"{pools} providers create-oidc {provider} \\",
            f"  --project=$PROJECT --location=global --workload-identity-pool={pool} \\",
            f"  --issuer-uri={issuer} \\",
            '  --attribute-mapping="$MAPPING" --attribute-condition="$CONDITION"',
            "MEMBER=principalSet://iam.googleapis.com/$POOL",
            "gcloud iam service-accounts add-iam-policy-binding $ACCOUNT \\",
            "  --project=$PROJECT --role=roles/iam.workloadIdentityUser \\",
            '  --member="$MEMBER/attribute.repository/$REPOSITORY"',
        ),
    )


def _hosted(checkout: Checkout, system: str) -> tuple[str, str]:
    """The host that runs the pipeline, and the repository's name there; placeholders if git does
    not know it or the repository is hosted elsewhere."""
    others = {"github.com", "gitlab.com", "bitbucket.org"} - {f"{system}.com"}
    if not checkout.repository or checkout.host in others:
        return f"{system}.com", "OWNER/NAME" if system == "github" else "GROUP/PROJECT"
    return checkout.host, checkout.repository


def _gitlab(pipeline: Pipeline, checkout: Checkout) -> SetupStep:
    host, repository = _hosted(checkout, "gitlab")
    path = repository.replace("/", "%2F")
    return SetupStep(
        "Run pipelines one at a time (after the first run, with your own token)",
        (
            'curl --fail --request PUT --header "PRIVATE-TOKEN: $GITLAB_TOKEN" \\',
            "  --data process_mode=oldest_first \\",
            f"  https://{host}/api/v4/projects/{path}\\",
            f"/resource_groups/tpuctl-{pipeline.stack.name}",
        ),
    )


def _cloudbuild(checkout: Checkout, options: PipelineOptions, file: str) -> list[SetupStep]:
    owner, _, name = (checkout.repository or "OWNER/NAME").rpartition("/")
    logs = SetupStep(
        "Allow it to write logs and read the source that `gcloud builds submit` stages",
        tuple(
            line
            for role in ("roles/logging.logWriter", "roles/storage.objectViewer")
            for line in (
                "gcloud projects add-iam-policy-binding $PROJECT --condition=None \\",
                f"  --member=serviceAccount:$ACCOUNT --role={role}",
            )
        ),
    )
    submit = f"gcloud builds submit --project=$PROJECT --config={shlex.quote(file)}"
    start = SetupStep("Train", (submit,))
    if not options.push:
        return [logs, start]
    trigger = SetupStep(
        f"Train on every push to {options.push}, after approval",
        (
            "gcloud builds triggers create github --project=$PROJECT --name=tpuctl \\",
            f"  --repo-owner={shlex.quote(owner)} --repo-name={shlex.quote(name)} \\",
            f"  --branch-pattern={shlex.quote(f'^{options.push}$')} "
            f"--build-config={shlex.quote(file)} \\",
            "  --service-account=projects/$PROJECT/serviceAccounts/$ACCOUNT \\",
            "  --require-approval",
        ),
    )
    return [logs, trigger]
