"""Hand-written forward and backward passes for plain layer sequences, for many clients at once.

`compile_network` understands an `nn.Sequential` of Linear, ReLU, Conv2d, MaxPool2d and Flatten
with one of the house's losses.  The passes run on K clients together: activations are
(K, rows, ...), and parameter i of all clients is one contiguous block (K, *shape).  Against
autograd this saves the graph, and a gradient that is only wanted for an SGD step is never formed:
the product that would make it is accumulated straight into the parameters (`Sink`).

Convolutions run channels-last, and for one client only: stacked they would be grouped
convolutions, which are slower than one client after the other.
"""

from __future__ import annotations

from fedadmm.core.objectives.kernels.compiling import Network, compile_network
from fedadmm.core.objectives.kernels.layers import Blocks, Sink, Weights, channels_last

__all__ = ["Blocks", "Network", "Sink", "Weights", "channels_last", "compile_network"]
