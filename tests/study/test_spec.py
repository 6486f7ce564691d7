"""A cell is found again by everything that its result depends on, and by nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from fedadmm.study.config import resolve
from fedadmm.study.spec import cell_hash
from support.commands import SMALL


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"checkpoint": {"every": 7}}, True),
        ({"callbacks": [{"name": "tensorboard"}]}, True),
        ({"callbacks": [{"name": "diagnostics"}]}, False),
        ({"threads": 2}, True),
        ({"store": {"name": "disk"}}, True),
        ({"store": {"name": "disk", "primal": "bfloat16"}}, False),
        ({"seed": 1}, False),
        ({"rounds": 5}, False),
        ({"precision": "float64"}, False),
        ({"algorithm": {"name": "fedadmm", "rho": 1.5}}, False),
        ({"evaluate": {"every": 2}}, False),
    ],
)
def test_the_hash_covers_what_the_result_depends_on(change: dict[str, Any], same: bool) -> None:
    assert (cell_hash(resolve(SMALL)) == cell_hash(resolve(SMALL | change))) is same


def test_leaving_a_default_out_is_the_same_cell() -> None:
    assert cell_hash(resolve(SMALL)) == cell_hash(resolve(resolve(SMALL).tree))
