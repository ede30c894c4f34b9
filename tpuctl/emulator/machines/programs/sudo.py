"""The machines' sudo: passwordless root inside the machine only.

Runs on machines as `python3 -I -S sudo.py SETTINGS ARGUMENT...`, with only the standard library.
SETTINGS is a file with a JSON object:

    {"root": whether the machine has namespaces, and so a root user,
     "denied": the users who may not use sudo,
     "environment": the variables of root's programs, "passwd": root's /etc/passwd}

Root is the same user in a nested user namespace: with all capabilities there, and with the
machine's view of the file system, where read-only mounts stay read-only (mount_namespaces(7)). Any
program of the machine could do the same. Options and environment follow sudo(8) as configured on
Ubuntu, except that the search path stays the machine's.
"""

# Importing pathlib would make every command noticeably slower.
# ruff: noqa: PTH123

from __future__ import annotations

import ctypes
import getopt
import json
import os
import pwd
import re
import shutil
import sys
from typing import Any, NoReturn

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
PRESERVED_VARIABLES = ("TERM", "LANG", "DISPLAY", "COLORTERM", "TZ")
SHORT = "bD:EHhiKklNnPp:Su:Vvs"
LONG = (
    *("background", "chdir=", "help", "list", "login", "no-update", "non-interactive"),
    *("preserve-env=", "preserve-groups", "prompt=", "remove-timestamp", "reset-timestamp"),
    *("set-home", "shell", "stdin", "user=", "validate", "version"),
)
SHORT_NAMES = {
    "--background": "-b",
    "--chdir": "-D",
    "--list": "-l",
    "--login": "-i",
    "--set-home": "-H",
    "--shell": "-s",
    "--user": "-u",
    "--version": "-V",
}
NO_OP_OPTIONS = {"-v", "--validate", "-k", "--reset-timestamp", "-K", "--remove-timestamp"}
USAGE = "usage: sudo [-bEHiKklnSsVv] [-D directory] [-u user] [VAR=value] [command [argument ...]]"


def fail(text: str) -> NoReturn:
    print(f"sudo: {text}", file=sys.stderr)
    sys.exit(1)


def parse(arguments: list[str]) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Options by their short names, variables to set, and the command line."""
    ready = list(arguments)
    for number, argument in enumerate(ready):  # getopt supports no optional values
        if not argument.startswith("-") or argument == "--":
            break
        if argument == "--preserve-env":
            ready[number] = "-E"
    try:
        pairs, rest = getopt.getopt(ready, SHORT, LONG)
    except getopt.GetoptError as problem:
        fail(f"{problem}\n{USAGE}")
    options = {SHORT_NAMES.get(name, name): value for name, value in pairs}
    variables = {}
    while rest and re.match(r"[A-Za-z_]\w*=", rest[0]):
        name, _, value = rest.pop(0).partition("=")
        variables[name] = value
    return options, variables, rest


def account(name: str) -> pwd.struct_passwd:
    """A user of the machine, by name or by `#UID`."""
    try:
        return pwd.getpwuid(int(name[1:])) if name.startswith("#") else pwd.getpwnam(name)
    except (KeyError, ValueError):
        fail(f"unknown user {name}")


def environment(
    options: dict[str, str], base: dict[str, str], user: pwd.struct_passwd
) -> dict[str, str]:
    """The command's environment: the machine's, and few of the caller's variables without -E."""
    listed = options.get("--preserve-env", "").split(",")
    preserved = {
        name: value
        for name, value in os.environ.items()
        if "-E" in options
        or name in PRESERVED_VARIABLES
        or name in listed
        or name.startswith("LC_")
    }
    identity = {"USER": user.pw_name, "LOGNAME": user.pw_name, "HOME": user.pw_dir}
    path = f"{base['PATH']}:/usr/local/sbin:/usr/sbin:/sbin"
    variables = base | preserved | {"PATH": path} | ({} if "-E" in options else identity)
    if "-H" in options:
        variables["HOME"] = user.pw_dir
    return variables | {
        "SHELL": user.pw_shell,
        "SUDO_USER": os.environ.get("USER", ""),
        "SUDO_UID": str(os.getuid()),
        "SUDO_GID": str(os.getgid()),
    }


def become_root(passwd: str) -> None:
    """Enter a user namespace whose root is this user. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()

    def check(result: int) -> None:
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    check(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS))
    maps = (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1"))
    for file, text in maps:
        with open(f"/proc/self/{file}", "w", encoding="ascii") as map_:
            map_.write(text)
    check(libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None))
    check(libc.mount(os.fsencode(passwd), b"/etc/passwd", None, ctypes.c_ulong(MS_BIND), None))


def command_line(
    options: dict[str, str], command: list[str], shell: str, path: str
) -> tuple[str, list[str]]:
    """The program's path and its argv."""
    if "-i" in options or "-s" in options:
        name = f"-{os.path.basename(shell)}" if "-i" in options else shell  # noqa: PTH119
        # Like sudo, escape every character that is special to shells.
        text = " ".join(re.sub(r"([^\w$-])", r"\\\1", part) for part in command)
        return shell, [name, "-c", text] if command else [name]
    program = shutil.which(command[0], path=path)
    if program is None:
        fail(f"{command[0]}: command not found")
    return program, command


def main(arguments: list[str]) -> int:
    with open(arguments[0], encoding="utf-8") as file:
        settings: dict[str, Any] = json.load(file)
    options, variables, command = parse(arguments[1:])
    if os.environ.get("USER") in settings["denied"]:
        fail("a password is required")  # as of users without a password, with -n
    if not settings["root"]:
        fail(
            "root is not available on machines of this local cloud: user namespaces are not "
            "available on this computer"
        )
    is_shell = "-i" in options or "-s" in options
    if not command and not is_shell:
        if "-l" in options:
            caller = os.environ.get("USER", "")
            print(f"User {caller} may run the following commands on {os.uname().nodename}:")
            print("    (ALL) NOPASSWD: ALL")
            return 0
        if "-V" in options:
            print("Sudo version 1.9 (emulated by the local cloud)")
            return 0
        if NO_OP_OPTIONS & options.keys():
            return 0
        print(USAGE, file=sys.stderr)
        return 1
    name = options.get("-u", "root")
    user = account(name)
    is_root = user.pw_name == "root"
    if not is_root and user.pw_uid != os.getuid():
        fail(f"{name}: on machines of the local cloud, commands run only as yourself or as root")
    child_environment = environment(options, settings["environment"], user)
    try:
        if is_root:
            become_root(settings["passwd"])
    except OSError as problem:
        fail(f"failed to create a user namespace for root: {problem.strerror}")
    program, argv = command_line(options, command, user.pw_shell, child_environment["PATH"])
    child_environment["SUDO_COMMAND"] = " ".join([program, *argv[1:]])
    if "-b" in options and os.fork():
        return 0
    try:
        if "-D" in options or "-i" in options:
            os.chdir(options.get("-D", user.pw_dir))
        os.execve(program, argv, child_environment | variables)
    except OSError as problem:
        fail(f"{problem.filename or program}: {problem.strerror}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
