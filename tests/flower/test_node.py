"""The warm node: what a forked task has of its own, and how long it is waited for."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import fedadmm as fa
from fedadmm.cli import app
from fedadmm.core.pairwise_masks import new_identity, new_share
from fedadmm.flower.deploy.project import app_hash
from fedadmm.flower.site.node import Pauses, check_app, fork, run_node, write_secret
from fedadmm.flower.site.policy import POLICY, DeclinedError


def _ended(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _said(work):
    """What a child writes, and its exit code."""
    read, write = os.pipe()
    child = fork(lambda: os.write(write, work().encode()))
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        return stream.read().decode(), _ended(child)


def test_every_task_has_random_numbers_and_keys_of_its_own():
    """A fresh Python has them; children of one process would all begin with the parent's."""
    identity = new_identity()

    def draw():
        key = new_share(0, "subject", identity)[1].hex()
        return f"{random.random()} {np.random.rand()} {key}"  # noqa: NPY002

    first, second = (_said(draw) for _ in range(2))
    assert (first[1], second[1]) == (0, 0)
    assert all(a != b for a, b in zip(first[0].split(), second[0].split(), strict=True))


def test_a_task_ends_with_its_own_code_and_the_parent_goes_on():
    assert _ended(fork(lambda: None)) == 0
    assert _ended(fork(lambda: sys.exit(3))) == 3
    assert _ended(fork(lambda: sys.exit("a sentence"))) == 1
    assert _ended(fork(lambda: os.kill(os.getpid(), signal.SIGKILL))) == -signal.SIGKILL


def test_a_task_that_fails_says_why_and_does_not_run_the_parents_code(capfd):
    assert _ended(fork(lambda: 1 / 0)) == 1
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_a_task_ends_by_the_signals_that_the_parent_handles():
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        assert _ended(fork(lambda: os.kill(os.getpid(), signal.SIGTERM))) == -signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)


def test_pauses_grow_up_to_flowers_and_are_short_again_after_a_task():
    slept = []
    pauses = Pauses(slept.append)
    for asked in (3.0,) * 13 + (0.5,) * 8 + (3.0,):
        pauses.sleep(asked)
    idle, busy, again = slept[:13], slept[13:21], slept[21]
    assert idle[:3] == pytest.approx([0.05, 0.075, 0.1125])
    assert idle == sorted(idle)
    assert idle[-1] == 3.0
    assert busy[0] == again == 0.05
    assert max(busy) == 0.5
    # A look comes at the latest half as late again as the message.
    assert all(later <= 0.05 + 0.5 * sum(idle[:k]) + 1e-9 for k, later in enumerate(idle))


@pytest.mark.parametrize("option", ["--isolation", "--host=0.0.0.0"])
def test_what_the_node_decides_is_refused(option):
    with pytest.raises(fa.errors.ConfigError, match=rf"^{option} is given, but must not be"):
        run_node(["--superlink", "localhost:1", option])


@pytest.mark.parametrize("name", ["time", "_pull_and_store_message", "_push_messages"])
def test_flower_still_sleeps_where_the_pauses_are_put(name):
    """Another version of Flower may wait elsewhere; then rounds would silently get slow again."""
    start = pytest.importorskip("flwr.supernode.start_client_internal")
    assert hasattr(start, name)
    with open(start.__file__) as source:
        text = source.read()
    assert "time.sleep(3)" in text
    assert "time.sleep(0.5)" in text


def small_app(folder, body="server = client = None\n"):
    """A Flower app of one file."""
    package = folder / "small"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "app.py").write_text(body)
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "small"\nversion = "0.1.0"\ndescription = "x"\n'
        'license = "Apache-2.0"\ndependencies = ["flwr"]\n[tool.flwr.app]\npublisher = "test"\n'
        '[tool.flwr.app.components]\nserverapp = "small.app:server"\n'
        'clientapp = "small.app:client"\n'
    )
    return folder


def test_the_same_files_have_the_same_hash_and_others_another_one(tmp_path):
    first, second = small_app(tmp_path / "a"), small_app(tmp_path / "b")
    os.utime(second / "small" / "app.py", (1, 1))
    (second / "small" / "__pycache__").mkdir()
    (second / "small" / "__pycache__" / "app.pyc").write_bytes(b"x")
    other = small_app(tmp_path / "c", "server = client = 1\n")
    hashes = [app_hash(folder) for folder in (first, second, other)]
    assert hashes[0] == hashes[1] != hashes[2]
    shown = CliRunner().invoke(app, ["deploy", "pin", str(first)])
    assert shown.output == f'apps = ["{hashes[0]}"]\n'


def test_an_app_that_is_not_pinned_is_declined_before_it_is_installed(tmp_path):
    content = b"a bundle"
    good = hashlib.sha256(content).hexdigest()
    node = {"state-dir": str(tmp_path)}
    assert check_app(content, node) == good  # without a policy every app may run
    (tmp_path / POLICY).write_text(f'apps = ["{"0" * 64}", "{good}"]')
    assert check_app(content, node) == good
    with pytest.raises(DeclinedError) as raised:
        check_app(content + b"x", node)
    assert good in str(raised.value)
    assert hashlib.sha256(content + b"x").hexdigest() in str(raised.value)


def test_the_secret_of_a_node_is_readable_by_its_user_only(tmp_path):
    first, second = write_secret(tmp_path / "a"), write_secret(tmp_path / "b")
    assert first.stat().st_mode & 0o777 == 0o600
    assert len(first.read_bytes()) == 32
    assert first.read_bytes() != second.read_bytes()
    with pytest.raises(FileExistsError):
        write_secret(first)
