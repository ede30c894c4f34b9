"""What is taken out of records and archives, and what stays readable."""

from __future__ import annotations

import base64
import json

import pytest

from tpuctl.model.text.redaction import (
    Redactor,
    arguments_without_secrets,
    named_secrets,
    secret_values,
    without_keys,
    without_secrets,
)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("export DB_PASSWORD=hush-hush", "hush-hush"),
        ("job: {env: {WANDB_API_KEY: 0f1e2d3c, LR: 3}}", "0f1e2d3c"),
        (json.dumps({"token": 'with "quotes" in it'}), 'with \\"quotes\\" in it'),
        (json.dumps({"text": json.dumps({"password": "nested word"})}), "nested word"),
        ("{'client_secret': 'single word'}", "single word"),
        ('metadata { key: "db-password" value: "s3cr3t" }', "s3cr3t"),
        ('{"key": "db-password", "value": "s3cr3t"}', "s3cr3t"),
        ("tool --api-key 0123456789abc --verbose", "0123456789abc"),
        ("Authorization: Bearer abcdefgh.ijkl", "abcdefgh.ijkl"),
        ("authorization: basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("https://ann:pa55@host/simple", "pa55"),
        ("token is ya29.a0AfB_byC1234567890", "ya29.a0AfB_byC1234567890"),
        ("logged in with hf_abcdefghijklmnopqrst", "hf_abcdefghijklmnopqrst"),
        (f"key {'AIza' + 'b' * 35} is invalid", "AIza" + "b" * 35),
        ("jwt eyJhbGciOiJSUzI1.eyJpc3MiOiJhIn0.c2ln", "eyJpc3MiOiJhIn0"),
        ('["train.py", "--password", "on the line, too"]', "on the line, too"),
        ("['--hf-token', 'abcdef']", "abcdef"),
        ("https://ann:p@ss55@host/x", "ss55"),
        ("https://0123456789abcdef0123@host/x", "0123456789abcdef0123"),
        (f"http://127.0.0.1:80/t/{'gnZq-CIe' * 5}/b/x", "gnZq-CIe"),
        ("https://host/o?X-Goog-Signature=0a1b2c3d4e", "0a1b2c3d4e"),
        (base64.b64encode(b'{"type": "service_account"}' + b"x" * 60).decode(), "VfYWNjb3VudCJ9"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "MIIE"),
    ],
)
def test_secrets_are_recognized(text: str, secret: str) -> None:
    assert secret in text
    assert secret not in without_secrets(text)
    assert secret not in Redactor().redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "secrets: {HF_TOKEN: env, OTHER: 'secret:name@3', THIRD: projects/123456/secrets/x}",
        "tokens_per_second: 1001.5, tokenizer: wordpiece",
        '"nextPageToken": ""',
        "ssh_key: auto",
        "cleared at 12:34:56, std::vector, 1e-3",
        "listening on 127.0.0.1:8080 and ::1 and 0.0.0.0",
        "google-cloud-secret-manager: 2.32",
    ],
)
def test_other_texts_stay(text: str) -> None:
    assert without_secrets(text) == text


@pytest.mark.parametrize("text", ["cleared at 12:34:56, std::vector", "127.0.0.1 ::1 0.0.0.0"])
def test_times_and_loopback_are_not_replaced(text: str) -> None:
    assert Redactor().redact(text) == text


def test_known_secrets_are_replaced_and_names_kept() -> None:
    environment = {"HF_TOKEN": "of-hugging", "AWS_SECRET_ACCESS_KEY": "of-amazon", "SHORT_KEY": "a"}
    plain = {"PATH": "/usr/bin:/bin", "PWD": "/home/ann/work", "KEYBOARD": "german-layout"}
    assert secret_values(environment | plain) == {"of-hugging", "of-amazon"}
    value = 'a "b" c/d'
    text = f"{value} {json.dumps(value)} a%20%22b%22%20c%2Fd"
    assert Redactor(secrets=[value]).redact(text) == 'secret-1 "secret-1" secret-1'
    assert named_secrets("DB_PASSWORD: hush-hush") == {"hush-hush"}
    text = "pass --password VALUE or TOKEN: env; basic authentication of https://host/x@y"
    assert without_keys(text) == text
    assert "MIIE" not in without_keys("bad: -----BEGIN PRIVATE KEY-----\\nMIIEx\\n")


def test_same_name_has_same_placeholder() -> None:
    redactor = Redactor(projects=["my-project"], home="/home/ann")
    assert (
        redactor.redact("Ann@example.com and bob@example.com at 203.0.113.9/32, 2001:db8::1")
        == "account-1 and account-2 at address-2/32, address-1"
    )
    assert redactor.redact("ann@example.com at 203.0.113.9") == "account-1 at address-2"
    account = "bert-tpu@my-project.iam.gserviceaccount.com"
    assert redactor.redact(f"{account} of gs://bert-my-project in my-projects") == (
        "service-account-1 of gs://bert-project-1 in my-projects"
    )
    assert redactor.redact("projects/other-project/zones/us-east1-b") == (
        "projects/project-2/zones/us-east1-b"
    )
    assert redactor.redact("/home/ann/job.py, /home/anna") == "~/job.py, /home/anna"
    assert redactor.redact("billed to 01AB23-45CD67-89EF01") == "billed to billing-account-1"
    key = f"ssh-ed25519 {'AAAA' + 'b' * 64} ann@laptop"
    assert redactor.redact(f'"{key}"') == '"ssh-ed25519 public-key-1"'
    assert redactor.counts == {
        "account": 2,
        "address": 2,
        "billing-account": 1,
        "project": 2,
        "public-key": 1,
        "service-account": 1,
    }


HIDDEN = [
    ("--password", "a;b c,(d)"),
    ("--db_passwd=x=y z",),
    ("--api-key=K3y,and;more",),
    ("--token", "abc"),
    ("--wandb_key", "0f1e2d3c"),
    ("-auth", "hush-hush"),
    ("HF_TOKEN=in-a-variable",),
    ("--url", "https://ann:pa55word@host/simple"),
    ("--json", '{"password": "nested word"}'),
]


@pytest.mark.parametrize("words", HIDDEN)
def test_values_of_arguments_are_hidden_whatever_they_contain(words: tuple[str, ...]) -> None:
    line, values = arguments_without_secrets(["run", "train.py", "--", *words, "--steps", "9"])
    assert line[:3] == ["run", "train.py", "--"] and line[-2:] == ["--steps", "9"]
    (word,) = [each for each in line if "[secret]" in each]
    parts = (",and", "z", "b c", "abc", "0f1", "hush", "in-a", "pa55", "nested")
    assert not [part for part in parts if part in word]
    assert line[3:-3] == [*words[:-1]]
    assert all(value in " ".join(words) for value in values)
    assert not values & {"0f1e2d3c", "hush-hush"}, "a name such as label_key is no proof"


def test_other_arguments_stay() -> None:
    words = ["run", "--secret", "HF_TOKEN", "--max-tokens", "512", "t.py", "--", "--token", "--x"]
    words += ["a=b", "--tokenizer", "wordpiece", "--no-auth", "--", "/p/keys=x"]
    assert arguments_without_secrets(words) == (words, set())
