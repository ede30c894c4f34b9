#!/usr/bin/env bash
# What an administrator runs once for a project with stacks of tpuctl, and again after a change.
# Set the variables of what the project uses; the rest is left out. For example:
#
#   PROJECT=my-project MEMBER=group:ml@example.com \
#   HOST=net-host NETWORK=corp SUBNETWORK=tpus REGION=us-central1 bash company-administrator.sh
#
# PROJECT     the project of the stacks
# MEMBER      who uses tpuctl: user:, group:, or serviceAccount: with an email address
# HOST        the host project of the network (Shared VPC), whose
#             NETWORK, and SUBNETWORK in REGION, the machines use
# ACT_AS      a service account that MEMBER may impersonate
# OS_LOGIN    the service account of machines with OS Login, which MEMBER may log in to
# KMS_KEY     a Cloud KMS key: projects/P/locations/L/keyRings/R/cryptoKeys/K; created if missing
set -euo pipefail
: "${PROJECT:?is the project of the stacks}" "${MEMBER:?uses tpuctl, as in group:ml@example.com}"
number=$(gcloud projects describe "$PROJECT" --format='value(projectNumber)')

on_project() { # project, member, role
  gcloud projects add-iam-policy-binding "$1" --member="$2" --role="$3" --condition=None --quiet
}

on_account() { # account, role
  gcloud iam service-accounts add-iam-policy-binding "$1" --project="$PROJECT" --member="$MEMBER" \
    --role="$2" --condition=None --quiet
}

create_rule() { # name, and its options
  gcloud compute firewall-rules describe "$1" --project="$HOST" > /dev/null 2>&1 ||
    gcloud compute firewall-rules create "$@" --project="$HOST" --network="$NETWORK" \
      --target-tags=tpus
}

if [ -n "${HOST:-}" ]; then
  subnet=("${SUBNETWORK:?of $HOST}" --project="$HOST" --region="${REGION:?of $SUBNETWORK}")
  attached=$(gcloud compute shared-vpc get-host-project "$PROJECT" --format='value(name)')
  [ "$attached" = "$HOST" ] ||
    gcloud compute shared-vpc associated-projects add "$PROJECT" --host-project="$HOST"
  gcloud compute networks subnets add-iam-policy-binding "${subnet[@]}" \
    --member="$MEMBER" --role=roles/compute.networkUser
  # The agents of TPU VMs, and of slices that Compute Engine sells.
  agent="serviceAccount:service-$number@gcp-sa-tpu.iam.gserviceaccount.com"
  on_project "$HOST" "$agent" roles/tpu.xpnAgent
  agent="serviceAccount:$number@cloudservices.gserviceaccount.com"
  on_project "$HOST" "$agent" roles/compute.networkUser
  # Machines without external addresses reach Google by it.
  gcloud compute networks subnets update "${subnet[@]}" --enable-private-ip-google-access
  # For stacks with `network: {ssh: iap, tags: [tpus]}`: SSH through IAP, and between workers.
  : "${NETWORK:?of $HOST}"
  create_rule tpus-ssh --allow=tcp:22 --source-ranges=35.235.240.0/20
  create_rule tpus-workers --allow=tcp --source-tags=tpus
fi

if [ -n "${ACT_AS:-}" ]; then
  gcloud services enable iamcredentials.googleapis.com --project="$PROJECT"
  on_account "$ACT_AS" roles/iam.serviceAccountTokenCreator
fi

if [ -n "${OS_LOGIN:-}" ]; then
  on_project "$PROJECT" "$MEMBER" roles/compute.osAdminLogin
  on_project "$PROJECT" "$MEMBER" roles/compute.viewer # sees whether OS Login is on
  on_account "$OS_LOGIN" roles/iam.serviceAccountUser
fi

if [ -n "${KMS_KEY:-}" ]; then
  IFS=/ read -r _ key_project _ location _ ring _ key <<< "$KMS_KEY"
  at=(--location="$location" --project="$key_project")
  gcloud services enable cloudkms.googleapis.com --project="$key_project"
  gcloud kms keyrings describe "$ring" "${at[@]}" > /dev/null 2>&1 ||
    gcloud kms keyrings create "$ring" "${at[@]}"
  gcloud kms keys describe "$key" --keyring="$ring" "${at[@]}" > /dev/null 2>&1 ||
    gcloud kms keys create "$key" --keyring="$ring" "${at[@]}" --purpose=encryption
  grant() { # member, role
    gcloud kms keys add-iam-policy-binding "$key" --keyring="$ring" "${at[@]}" \
      --member="$1" --role="$2"
  }
  gcloud storage service-agent --project="$PROJECT" > /dev/null # creates the agent
  for service in gs-project-accounts compute-system; do
    grant "serviceAccount:service-$number@$service.iam.gserviceaccount.com" \
      roles/cloudkms.cryptoKeyEncrypterDecrypter
  done
  grant "$MEMBER" roles/cloudkms.viewer # so that `plan` can check the key
fi
