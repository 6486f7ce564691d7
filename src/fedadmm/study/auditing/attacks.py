"""Attacks: from the mean gradient of f_i that a server has inferred to labels and rows.

analytic   A linear layer z = W x + b has dW = dz x' and db = dz, so that every unit of the layer
           that the rows enter gives dW_j / db_j: the row itself where one row moved the unit, and
           a mixture where several did.  Units that agree on a row confirm each other.
matching   Rows are sought whose gradient points where the inferred one does, at the start of the
           solve (Geiping et al., Inverting Gradients, NeurIPS 2020: cosine, Adam, total variation).
weighted   The same for several local steps, after Song, Wang, Zuazua, Approximate and Weighted Data
           Reconstruction Attack in Federated Learning, 2023: gradients are taken at models that lie
           between start and end, and layers count with weights.  The paper finds these by Bayesian
           optimisation; here they fall with the depth, so that the layers next to the rows count
           most (on digits, with four rows and five steps, that recovers 13 of 24 rows; equal
           weights recover 9, rising ones 4, and matching at the start recovers 2).

Labels come first, from the last layer: with cross-entropy its bias has the gradient
mean(p_c) - n_c/n.
"""

from __future__ import annotations

import copy
import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedadmm.core.errors import PairingError
from fedadmm.core.objectives import Objective
from fedadmm.core.objectives.flat import FlatModule
from fedadmm.core.objectives.model import Loss, ModelObjective
from fedadmm.study.auditing.inference import Inferred

ATTACKS = ("analytic", "matching", "weighted")
AGREE = 1e-2
"""Units whose rows differ by less than this share of the values' range saw the same row."""
STEPS, RATE, SMOOTHNESS = 400, 0.1, 1e-2
"""Matching: steps of Adam, their first length as a share of the range, and the prior's weight."""
_DRAWS = 64
"""This many made-up rows give the model's mean output."""


class Exposed(NamedTuple):
    """A client's model as an attack sees it: everything but its rows."""

    flat: FlatModule
    loss: Loss
    shape: torch.Size
    """That of a row as the model takes it."""
    low: float
    high: float
    """The range of the values, which is public: that of a pixel."""
    entry: str | None
    """The linear layer with a bias that the rows enter; None where there is none."""
    last: str
    """The last linear layer."""
    classes: int | None
    """None where the targets are no classes."""

    @property
    def is_picture(self) -> bool:
        """Whether neighbouring entries of a row belong together."""
        return len(self.shape) == 3


def expose(objective: Objective) -> Exposed:
    """What there is to attack; refuses a model that gives nothing away by these attacks."""
    if not isinstance(objective, ModelObjective) or not any(
        isinstance(part, nn.Linear) for part in objective.flat.module.modules()
    ):
        what = type(objective).__name__
        if isinstance(objective, ModelObjective):
            what = type(objective.flat.module).__name__
        raise PairingError(
            f"audit: the model is {what} without a linear layer, but the attacks read one; audit a "
            "model that has one, such as mlp-64-32-10, logistic or cnn1"
        )
    rows = objective.prepared(objective.inputs)
    if not rows.is_floating_point():
        raise PairingError(
            f"audit: the rows are {rows.dtype}, whole numbers such as characters, but the attacks "
            "seek rows of floating-point numbers; audit pictures or tables"
        )
    flat = _copied(objective)
    order = _layers(flat, rows[:1])
    names, (_, outputs) = [name for name, _, _ in order], order[-1][1:]
    entry = next((name for name, read, _ in order if torch.equal(read, rows[:1].flatten(1))), None)
    if entry is not None and _of(entry, "bias") not in {slot.name for slot in flat.slots}:
        entry = None
    classes = max(2, outputs) if objective.has_classes else None
    low, high = float(rows.min()), float(rows.max())
    if low == high:
        raise PairingError(f"audit: every value of the rows is {low:g}, so that nothing can leak")
    return Exposed(flat, objective.loss, rows.shape[1:], low, high, entry, names[-1], classes)


def _copied(objective: ModelObjective) -> FlatModule:
    """A copy of the model, in training mode but without dropout."""
    module = copy.deepcopy(objective.flat.module).train()
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.eval()
    return FlatModule(module)


def _layers(flat: FlatModule, row: Tensor) -> list[tuple[str, Tensor, int]]:
    """Every linear layer in the order of a pass: its name, what it reads, how much it returns."""
    seen: list[tuple[str, Tensor, int]] = []
    hooks = [
        part.register_forward_hook(
            lambda _, given, made, name=name: seen.append((name, given[0], made.shape[-1]))
        )
        for name, part in flat.module.named_modules()
        if isinstance(part, nn.Linear)
    ]
    try:
        with torch.no_grad():
            flat.module(row)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _of(layer: str, kind: str) -> str:
    """The name of a layer's parameter; a model that is one layer has no name for it."""
    return f"{layer}.{kind}".removeprefix(".")


def labels(
    model: Exposed, known: Inferred, rows: int, dice: torch.Generator, *, cut: bool = False
) -> Tensor:
    """The labels of a client's rows, sorted, from the gradient of the last layer.

    A class whose entry is negative was there for certain.  The others share what is left by
    n_c = n (mean p_c - entry), where p is what the model says about made-up rows.  The length
    of a message that was `cut` to a norm is unknown; but a class that is not there has the entry
    mean p_c, so that the median of the positive ones gives it.
    """
    assert model.classes is not None
    made_up = torch.rand((_DRAWS, *model.shape), generator=dice) * (model.high - model.low)
    middle = known.points[len(known.points) // 2]
    with torch.no_grad():
        model.flat.load(middle.to(model.flat.vector.dtype))
        inputs = (made_up + model.low).to(model.flat.vector)
        (_, read, _) = _layers(model.flat, inputs)[-1]
        scores = model.flat.module(inputs).double()
    gradient = model.flat.views(known.gradient)
    entry = gradient.get(_of(model.last, "bias"))
    if entry is None:  # a row's part in the weights is that of the bias times its features
        entry = gradient[_of(model.last, "weight")].sum(1) / read.double().sum(1).mean()
    if len(entry) == 1:
        entry = torch.cat([-entry, entry])
        scores = torch.cat([torch.zeros_like(scores), scores], dim=1)
    says = scores.softmax(1).mean(0)
    if cut and bool((entry > 0).any()):
        entry = entry / (entry / says)[entry > 0].median()
    expected = rows * (says - entry)
    counts = torch.zeros(len(entry), dtype=torch.int64)
    for label in entry.argsort()[:rows]:
        counts[label] += int(entry[label] < 0)
    while int(counts.sum()) < rows:
        counts[(expected - counts).argmax()] += 1
    return torch.repeat_interleave(torch.arange(len(counts)), counts)


def analytic(model: Exposed, known: Inferred, rows: int) -> Tensor:
    """Rows from the layer that they enter; where units do not agree on enough of them, mixtures.

    Where nothing of the bias came through there is nothing to go by: the middle of the range.
    """
    assert model.entry is not None
    gradient = model.flat.views(known.gradient)
    weight, bias = gradient[_of(model.entry, "weight")], gradient[_of(model.entry, "bias")]
    mixture = torch.full_like(weight[0], (model.low + model.high) / 2)
    if bool(bias.any()):
        mixture = (bias @ weight) / bias.square().sum()
    moved = bias.abs() > 1e-6 * bias.abs().max()
    weight, bias = weight[moved], bias[moved]
    seen = weight / bias[:, None]
    span = model.high - model.low
    inside = ((seen >= model.low - AGREE * span) & (seen <= model.high + AGREE * span)).all(1)
    weight, bias, seen = weight[inside], bias[inside], seen[inside]
    near = torch.cdist(seen, seen) < AGREE * span * math.sqrt(seen.shape[1])
    found: list[Tensor] = []
    left = torch.ones(len(seen), dtype=torch.bool)
    while len(found) < rows and bool(left.any()):
        support = (near & left).sum(1).double() + bias.abs() / bias.abs().max() / 2
        best = int(torch.where(left, support, -1.0).argmax())
        group = near[best] & left
        found.append((bias[group] @ weight[group]) / bias[group].square().sum())
        left &= ~group
    found += [mixture] * (rows - len(found))
    return torch.stack(found).clamp(model.low, model.high).view(rows, *model.shape)


def matching(
    model: Exposed,
    known: Inferred,
    targets: Tensor,
    dice: torch.Generator,
    *,
    weighted: bool,
    steps: int = STEPS,
) -> Tensor:
    """Rows whose gradients point where the inferred one does, sought by Adam within the range."""
    live = model.flat.vector
    points = known.points if weighted else (known.start,)
    models = [model.flat.views(point.to(live)) for point in points]
    wanted = model.flat.views(known.gradient.to(live))
    weights = [1.0] * len(wanted)
    if weighted:  # a parameter's weight falls with the depth of its layer from 10 to 1
        own = [slot.name.rpartition(".")[0] for slot in model.flat.slots]
        layers = list(dict.fromkeys(own))
        weights = [10 - 9 * layers.index(one) / max(1, len(layers) - 1) for one in own]
    span = model.high - model.low
    begin = torch.rand((len(targets), *model.shape), generator=dice).to(live)
    sought = (model.low + span * begin).requires_grad_()
    adam = torch.optim.Adam([sought], lr=RATE * span)
    slower = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    for _ in range(steps):
        adam.zero_grad()
        with torch.enable_grad():
            loss = _distance(model, models, wanted, weights, sought, targets)
            if model.is_picture:  # the prior leads the way, and has no say in the end
                prior = SMOOTHNESS * slower.get_last_lr()[0] / RATE / span
                variation = sought.diff(dim=-2).abs().mean() + sought.diff(dim=-1).abs().mean()
                loss = loss + prior * variation / span
            (sought.grad,) = torch.autograd.grad(loss, sought)
        adam.step()
        slower.step()
        with torch.no_grad():
            sought.clamp_(model.low, model.high)
    return sought.detach().double()


def _distance(
    model: Exposed,
    models: list[dict[str, Tensor]],
    wanted: dict[str, Tensor],
    weights: list[float],
    inputs: Tensor,
    targets: Tensor,
) -> Tensor:
    """One minus the cosine of the mean gradient at the models with the wanted one."""
    total = [torch.zeros_like(part) for part in wanted.values()]
    for params in models:
        leaves = {name: part.detach().requires_grad_() for name, part in params.items()}
        outputs = torch.func.functional_call(model.flat.module, leaves, (inputs,))
        loss = model.loss(outputs, targets)
        made = torch.autograd.grad(loss, list(leaves.values()), create_graph=True)
        total = [one + part for one, part in zip(total, made, strict=True)]
    pairs = list(zip(weights, total, wanted.values(), strict=True))
    inner = torch.stack([w * (a * b).sum() for w, a, b in pairs]).sum()
    mine = torch.stack([w * a.square().sum() for w, a, _ in pairs]).sum()
    theirs = torch.stack([w * b.square().sum() for w, _, b in pairs]).sum()
    return 1 - inner / (mine * theirs).clamp(min=1e-30).sqrt()


RECOGNISED = 20.0
"""A row counts as recovered from this many decibels on."""
EXACT = 120.0
"""Decibels of a reconstruction without any error, which would be infinitely many."""


class Score(NamedTuple):
    """One row beside its reconstruction."""

    psnr: float
    """10 log10 (range² / mean squared error), in decibels."""
    ssim: float | None
    """The structural similarity, 1 for the same picture; None where rows are no pictures."""


def paired(rows: Tensor, found: Tensor) -> Tensor:
    """The reconstructions in the order of the rows that they are nearest to, one for each."""
    from scipy.optimize import linear_sum_assignment

    distances = torch.cdist(rows.flatten(1).double(), found.flatten(1).double()).square()
    _, order = linear_sum_assignment(distances.numpy())
    return found[torch.as_tensor(order)]


def score(row: Tensor, found: Tensor, span: float) -> Score:
    """The quality of one reconstruction; `span` is the range of the values."""
    error = float((row.double() - found.double()).square().mean())
    limit = span**2 * 10 ** (-EXACT / 10)
    psnr = 10 * math.log10(span**2 / max(error, limit))
    return Score(psnr, ssim(row, found, span) if row.ndim == 3 else None)


def ssim(picture: Tensor, found: Tensor, span: float, window: int = 7) -> float:
    """The mean structural similarity over all windows (Wang, Bovik, Sheikh, Simoncelli, 2004).

    Windows are squares, smaller ones where the picture is smaller.
    """
    a, b = picture.double(), found.double()
    size = min(window, *a.shape[1:])
    share = size * size / max(1, size * size - 1)

    def mean(values: Tensor) -> Tensor:
        return torch.nn.functional.avg_pool2d(values, size, stride=1)

    at, bt = mean(a), mean(b)
    va, vb = share * (mean(a * a) - at * at), share * (mean(b * b) - bt * bt)
    both = share * (mean(a * b) - at * bt)
    c1, c2 = (0.01 * span) ** 2, (0.03 * span) ** 2
    top = (2 * at * bt + c1) * (2 * both + c2)
    return float((top / ((at * at + bt * bt + c1) * (va + vb + c2))).mean())
