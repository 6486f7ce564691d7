"""Models of the papers by name, and models of the user.

Models return logits without softmax, and a ReLU follows each convolution.  `as_released` selects
the deviating network of an author's published program instead.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn

from fedadmm.core.errors import ParameterError
from fedadmm.core.parts import Count, checked_arguments, imported, is_external
from fedadmm.core.rng import Key, derive
from fedadmm.core.validation import check

Factory = Callable[..., nn.Module]
Model = str | nn.Module | Factory
"""A name, a module (which is copied), or a function that returns a module."""
Released = Literal["gong", "wang"]
"""Author of the published program with a network.  "gong": a softmax before the cross-entropy, and
no ReLU after convolutions; "wang": the last hidden layer twice."""


def _convolutions(
    channels: int,
    padding: int,
    features: int,
    hidden: int,
    classes: int,
    as_released: Literal["gong"] | None = None,
    widths: tuple[int, int] = (32, 64),
) -> nn.Sequential:
    """Return the network conv5 – pool – conv5 – pool – hidden – classes."""

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        activation = [] if as_released == "gong" else [nn.ReLU()]
        return [nn.Conv2d(inputs, outputs, 5, padding=padding), *activation, nn.MaxPool2d(2)]

    head = [nn.Softmax(dim=-1)] if as_released == "gong" else []
    return nn.Sequential(
        *block(channels, widths[0]),
        *block(*widths),
        nn.Flatten(),
        nn.Linear(features, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
        *head,
    )


@checked_arguments
def cnn1(classes: Count = 10, as_released: Literal["gong"] | None = None) -> nn.Module:
    """CNN 1 of Gong et al. for 28×28×1 images; 1,663,370 parameters with ten classes."""
    return _convolutions(1, 2, 64 * 7 * 7, 512, classes, as_released)


@checked_arguments
def cnn2(classes: Count = 10, as_released: Literal["gong"] | None = None) -> nn.Module:
    """CNN 2 of Gong et al. for 32×32×3 images; 1,105,098 parameters with ten classes."""
    return _convolutions(3, 2, 64 * 8 * 8, 256, classes, as_released)


def femnist_cnn(classes: int = 62) -> nn.Module:
    """The LEAF CNN for 28×28×1 images; 6,603,710 parameters with 62 classes."""
    return _convolutions(1, 2, 64 * 7 * 7, 2048, classes)


def insa_cnn(classes: int = 10) -> nn.Module:
    """The CNN of FedADMM-InSa for 28×28×1 images, without padding; 582,026 parameters."""
    return _convolutions(1, 0, 64 * 4 * 4, 512, classes)


def small_cnn(classes: int = 10, inputs: int = 28 * 28) -> nn.Module:
    """CNN 1 with 8 and 16 channels and 32 hidden units, for square images and short studies.

    It has 28,874 parameters for 28×28×1 images and 36,954 for 32×32×3 images.

    Args:
        classes: The number of classes.
        inputs: The number of values of an image with one or three channels.
    """
    for channels in (1, 3):
        side = math.isqrt(inputs // channels)
        if channels * side**2 == inputs and side % 4 == 0:
            return _convolutions(channels, 2, 16 * (side // 4) ** 2, 32, classes, widths=(8, 16))
    raise ParameterError(
        f"small-cnn: inputs: got {inputs}, expected those of square images with 1 or 3 channels "
        "and a side divisible by 4."
    )


def mlp(*sizes: int, as_released: Released | None = None) -> nn.Module:
    """Multilayer perceptron with ReLU between the layers; images are flattened first.

    Args:
        sizes: The sizes of the input, of hidden layers, and of the output.
        as_released: "gong" appends a softmax; "wang" repeats the last hidden layer, so that
            60-32-10 becomes 60-32-32-10.
    """
    if len(sizes) < 2:
        raise ParameterError(f"mlp: sizes: got {sizes}, expected at least inputs and outputs.")
    for size in sizes:
        check("mlp", "sizes", size, Count)
    check("mlp", "as_released", as_released, Released | None)
    if as_released == "wang":
        if len(sizes) < 3:
            raise ParameterError(
                f"mlp: sizes: got {sizes}, expected a hidden layer for as_released='wang'."
            )
        sizes = (*sizes[:-1], *sizes[-2:])
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    head = [nn.Softmax(dim=-1)] if as_released == "gong" else []
    return nn.Sequential(*layers[:-1], *head)


@checked_arguments
def linear(inputs: Count, outputs: Count = 1, bias: bool = True) -> nn.Module:
    """Linear regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, outputs, bias=bias))


@checked_arguments
def logistic(inputs: Count, classes: Annotated[int, Ge(2)] = 2) -> nn.Module:
    """Logistic regression: one logit for two classes, otherwise one per class."""
    return linear(inputs, 1 if classes == 2 else classes)


def perceptron(inputs: int, classes: int = 1, hidden: int = 64) -> nn.Module:
    """Perceptron with one hidden layer: one logit per class, or one number for a regression."""
    return mlp(inputs, hidden, classes)


NAMES: dict[str, Factory] = {
    "cnn1": cnn1,
    "cnn2": cnn2,
    "femnist-cnn": femnist_cnn,
    "insa-cnn": insa_cnn,
    "small-cnn": small_cnn,
    "linear": linear,
    "logistic": logistic,
    "mlp": perceptron,
}
"""Models by name.  Other valid names are `mlp-A-B-…-Z`, a perceptron with these layer sizes, and
`package.module:Name`, an importable function or class that returns a module."""


def factory(model: Model, **options: Any) -> Callable[[], nn.Module]:
    """Return a function without arguments that builds the model.

    Args:
        model: A name, a module, or a function that returns a module.
        options: Arguments of the model.

    Raises:
        ParameterError: The model is unknown, or does not accept the options.
    """
    if isinstance(model, nn.Module):
        if options:
            raise ParameterError(f"model: got options {sorted(options)}, expected none here.")
        return partial(copy.deepcopy, model)
    make = resolve(model)
    try:
        inspect.signature(make).bind(**options)
    except TypeError as error:
        raise ParameterError(
            f"model: got options {options}, expected those of {model!r} ({error})."
        ) from None
    return partial(make, **options)


def resolve(model: str | Factory) -> Factory:
    """Return the function that builds the model with a given name."""
    if callable(model):
        return model
    if not isinstance(model, str):
        raise ParameterError(
            f"model: got {model!r}, expected a name, a module, or a function that returns one."
        )
    if model in NAMES:
        return NAMES[model]
    if re.fullmatch(r"mlp(-\d+){2,}", model):
        return partial(mlp, *(int(size) for size in model.split("-")[1:]))
    if is_external(model):
        make: Factory = imported(f"model: name is {model!r}", model)
        if callable(make):
            return make
        raise ParameterError(
            f"model: got {model!r}, expected a function or class that returns a module."
        )
    allowed = ", ".join([*sorted(NAMES), "mlp-IN-…-OUT", "package.module:Name"])
    raise ParameterError(f"model: name: got {model!r}, expected one of {allowed}.")


def build(model: Model, *, seed: Key = 0, **options: Any) -> nn.Module:
    """Build a model whose initial parameters depend on the seed only.

    The global random state is unchanged.  A module is copied and keeps its parameters.

    Args:
        model: A name, a module, or a function that returns a module.
        seed: The seed of the initialisation.
        options: Arguments of the model.
    """
    make = factory(model, **options)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(seed, "model"))
        module = make()
    if not isinstance(module, nn.Module):
        raise ParameterError(
            f"model: got {type(module).__name__} from {model!r}, expected a torch.nn.Module."
        )
    return module


def initial_vector(model: Model, seed: Key, **options: Any) -> Tensor:
    """Return the initial trainable parameters of a model as one vector."""
    module = build(model, seed=seed, **options)
    parts = [p.detach().reshape(-1) for p in module.parameters() if p.requires_grad]
    return torch.cat(parts)
