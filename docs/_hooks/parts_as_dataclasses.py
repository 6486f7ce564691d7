"""Extension of the source reader: fields of components, and examples as code.

The decorators `part` and `checked` make a class a dataclass; without the extension the reference
shows such a class without its fields.
"""

from __future__ import annotations

from typing import Any

from griffe import Class, Decorator, Expr, ExprName, Extension

MAKERS = ("fedadmm.core.parts.part", "fedadmm.core.parts.checked")


class PartsAsDataclasses(Extension):  # type: ignore[misc]
    """Adds the decorator that ours apply."""

    def on_class_members(self, *, cls: Class, **others: Any) -> None:
        """Look at a class as soon as it has been read."""
        used = [one.value for one in cls.decorators if isinstance(one.value, Expr)]
        if any(value.canonical_path in MAKERS for value in used):
            made = ExprName("dataclasses.dataclass")
            cls.decorators.append(Decorator(made, lineno=cls.lineno, endlineno=cls.lineno))

    def on_instance(self, *, obj: Any, **others: Any) -> None:
        """Turn a section `Example:` into the section `Examples:`, which the reader knows."""
        if getattr(obj, "docstring", None) is not None:
            obj.docstring.value = obj.docstring.value.replace("\n\nExample:\n", "\n\nExamples:\n")
