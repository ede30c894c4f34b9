"""One SSH session: a program on the machine, with its streams forwarded as raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import shutil
import signal
import struct
import sys
import termios
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol, cast

import asyncssh
from asyncssh.channel import SSHChannel
from asyncssh.constants import EXTENDED_DATA_STDERR as STDERR
from asyncssh.stream import SSHServerStreamSession

from tpuctl.emulator.machines.interface import MachineError
from tpuctl.emulator.machines.programs.processes import Exit, RunningProcess

SIGNALS = ("HUP", "INT", "KILL", "TERM", "QUIT", "USR1", "USR2")
SCP_SERVER = re.compile(r"scp (-\S+ )*-\w*[tf]\b")
CHUNK_BYTES = 1 << 18
PIPE_BYTES = 1 << 20


class ProgramStarter(Protocol):
    """Starts a session's program as the user who logged in."""

    async def __call__(
        self,
        command: str | None,
        *,
        extra: Mapping[str, str],
        files: tuple[int, int, int] | None,
        terminal: tuple[int, int] | None,
    ) -> tuple[RunningProcess, Callable[[int], None]]:
        """Start the command, or a shell if None. The second value signals its process group."""
        ...


class Session(SSHServerStreamSession[bytes]):
    """Serves exec, shell and terminals; SFTP is left to asyncssh's server.

    So is the legacy scp protocol if this computer, and so the machine, has no scp program; that
    server does not preserve file modes.
    """

    def __init__(
        self, programs: ProgramStarter, files: Callable[[SSHChannel[bytes]], asyncssh.SFTPServer]
    ) -> None:
        super().__init__(None, files, 3, True)
        self._programs = programs
        self._channel: asyncssh.SSHServerChannel[bytes] | None = None
        self._is_program = False
        self._wants_terminal = False
        self._input: _InputPump | None = None
        self._outputs: list[_OutputPump] = []
        self._send_signal: Callable[[int], None] | None = None
        self._buffered_input = deque[bytes]()
        self._buffered_eof = False
        self._terminal: int | None = None
        self._is_disconnected = False

    def connection_made(self, chan: SSHChannel[bytes]) -> None:
        self._channel = cast("asyncssh.SSHServerChannel[bytes]", chan)
        chan.set_write_buffer_limits(high=4 << 20)
        super().connection_made(chan)

    def pty_requested(
        self, term_type: str, term_size: tuple[int, int, int, int], term_modes: Mapping[int, int]
    ) -> bool:
        self._wants_terminal = True
        return True

    def shell_requested(self) -> bool:
        self._is_program = True
        return True

    def exec_requested(self, command: str) -> bool:
        self._is_program = not SCP_SERVER.match(command) or shutil.which("scp") is not None
        return True

    def session_started(self) -> None:
        if not self._is_program:
            super().session_started()
            return
        assert self._channel is not None
        connection = self._channel.get_connection()
        connection.create_task(self._run(self._channel))

    async def _run(self, channel: asyncssh.SSHServerChannel[bytes]) -> None:
        """From the start of the program to the end of its output."""
        extra = {
            name: value
            for name, value in channel.get_environment().items()
            if name == "LANG" or name.startswith("LC_")
        }
        # As in OpenSSH's session.c. With these, bash of Debian and Ubuntu reads ~/.bashrc for
        # commands too (SSH_SOURCE_BASHRC in its config-top.h).
        client, server = (channel.get_extra_info(name)[:2] for name in ("peername", "sockname"))
        extra["SSH_CLIENT"] = f"{client[0]} {client[1]} {server[1]}"
        extra["SSH_CONNECTION"] = " ".join(str(part) for part in (*client, *server))
        command = channel.get_command()
        try:
            if self._wants_terminal:
                columns, rows, *_ = channel.get_terminal_size()
                extra["TERM"] = channel.get_terminal_type() or "dumb"
                result = await self._run_on_terminal(command, extra, (rows, columns))
            else:
                result = await self._run_on_pipes(command, extra)
        except (MachineError, OSError) as problem:
            with contextlib.suppress(OSError):
                channel.write(f"{problem}\n".encode(), STDERR)
                channel.exit(255)
            return
        if result.signal is None:
            channel.exit(result.status)
        else:
            name = signal.Signals(result.signal).name.removeprefix("SIG")
            channel.exit_with_signal(name, result.has_core)

    async def _run_on_pipes(self, command: str | None, extra: Mapping[str, str]) -> Exit:
        (stdin, into), (out, stdout), (error, stderr) = _pipe(), _pipe(), _pipe()
        try:
            started, self._send_signal = await self._programs(
                command, extra=extra, files=(stdin, stdout, stderr), terminal=None
            )
        except BaseException:
            for descriptor in (into, out, error):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (stdin, stdout, stderr):
                os.close(descriptor)
        self._connect(_InputPump(into, self._require_channel()), [(out, None), (error, STDERR)])
        # Like sshd: the session lasts until all writers have closed its output.
        await asyncio.gather(*(outlet.ended for outlet in self._outputs))
        return await started.exit

    async def _run_on_terminal(
        self, command: str | None, extra: Mapping[str, str], size: tuple[int, int]
    ) -> Exit:
        started, self._send_signal = await self._programs(
            command, extra=extra, files=None, terminal=size
        )
        assert started.terminal is not None
        self._terminal = started.terminal
        os.set_blocking(self._terminal, False)
        _apply_modes(self._terminal, self._require_channel().get_terminal_modes())
        self._connect(
            _InputPump(os.dup(self._terminal), self._require_channel(), is_terminal=True),
            [(self._terminal, None)],
        )
        result = await started.exit
        # Background programs may keep the terminal open; output written before the exit is sent.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._outputs[0].ended), 0.5)
        self._outputs[0].close()
        return result

    def _require_channel(self) -> asyncssh.SSHServerChannel[bytes]:
        assert self._channel is not None
        return self._channel

    def _connect(self, input_pump: _InputPump, outputs: list[tuple[int, int | None]]) -> None:
        self._input = input_pump
        channel = self._require_channel()
        self._outputs = [_OutputPump(descriptor, channel, kind) for descriptor, kind in outputs]
        if self._is_disconnected:
            self._disconnect()
            return
        for data in self._buffered_input:
            input_pump.write(data)
        self._buffered_input.clear()
        if self._buffered_eof:
            input_pump.end()

    def _disconnect(self) -> None:
        """Detach from the program; closing a terminal sends SIGHUP to its foreground group."""
        if self._input is not None:
            self._input.close()
        for outlet in self._outputs:
            outlet.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_disconnected = True
        self._disconnect()
        super().connection_lost(exc)

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if not self._is_program:
            super().data_received(data, datatype)
        elif self._input is None:
            self._buffered_input.append(data)
        else:
            self._input.write(data)

    def eof_received(self) -> bool:
        if not self._is_program:
            return super().eof_received()
        self._buffered_eof = True
        if self._input is not None:
            self._input.end()
        return True  # the program may still write output

    def pause_writing(self) -> None:
        super().pause_writing()
        for outlet in self._outputs:
            outlet.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        for outlet in self._outputs:
            outlet.resume()

    def signal_received(self, signal: str) -> None:
        if signal in SIGNALS and self._send_signal is not None:
            self._send_signal(_signal_number(signal))

    def break_received(self, msec: int) -> bool:
        return False

    def soft_eof_received(self) -> None:
        return None

    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        if self._terminal is not None and not self._outputs[0].ended.done():
            size = struct.pack("HHHH", height, width, pixwidth, pixheight)
            with contextlib.suppress(OSError):
                fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)


class _OutputPump:
    """Copies a program's output to the channel, with backpressure."""

    def __init__(
        self, descriptor: int, channel: asyncssh.SSHServerChannel[bytes], kind: int | None
    ) -> None:
        self._descriptor = descriptor
        self._channel = channel
        self._kind = kind
        self._loop = asyncio.get_running_loop()
        self._is_paused = False
        self.ended: asyncio.Future[None] = self._loop.create_future()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._on_readable)

    def _on_readable(self) -> None:
        try:
            data = os.read(self._descriptor, CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:  # a terminal that all programs have closed
            data = b""
        if not data:
            self.close()
            return
        try:
            self._channel.write(data, self._kind)
        except OSError:  # the client is gone
            self.close()

    def pause(self) -> None:
        if not self.ended.done() and not self._is_paused:
            self._is_paused = True
            self._loop.remove_reader(self._descriptor)

    def resume(self) -> None:
        if not self.ended.done() and self._is_paused:
            self._is_paused = False
            self._loop.add_reader(self._descriptor, self._on_readable)

    def close(self) -> None:
        if not self.ended.done():
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self.ended.set_result(None)


class _InputPump:
    """Copies the client's input to the program, with backpressure."""

    def __init__(
        self,
        descriptor: int,
        channel: asyncssh.SSHServerChannel[bytes],
        *,
        is_terminal: bool = False,
    ) -> None:
        self._descriptor = descriptor
        self._channel = channel
        self._is_terminal = is_terminal
        self._loop = asyncio.get_running_loop()
        self._waiting = deque[memoryview]()
        self._is_ending = False
        self._is_open = True
        os.set_blocking(descriptor, False)

    def write(self, data: bytes) -> None:
        if not self._is_open:
            return
        self._waiting.append(memoryview(data))
        if len(self._waiting) == 1:
            self._flush()
            if self._waiting and self._is_open:
                self._channel.pause_reading()
                self._loop.add_writer(self._descriptor, self._on_writable)

    def end(self) -> None:
        """End of input; a terminal stays open, as with sshd."""
        self._is_ending = not self._is_terminal
        if self._is_ending and not self._waiting:
            self.close()

    def _on_writable(self) -> None:
        self._flush()
        if not self._waiting:
            if self._is_open:
                self._loop.remove_writer(self._descriptor)
            if self._is_ending:
                self.close()
            self._channel.resume_reading()

    def _flush(self) -> None:
        while self._waiting:
            try:
                written = os.write(self._descriptor, self._waiting[0])
            except BlockingIOError:
                return
            except OSError:  # the program closed its input
                self.close()
                return
            if written < len(self._waiting[0]):
                self._waiting[0] = self._waiting[0][written:]
            else:
                self._waiting.popleft()

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._waiting.clear()
            self._loop.remove_writer(self._descriptor)
            os.close(self._descriptor)


def _pipe() -> tuple[int, int]:
    ends = os.pipe()
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # pipe memory per user is limited
            fcntl.fcntl(ends[0], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return ends


def _signal_number(name: str) -> int:
    return signal.Signals[f"SIG{name}"]


def _apply_modes(terminal: int, modes: Mapping[int, int]) -> None:
    """Apply the client's terminal modes that matter to programs."""
    mode_flags = (
        (36, 0, termios.ICRNL),
        (50, 3, termios.ISIG),
        (51, 3, termios.ICANON),
        (53, 3, termios.ECHO),
        (70, 1, termios.OPOST),
        (72, 1, termios.ONLCR),
    )
    try:
        attributes = termios.tcgetattr(terminal)
        for opcode, index, flag in mode_flags:
            if opcode in modes:
                attributes[index] &= ~flag
                attributes[index] |= flag if modes[opcode] else 0
        termios.tcsetattr(terminal, termios.TCSANOW, attributes)
    except termios.error:
        return
