"""The residual network of the study."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class Residual(nn.Module):
    """Two convolutions and a shortcut, with group norms of two groups."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        norms = nn.GroupNorm(2, outputs), nn.GroupNorm(2, outputs)
        self.path = nn.Sequential(first, norms[0], nn.ReLU(), second, norms[1])
        across = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
        self.shortcut = nn.Identity() if (inputs, stride) == (outputs, 1) else across

    def forward(self, images: Tensor) -> Tensor:
        """Return the rectified sum of both paths."""
        return functional.relu(self.path(images) + self.shortcut(images))


def resnet8() -> nn.Module:
    """ResNet-8 with 8, 16 and 32 channels and group norms for 32×32×3 images; 19,858 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        Residual(8, 8, 1),
        Residual(8, 16, 2),
        Residual(16, 32, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
