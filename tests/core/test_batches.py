"""Any iterable of batches is a client: the same numbers as stacked rows, one batch at a time."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import f1_score, roc_auc_score
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import fedadmm as fa
from fedadmm.core.objectives.batches import batch_length
from support.models import perceptron, rows
from support.rejections import naming

PAIRS = fa.adapters.PairLoss(nn.functional.cross_entropy)
ROWS = 13


def as_dict_loss(module, batch):
    return nn.functional.cross_entropy(module(batch["x"]), batch["y"])


def stacked():
    return fa.ModelObjective(perceptron(), nn.functional.cross_entropy, *rows(0, ROWS))


def pairs_of(batch_size, **options):
    return DataLoader(TensorDataset(*rows(0, ROWS)), batch_size=batch_size, **options)


def dicts():
    for inputs, targets in pairs_of(3):
        yield {"x": inputs, "y": targets}


class Stream(IterableDataset):
    """Rows that come one after the other, without a number."""

    def __iter__(self):
        return iter(TensorDataset(*rows(0, ROWS)))


SOURCES = {
    "a loader": lambda: (PAIRS, pairs_of(4)),
    "a loader that shuffles": lambda: (PAIRS, pairs_of(5, shuffle=True)),
    "a list": lambda: (PAIRS, list(pairs_of(4))),
    "a function": lambda: (as_dict_loss, dicts),
    "a stream": lambda: (PAIRS, DataLoader(Stream(), batch_size=6)),
    "everything at once": lambda: (PAIRS, pairs_of(ROWS)),
}


@pytest.mark.parametrize("source", SOURCES)
def test_value_and_gradients_are_those_of_all_samples_whatever_the_batches(source):
    loss, batches = SOURCES[source]()
    whole = stacked()
    streamed = fa.BatchObjective(perceptron(), loss, batches).to(torch.float64)
    point = whole.flat.vector + 0.1
    whole, wanted = whole.to(torch.float64), None
    point = point.double()
    for name in ("value", "gradient", "evaluation_gradient"):
        wanted = getattr(whole, name)(point)
        assert torch.allclose(getattr(streamed, name)(point), wanted, rtol=0, atol=1e-12), name


def test_measuring_neither_moves_torchs_generator_nor_depends_on_it():
    streamed = fa.BatchObjective(perceptron(), PAIRS, pairs_of(5, shuffle=True))
    point = streamed.flat.vector.clone()
    before = torch.get_rng_state()
    first = streamed.value(point)
    streamed.evaluation_gradient(point)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert torch.equal(streamed.value(point), first)


def test_a_step_takes_as_many_batches_as_the_solver_says():
    """By hand: SGD on the loader's own batches in their order, one or two of them a step."""
    flat = fa.FlatModule(perceptron())
    streamed = fa.BatchObjective(flat, PAIRS, pairs_of(4))
    assert streamed.num_samples == 4
    start = flat.vector.clone()
    whole = stacked()
    for taken, parts in ((1, [(0, 4), (4, 8), (8, 12), (12, 13)]), (2, [(0, 8), (8, 13)])):
        point = start.clone()
        for begin, end in parts:
            point -= 0.1 * whole.gradient(point, torch.arange(begin, end))
        problem = fa.Problem([streamed], initial=start)
        solver = fa.SGD(lr=0.1, batch_size=taken)
        result = fa.simulate(fa.FedAvg(), problem, 1, solver=solver, evaluate=False)
        assert torch.allclose(result.params, point, atol=1e-6)


def federation(shuffle=True):
    flat = fa.FlatModule(perceptron())
    clients = [
        fa.BatchObjective(
            flat,
            PAIRS,
            DataLoader(TensorDataset(*rows(i, 9 + 2 * i)), batch_size=4, shuffle=shuffle),
        )
        for i in range(3)
    ]
    return fa.Problem(clients, initial=flat.vector.clone())


def train(problem, engine="sequential", **options):
    return fa.simulate(
        fa.FedADMM(rho=0.5),
        problem,
        3,
        engine=engine,
        solver=fa.SGD(lr=0.1, batch_size=1),
        stop=fa.Epochs(2),
        **options,
    )


def test_shuffling_is_a_function_of_seed_round_and_client():
    torch.manual_seed(1)
    first = train(federation()).params
    torch.manual_seed(2)
    assert torch.equal(train(federation()).params, first)
    assert torch.equal(train(federation(), fa.engines.Workers(2)).params, first)
    assert not torch.equal(train(federation(), seed=1).params, first)
    assert not torch.equal(train(federation(shuffle=False)).params, first)


def test_a_run_goes_on_from_its_checkpoint(tmp_path):
    whole = train(federation()).params
    kept = fa.Checkpoints(tmp_path)
    half = fa.simulate(
        fa.FedADMM(rho=0.5),
        federation(),
        1,
        solver=fa.SGD(lr=0.1, batch_size=1),
        stop=fa.Epochs(2),
        checkpoints=kept,
    )
    assert not torch.equal(half.params, whole)
    assert torch.equal(train(federation(), checkpoints=kept, resume=True).params, whole)


def test_one_bare_module_for_all_clients_has_one_vector():
    """A vector each would take the parameters away from the client before."""
    net = perceptron()
    first, second = (fa.BatchObjective(net, PAIRS, pairs_of(4)) for _ in range(2))
    assert first.flat is second.flat is fa.ModelObjective(net, PAIRS.loss, *rows(0, 3)).flat
    point = first.flat.vector + 1
    assert torch.equal(first.value(point), second.value(point))
    assert fa.BatchObjective(perceptron(), PAIRS, pairs_of(4)).flat is not first.flat


def test_metrics_are_means_over_samples():
    flat = fa.FlatModule(perceptron())

    def measure(module, batch):
        inputs, targets = batch
        right = (module(inputs).argmax(1) == targets).double()
        return {"test_accuracy": right.mean(), "test_rows": float(len(targets))}

    found = fa.BatchMetrics(flat, measure, pairs_of(4))(flat.vector)
    inputs, targets = rows(0, ROWS)
    with torch.no_grad():
        right = (flat.module(inputs).argmax(1) == targets).double().mean()
    assert found["test_accuracy"] == pytest.approx(float(right))
    assert found["test_rows"] == pytest.approx((3 * 4 * 4 + 1) / ROWS)


def test_scores_over_all_samples_are_sklearns_whatever_the_batches():
    """The mean of the batches' F1 is another number; AUC of a batch may not even exist."""
    draws = torch.Generator().manual_seed(3)
    flat = fa.FlatModule(nn.Linear(2, 1).double())
    inputs = torch.randn(53, 2, generator=draws).double()
    labels = (inputs[:, 0] + torch.randn(53, generator=draws) > 0.8).long()
    sizes = [1, 30, 2, 20]
    batches = [*zip(inputs.split(sizes), labels.split(sizes), strict=True)]

    def measure(module, batch):
        return {"score": module(batch[0])[:, 0], "label": batch[1]}

    def finish(found):
        chosen = found["score"] > 0
        return {
            "f1": f1_score(found["label"], chosen),
            "auc": roc_auc_score(found["label"], found["score"]),
        }

    found = fa.BatchMetrics(flat, measure, batches, finish=finish)(flat.vector)
    with torch.no_grad():
        scores = flat.module(inputs)[:, 0].numpy()
    assert found == {
        "f1": pytest.approx(f1_score(labels.numpy(), scores > 0)),
        "auc": pytest.approx(roc_auc_score(labels.numpy(), scores)),
    }
    by_batch = [f1_score(y, flat.module(x)[:, 0].detach() > 0, zero_division=0) for x, y in batches]
    mean = sum(f * n for f, n in zip(by_batch, sizes, strict=True)) / 53
    assert abs(found["f1"] - mean) > 0.01

    def one_number(module, batch):
        return {"score": module(batch[0]).mean()}

    with pytest.raises(fa.errors.DataError, match=naming("BatchMetrics 'score'")):
        fa.BatchMetrics(flat, one_number, batches, finish=finish)(flat.vector)


def test_only_what_is_trained_travels_and_constants_are_no_statistics():
    class Turning(nn.Module):
        def __init__(self):
            super().__init__()
            self.frozen = nn.Linear(4, 4).requires_grad_(False)
            self.head = nn.Linear(4, 2)
            self.register_buffer("angles", torch.ones(4), persistent=False)

        def forward(self, x):
            return self.head(self.frozen(x) * self.angles)

    flat = fa.FlatModule(Turning())
    assert (flat.num_parameters, flat.buffers()) == (10, None)
    norm = fa.FlatModule(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))
    assert norm.buffers().numel() == 4


@pytest.mark.parametrize(
    ("batches", "length", "names"),
    [
        (lambda: iter([1]), None, "BatchObjective batches list_iterator"),
        (list, None, "batches list"),
        (lambda: list(pairs_of(4)), 5, "batches 4 5"),
        (lambda: [object()], None, "batch object"),
        (lambda: [{"x": torch.ones(2, 4)}], None, "loss batch x"),
    ],
)
def test_what_cannot_be_batches_is_rejected(batches, length, names):
    def use():
        made = fa.BatchObjective(perceptron(), PAIRS, batches(), length)
        fa.Problem([made]).value(made.flat.vector.clone())

    with pytest.raises(fa.errors.DataError, match=naming(names)):
        use()


def test_a_loss_that_is_no_number_is_rejected():
    loss = fa.adapters.PairLoss(lambda outputs, targets: outputs)
    with pytest.raises(fa.errors.DataError, match=naming("loss (4, 3)")):
        fa.Problem([fa.BatchObjective(perceptron(), loss, pairs_of(4))])


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        (torch.ones(3, 2), 3),
        ((torch.ones(3, 2), torch.ones(3)), 3),
        ({"ids": torch.ones(5, 2)}, 5),
        ([["one", "two"], torch.ones(2)], 2),
        (["one", "two", "three"], 3),
    ],
)
def test_samples_of_a_batch(batch, count):
    assert batch_length(batch) == count


class Stepping(nn.Module):
    """What a LightningModule looks like from outside."""

    automatic_optimization = True

    def __init__(self):
        super().__init__()
        self.net = perceptron()

    def log(self, *args, **options):
        raise AssertionError("there is no trainer to log to")

    def training_step(self, batch, batch_idx):
        loss = PAIRS(self.net, batch)
        self.log("train_loss", loss)
        return {"loss": loss}

    def validation_step(self, batch):
        self.log("rows", len(batch[1]), prog_bar=True)


def test_a_lightning_module_brings_loss_and_metrics():
    module, batches = Stepping(), list(pairs_of(4))
    made = fa.BatchObjective(module, fa.adapters.lightning_loss, batches)
    point = made.flat.vector.clone()
    assert float(made.value(point)) == pytest.approx(float(stacked().value(point)))
    found = fa.BatchMetrics(module, fa.adapters.lightning_metrics, batches)(point)
    assert found == {"rows": pytest.approx((3 * 4 * 4 + 1) / ROWS)}
    with pytest.raises(AssertionError, match="no trainer"):
        module.log("back", 1)


def test_what_a_lightning_module_cannot_be_asked_is_rejected():
    module, batch = Stepping(), next(iter(pairs_of(4)))
    module.automatic_optimization = False
    with pytest.raises(fa.errors.DataError, match=naming("Stepping automatic_optimization=False")):
        fa.adapters.lightning_loss(module, batch)
    module.automatic_optimization = True
    module.training_step = module.validation_step = lambda batch: None
    with pytest.raises(fa.errors.DataError, match=naming("training_step None")):
        fa.adapters.lightning_loss(module, batch)
    with pytest.raises(fa.errors.DataError, match=naming("validation_step Stepping")):
        fa.adapters.lightning_metrics(module, batch)
    module.validation_step = lambda batch: module.log("accuracy", object())
    with pytest.raises(fa.errors.DataError, match=naming("accuracy object")):
        fa.adapters.lightning_metrics(module, batch)


def test_a_batch_without_labels_has_no_loss():
    class Model(nn.Module):
        def forward(self, ids):
            return self

        loss = None

    with pytest.raises(fa.errors.DataError, match=naming("Model loss ids")):
        fa.adapters.hugging_face_loss(Model(), {"ids": torch.ones(2, 3)})
