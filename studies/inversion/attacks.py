"""From the mean gradient of f_i to labels and samples.

labels     With cross-entropy the bias of the last layer has the gradient mean(p_c) - n_c / n.
analytic   A linear layer z = W x + b has dW = dz x' and db = dz: every unit of the layer that the
           samples enter gives dW_j / db_j, the sample itself where one sample moved the unit.
weighted   Samples are sought whose gradient has the direction of the inferred one (Geiping et al.,
           NeurIPS 2020: cosine similarity, Adam, total variation). Gradients are evaluated at
           models between start and end, and the weights of the layers fall with the depth, after
           Song, Wang and Zuazua (arXiv 2308.06822), who choose them by Bayesian optimisation.
"""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import fedadmm as fa
from fedadmm.core.objectives.flat import FlatModule
from studies.inversion.inference import Inferred

AGREE = 1e-2
"""Units whose samples differ by less than this share of the range saw the same sample."""
STEPS, RATE, SMOOTHNESS = 400, 0.1, 1e-2
"""Adam's steps, their first length as a share of the range, and the weight of the prior."""
RANDOM_SAMPLES = 64
"""This many random samples give the model's mean output."""
RECOGNISED = 20.0
"""A sample counts as recovered from this PSNR on, in decibels."""
EXACT = 120.0
"""The PSNR, in decibels, of a reconstruction without error."""


class Exposed(NamedTuple):
    """A client's model as an attacker sees it: everything but the samples."""

    flat: FlatModule
    loss: Any
    shape: torch.Size
    low: float
    high: float
    """The range of the values, which is public, as that of a pixel."""
    entry: str | None
    """The linear layer with a bias that the samples enter; None where there is none."""
    last: str

    @property
    def span(self) -> float:
        return self.high - self.low


def expose(objective: Any) -> Exposed:
    """Return what there is to attack of a client.

    Raises:
        CompatibilityError: the model has no linear layer.
    """
    samples = objective.prepared(objective.inputs)
    flat = FlatModule(copy.deepcopy(objective.flat.module).train())
    order = _linear_layers(flat, samples[:1])
    if not order:
        raise fa.errors.CompatibilityError(
            f"model: got {type(flat.module).__name__}, expected one with a linear layer."
        )
    first = samples[:1].flatten(1)
    entry = next((name for name, read, _ in order if torch.equal(read, first)), None)
    if entry is not None and _parameter(entry, "bias") not in {slot.name for slot in flat.slots}:
        entry = None
    low, high = float(samples.min()), float(samples.max())
    return Exposed(flat, objective.loss, samples.shape[1:], low, high, entry, order[-1][0])


def _linear_layers(flat: FlatModule, samples: Tensor) -> list[tuple[str, Tensor, int]]:
    """Every linear layer in the order of a forward pass: name, input, number of outputs."""
    seen: list[tuple[str, Tensor, int]] = []
    hooks = [
        layer.register_forward_hook(
            lambda _, given, made, name=name: seen.append((name, given[0], made.shape[-1]))
        )
        for name, layer in flat.module.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    with torch.no_grad():
        flat.module(samples)
    for hook in hooks:
        hook.remove()
    return seen


def _parameter(layer: str, kind: str) -> str:
    """The name of a layer's parameter; a model that is one layer has no name for it."""
    return f"{layer}.{kind}".removeprefix(".")


def labels(
    model: Exposed, known: Inferred, samples: int, rng: torch.Generator, *, clipped: bool = False
) -> Tensor:
    """Return the labels of a client's samples, sorted.

    A class whose entry of the gradient is negative occurs for certain. The others share the rest by
    n_c = n (mean p_c - entry), where p is the model's output for random samples. The length of a
    clipped message is unknown, but a class that does not occur has the entry mean p_c, so that the
    median over the positive entries gives it.
    """
    inputs = model.low + torch.rand((RANDOM_SAMPLES, *model.shape), generator=rng) * model.span
    with torch.no_grad():
        model.flat.load(known.points[len(known.points) // 2].to(model.flat.vector.dtype))
        scores = model.flat.module(inputs.to(model.flat.vector)).double()
    entry = model.flat.views(known.gradient)[_parameter(model.last, "bias")]
    predicted = scores.softmax(1).mean(0)
    if clipped and bool((entry > 0).any()):
        entry = entry / (entry / predicted)[entry > 0].median()
    expected = samples * (predicted - entry)
    counts = torch.zeros(len(entry), dtype=torch.int64)
    for label in entry.argsort()[:samples]:
        counts[label] += int(entry[label] < 0)
    while int(counts.sum()) < samples:
        counts[(expected - counts).argmax()] += 1
    return torch.repeat_interleave(torch.arange(len(counts)), counts)


def analytic(model: Exposed, known: Inferred, samples: int) -> Tensor:
    """Read samples off the layer that they enter; mixtures where units do not agree on enough."""
    assert model.entry is not None
    gradient = model.flat.views(known.gradient)
    weight, bias = (gradient[_parameter(model.entry, kind)] for kind in ("weight", "bias"))
    mixture = torch.full_like(weight[0], (model.low + model.high) / 2)
    if bool(bias.any()):
        mixture = (bias @ weight) / bias.square().sum()
    moved = bias.abs() > 1e-6 * bias.abs().max()
    weight, bias = weight[moved], bias[moved]
    seen, margin = weight / bias[:, None], AGREE * model.span
    inside = ((seen >= model.low - margin) & (seen <= model.high + margin)).all(1)
    weight, bias, seen = weight[inside], bias[inside], seen[inside]
    near = torch.cdist(seen, seen) < margin * math.sqrt(seen.shape[1])
    found: list[Tensor] = []
    left = torch.ones(len(seen), dtype=torch.bool)
    while len(found) < samples and bool(left.any()):
        support = (near & left).sum(1).double() + bias.abs() / bias.abs().max() / 2
        group = near[int(torch.where(left, support, -1.0).argmax())] & left
        found.append((bias[group] @ weight[group]) / bias[group].square().sum())
        left &= ~group
    found += [mixture] * (samples - len(found))
    return torch.stack(found).clamp(model.low, model.high).view(samples, *model.shape)


def weighted(
    model: Exposed, known: Inferred, targets: Tensor, rng: torch.Generator, steps: int = STEPS
) -> Tensor:
    """Seek samples whose weighted gradient has the direction of the inferred one, with Adam."""
    live = model.flat.vector
    models = [model.flat.views(point.to(live)) for point in known.points]
    wanted = list(model.flat.views(known.gradient.to(live)).values())
    layers = [slot.name.rpartition(".")[0] for slot in model.flat.slots]
    depth = {name: place for place, name in enumerate(dict.fromkeys(layers))}
    weights = [10 - 9 * depth[name] / max(1, len(depth) - 1) for name in layers]
    begin = torch.rand((len(targets), *model.shape), generator=rng).to(live)
    sought = (model.low + model.span * begin).requires_grad_()
    adam = torch.optim.Adam([sought], lr=RATE * model.span)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    for _ in range(steps):
        with torch.enable_grad():
            loss = _distance(model, models, wanted, weights, sought, targets)
            if len(model.shape) == 3:  # The prior of pictures fades out with the learning rate.
                prior = SMOOTHNESS * schedule.get_last_lr()[0] / RATE / model.span
                variation = sought.diff(dim=-2).abs().mean() + sought.diff(dim=-1).abs().mean()
                loss = loss + prior * variation / model.span
            (sought.grad,) = torch.autograd.grad(loss, sought)
        adam.step()
        schedule.step()
        with torch.no_grad():
            sought.clamp_(model.low, model.high)
    return sought.detach().double()


def _distance(
    model: Exposed,
    models: list[dict[str, Tensor]],
    wanted: list[Tensor],
    weights: list[float],
    inputs: Tensor,
    targets: Tensor,
) -> Tensor:
    """One minus the cosine between the summed gradient at the models and the inferred one."""
    total = [torch.zeros_like(part) for part in wanted]
    for params in models:
        leaves = {name: part.detach().requires_grad_() for name, part in params.items()}
        outputs = torch.func.functional_call(model.flat.module, leaves, (inputs,))
        made = torch.autograd.grad(
            model.loss(outputs, targets), list(leaves.values()), create_graph=True
        )
        total = [one + part for one, part in zip(total, made, strict=True)]
    terms = list(zip(weights, total, wanted, strict=True))
    inner = torch.stack([w * (a * b).sum() for w, a, b in terms]).sum()
    own = torch.stack([w * a.square().sum() for w, a, _ in terms]).sum()
    other = torch.stack([w * b.square().sum() for w, _, b in terms]).sum()
    return 1 - inner / (own * other).clamp(min=1e-30).sqrt()


def paired(samples: Tensor, found: Tensor) -> Tensor:
    """Return the reconstructions in the order of the samples that they are nearest to."""
    from scipy.optimize import linear_sum_assignment

    distances = torch.cdist(samples.flatten(1).double(), found.flatten(1).double()).square()
    _, order = linear_sum_assignment(distances.numpy())
    return found[torch.as_tensor(order)]


def psnr(sample: Tensor, found: Tensor, span: float) -> float:
    """Return 10 log10 (range² / mean squared error), in decibels."""
    error = float((sample.double() - found.double()).square().mean())
    return min(EXACT, 10 * math.log10(span**2 / max(error, 1e-300)))
