"""Models: the papers' sizes, what stands where, and pure initialisation."""

import pytest
import torch
from torch import nn

from fedadmm.core.errors import ParameterError
from fedadmm.data import models
from support.rejections import naming

# Counted by hand from the papers' layer lists: convolution k*k*in*out + out, dense in*out + out.
SIZES = {
    "cnn1": (5 * 5 * 32 + 32) + (25 * 32 * 64 + 64) + (3136 * 512 + 512) + (512 * 10 + 10),
    "cnn2": (75 * 32 + 32) + (25 * 32 * 64 + 64) + (4096 * 256 + 256) + (256 * 10 + 10),
    "femnist-cnn": 832 + 51_264 + (3136 * 2048 + 2048) + (2048 * 62 + 62),
    "insa-cnn": 832 + 51_264 + (1024 * 512 + 512) + 5130,
    "small-cnn": (25 * 8 + 8) + (25 * 8 * 16 + 16) + (784 * 32 + 32) + (32 * 10 + 10),
    "mlp-60-32-10": 60 * 32 + 32 + 32 * 10 + 10,
    "mlp-784-128-10": 784 * 128 + 128 + 128 * 10 + 10,
    "mlp-64-32-10": 64 * 32 + 32 + 32 * 10 + 10,
}
PRINTED = {
    "cnn1": 1_663_370,
    "cnn2": 1_105_098,
    "femnist-cnn": 6_603_710,
    "insa-cnn": 582_026,
    "small-cnn": 28_874,
    "mlp-60-32-10": 2_282,
}
IMAGES = {"cnn1": (1, 28, 28), "cnn2": (3, 32, 32), "femnist-cnn": (1, 28, 28)}
IMAGES["insa-cnn"] = IMAGES["small-cnn"] = (1, 28, 28)


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("name", SIZES)
def test_parameter_counts(name: str) -> None:
    assert _size(models.build(name)) == SIZES[name]
    assert SIZES[name] == PRINTED.get(name, SIZES[name])


@pytest.mark.parametrize("name", IMAGES)
def test_a_relu_follows_every_convolution_and_no_softmax_ends_the_model(name: str) -> None:
    layers = list(models.build(name))
    after = [layers[i + 1] for i, layer in enumerate(layers) if isinstance(layer, nn.Conv2d)]
    assert len(after) == 2
    assert all(isinstance(layer, nn.ReLU) for layer in after)
    assert isinstance(layers[-1], nn.Linear)
    assert models.build(name)(torch.zeros(3, *IMAGES[name])).shape == (3, layers[-1].out_features)


def test_the_small_cnn_follows_the_size_of_the_images() -> None:
    color = models.build("small-cnn", inputs=3 * 32 * 32)
    # 75 weights per filter on three channels; 16 channels of 8×8 after two poolings
    assert _size(color) == (75 * 8 + 8) + (25 * 8 * 16 + 16) + (1024 * 32 + 32) + (32 * 10 + 10)
    assert color(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert models.build("small-cnn", inputs=64)(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    with pytest.raises(ParameterError, match=naming("small-cnn inputs 100")):
        models.build("small-cnn", inputs=100)


@pytest.mark.parametrize("name", ["cnn1", "cnn2"])
def test_gong_as_released(name: str) -> None:
    released = models.build(name, as_released="gong")
    layers = list(released)
    after = [layers[i + 1] for i, layer in enumerate(layers) if isinstance(layer, nn.Conv2d)]
    assert all(isinstance(layer, nn.MaxPool2d) for layer in after)
    torch.testing.assert_close(released(torch.randn(2, *IMAGES[name])).sum(-1), torch.ones(2))
    assert _size(released) == PRINTED[name]


def test_wang_as_released_has_a_second_hidden_layer() -> None:
    released = models.build("mlp-60-32-10", as_released="wang")
    assert [m.out_features for m in released if isinstance(m, nn.Linear)] == [32, 32, 10]
    assert isinstance(released[-1], nn.Linear)


def test_gongs_perceptron_has_his_softmax_and_not_wangs_layer() -> None:
    released = models.build("mlp-784-128-10", as_released="gong")
    assert [m.out_features for m in released if isinstance(m, nn.Linear)] == [128, 10]
    torch.testing.assert_close(released(torch.randn(2, 784)).sum(-1), torch.ones(2))


def test_linear_and_logistic_take_sizes() -> None:
    assert _size(models.build("linear", inputs=7)) == 8
    assert _size(models.build("linear", inputs=7, bias=False)) == 7
    assert _size(models.build("logistic", inputs=13)) == 14
    assert _size(models.build("logistic", inputs=13, classes=3)) == 42


def test_initialisation_is_a_function_of_the_seed_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = models.initial_vector("mlp-64-32-10", 5)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    torch.testing.assert_close(first, models.initial_vector("mlp-64-32-10", 5), rtol=0, atol=0)
    assert not torch.equal(first, models.initial_vector("mlp-64-32-10", 6))


def test_a_module_of_the_user_is_copied_and_keeps_its_parameters() -> None:
    mine = nn.Linear(3, 2)
    built = models.build(mine, seed=3)
    assert built is not mine
    torch.testing.assert_close(built.weight, mine.weight, rtol=0, atol=0)
    with torch.no_grad():
        built.weight.zero_()
    assert mine.weight.abs().sum() > 0


def test_a_factory_of_the_user_is_called_under_the_seed() -> None:
    def mine(width: int) -> nn.Module:
        return nn.Linear(width, 1)

    first = models.initial_vector(mine, 1, width=4)
    assert first.shape == (5,)
    assert torch.equal(first, models.initial_vector(mine, 1, width=4))


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: models.build("resnet"), "model name resnet cnn1"),
        (lambda: models.build("mlp-60"), "model name mlp-60"),
        (lambda: models.build("mlp-0-3"), "mlp sizes 0"),
        (lambda: models.build("mlp-4-3", as_released="wang"), "mlp sizes as_released"),
        (lambda: models.build("mlp-4-3", as_released=True), "mlp as_released True"),
        (lambda: models.build("cnn1", as_released="wang"), "cnn1 as_released wang"),
        (lambda: models.build("linear"), "model linear inputs"),
        (lambda: models.build("cnn1", width=3), "model cnn1 width"),
        (lambda: models.build(nn.Linear(1, 1), width=3), "model width"),
        (lambda: models.build(lambda: 3), "model int"),
    ],
)
def test_what_cannot_be_built_is_refused(call, names: str) -> None:
    with pytest.raises(ParameterError, match=naming(names)):
        call()
