"""Makes Triton's interpreter quicker without changing its results.

It makes equal types again and again, compares shapes of compile-time constants one by one, and checks
integers for overflow where nobody looks at the result.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

NEEDED = ("_get_np_dtype", "TritonSemantic", "tl")  # of the interpreter's module, as this file knows it


def quicken(patch: pytest.MonkeyPatch, interpreter: ModuleType) -> None:
    """Replace the slowest functions of the interpreter; another version of it stays as it is."""
    if all(hasattr(interpreter, name) for name in NEEDED):
        compute_no_overflow_that_nobody_asserts(patch, interpreter)
        leave_equal_shapes(patch, interpreter)
        keep_numpy_types(patch, interpreter)
        keep_block_types(patch, interpreter.tl.core)


def compute_no_overflow_that_nobody_asserts(patch: pytest.MonkeyPatch, interpreter: ModuleType) -> None:
    """Skip the check of integers for overflow where its result is thrown away, which is without `debug`."""
    semantic = interpreter.TritonSemantic
    check = semantic.binary_op_sanitize_overflow_impl

    def checked(self: Any, *arguments: Any) -> None:
        if self.builder.options.debug:
            check(self, *arguments)

    patch.setattr(semantic, "binary_op_sanitize_overflow_impl", checked)


def leave_equal_shapes(patch: pytest.MonkeyPatch, interpreter: ModuleType) -> None:
    """Broadcast only blocks whose shapes differ."""
    semantic = interpreter.TritonSemantic
    broadcast = semantic.broadcast_impl_value

    def broadcast_others(self: Any, left: Any, right: Any) -> Any:
        blocks = left.type.is_block(), right.type.is_block()
        if not any(blocks) or (all(blocks) and left.type.shape.values == right.type.shape.values):
            return left, right
        return broadcast(self, left, right)

    patch.setattr(semantic, "broadcast_impl_value", broadcast_others)


def keep_numpy_types(patch: pytest.MonkeyPatch, interpreter: ModuleType) -> None:
    find, known = interpreter._get_np_dtype, {}

    def found(type_: Any) -> Any:
        name = type_.scalar.name
        if name not in known:
            known[name] = find(type_)
        return known[name]

    patch.setattr(interpreter, "_get_np_dtype", found)


def keep_block_types(patch: pytest.MonkeyPatch, core: ModuleType) -> None:
    """Keep the fields of block types, and what tensors take from their types, by element type and shape."""
    make_type, make_tensor = core.block_type.__init__, core.tensor.__init__
    types: dict[tuple[Any, ...], dict[str, Any]] = {}
    shapes: dict[tuple[Any, ...], dict[str, Any]] = {}

    def init_type(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = [size.value if isinstance(size, core.constexpr) else size for size in shape]
        key = (id(element_ty), *sizes)  # which stays alive in what is kept
        if key not in types:
            make_type(self, element_ty, shape)
            types[key] = dict(vars(self))
        vars(self).update(types[key])

    def init_tensor(self: Any, handle: Any, type: Any) -> None:
        key = tuple(type.shape) if type.is_block() else ()
        if key not in shapes:
            make_tensor(self, handle, type)
            shapes[key] = {name: getattr(self, name) for name in ("numel", "shape")}
        vars(self).update(shapes[key], handle=handle, type=type, dtype=type.scalar)

    patch.setattr(core.block_type, "__init__", init_type)
    patch.setattr(core.tensor, "__init__", init_tensor)
