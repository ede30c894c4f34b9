"""The program in a process of its own: imports, pipes, signals and exits."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import succeed
from tests.support.locked_environment import OTHER_PYTHONS, own_environment
from tests.support.terminal import Terminal
from tpuctl.cli.main import run

HEAVY = ("google", "grpc", "asyncssh", "aiohttp", "yaml", "requests", "cryptography")
MINIMAL = "stack: bert\nproject: {id: my-project}\ntpu: {type: v3-8}\n"

pytestmark = pytest.mark.usefixtures("here")


@pytest.mark.parametrize("arguments", [["--help"], ["up", "--help"], ["local", "--help"]])
def test_help_imports_no_google_library(arguments: list[str]) -> None:
    program = (
        "import sys\n"
        "from tpuctl.cli.main import run\n"
        f"code = run({arguments!r})\n"
        "print(' '.join(sorted(one for one in sys.modules if sys.modules[one])), file=sys.stderr)\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "Usage" in done.stdout
    loaded = {name.partition(".")[0] for name in done.stderr.splitlines()[-1].split()}
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.parametrize(
    ("statement", "unneeded"),
    [
        # Typer converts arguments with pydantic, unless they need no conversion.
        ("from tpuctl.cli.main import run; assert run(['check', 'a.py', 'b.py']) == 0", "pydantic"),
        # Only machines need it: imported while the cloud creates them.
        (
            "import tpuctl.flows.stack.up, tpuctl.flows.stack.down, tpuctl.flows.reports.status",
            "asyncssh",
        ),
        # Only keys of service accounts sign anything.
        (
            "from tpuctl.cloud.clients import Cloud; from tpuctl.cloud.endpoints import Endpoint;"
            "cloud = Cloud(Endpoint('local', 'http://127.0.0.1:1', 'token'), 'my-project');"
            "[cloud.client(name) for name in ('tpu', 'storage', 'networks', 'rest')]",
            "cryptography",
        ),
        # Rich's table of names such as :key:, which would be replaced in messages.
        (
            "from tpuctl.view.terminal.tables import print_table; print_table(['name'], [['a']])",
            "rich._emoji_codes",
        ),
    ],
)
def test_slow_library_is_imported_only_when_needed(
    tmp_path: Path, statement: str, unneeded: str
) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("x = 1\n", "utf-8")
    program = f"import sys; {statement}; assert {unneeded!r} not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_types_imports_nothing_of_other_commands() -> None:
    program = "import sys\nfrom tpuctl.cli.main import run\nrun(['types'])\n"
    listing = "print(*sys.modules, file=sys.stderr)"
    loaded = {*succeed([sys.executable, "-c", program + listing]).stderr.split()}
    unneeded = {f"tpuctl.cli.catalog.{name}" for name in ("zones", "runtimes", "prices", "quota")}
    unneeded |= {f"tpuctl.catalog.{name}" for name in ("compute", "gke", "quota")}
    unneeded |= {"tpuctl.model.events", "tpuctl.api", "asyncio", "pydantic", "yaml"}
    assert not loaded & unneeded
    assert "tpuctl.cli.catalog.types" in loaded


def test_closed_pipe_is_not_an_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m tpuctl types | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert done.stdout.startswith("type")


def test_deleted_current_folder_is_reported(tmp_path: Path) -> None:
    missing = tmp_path / "gone"
    missing.mkdir()
    command = f'rmdir "$PWD"; exec {sys.executable} -m tpuctl check'
    done = subprocess.run(
        command, shell=True, cwd=missing, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "Change to another" in done.stderr


QUESTION = """
import asyncio, sys
from tpuctl.cli import app, main
async def ask(state):
    state.confirm("Go ahead?")
    await asyncio.sleep(0)
    print("went ahead", flush=True)
def command(context: app.typer.Context) -> None:
    context.obj.wait_for(ask(context.obj))
app.app.command()(command)
sys.exit(main.run(["command"]))
"""


def test_ctrl_c_declines_confirmation() -> None:
    parent_end, child_end = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", QUESTION], stdin=child_end, stdout=child_end, stderr=child_end
    ) as asking:
        os.close(child_end)
        output = b""
        while b"[Y/n]" not in output:
            output += os.read(parent_end, 1000)
        for _ in range(10):  # a signal just before the read is not handled by Python
            asking.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                asking.wait(2)
                break
        asking.kill()
        assert asking.returncode == 130
        with contextlib.suppress(OSError):  # the terminal closes after all output was read
            while more := os.read(parent_end, 1000):
                output += more
    os.close(parent_end)
    assert b"nothing was changed" in output
    # What follows has its own line. The space after the colon is printed while the answer is read.
    assert re.search(rb"\[Y/n\]: ?(\^C)*\r\n", output), output
    assert b"went ahead" not in output


def test_interrupted_import_prints_no_traceback() -> None:
    program = (
        "import signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'typer':\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "sys.argv = ['tpuctl', 'types']\n"
        "from tpuctl.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "")


EXITS = """
import atexit, sys
class Part:
    def __del__(self):
        print('torn down', file=sys.stderr, flush=True)
class Finder:
    part = Part()
    def find_spec(self, name, path, target=None):
        if name == 'typer':  # as a library does when it is imported
            atexit.register(lambda: print('at the end', file=sys.stderr))
sys.meta_path.insert(0, Finder())
sys.argv = ['tpuctl', 'types', '--nonsense']
from tpuctl.__main__ import main
main()
"""


def check_exit(python: str | Path) -> None:
    """Exit handlers run; nothing is torn down."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [python, "-c", EXITS],
        env=None if python == sys.executable else environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "--nonsense" in done.stderr
    assert done.stderr.endswith("at the end\n")


def test_exit_runs_exit_handlers_but_tears_nothing_down() -> None:
    check_exit(sys.executable)


@pytest.mark.soak
@pytest.mark.parametrize("minor", OTHER_PYTHONS)
def test_other_pythons_exit_the_same(minor: str) -> None:
    check_exit(own_environment(minor))


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        (">&-", 0),  # closed
        ("2>&-", 0),
        (">/dev/full", 1),
        ("--json >/dev/full", 1),
    ],
)
def test_full_output_device_is_reported(tmp_path: Path, ending: str, code: int) -> None:
    (tmp_path / "tpuctl.yaml").write_text(MINIMAL, "utf-8")
    done = subprocess.run(
        f"{sys.executable} -m tpuctl check {ending}",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "bug" not in done.stderr


def test_terminal_without_unicode() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tpuctl", "types"],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_fast_help_equals_parsed_help(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--version"], ["--help"], ["-h"], ["help"], []):
        assert run(arguments) == 0
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "tpuctl", *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == capsys.readouterr().out
        assert "typer" not in done.stderr


def test_plain_values_and_help_load_no_validator() -> None:
    program = (
        "import sys\n"
        "from tpuctl.cli.main import run\n"
        "for words in sys.argv[1:]:\n"
        "    run(words.split())\n"
        "print('pydantic' in sys.modules, file=sys.stderr)\n"
    )
    lines = ["run --help", "help local up", "--cloud local types --zone us-east1-d", "prices v3-8"]
    done = subprocess.run(
        [sys.executable, "-c", program, *lines], capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines()[-1] == "False"


@pytest.mark.parametrize("key", ["\x03", "n\n"], ids=["ctrl-c", "no"])
def test_init_writes_nothing_unless_confirmed(here: Path, key: str) -> None:
    (here / "train.py").write_text("import jax\n", "utf-8")
    with Terminal(here, "init", "--project", "my-project") as terminal:
        terminal.wait_for("Write tpuctl.yaml? [Y/n]")
        if key == "\x03":
            terminal.refuse_with_ctrl_c()
        else:
            terminal.type(key)
        assert terminal.end() == 130
    assert terminal.output.count("error: ") == 1
    assert "nothing was changed" in terminal.output
    assert [path.name for path in here.iterdir()] == ["train.py"]
