"""Before a machine is called ready: its watch lives, and its account may use the bucket."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tpuctl.errors import Denied
from tpuctl.jobs.launch import parcel
from tpuctl.polling import all_ended
from tpuctl.remote.transport import Result, Transport, retried

__all__ = ["WatchState", "ensure_watch", "prove_access", "settle_machines"]

Say = Callable[[str], None]

FOLDER = ".tpuctl/watch"
PROGRAMS = ("watchdog.py", "ensure_watchdog.py", "probe.py")
PATIENCE = 420.0  # seconds that Google's identity changes were seen to take
NO_PROOF = 91  # exit code of our own: everything else was well
# Renamed into place: another `up` may be running the very same files.
UNPACK = (
    'mkdir -p "$1" && new=$(mktemp -d "$1.XXXXXX") && tar -xf - -C "$new" '
    '&& mv -f "$new"/* "$1" && rmdir "$new" || { rm -rf "$new"; false; }'
)
ENSURE = 'python3 -S -I "$1/ensure_watchdog.py"'
PROVE = 'python3 -S -I "$1/probe.py" "$2" 0 >&2'
# At the same time: each of the two takes a moment to start.
BOTH = f"{{ {PROVE} & {ENSURE}; ensured=$?; wait $! || proved=no; }}"
BOTH += f"; [ $ensured = 0 ] || exit $ensured; [ -z $proved ] || exit {NO_PROOF}"


@dataclass(frozen=True)
class WatchState:
    """The watch of one machine. `failure` is what kept it from deleting the last time it tried."""

    worker: int
    was_started: bool  # just now, over SSH: it had not started with the machine
    doing: str
    failure: str


async def ensure_watch(transports: Mapping[int, Transport]) -> dict[int, WatchState]:
    """See to it that a watch lives on each machine, all at once."""
    states = await all_ended(_ensure(one, f"{UNPACK} && {ENSURE}") for one in transports.values())
    return dict(zip(transports, states, strict=True))


async def prove_access(
    transport: Transport, bucket: str, say: Say, *, seconds: float = PATIENCE
) -> None:
    """Wait until the machine's account may read and write the bucket, asked as that account.

    Raises Denied with the last refusal when that does not come to pass.
    """
    sent = await transport.run(["sh", "-c", UNPACK, "sh", FOLDER], input=parcel(PROGRAMS, {}))
    sent.checked(f"worker {transport.worker}: sending the probe")
    await _wait_for_access(transport, bucket, say, seconds)


async def settle_machines(
    transports: Mapping[int, Transport], bucket: str, say: Say, *, has_watch: bool
) -> dict[int, WatchState]:
    """Both at once: a watch on each machine where there are limits, and proof on the first one.

    One command each, where there is nothing to wait for.
    """
    first, *others = transports

    async def settle_first() -> WatchState | None:
        script = f"{UNPACK} && {BOTH if has_watch else f'{{ {PROVE} || exit {NO_PROOF}; }}'}"
        transport = transports[first]
        argv = ["sh", "-c", script, "sh", FOLDER, bucket]
        done = await transport.run(argv, input=parcel(PROGRAMS, {}))
        if done.exit_code == NO_PROOF:
            say(done.stderr.decode(errors="replace").strip())
            await _wait_for_access(transport, bucket, say, PATIENCE)
        else:
            done.checked(f"worker {transport.worker}: starting the watch")
        return _state(transport.worker, done.stdout) if has_watch else None

    work = [settle_first()]
    if has_watch:
        work += [_ensure(transports[one], f"{UNPACK} && {ENSURE}") for one in others]
    states = await all_ended(work)
    return {state.worker: state for state in states if state is not None}


async def _ensure(transport: Transport, script: str) -> WatchState:
    done = await transport.run(["sh", "-c", script, "sh", FOLDER], input=parcel(PROGRAMS, {}))
    done.checked(f"worker {transport.worker}: starting the watch")
    return _state(transport.worker, done.stdout)


def _state(worker: int, text: bytes) -> WatchState:
    found = json.loads(text)
    return WatchState(
        worker=worker,
        was_started=bool(found["was_started"]),
        doing=str(found.get("doing", "")),
        failure=str(found.get("failure", "")),
    )


async def _wait_for_access(transport: Transport, bucket: str, say: Say, seconds: float) -> None:
    last = ""
    argv = ["python3", "-S", "-I", f"{FOLDER}/probe.py", bucket, str(seconds)]

    async def probe() -> Result:
        nonlocal last
        async with transport.stream(argv) as stream:
            async for chunk in stream.chunks():
                lines = chunk.decode(errors="replace").splitlines()
                last = lines[-1] if lines else last
                say(f"waiting until the machine may use the bucket: {last}")
            return await stream.result()

    done = await retried(probe)
    if done.exit_code in (1, 2):
        raise Denied(
            "Machine may not use the bucket",
            f"worker {transport.worker}, gs://{bucket}: {last}",
            hint="Something takes the grants away, or forbids their use: look at the bucket's "
            "policy and at the organisation's policies.",
        )
    done.checked(f"worker {transport.worker}: asking for gs://{bucket}")
