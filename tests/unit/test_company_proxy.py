"""A company's proxy and certificates: the stack file's keys, and variables on machines."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.stacks import stack_from
from tpuctl.errors import Diagnostic, InvalidStack
from tpuctl.jobs.shipped.machine.network_variables import set_variables, use_network
from tpuctl.local_cloud.certificate_authority import authority_files
from tpuctl.model.stack.proxy import network_settings

FILE = "stack: s\nproject: my-project\ntpu: {type: v2-8, zones: [us-central1-b]}\n"
PROXY = "http://proxy.example.com:3128"


@pytest.fixture
def pem(tmp_path: Path) -> str:
    return authority_files(tmp_path / "company").certificate.read_text()


def problems(folder: Path, text: str) -> tuple[Diagnostic, ...]:
    try:
        return stack_from(folder, FILE + text).problems
    except InvalidStack as error:
        return error.diagnostics


@pytest.mark.parametrize(
    ("proxy", "summary"),
    [
        ("http://ann:geheim@proxy.example.com:3128", "Password in network.proxy"),
        ("proxy.example.com:3128", "Invalid proxy"),
        ("http://proxy.example.com", "Invalid proxy"),
        ("socks5://proxy.example.com:1080", "Invalid proxy"),
        ("http://proxy.example.com:3128/path", "Invalid proxy"),
        ("http://proxy.example.com:99999", "Invalid proxy"),
    ],
)
def test_other_proxies_are_refused(tmp_path: Path, proxy: str, summary: str) -> None:
    [problem] = problems(tmp_path, f"network: {{proxy: '{proxy}'}}\n")
    assert problem.summary == summary
    assert "geheim" not in str(problem)


def test_certificates_are_checked(tmp_path: Path, pem: str) -> None:
    texts = {
        "key.pem": authority_files(tmp_path / "company").key.read_text() + pem,
        "none.pem": "no certificate",
        "damaged.pem": pem.replace("MII", "AAA"),
        "large.pem": pem * 2000,
        "good.pem": f"Subject: Example Corp.\n{pem}",
    }
    reasons = ["private key", "no certificates", "damaged", "larger than", ""]
    for (name, text), reason in zip(texts.items(), reasons, strict=True):
        (tmp_path / name).write_text(text)
        reported = problems(tmp_path, f"network: {{ca: {name}}}\n")
        assert [reason in problem.detail for problem in reported] == [True] * bool(reason), name
    for value in ("good.pem", pem):  # a controller's stack file has the certificates themselves
        text = FILE + f"network: {{ca: {json.dumps(value)}}}\n"
        settings = network_settings(stack_from(tmp_path, text).file, tmp_path)
        assert settings == {"proxy": None, "no_proxy": [], "ca": pem}
    [problem] = problems(tmp_path, 'network: {ca: "absent\\n.pem"}\n')
    assert problem.summary == "Invalid value"
    [problem] = problems(tmp_path, "network: {ca: absent.pem}\n")
    assert problem.summary == "No such file"


def test_proxy_of_secret_does_not_get_requests_to_google(tmp_path: Path) -> None:
    text = FILE + "job: {secrets: {HTTPS_PROXY: secret:proxy}}\n"
    settings = network_settings(stack_from(tmp_path, text).file, tmp_path)
    assert settings is not None
    assert settings["proxy"] is None
    assert ".googleapis.com" in settings["no_proxy"]
    assert network_settings(stack_from(tmp_path, FILE).file, tmp_path) is None


def test_variables_of_machine_and_of_job(
    tmp_path: Path, pem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = tmp_path / "system.pem"
    system.write_text("SYSTEM")
    environment = {"SSL_CERT_FILE": str(system), "NO_PROXY": "own.example.com"}
    monkeypatch.setattr(os, "environ", environment)
    use_network({"proxy": PROXY, "no_proxy": [".googleapis.com"], "ca": pem}, str(tmp_path))
    for name in ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY"):
        assert environment[name] == PROXY
    assert environment["no_proxy"] == environment["NO_PROXY"] == ".googleapis.com,own.example.com"
    bundle = Path(environment["SSL_CERT_FILE"])
    assert bundle.read_text() == f"SYSTEM\n{pem}"
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO"):
        assert environment[name] == str(bundle)
    set_variables(environment, {"HTTPS_PROXY": "http://mine:1", "SSL_CERT_FILE": "mine.pem"})
    assert environment["HTTPS_PROXY"] == "http://mine:1"
    assert environment["SSL_CERT_FILE"] == "mine.pem"
    assert "https_proxy" not in environment, "which Python prefers"
