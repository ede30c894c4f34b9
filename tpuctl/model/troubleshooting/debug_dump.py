"""The archive of `debug-dump`: its files, and what was left out or replaced."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass, field

from tpuctl.model.text.redaction import Redactor


@dataclass
class DumpFile:
    name: str
    about: str
    text: str

    @property
    def size(self) -> int:
        return len(self.text.encode(errors="replace"))


@dataclass
class Dump:
    """The files of an archive, and why others are not in it."""

    files: list[DumpFile] = field(default_factory=list)
    omitted: dict[str, str] = field(default_factory=dict)
    replaced: dict[str, int] = field(default_factory=dict)  # number of values by kind

    def redact(self, redactor: Redactor) -> None:
        for file in self.files:
            file.text = redactor.redact(file.text)
        self.omitted = {name: redactor.redact(reason) for name, reason in self.omitted.items()}
        self.replaced = redactor.counts

    def archive(self) -> bytes:
        """The archive as a zip file, which every system opens."""
        target = io.BytesIO()
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in [*self.files, self._contents()]:
                archive.writestr(file.name, file.text.encode(errors="replace"))
        return target.getvalue()

    def _contents(self) -> DumpFile:
        contents = {
            "files": {file.name: file.about for file in self.files},
            "omitted": self.omitted,
            "replaced": self.replaced,
        }
        return DumpFile("contents.json", "this list", json.dumps(contents, indent=2) + "\n")
