"""Write `graph/tensorflow/signatures.jsonl`, the signatures of TensorFlow's ops: run it where TensorFlow is installed, with the
names of ops.

dovetail's python:     python -m tests.graph.tensorflow.signatures names > names.txt
TensorFlow's python:   python tests/graph/tensorflow/signatures.py < names.txt > graph/tensorflow/signatures.jsonl
"""

import json
import sys
from typing import Any

NAMES = {"float": "float32", "double": "float64", "half": "float16"}


def names() -> list[str]:
    """The ops of both systems, and those that are read as others."""
    from dovetail.graph.core.opdef import registered
    from dovetail.graph.tensorflow.node_mapping import COMPOSED, NEWER

    return sorted({*registered(), *COMPOSED, *NEWER})


def type_name(number: int) -> str:
    """An element type's name here."""
    from tensorflow.core.framework import types_pb2  # type: ignore[import-not-found,unused-ignore]

    name = types_pb2.DataType.Name(number)[3:].lower().removesuffix("_ref")
    return NAMES.get(name, name)


def argument(a: Any) -> str:
    """An input or output as a signature has it."""
    kind = a.type_attr or a.type_list_attr or type_name(a.type)
    kind = f"*{kind}" if a.type_list_attr else f"{a.number_attr}*{kind}" if a.number_attr else kind
    return f"{a.name}: {'&' if a.is_ref else ''}{kind}"


def default(value: Any) -> Any:
    """A default as JSON."""
    match value.WhichOneof("value"):
        case "s":
            return value.s.decode()
        case "f":
            return float(f"{value.f:.7g}")
        case "type":
            return type_name(value.type)
        case "shape":
            return None if value.shape.unknown_rank else [d.size for d in value.shape.dim]
        case "list":
            found = value.list
            return [*(v.decode() for v in found.s), *found.i, *found.f, *found.b, *map(type_name, found.type)]
        case "i" | "b" as kind:
            return getattr(value, kind)
    return None  # a tensor


def main() -> None:
    """Names to signatures."""
    from tensorflow.python.framework import op_def_registry  # type: ignore[import-not-found,unused-ignore]

    for name in sys.stdin.read().split():
        op = op_def_registry.get(name)
        if op is not None:
            attrs = {
                a.name: [a.type] + ([default(a.default_value)] if a.HasField("default_value") else []) for a in op.attr
            }
            told = {
                "op": name,
                "in": [argument(a) for a in op.input_arg],
                "out": [argument(a) for a in op.output_arg],
                "attrs": attrs,
            }
            print(json.dumps(told))


if __name__ == "__main__":
    if sys.argv[1:] == ["names"]:
        print("\n".join(names()))
    else:
        main()
