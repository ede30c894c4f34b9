"""Recordings in every supported format are read as the same calls."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from tpuctl.emulator.replay.recordings import RecordedCall, read_recording
from tpuctl.errors import Usage

URL = "https://compute.googleapis.com/compute/v1/projects/p-1/global/networks?alt=json"
BODY, ANSWER = '{"name": "n-1"}', '{"kind": "compute#operation"}'
JSON = "application/json"

HAR = json.dumps(
    {
        "log": {
            "entries": [
                {
                    "request": {
                        "method": "POST",
                        "url": URL,
                        "headers": [{"name": "Content-Type", "value": JSON}],
                        "postData": {"mimeType": JSON, "text": BODY},
                    },
                    "response": {
                        "status": 200,
                        "headers": [{"name": "Content-Type", "value": JSON}],
                        "content": {
                            "encoding": "base64",
                            "text": base64.b64encode(ANSWER.encode()).decode(),
                        },
                    },
                }
            ]
        }
    }
)
GO_VCR = f"""\
version: 2
interactions:
  - id: 0
    request:
      body: '{BODY}'
      headers: {{Content-Type: [{JSON}]}}
      url: {URL}
      method: POST
    response:
      body: '{ANSWER}'
      headers: {{Content-Type: [{JSON}]}}
      status: 200 OK
      code: 200
"""
VCR_PY = f"""\
interactions:
- request:
    body: '{BODY}'
    headers: {{Content-Type: [{JSON}]}}
    method: POST
    uri: {URL}
  response:
    body: {{string: '{ANSWER}'}}
    headers: {{Content-Type: [{JSON}]}}
    status: {{code: 200, message: OK}}
version: 1
"""
RUBY_VCR = f"""\
http_interactions:
- request:
    method: post
    uri: {URL}
    body: {{encoding: UTF-8, string: '{BODY}'}}
    headers: {{Content-Type: [{JSON}]}}
  response:
    status: {{code: 200, message: OK}}
    headers: {{Content-Type: [{JSON}]}}
    body: {{encoding: UTF-8, string: '{ANSWER}'}}
recorded_with: VCR 6
"""
HTTP_LOG = f"""\
POST {URL}
Content-Type: {JSON}

{BODY}

200 OK
Content-Type: {JSON}

{ANSWER}

---

GRPC /google.example.v1.Example/Get

status: 0
"""
HTTPREPLAY = json.dumps(
    {
        "Version": "0.2",
        "Entries": [
            {
                "Request": {
                    "Method": "POST",
                    "URL": URL,
                    "Header": {},
                    "MediaType": JSON,
                    "BodyParts": [base64.b64encode(BODY.encode()).decode()],
                },
                "Response": {
                    "StatusCode": 200,
                    "Header": {"Content-Type": [JSON]},
                    "Body": base64.b64encode(ANSWER.encode()).decode(),
                },
            }
        ],
    }
)
TRANSCRIPT = json.dumps(
    {
        "kind": "rest",
        "verb": "POST",
        "override": "",
        "path": "/compute/v1/projects/p-1/global/networks",
        "query": "alt=json",
        "host": "compute.googleapis.com",
        "type": JSON,
        "body": BODY,
        "status": 200,
        "answer_type": JSON,
        "answer": ANSWER,
    }
)
FORMATS = {
    "HAR": HAR,
    "VCR cassette": GO_VCR,
    "VCR cassette of Python": VCR_PY,
    "VCR cassette of Ruby": RUBY_VCR,
    "config-connector log": HTTP_LOG,
    "httpreplay": HTTPREPLAY,
    "transcript": TRANSCRIPT,
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_yields_the_call(tmp_path: Path, name: str) -> None:
    file = tmp_path / "recording"
    file.write_text(FORMATS[name], "utf-8")

    recording = read_recording(file)

    [call] = recording.calls
    assert name.startswith(recording.format)
    assert (call.verb, call.url, call.status) == ("POST", URL, 200)
    assert json.loads(call.body) == json.loads(BODY)
    assert json.loads(call.answer) == json.loads(ANSWER)
    assert call.headers == {"content-type": JSON}
    assert call.answer_headers == {"content-type": JSON}


def test_multipart_upload_is_rebuilt_from_its_parts(tmp_path: Path) -> None:
    document = json.loads(HTTPREPLAY)
    request = document["Entries"][0]["Request"]
    request["MediaType"] = "multipart/related"
    parts = (b'{"name": "o", "contentType": "text/plain"}', b"data")
    request["BodyParts"] = [base64.b64encode(part).decode() for part in parts]
    file = tmp_path / "upload.replay"
    file.write_text(json.dumps(document), "utf-8")

    [call] = read_recording(file).calls

    boundary = call.headers["content-type"].partition("boundary=")[2].encode()
    sections = call.body.split(b"--" + boundary)
    assert sections[1].endswith(parts[0] + b"\r\n")
    assert sections[2] == b"\r\nContent-Type: text/plain\r\n\r\ndata\r\n"
    assert sections[3] == b"--\r\n"


@pytest.mark.parametrize("text", ["", "root:x:0:0:root\n", "{}", '{"a": 1}', "a: 1\n", "[1, 2]"])
def test_other_file_is_refused_by_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "notes.txt"
    file.write_text(text, "utf-8")
    with pytest.raises(Usage, match="Unknown format") as raised:
        read_recording(file)
    assert raised.value.diagnostics[0].detail == str(file)


@pytest.mark.parametrize(
    "text",
    [
        *('{"log": {"entries": [{}]}}', '{"log": 1}', "interactions:\n- request: {}\n"),
        *("interactions: [", '{"kind": "rest", "verb"', '{"Entries": [{"Request": {}}]}'),
    ],
)
def test_damaged_recording_is_refused_by_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "damaged"
    file.write_text(text, "utf-8")
    with pytest.raises(Usage, match="Malformed recording") as raised:
        read_recording(file)
    assert str(file) in raised.value.diagnostics[0].detail


def test_masked_error_and_removed_fields_are_noted(tmp_path: Path) -> None:
    masked = RecordedCall("", "GET", URL, 404, answer=b"fake error message")
    assert masked.is_masked
    file = tmp_path / "_http.log"
    file.write_text(HTTP_LOG, "utf-8")
    assert not read_recording(file).calls[0].has_all_fields
