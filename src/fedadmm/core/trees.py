"""Arithmetic on nested NamedTuples of tensors: states and messages.

A leaf is a tensor, None (a field that the method does not send), or a plain Python value, which is
copied unchanged.  Sums and numbers of bytes refer to tensors only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

Tree = TypeVar("Tree")


def map_tensors(function: Callable[[Any], Any], tree: Tree, kind: type = Tensor) -> Tree:
    """Apply `function` to every tensor of a nested tuple; other leaves are unchanged.

    Args:
        function: function of a leaf.
        tree: nested tuple.
        kind: class of the leaves to which the function is applied.
    """
    if isinstance(tree, kind):
        return cast(Tree, function(tree))
    if isinstance(tree, tuple):
        parts = [map_tensors(function, part, kind) for part in tree]
        return cast(Tree, type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts))
    return tree


def tensors(tree: object) -> list[Tensor]:
    """Return all tensors of a nested tuple, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    found: list[Tensor] = []
    for part in tree if isinstance(tree, tuple) else ():
        if isinstance(part, Tensor):
            found.append(part)
        elif isinstance(part, tuple):
            found += tensors(part)
    return found


def named_tensors(tree: object, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors with their dotted paths, for storage by name."""
    if isinstance(tree, Tensor):
        yield prefix, tree
    elif isinstance(tree, tuple):
        names = getattr(tree, "_fields", [str(index) for index in range(len(tree))])
        for name, part in zip(names, tree, strict=True):
            yield from named_tensors(part, f"{prefix}.{name}" if prefix else name)


def stack(trees: Sequence[Tree]) -> Tree:
    """The clients' trees as one: vectors (D,) become (K, D), scalars (1,) become (K, 1)."""
    columns = [tensors(tree) for tree in trees]
    stacked = iter([torch.stack(column) for column in zip(*columns, strict=True)])
    return map_tensors(lambda _: next(stacked), trees[0])


def select(tree: Tree, clients: Tensor | slice | int) -> Tree:
    """Some clients of a stack, or one; what has no client dimension belongs to all of them."""
    return map_tensors(lambda leaf: leaf[clients] if leaf.ndim == 2 else leaf, tree)


def unstack(tree: Tree, count: int) -> list[Tree]:
    """The trees of a stack's clients, as views: `select` of each of them, at once."""
    columns = [leaf.unbind() if leaf.ndim == 2 else (leaf,) * count for leaf in tensors(tree)]
    if not columns:
        return [tree] * count
    leaves = iter([leaf for row in zip(*columns, strict=True) for leaf in row])
    return [map_tensors(lambda _: next(leaves), tree) for _ in range(count)]


def clone(tree: Tree) -> Tree:
    """A deep copy: nothing that is done to it reaches the original."""
    return map_tensors(torch.clone, tree)


def scaled(tree: Tree, factor: float) -> Tree:
    """Every tensor times `factor`, as new tensors."""
    return map_tensors(lambda leaf: leaf * factor, tree)


def add_scaled_(total: Tree, tree: Tree, factor: float) -> Tree:
    """`total += factor * tree` in place, so that a streamed sum needs no memory of its own."""
    for into, leaf in zip(tensors(total), tensors(tree), strict=True):
        into.add_(leaf, alpha=factor)
    return total


def num_bytes(tree: object) -> int:
    """The bytes that the tensors of a message occupy on the wire."""
    return sum(leaf.nbytes for leaf in tensors(tree))


def all_finite(tree: object) -> bool:
    """True when no tensor holds a NaN or an infinity."""
    # Smallest and largest number tell: both are NaN when any is; one pass, no memory.
    leaves = [leaf for leaf in tensors(tree) if leaf.numel()]
    bounds = (torch.isfinite(bound) for leaf in leaves for bound in torch.aminmax(leaf))
    if leaves and leaves[0].device.type != "cpu":  # one read from the device
        return bool(torch.stack(list(bounds)).all())
    return all(map(bool, bounds))
