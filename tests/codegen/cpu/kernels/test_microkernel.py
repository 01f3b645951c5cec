"""The LLVM instructions of the micro-kernel, against golden files. DOVETAIL_UPDATE_GOLDEN=1 writes them anew.

The tile is a small one, so that the text is the same on all machines and can be read: 2 rows, and panels of 8 columns.
"""

import os
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numba")

from llvmlite import ir  # noqa: E402
from numba import types  # noqa: E402
from numba.core.registry import cpu_target  # noqa: E402

from dovetail.codegen.cpu.kernels import microkernel  # noqa: E402

GOLDEN = Path(__file__).parents[2] / "golden"
READ, WRITTEN = types.Array(types.float32, 1, "C", readonly=True), types.Array(types.float32, 1, "C")
NUMBERS = types.Array(types.intp, 1, "C", readonly=True)
I, B = types.intp, types.boolean  # noqa: E741

EMITTED: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "table_tile": (microkernel.table_tile, (READ, NUMBERS, NUMBERS, WRITTEN, I, I, WRITTEN, I, NUMBERS, I, I, I, I, B)),
    "move_columns": (microkernel.move_columns, (WRITTEN, I, READ, I)),
    "transpose": (microkernel.transpose, (WRITTEN, I, I, READ, I, I)),
}


def emitted(intrinsic: Any, arguments: tuple[Any, ...]) -> str:
    """The text of an LLVM function with the instructions that an intrinsic emits."""
    context = cpu_target.target_context
    signature, emit = intrinsic._defn(cpu_target.typing_context, *arguments)
    assert signature.args == arguments
    module = ir.Module(name="micro-kernel")
    kind = ir.FunctionType(ir.VoidType(), [context.get_value_type(a) for a in arguments])
    function = ir.Function(module, kind, "emitted")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    emit(context, builder, signature, function.args)
    builder.ret_void()
    return str(module)


@pytest.mark.parametrize("name", EMITTED)
def test_text_of_the_micro_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(microkernel, "MR", 2)
    monkeypatch.setattr(microkernel, "NR", {"float32": 8})
    text = re.sub(r"target \w+ = .*\n", "", emitted(*EMITTED[name]))
    path = GOLDEN / f"micro_kernel_{name}.ll.txt"
    if os.environ.get("DOVETAIL_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
