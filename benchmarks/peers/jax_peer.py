"""Federated averaging by hand in JAX: clients under `vmap`, their steps under `scan`, compiled.

The clients of a round are divided among the devices, one per core (`shard_map`).

No framework: the hardest that anybody could pick for models of a few layers.
"""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import report, rows, specification
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def initial(spec: SimpleNamespace) -> list[tuple[Any, Any]]:
    """The weights and biases of a perceptron."""
    sizes = [int(size) for size in spec.model.split("-")[1:]]
    keys = jax.random.split(jax.random.key(spec.seed), len(sizes))
    return [
        (jax.random.uniform(key, (a, b), minval=-1, maxval=1) / a**0.5, jnp.zeros(b))
        for key, (a, b) in zip(keys[1:], itertools.pairwise(sizes), strict=True)
    ]


def loss(params: list[tuple[Any, Any]], inputs: Any, targets: Any) -> Any:
    """The mean cross-entropy of a batch."""
    for weight, bias in params[:-1]:
        inputs = jax.nn.relu(inputs @ weight + bias)
    scores = jax.nn.log_softmax(inputs @ params[-1][0] + params[-1][1])
    return -jnp.take_along_axis(scores, targets[:, None], axis=1).mean()


def main() -> None:
    """Run the workload."""
    spec = specification()
    inputs, targets = (jnp.asarray(np.asarray(one)) for one in rows(spec))
    inputs = inputs.reshape(*inputs.shape[:2], -1)
    batches = spec.samples // spec.batch_size

    def client(data: Any, params: Any, client: Any, key: Any) -> Any:
        """One client's local epochs."""
        orders = jax.vmap(lambda one: jax.random.permutation(one, spec.samples))(
            jax.random.split(key, spec.epochs)
        )

        def step(params: Any, batch: Any) -> tuple[Any, None]:
            rows, labels = (column[client, batch] for column in data)
            gradient = jax.grad(loss)(params, rows, labels)
            return jax.tree.map(lambda p, g: p - spec.lr * g, params, gradient), None

        return jax.lax.scan(step, params, orders.reshape(spec.epochs * batches, -1))[0]

    def share(data: Any, params: Any, cohort: Any, keys: Any) -> Any:
        models = jax.vmap(client, in_axes=(None, None, 0, 0))(data, params, cohort, keys)
        sums = jax.tree.map(lambda stack: stack.sum(0) / spec.cohort, models)
        return jax.lax.psum(sums, "clients")

    mesh = Mesh(np.array(jax.devices()), ("clients",))
    divided, whole = PartitionSpec("clients"), PartitionSpec()
    places = (whole, whole, divided, divided)
    sharded = jax.shard_map(share, mesh=mesh, in_specs=places, out_specs=whole, check_vma=False)

    @jax.jit
    def one_round(data: Any, params: Any, cohort: Any, key: Any) -> Any:
        return sharded(data, params, cohort, jax.random.split(key, spec.cohort))

    data, start = jax.device_put(((inputs, targets), initial(spec)), NamedSharding(mesh, whole))
    draws, params, times = np.random.default_rng(spec.seed), start, [time.perf_counter()]
    for number in range(spec.warm_up + spec.rounds):
        cohort = jnp.asarray(draws.choice(spec.clients, spec.cohort, replace=False))
        params = one_round(data, params, cohort, jax.random.key(number))
        jax.block_until_ready(params)
        times.append(time.perf_counter())
    seconds = [after - before for before, after in itertools.pairwise(times)]
    report(seconds[spec.warm_up :])


if __name__ == "__main__":
    main()
