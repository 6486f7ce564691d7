"""`fedadmm deploy node`: a SuperNode whose tasks are forked from a warm process.

`flower-supernode` starts a fresh Python for every message, and importing flwr, torch and fedadmm
takes longer than most rounds.  Here one process has imported them and forks a child for each task:

    fedadmm deploy node       imports everything once, asks its SuperNode for tasks, forks
      flower-supernode        Flower's own, with --isolation process; talks to the SuperLink
      a child per task        Flower's own flwr-clientapp, with every module already there

A task still has a process of its own: if that dies, the task is lost and nothing else.  The app
itself is loaded in the child, so that each run gets the code that came with it; before, its hash is
compared with those that the site's policy allows.

Tasks are handed out on a port of loopback, which every account of the machine can reach.  So the
SuperNode and this process share a secret, without which no other process gets a task.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fedadmm.core import signals
from fedadmm.core.errors import ConfigError

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.supercore.fab import Fab
    from flwr.supercore.run import Run

LOOPBACK = "127.0.0.1"
_WARM = (
    "flwr.supernode.runtime.run_clientapp",
    "torch",
    "fedadmm.flower.configured",
    "fedadmm.flower.dropin",
)
_OURS = (
    "--isolation",
    "--host",
    "--ssl-certfile",
    "--superexec-auth-secret-file",
    "--allow-runtime-dependency-installation",
)
"""Options of flower-supernode that are decided here: tasks come over loopback to the process
that has the secret, and nothing is installed for them."""
_SHORTEST, _ACQUIRE = 0.05, 1.0
"""Seconds between two looks for a task: at first, and at most."""


def run_node(arguments: Sequence[str]) -> int:
    """Run a SuperNode with these options of flower-supernode; return its exit code."""
    for option in arguments:
        if option.split("=")[0] in _OURS:
            raise ConfigError(f"{option} is given, but must not be: `deploy node` decides it")
    options = list(arguments)
    if "--port" not in options:
        options += ["--port", str(_free_port())]
    address = f"{LOOPBACK}:{options[options.index('--port') + 1]}"
    options += ["--isolation", "process", "--host", LOOPBACK]
    # A folder of mode 0700, and in it a file of mode 0600; the apps of tasks are installed below.
    with tempfile.TemporaryDirectory(prefix="fedadmm-node-") as folder:
        secret = write_secret(Path(folder) / "secret")
        options += ["--superexec-auth-secret-file", str(secret)]
        node = fork(partial(_supernode, options, os.getpid()))
        with signals.as_interrupt(signal.SIGTERM, signal.SIGHUP):
            try:
                for name in _WARM:
                    import_module(name)
                with suppress(ImportError):  # the accountant of noise, where it is installed
                    import_module("dp_accounting")
                return _serve(address, node, secret.read_bytes(), Path(folder))
            finally:
                with suppress(ProcessLookupError):
                    os.kill(node, signal.SIGTERM)


def write_secret(path: Path) -> Path:
    """Write a random secret that only this user can read; return its path."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as stream:
        stream.write(secrets.token_bytes(32))
    return path


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


def _serve(address: str, node: int, secret: bytes, folder: Path) -> int:
    """Fork a child for every task of the SuperNode until that ends; return its exit code."""
    import httpx
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType
    from flwr.supercore.interceptors import (
        RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor,
    )
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supercore.superexec.run_superexec import _SUPEREXEC_AUTH_METHODS

    client = RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,
        root_certificates=None,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="SuperExec"),
            SuperExecAuthHttpInterceptor(
                master_secret=secret, protected_methods=_SUPEREXEC_AUTH_METHODS
            ),
        ],
    )
    request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    pauses, homes = Pauses(), dict[int, Path]()
    while (code := _ended(node, homes)) is None:
        with suppress(httpx.HTTPError):  # the SuperNode does not listen yet
            answer = client.AcquireTask(request)
            if answer.HasField("task") and answer.token:
                home = Path(tempfile.mkdtemp(dir=folder))
                child = fork(partial(_task, address, answer.token, os.getpid(), home))
                homes[child] = home
                pauses = Pauses()
        pauses.sleep(_ACQUIRE)
    return code


def _task(address: str, token: str, parent: int, home: Path) -> None:
    """Run one task with Flower's own code; its app is checked before it is installed.

    The app is installed into a folder of the task's own.  Flower keeps an app that is installed
    already without comparing it, and tells apps apart by eight digits of their hash.
    """
    from flwr.supernode.runtime import run_clientapp as runtime

    from fedadmm.flower.site.gate import APP_HASH

    runtime_any: Any = runtime
    pull, install = runtime_any.pull_task_input, runtime_any.install_from_fab
    os.environ["FLWR_HOME"] = str(home)
    node: dict[str, Any] = {}

    def pulled(client: Any) -> tuple[Message, Context, Run, Fab]:
        message, context, run, fab = pull(client)
        node.update(context.node_config)
        return message, context, run, fab

    def checked(content: bytes, **options: Any) -> Path:
        os.environ[APP_HASH] = check_app(content, node)
        installed: Path = install(content, **options)
        return installed

    runtime_any.pull_task_input, runtime_any.install_from_fab = pulled, checked
    runtime.run_clientapp(
        address, token, insecure=True, parent_pid=parent, runtime_dependency_install=False
    )


def check_app(content: bytes, node: Mapping[str, Any]) -> str:
    """Return the hash of an app bundle, after comparing it with those that the site allows.

    Args:
        content: the bundle as it arrived; Flower compares no hash with it.
        node: the node's own configuration, which names the policy or the state folder.

    Raises:
        DeclinedError: the site's policy does not allow this app.
    """
    from fedadmm.flower.site.gate import folders_stay, node_policy
    from fedadmm.flower.site.policy import POLICY, DeclinedError

    found = hashlib.sha256(content).hexdigest()
    with folders_stay(node):
        policy = node_policy(node)
        if policy.apps is not None and found not in policy.apps:
            raise DeclinedError(
                f"apps is {', '.join(policy.apps)} in this site's {POLICY}, but this app is {found}"
            )
    return found


def _ended(node: int, homes: dict[int, Path]) -> int | None:
    """Return the SuperNode's exit code, once it has one; remove what ended tasks left."""
    with suppress(ChildProcessError):
        while (child := os.waitpid(-1, os.WNOHANG))[0]:
            if child[0] == node:
                return os.waitstatus_to_exitcode(child[1])
            if child[0] in homes:
                shutil.rmtree(homes.pop(child[0]), ignore_errors=True)
    return None


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((LOOPBACK, 0))
        port: int = found.getsockname()[1]
        return port
