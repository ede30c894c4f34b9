"""With --quiet, the commands of a stack print their result and errors alone."""

from __future__ import annotations

import re

from tests.support.projects import Project

ADVICE = re.compile(r"(?m)^(Next:|To |warning|note)")


async def test_quiet_commands_of_a_stack(project: Project) -> None:
    bench = project.stack()
    for is_up in (False, True):
        for command in ("status", "plan", "doctor", "jobs"):
            _, out, errors = bench.type("--quiet", command)
            assert (errors, ADVICE.findall(out)) == ("", []), (command, is_up)
        await bench.provision()
    for command in ("orphans", "down --yes", "orphans", "down --yes"):
        code, out, errors = bench.type("--quiet", *command.split())
        assert (code, errors, ADVICE.findall(out)) == (0, "", []), command
    code, out, errors = bench.type("--quiet", "logs")
    assert code != 0
    assert out == ""
    assert errors.startswith("error: "), "errors are printed"
