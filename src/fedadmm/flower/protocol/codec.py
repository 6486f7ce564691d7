"""What arrived as bytes: decoded, and compared with how it must look."""

from __future__ import annotations

from collections.abc import Mapping

from fedadmm.core import codec
from fedadmm.core.codec import FormatError, Packed, pack
from fedadmm.flower.protocol.refusal import LONGEST_TEXT, RefusedError, Word


def decode(body: bytes) -> Packed:
    """What a message holds; a RefusedError for whatever is none."""
    try:
        return codec.decode(body, codec.MESSAGE)
    except FormatError as error:
        raise RefusedError(Word(error.kind), error.detail) from None


def check_like(template: object, packed: Packed, *, optional: bool = False) -> None:
    """Refuse what is not like the template; with `optional`, less may come."""
    wanted = pack(template)
    names = set(packed.tensors)
    if not names <= wanted.tensors.keys() or not (optional or names >= wanted.tensors.keys()):
        held, must = _listed(packed.tensors), _listed(wanted.tensors)
        raise RefusedError(Word.SHAPE, f"it holds {held}, but must hold {must}")
    for name, got in packed.tensors.items():
        like = wanted.tensors[name]
        if got.dtype != like.dtype:
            raise RefusedError(Word.DTYPE, f"{name} is {got.dtype}, but must be {like.dtype}")
        if got.shape != like.shape:
            raise RefusedError(
                Word.SHAPE, f"{name} is {tuple(got.shape)}, but must be {tuple(like.shape)}"
            )
    if packed.plain.keys() != wanted.plain.keys():
        held, must = _listed(packed.plain), _listed(wanted.plain)
        raise RefusedError(Word.SHAPE, f"it says {held}, but must say {must}")
    for name, value in packed.plain.items():
        kind = type(wanted.plain[name])
        if type(value) is not kind:
            raise RefusedError(
                Word.DTYPE, f"{name} is {type(value).__name__}, but must be {kind.__name__}"
            )
        if isinstance(value, str) and len(value) > LONGEST_TEXT:
            raise RefusedError(
                Word.SIZE,
                f"{name} has {len(value)} characters, but at most {LONGEST_TEXT} may come",
            )


def _listed(names: Mapping[str, object]) -> str:
    shown = [name[:80] for name in sorted(names)]
    return ", ".join(shown[:8]) + (" …" if len(shown) > 8 else "") or "nothing"
