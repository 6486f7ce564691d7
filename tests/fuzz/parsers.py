"""Every parser of the package that reads what others wrote, with valid inputs to begin from.

A "json" input is a document; where a file has a digest it is made to fit again, so that what lies
behind the digest is reached too.
"""

from __future__ import annotations

import gzip
import io
import json
import logging
import os
import shutil
import tomllib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import fedadmm as fa
from data.data_files import heart_bytes, idx_bytes, leaf_bytes
from fedadmm.core import codec
from fedadmm.core.config_tree import to_config
from fedadmm.core.errors import ConfigError, DataError, EngineError, FedADMMError, StateError
from fedadmm.core.local_work import LocalWork
from fedadmm.data import tabular
from fedadmm.data.loaders.heart import read_hospital
from fedadmm.data.loaders.leaf import read_leaf
from fedadmm.data.loaders.pictures import read_batch, read_idx
from fedadmm.data.partitions import Partition
from fedadmm.run import resume as resuming
from fedadmm.run.checkpoint import Checkpoint, Checkpoints
from fedadmm.run.client import Job, record_layout
from fedadmm.run.round_callbacks import RunPlan
from fedadmm.study import config as configs, sweep
from fedadmm.study.config import resolve
from fedadmm.study.export import export, export_model
from fedadmm.study.predict import ABOUT, described
from fedadmm.study.report import write_report
from fedadmm.study.run_dir import RunDir, read_json, read_run
from support.commands import SMALL, call
from support.jobs import job_of
from support.resumable import problem, run

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedadmm.flower.configured import Deployment, read_deployment
from fedadmm.flower.deploy import processes
from fedadmm.flower.federation import Federation
from fedadmm.flower.protocol import payloads as arriving, wire
from fedadmm.flower.protocol.admission import Admission, UploadHistory, seal
from fedadmm.flower.protocol.ledger import (
    LedgerEntry,
    RefusedError,
    Reply,
    ReplyKind,
    ServerLedger,
    Task,
)
from fedadmm.flower.protocol.payloads import (
    payload_template,
    result_template,
)
from fedadmm.flower.server.checkpoint import (
    ServerCheckpoint,
    ServerState,
    fingerprint,
    read_summary,
)
from fedadmm.flower.server.run_recorder import EVENTS, read_events
from fedadmm.flower.site.site_state import PENDING, SiteState
from fedadmm.run.loop import initial_state

Parse = Callable[[bytes], object]


PLAN = RunPlan(3, fa.Evaluation())


class Parser(NamedTuple):
    """Something that reads what others wrote."""

    name: str
    seeds: list[bytes]
    parse: Parse
    declared: tuple[type[Exception], ...]
    kind: Literal["bytes", "json"] = "bytes"


@contextmanager
def quiet() -> Iterator[None]:
    """No logs, nobody waits for the disk, and this is the only process of the machine."""
    alone = [os.getpid()]
    logging.disable(logging.CRITICAL)
    try:
        with (
            patch("os.fsync", lambda _: None),
            patch.object(processes.psutil, "pids", lambda: alone),
        ):
            yield
    finally:
        logging.disable(logging.NOTSET)


def all_parsers(folder: Path) -> dict[str, Parser]:
    """All of them by name; their files are in the folder."""
    found = [*_messages(), *_stored(folder), *_checkpoints(folder), *_settings(folder)]
    found += [*_recorded(folder), *_predicted(folder), *_data(folder)]
    return {parser.name: parser for parser in found}


def _document(use: Callable[[Any], object]) -> Parse:
    """A parser of what JSON gave; what is no JSON is nobody's input."""

    def parse(data: bytes) -> object:
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            return None
        return use(document)

    return parse


def _dumped(*documents: Any) -> list[bytes]:
    return [json.dumps(one).encode() for one in documents]


def _file(path: Path, read: Callable[[Path], object]) -> Parse:
    """A parser of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)

    def parse(data: bytes) -> object:
        path.write_bytes(data)
        return read(path)

    return parse


# What travels


def _federation() -> Federation:
    return Federation(
        fa.FedADMM(rho=1.0), clients=3, rounds=4, initial=torch.linspace(-1, 1, 6),
        solver=fa.SGD(lr=0.1, batch_size=10), stop=fa.Epochs(2),
    )  # fmt: skip


def _messages() -> Iterator[Parser]:
    job = _federation().server_job()
    answer = result_template(job, payload_template(job).download)
    body = codec.encode(codec.pack(answer))
    parcel = codec.encode(codec.pack(payload_template(job)))
    yield Parser("codec", [body, parcel], arriving.decode, (RefusedError,))
    yield Parser("parcel", [parcel], lambda data: _unpacked_parcel(job, data), (RefusedError,))
    task = Task("run", 1, 3, 0, 2, "d", "c")
    ledger = ServerLedger("run", {1: LedgerEntry(0, 2, "d")})
    reply = Reply(ReplyKind.UPDATE, task.id, "run", 1, 3, 0, 3)

    def admit(data: bytes) -> object:
        scale = float(job.initial.norm())
        return Admission().admit(ledger, task, seal(reply, data), data, answer, scale, lambda a: a)

    yield Parser("admission", [body], admit, (RefusedError,))
    plain = codec.pack(answer)._asdict()["plain"]
    tensors = codec.pack(answer).tensors

    def admit_plain(document: Any) -> object:
        return admit(codec.encode(codec.Packed(tensors, document)))

    yield Parser("info", _dumped(plain), _document(admit_plain), (RefusedError,), "json")
    head = dict(reply._asdict(), kind="update")
    heads = _dumped(head, dict(task._asdict()))
    yield Parser("head", heads, _document(_read_heads), (RefusedError,), "json")
    metrics = _dumped({"loss": 0.5, "test_accuracy": 0.9}, {"client": 1}, {"loss": 1, "a": 2})
    yield Parser("metrics", metrics, _document(_read_metrics), (RefusedError,), "json")


def _unpacked_parcel(job: Job, data: bytes) -> object:
    packed = arriving.decode(data)
    arriving.check_like(payload_template(job), packed, optional=True)
    return codec.unpack(payload_template(job), packed)


def _record(kind: Any, document: Any) -> Any:
    """A record, if Flower makes one of this at all."""
    try:
        return kind(document)
    except (TypeError, ValueError, AttributeError, OverflowError):
        return None


def _read_heads(document: Any) -> None:
    record = _record(ConfigRecord, document)
    if record is None:
        return
    arrays = ArrayRecord()
    arrays["bytes"] = Array("uint8", (3,), wire.STYPE, b"abc")
    content = RecordDict({wire.HEAD: record, wire.BODY: arrays})
    for read in (wire.read_task, lambda c: wire.read_reply(c, 10)):
        try:
            read(content)
        except RefusedError:
            continue


def _read_metrics(document: Any) -> None:
    for kind, name in ((MetricRecord, wire.METRICS), (ConfigRecord, wire.HELLO)):
        record = _record(kind, document)
        if record is None:
            continue
        for read in (wire.read_metrics, lambda c: wire.read_client(c, 3)):
            try:
                read(RecordDict({name: record}))
            except RefusedError:
                continue


# What server and sites keep


def _stored(folder: Path) -> Iterator[Parser]:
    settings = _federation()
    job = settings.server_job()
    server = folder / "server"
    state = ServerState(server, True, fingerprint(settings, job))
    saved = ServerCheckpoint(
        initial_state(job, PLAN), ServerLedger("run", {1: LedgerEntry(0, 2, "d")}), {7: 1}, 1, 0,
        {1: UploadHistory(2, [{(name := "upload.message.increment"): 2.0}], {name: 2.0})},
    )  # fmt: skip
    state.save(saved, {})
    path = server / "server.safetensors"
    whole = path.read_bytes()
    packed = codec.read_checksummed(path)
    values = json.loads(str(packed.plain.pop("values")))

    def load(_: object = None) -> None:
        state.load(initial_state(job, PLAN))
        read_summary(server)

    def load_values(document: Any) -> None:
        plain = packed.plain | {"values": json.dumps(document)}
        codec.write_checksummed(path, codec.Packed(packed.tensors, plain))
        load()

    yield Parser("sealed", [whole], _file(path, load), (StateError,))
    yield Parser("server-state", _dumped(values), _document(load_values), (StateError,), "json")
    yield _site(folder / "site", job)


def _site(folder: Path, job: Job) -> Parser:
    record = record_layout(job)
    body = codec.encode(codec.pack(record))
    reply = seal(Reply(ReplyKind.UPDATE, "t", "run", 1, 3, 0, 3), body)
    SiteState(folder).commit(reply, body, record)
    whole = (folder / PENDING).read_bytes()

    def read(path: Path) -> None:
        state = SiteState(folder)
        state.ledger()
        if path.exists():
            state.pending()
        state.acked(record)

    return Parser("site-state", [whole], _file(folder / PENDING, read), (StateError,))


# Checkpoints of simulations


def _checkpoints(folder: Path) -> Iterator[Parser]:
    directory = folder / "checkpoint"
    run(3, checkpoints=Checkpoints(directory))
    job = job_of(fa.FedADMM(rho=0.5), problem(), LocalWork(fa.SGD(lr=0.1)), 3, problem().start(3))
    manifest = sorted(directory.glob("*.json"))[-1]
    tensors = next(directory.glob("*.server.safetensors")).read_bytes()
    document = codec.read_json(manifest)
    whole = manifest.read_bytes()

    def resume(_: object = None) -> None:
        kept = Checkpoints(directory)._good()[0]
        server = codec.read(directory / kept.server["file"])
        found = Checkpoint(kept.round, server.tensors, kept.values)
        resuming.restored(job, found, PLAN)

    def resume_signed(changed: Any) -> None:
        if isinstance(changed, dict):
            codec.write_json(manifest, changed)
            resume()

    yield Parser("manifest", [whole], _file(manifest, resume), (StateError,))
    signed = _document(resume_signed)
    yield Parser("manifest-signed", _dumped(document), signed, (StateError,), "json")
    read = _file(folder / "tensors" / "x.safetensors", codec.read)
    yield Parser("tensors", [tensors], read, (StateError,))


# Configurations


def _settings(folder: Path) -> Iterator[Parser]:
    texts = [text.encode() for text in configs.presets().values()]
    trees = [configs.run_only(tomllib.loads(text.decode())) for text in texts]

    def read_config(path: Path) -> None:
        resolve(configs.run_only(configs.read(str(path))))

    config = _file(folder / "toml" / "config.toml", read_config)
    yield Parser("toml", [*texts, configs.write(SMALL).encode()], config, (ConfigError,))
    tree = _document(lambda tree: resolve(tree) if isinstance(tree, dict) else None)
    yield Parser("config", _dumped(SMALL, *trees), tree, (FedADMMError,), "json")
    sets = [b"algorithm.rho=0.1", b"rounds=3", b"problem.name=digits", b"local.stop.steps=5"]
    yield Parser("set", [*sets, b"target={metric='a',value=1}"], _set, (ConfigError,))
    grids = [b"algorithm.rho=0.1,1", b"seed=1,2,3", b"local.stop.epochs=[1,2],3"]
    yield Parser("grid", grids, lambda data: sweep.axis(_text(data), "--grid"), (ConfigError,))
    deployment = configs.write(to_config(Deployment(3))).encode()
    path = folder / "bundle" / "deployment.toml"
    yield Parser("bundle", [deployment], _file(path, read_deployment), (ConfigError,))


def _text(data: bytes) -> str:
    """What a shell would hand over."""
    return data.replace(b"\x00", b"").decode("utf-8", "surrogateescape")


def _set(data: bytes) -> None:
    tree: dict[str, Any] = json.loads(json.dumps(SMALL))
    configs.assign(tree, *configs.assignment(_text(data)))
    resolve(tree)


# Run directories


RECORD = {
    "round": 1,
    "cohort": {"participants": 2, "clients": [0, 1]},
    "work": {
        "epochs": 1.0, "passes": 1.0, "steps": 3, "primal_residual": 0.1, "dual_residual": 0.2,
        "penalty_quartiles": [1, 2, 3],
    },
    "traffic": {"bytes_up": 10, "bytes_down": 10},
    "clock": {
        "seconds": 0.1, "delays": [1], "virtual_time": 1.0, "intervals": [[0, 0.0, 1.0, 1]],
        "staleness_quantiles": [0, 1, 1],
    },
    "metrics": {"loss": 0.5, "test_accuracy": 0.5},
    "callbacks": {"kkt_residual": 0.3, "warnings": ["x"]},
    "network": {
        "refused": 1, "sites": {"answered": 1, "metrics": {"loss": 0.5}},
        "agreement": {"0": 0.5, "1": -0.25},
    },
}  # fmt: skip
SUMMARY = {
    "status": "completed", "code": "completed", "algorithm": "fedadmm", "label": "x", "seed": 0,
    "method": "FedADMM", "baseline": False, "final": {"loss": 0.5}, "rounds": 1,
}  # fmt: skip


def _recorded(folder: Path) -> Iterator[Parser]:
    made = folder / "run"
    made.mkdir(parents=True)
    (made / "config.toml").write_text(configs.write(SMALL))
    (made / "summary.json").write_text(json.dumps(SUMMARY))
    line = json.dumps(RECORD).encode() + b"\n"
    metrics = made / "metrics.jsonl"
    metrics.write_bytes(line)

    def whole(path: Path) -> None:
        read_run(made)
        RunDir(made).news()

    def lines(document: Any) -> None:
        metrics.write_bytes(b"".join(json.dumps(one).encode() + b"\n" for one in document))
        read_run(made)

    lone = folder / "lone"
    for name in ("summary", "config"):
        shutil.copytree(made, folder / name)
    yield Parser("metrics.jsonl", [line, line * 3], _file(metrics, whole), (DataError,))
    listed = _document(lambda document: lines(document) if isinstance(document, list) else None)
    yield Parser("records", _dumped([RECORD, RECORD]), listed, (DataError,), "json")
    summary = _file(folder / "summary" / "summary.json", lambda path: read_run(path.parent))
    yield Parser("summary.json", _dumped(SUMMARY), summary, (DataError,), "json")
    config = _file(folder / "config" / "config.toml", lambda path: RunDir(path.parent).config())
    yield Parser("config.toml", [configs.write(SMALL).encode()], config, (DataError,))
    partition = _dumped({"clients": 2, "names": ["a", "b"], "sizes": [1, 2], "total_size": 3})
    read = _file(lone / "partition.json", read_json)
    yield Parser("partition.json", partition, read, (DataError,), "json")
    event = _dumped({"sequence": 1, "client": 0, "reason": "norm", "detail": "x"})[0] + b"\n"
    events = _file(lone / EVENTS, lambda path: read_events(path.parent))
    yield Parser("events.jsonl", [event * 2], events, (DataError,))
    known = _dumped([{"name": "superlink", "group": 2**22 + 1, "started": 1.0}])
    path = lone / processes.PROCESSES
    groups = _file(path, lambda path: processes.recorded(path.parent))
    yield Parser("processes.json", known, groups, (EngineError,), "json")


# A run of one's own table: what `predict`, `export` and `report` read


def _predicted(folder: Path) -> Iterator[Parser]:
    """The parser of a run's documents, and the parser of an exported file's metadata."""
    table, new, made = folder / "table.csv", folder / "new.csv", folder / "table-run"
    table.write_text(
        "age,smoker,state,client\n50,yes,ill,a\n20,no,well,a\n60,yes,ill,b\n30,no,well,b\n"
    )
    new.write_text("age,smoker\n55,no\n,yes\n")
    settings = ["--set", "rounds=2", "--set", "problem.test_fraction=0", "--no-report"]
    given = ["--target", "state", "--client", "client", "--out", made]
    done = call("run", "--csv", table, *given, *settings)
    assert done.exit_code == 0, done.stderr
    names = {"summary": "summary.json", "partition": "partition.json", "records": "metrics.jsonl"}
    summary, partition = (read_json(made / names[one]) for one in ("summary", "partition"))
    records = [json.loads(line) for line in (made / names["records"]).read_text().splitlines()]

    def changed(name: str, use: Callable[[Path], object]) -> Parse:
        """A parser of one document of a run whose other files are intact."""
        copy = folder / f"changed-{name}"
        shutil.copytree(made, copy)

        def parse(document: Any) -> None:
            whole = document if name == "records" and isinstance(document, list) else [document]
            text = "\n".join(map(json.dumps, whole))
            (copy / names[name]).write_text(text + "\n")
            use(copy)

        return _document(parse)

    def used(run: Path) -> None:
        """What every command does that reads a run."""
        for read in (
            lambda: fa.Predictor(run).predict(new),
            lambda: export_model(run, "safetensors", folder / "again.safetensors"),
            lambda: export(run, "csv", folder / "again.csv"),
            lambda: write_report(run),
        ):
            with suppress(FedADMMError):
                read()

    for name, seeds in (("summary", summary), ("partition", partition), ("records", records)):
        yield Parser(f"run-{name}", _dumped(seeds), changed(name, used), (FedADMMError,), "json")

    tensors = load_file(export_model(made, "safetensors").path)

    def exported(document: Any) -> None:
        path = folder / "exported.safetensors"
        save_file(tensors, path, {ABOUT: json.dumps(document)})
        fa.Predictor(path).predict(new)

    about = _dumped(described(made))
    yield Parser("exported", about, _document(exported), (FedADMMError,), "json")


# Data files


def _data(folder: Path) -> Iterator[Parser]:
    images = idx_bytes(np.arange(60).reshape(5, 3, 4).astype(np.uint8))
    labels = idx_bytes(np.arange(5).astype(np.int32))
    table = b"x,target,client\n1,0,a\n2,1,b\n3,0,a\n"
    arrays = _npz(inputs=np.ones((4, 2)), target=np.array([0, 1, 0, 1]), client=np.arange(4))
    split = _npz(indices=np.arange(4), offsets=np.array([0, 2, 4]))
    leaf = leaf_bytes({"a": ([[0.5] * 784], [1])})
    readers: tuple[tuple[str, str, list[bytes], Callable[[Path], object]], ...] = (
        ("idx", "f", [images, labels], read_idx),
        ("idx.gz", "f.gz", [gzip.compress(images)], read_idx),
        ("cifar", "f.bin", [bytes(3073 * 2)], read_batch),
        ("leaf", "f.json", [leaf], read_leaf),
        ("heart", "f.data", [heart_bytes(5, 0)], read_hospital),
        ("csv", "f.csv", [table], tabular),
        ("npz", "f.npz", [arrays], tabular),
        ("partition", "p.npz", [split], Partition.load),
    )
    for name, file, seeds, read in readers:
        yield Parser(name, seeds, _file(folder / "data" / name / file, read), (DataError,))


def _npz(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()
