"""`fedadmm deploy node`: a SuperNode whose tasks are forked from a warm process.

`flower-supernode` starts a fresh Python for every message, and importing flwr, torch and fedadmm
takes longer than most rounds.  Here one process has imported them and forks a child for each task:

    fedadmm deploy node       imports everything once, asks its SuperNode for tasks, forks
      flower-supernode        Flower's own, with --isolation process; talks to the SuperLink
      a child per task        Flower's own flwr-clientapp, with every module already there

A task still has a process of its own: if that dies, the task is lost and nothing else.  The app
itself is loaded in the child, so that each run gets the code that came with it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from fedadmm.core import signals
from fedadmm.core.errors import ConfigError

LOOPBACK = "127.0.0.1"
_WARM = (
    "flwr.supernode.runtime.run_clientapp",
    "torch",
    "fedadmm.flower.configured",
    "fedadmm.flower.dropin",
)
_OURS = ("--isolation", "--host", "--ssl-certfile", "--allow-runtime-dependency-installation")
"""Options of flower-supernode that are decided here: tasks come over loopback, and nothing is
installed for them."""
_SHORTEST, _ACQUIRE = 0.05, 1.0
"""Seconds between two looks for a task: at first, and at most."""


def run_node(arguments: Sequence[str]) -> int:
    """A SuperNode with these options of flower-supernode, until it ends; its exit code."""
    for option in arguments:
        if option.split("=")[0] in _OURS:
            raise ConfigError(f"{option} is given, but must not be: `deploy node` decides it")
    options = list(arguments)
    if "--port" not in options:
        options += ["--port", str(_free_port())]
    address = f"{LOOPBACK}:{options[options.index('--port') + 1]}"
    options += ["--isolation", "process", "--host", LOOPBACK]
    node = fork(partial(_supernode, options, os.getpid()))
    with signals.as_interrupt(signal.SIGTERM, signal.SIGHUP):
        try:
            for name in _WARM:
                import_module(name)
            return _serve(address, node)
        finally:
            with suppress(ProcessLookupError):
                os.kill(node, signal.SIGTERM)


def fork(work: Callable[[], object]) -> int:
    """Do something in a child process, which then ends; returns its id.

    What a fresh process would have of its own, a child gets here: random numbers and signals.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        signals.accept_interrupts()
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()  # Python's own are new after a fork
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # the parent's exit handlers and connections are not the child's to end


def _supernode(options: Sequence[str], parent: int) -> None:
    """Flower's own SuperNode, which looks more often for messages while there are some."""
    from flwr.supercore.app_utils import start_parent_process_monitor
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli.flower_supernode import flower_supernode

    polling: Any = start_client_internal
    polling.time = SimpleNamespace(sleep=Pauses().sleep)
    start_parent_process_monitor(parent)
    sys.argv = ["flower-supernode", *options]
    flower_supernode()


class Pauses:
    """Sleeps in place of Flower's fixed ones: briefly at first, then longer up to theirs.

    Flower's SuperNode sleeps for three seconds whenever there is no message, and for half a second
    while a task is at work; neither can be set.
    """

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        self._sleep = sleep
        self._asked, self._next = 0.0, _SHORTEST

    def sleep(self, asked: float) -> None:
        """Half as long again as the last time, and briefly when something else is waited for."""
        if asked != self._asked:
            self._asked, self._next = asked, _SHORTEST
        self._sleep(min(asked, self._next))
        self._next = min(asked, 1.5 * self._next)


def _serve(address: str, node: int) -> int:
    """Fork a child for every task of the SuperNode until that ends; its exit code."""
    import httpx
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient

    client = RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec")],
    )
    request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    pauses = Pauses()
    while (code := _ended(node)) is None:
        with suppress(httpx.HTTPError):  # the SuperNode does not listen yet
            answer = client.AcquireTask(request)
            if answer.HasField("task") and answer.token:
                fork(partial(_task, address, answer.token, os.getpid()))
                pauses = Pauses()
        pauses.sleep(_ACQUIRE)
    return code


def _task(address: str, token: str, parent: int) -> None:
    from flwr.supernode.runtime.run_clientapp import run_clientapp

    run_clientapp(
        address, token, insecure=True, parent_pid=parent, runtime_dependency_install=False
    )


def _ended(node: int) -> int | None:
    """The SuperNode's exit code, once it has one; children that ended are buried."""
    with suppress(ChildProcessError):
        while (child := os.waitpid(-1, os.WNOHANG))[0]:
            if child[0] == node:
                return os.waitstatus_to_exitcode(child[1])
    return None


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((LOOPBACK, 0))
        port: int = found.getsockname()[1]
        return port
