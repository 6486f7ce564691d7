"""Process groups of Flower's programs on this machine.

A SuperLink's children outlive a plain kill, and some lead a group of their own.  So every process
that is started leads a group; to end it, that group and all groups below it are ended.  The file
processes.json lists the groups, so that they can be ended after a crash.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from fedadmm.core import atomic_files
from fedadmm.core.errors import EngineError

PROCESSES = "processes.json"
GRACE = 8.0
"""Seconds between asking a group to end and ending it."""
_SAME_START = 2.0
"""Seconds that two looks at one process's start may differ by: systems round their own start."""
_LOWEST_PORT, _HIGHEST_PORT = 10_000, 32_767
"""Below what Linux (32768), macOS and Windows (49152) give to outgoing connections."""


class Recorded(NamedTuple):
    """An entry of processes.json."""

    name: str
    group: int
    started: float
    """When its leader started, so that no other process is mistaken for it."""


def free_ports(count: int) -> list[int]:
    """Return this many consecutive free ports of the loopback interface.

    They lie below those that systems give to outgoing connections by themselves: one of these may
    go to any connection between this look and the moment in which a server listens on it, and
    between a server's stop and its restart on the port that it had.
    """
    for _ in range(100):
        first = _LOWEST_PORT + secrets.randbelow(_HIGHEST_PORT - _LOWEST_PORT - count + 2)
        row = range(first, first + count)
        with ExitStack() as held, suppress(OSError):
            for port in row:
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return list(row)
    raise EngineError(
        f"no {count} free ports in a row between {_LOWEST_PORT} and {_HIGHEST_PORT} were found in "
        "100 tries"
    )


def environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of Flower's processes: no telemetry, no installs, own home."""
    programs = str(Path(sys.executable).parent)
    named = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    direct = ",".join(filter(None, (named, "127.0.0.1", "localhost")))
    return {
        **os.environ,
        **dict.fromkeys(("no_proxy", "NO_PROXY"), direct),
        "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PYTHONUNBUFFERED": "1",
        **(extra or {}),
    }


class ProcessTree:
    """A process that leads a group, and all its descendants."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        folder: Path,
    ) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as stream:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                cwd=folder,
                umask=0o077,  # databases and states are private
                start_new_session=True,
            )
        self._started = _started(self._process.pid)
        self._family: set[int] = set()

    def recorded(self) -> Recorded:
        """Return its entry of processes.json."""
        return Recorded(self.name, self._process.pid, self._started)

    def running(self) -> bool:
        """Whether the leader runs."""
        return self._process.poll() is None

    def code(self) -> int | None:
        """The leader's exit code, None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """Kill all processes at once, as a power cut would."""
        for group in _family(self._process.pid):
            _signal(group, signal.SIGKILL)
        self._process.wait(GRACE)

    def ask_to_end(self) -> None:
        """Send SIGTERM to all processes, without waiting."""
        self._family |= _family(self._process.pid)
        for group in self._family:
            _signal(group, signal.SIGTERM)

    def stop(self) -> None:
        """Send SIGTERM to all processes, and SIGKILL to those that remain."""
        end_group(self._process.pid, self._family)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)

    def tail(self, lines: int = 15) -> str:
        """The end of its log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-lines:])


def _signal(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _members(group: int) -> Iterator[psutil.Process]:
    """The processes of a group; one may end at any moment."""
    for pid in psutil.pids():
        with suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            if os.getpgid(pid) == group:
                yield psutil.Process(pid)


def _alive(group: int) -> bool:
    """Whether any member of the group is more than an unburied child."""
    for member in _members(group):
        with suppress(psutil.NoSuchProcess):
            if member.status() != psutil.STATUS_ZOMBIE:
                return True
    return False


def _family(group: int) -> set[int]:
    """The group and every group that its members, or their descendants, belong to."""
    found = {group}
    for member in _members(group):
        with suppress(psutil.NoSuchProcess):
            for child in member.children(recursive=True):
                with suppress(ProcessLookupError, PermissionError):
                    found.add(os.getpgid(child.pid))
    return found


def _started(process: int) -> float:
    """Seconds from the machine's start to the process's, which no change of the clock moves."""
    began: float = psutil.Process(process).create_time() - psutil.boot_time()
    return began


def end_group(group: int, known: set[int] | None = None, grace: float = GRACE) -> None:
    """SIGTERM to a group and all below it, SIGKILL to what is left after the grace.

    `known` are groups that were below it earlier: orphans have no parent that would tell.
    """
    family = _family(group) | (known or set())
    for number in (signal.SIGTERM, signal.SIGKILL):
        for one in family:
            _signal(one, number)
        deadline = time.monotonic() + grace
        while any(map(_alive, family)) and time.monotonic() < deadline:
            time.sleep(0.05)
        if not any(map(_alive, family)):
            return


def record(folder: Path, groups: Sequence[ProcessTree]) -> None:
    """Write which groups belong to a deployment."""
    path = folder / PROCESSES
    document = json.dumps([group.recorded()._asdict() for group in groups], indent=1)
    atomic_files.write(path, document.encode())


def recorded(folder: Path) -> list[tuple[Recorded, bool]]:
    """The groups of a deployment, and whether each still runs."""
    path = folder / PROCESSES
    if not path.is_file():
        raise EngineError(f"{folder}: holds no {PROCESSES}, so it is no deployment on this machine")
    try:
        found = [Recorded(**entry) for entry in json.loads(path.read_text("utf-8"))]
        # A wrong number must not end init or another group.
        proper = all(
            type(one.group) is int and 1 < one.group < 2**31 and type(one.started) is float
            for one in found
        )
    except (ValueError, TypeError, RecursionError):
        proper = False
    if not proper:
        raise EngineError(f"{path}: is damaged, so that the running processes are unknown")
    return [(one, _same(one) and _alive(one.group)) for one in found]


def _same(one: Recorded) -> bool:
    """Whether the group's number still means the same process, or for its orphans."""
    try:
        return abs(_started(one.group) - one.started) < _SAME_START
    except psutil.NoSuchProcess:
        return True


def wait_for_port(port: int, group: ProcessTree, timeout: float) -> None:
    """Wait until a process listens; an EngineError with the end of its log when it does not."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if not group.running():
            raise EngineError(f"{group.name} ended early:\n{group.tail()}")
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.5):
            return
        time.sleep(0.1)
    raise EngineError(f"{group.name} did not listen within {timeout:g} s:\n{group.tail()}")
