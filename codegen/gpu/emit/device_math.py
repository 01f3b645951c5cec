"""The functions that GPU kernels call: those of `vecmath`, translated to Triton; random numbers; and functions that Triton lacks.

`vecmath` is straight arithmetic on numbers and their bits, so its source is translated nearly word for word. A GPU kernel's `exp` has
the polynomial of the CPU's, with the same error, and Triton's interpreter can run it, unlike the vendors' device libraries. `a * b + c`
becomes one fused operation, which `vecmath` alone allows.

`_OWN` has the functions that Triton lacks or computes inexactly: division and square root are IEEE's, minima and maxima propagate NaN.

Random numbers are those of `graph/core/philox.py`. Each thread scrambles its own counters, each of which gives four words. If a tile's
rows begin at whole counters, the plural functions make its numbers and use every word. Else the functions for single positions use one
word and drop three:

    uniforms32(block, key, draw)    of a tile of counters [.., B]: the numbers of a tile of elements [.., 4 B]
    uniform32(at, key, draw)        of a tile of positions: their numbers

Uniform numbers are those of the CPU, bit for bit. Normal ones are computed in float64, by the polynomials of CPUs, and rounded once.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

_JIT = "@triton.jit\n"
# Names that are called, and names that are arguments.
_CALLED = re.compile(r"(?<![\w.])(?<!def )[a-z_]\w*(?=\()|(?<=, )[a-z_]\w*(?=[,)])")

# Functions that are written by hand: name -> text. Those named `..32` and `..64` are for one type, the others for any.
_OWN = {
    "maximum": "def maximum(a, b):\n    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)\n",
    "minimum": "def minimum(a, b):\n    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)\n",
    "product": "def product(a, b):\n    return a * b\n",
    "added": "def added(a, b):\n    return a + b\n",
    # A total and what was before its last element, of two neighbouring sets together: running sums without the element itself.
    "added_before": "def added_before(all_a, before_a, all_b, before_b):\n    return all_a + all_b, all_a + before_b\n",
    "product_before": "def product_before(all_a, before_a, all_b, before_b):\n    return all_a * all_b, all_a * before_b\n",
    # Mean, sum of squares around it, and count, of two sets together (Chan, Golub and LeVeque, 1979).
    "joined": (
        "def joined(mean, rest, seen, mean_b, rest_b, seen_b):\n"
        "    away = mean_b - mean\n"
        "    both = seen + seen_b\n"
        "    part = tl.where(both == 0.0, 0.0, seen_b / both)\n"
        "    return mean + away * part, rest + rest_b + away * away * (seen * part), both\n"
    ),
    # A division that IEEE rounds has a way around, by a call, for denormal numbers: a third of the instructions of a tanh. Here none
    # can come. The inverse has 21 bits, and the quotient, once corrected by its rest, all.
    "quotient32": (
        "def quotient32(a, b):\n"
        "    root = tl.rsqrt(b)\n"
        "    inverse = root * root\n"
        "    q = a * inverse\n"
        "    return tl.fma(tl.fma(-q, b, a), inverse, q)\n"
    ),
    # What is rounded to 11 bits or fewer takes the machine's own power of two: an error of 5e-6 is less than a hundredth of that.
    "exp_narrow": "def exp_narrow(x):\n    return tl.exp2(x * 1.4426950408889634)\n",
    "tanh_narrow": (
        "def tanh_narrow(x):\n"
        "    a = tl.abs(x)\n"
        "    e = tl.exp2(a * -2.8853900817779268)\n"
        "    root = tl.rsqrt(1.0 + e)\n"
        "    return tl.where(a < 0.0009765625, x, copysign32((1.0 - e) * (root * root), x))\n"
    ),
    "part_narrow": (
        "def part_narrow(x, total):\n"
        "    scale = tl.where(total < 8.673617379884035e-19, 1073741824.0, 1.0)\n"
        "    return x * scale * tl.div_rn(tl.full((), 1.0, tl.float32), total * scale)\n"
    ),
    # The machine's own take denormal numbers for 0: what they give is then on the wrong side of x.
    "floor": "def floor(x):\n    y = tl.floor(x)\n    return tl.where(y > x, -1.0, y)\n",
    "ceil": "def ceil(x):\n    y = tl.ceil(x)\n    return tl.where(y < x, 1.0, y)\n",
    "trunc": "def trunc(x):\n    return tl.where(x < 0.0, tl.ceil(x), tl.floor(x))\n",
}  # fmt: skip

# Adding `_whole` leaves no room for a fraction; what is larger has none.
for _w, _whole in ((32, 2.0**23), (64, 2.0**52)):
    _OWN[f"copysign{_w}"] = (
        f"def copysign{_w}(a, x):\n"
        f"    size = a.to(tl.int{_w}, bitcast=True) & 0x{2 ** (_w - 1) - 1:X}\n"
        f"    bits = size | (x.to(tl.int{_w}, bitcast=True) & {-(2 ** (_w - 1)):#x})\n"
        f"    return bits.to(tl.float{_w}, bitcast=True)\n"
    )
    _OWN[f"rint{_w}"] = (
        f"def rint{_w}(x):\n"
        "    a = tl.abs(x)\n"
        f"    return tl.where(a < {_whole}, copysign{_w}((a + {_whole}) - {_whole}, x), x)\n"
    )

_RANDOM = {  # name -> text
    "philox": """def philox(block, key, draw):
    wide = block.to(tl.int64)
    c0 = (wide & 0xFFFFFFFF).to(tl.uint32)
    c1 = (wide >> 32).to(tl.uint32)
    c2 = tl.zeros_like(c0) + (draw & 0xFFFFFFFF).to(tl.uint32)
    c3 = tl.zeros_like(c0) + (draw >> 32).to(tl.uint32)
    k0 = tl.zeros_like(c0) + (key & 0xFFFFFFFF).to(tl.uint32)
    k1 = tl.zeros_like(c0) + (key >> 32).to(tl.uint32)
    for _ in tl.static_range(10):
        a = c0.to(tl.uint64) * 0xD2511F53
        b = c2.to(tl.uint64) * 0xCD9E8D57
        c0 = (b >> 32).to(tl.uint32) ^ c1 ^ k0
        c1 = (b & 0xFFFFFFFF).to(tl.uint32)
        c2 = (a >> 32).to(tl.uint32) ^ c3 ^ k1
        c3 = (a & 0xFFFFFFFF).to(tl.uint32)
        k0 = k0 + tl.full((), 0x9E3779B9, tl.uint32)
        k1 = k1 + tl.full((), 0xBB67AE85, tl.uint32)
    return c0, c1, c2, c3
""",
    "long_words": """def long_words(block, key, draw):
    w0, w1, w2, w3 = philox(block, key, draw)
    return (w0.to(tl.uint64) << 32) | w1.to(tl.uint64), (w2.to(tl.uint64) << 32) | w3.to(tl.uint64)
""",
    "fraction32": """def fraction32(word):
    return (word >> 8).to(tl.float32) * 5.960464477539063e-08
""",
    "fraction64": """def fraction64(word):
    return (word >> 11).to(tl.float64) * tl.full((), 1.1102230246251565e-16, tl.float64)
""",
    "uniforms32": """def uniforms32(block, key, draw):
    w0, w1, w2, w3 = philox(block, key, draw)
    return fraction32(tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3)))
""",
    "uniform32": """def uniform32(at, key, draw):
    w0, w1, w2, w3 = philox(at >> 2, key, draw)
    odd = (at & 1) != 0
    return fraction32(tl.where((at & 2) != 0, tl.where(odd, w3, w2), tl.where(odd, w1, w0)))
""",
    "uniforms64": """def uniforms64(block, key, draw):
    a, b = long_words(block, key, draw)
    return fraction64(tl.interleave(a, b))
""",
    "uniform64": """def uniform64(at, key, draw):
    a, b = long_words(at >> 1, key, draw)
    return fraction64(tl.where((at & 1) != 0, b, a))
""",
    # A step is 2**-32.
    "normal_pair": """def normal_pair(word, other):
    step = tl.full((), 2.3283064365386963e-10, tl.float64)
    radius = tl.sqrt(-2.0 * log64(word.to(tl.float64) * step + step))
    angle = other.to(tl.float64) * step * tl.full((), 6.283185307179586, tl.float64)
    return (radius * cosine_of_turn64(angle)).to(tl.float32), (radius * sine_of_turn64(angle)).to(tl.float32)
""",
    "normals32": """def normals32(block, key, draw):
    w0, w1, w2, w3 = philox(block, key, draw)
    a, b = normal_pair(w0, w1)
    c, d = normal_pair(w2, w3)
    return tl.interleave(tl.interleave(a, c), tl.interleave(b, d))
""",
    "normal32": """def normal32(at, key, draw):
    w0, w1, w2, w3 = philox(at >> 2, key, draw)
    second = (at & 2) != 0
    a, b = normal_pair(tl.where(second, w2, w0), tl.where(second, w3, w1))
    return tl.where((at & 1) != 0, b, a)
""",
}


def functions(text: str) -> str:
    """The texts of the functions that a text calls or passes on, and of those that they call, callees first."""
    known = _functions()
    out: dict[str, None] = {}

    def add(names: set[str]) -> None:
        for name in sorted(names & known.keys() - out.keys()):
            add(set(_CALLED.findall(known[name])))
            out[name] = None

    add(set(_CALLED.findall(text)))
    return "".join(f"{_JIT}{known[name]}\n\n" for name in out)


@cache
def _functions() -> dict[str, str]:
    found: dict[str, str] = {}
    for path in sorted((Path(__file__).parents[2] / "vecmath").glob("*.py")):
        found |= _translated(ast.parse(path.read_text(encoding="utf-8")))
    return {**found, **_OWN, **_RANDOM}


def _translated(tree: ast.Module) -> dict[str, str]:
    """The translated functions of a file of `vecmath`, by name."""
    found: dict[str, str] = {}
    constants: dict[str, ast.expr] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            (target,) = statement.targets
            # `in_float64` of several.
            if isinstance(statement.value, ast.Call) and ast.unparse(statement.value.func) == "map":
                wide = statement.value.args[1]
                assert isinstance(target, ast.Tuple) and isinstance(wide, ast.Tuple)
                for name, of in zip(map(ast.unparse, target.elts), map(ast.unparse, wide.elts), strict=True):
                    found[name] = f"def {name}(x):\n    return {of}(x.to(tl.float64)).to(tl.float32)\n"
                continue
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            values = statement.value.elts if isinstance(statement.value, ast.Tuple) else [statement.value]
            if len(names) == len(values):
                constants |= {n.id: v for n, v in zip(names, values, strict=True) if isinstance(n, ast.Name)}
        elif isinstance(statement, ast.FunctionDef) and _is_vectorisable(statement):
            translation = _Translation(constants, "64" if statement.name.endswith("64") else "32")
            text = ast.unparse(ast.fix_missing_locations(translation.function(statement)))
            found[statement.name] = text + "\n"
    return found


def _is_vectorisable(function: ast.FunctionDef) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "vectorisable" for d in function.decorator_list)


class _Translation(ast.NodeTransformer):
    """Translates one function of `vecmath` to Triton."""

    def __init__(self, constants: dict[str, ast.expr], width: str) -> None:
        self.constants = constants
        self.width = width
        self.numbers: dict[str, ast.expr] = {}

    def function(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """The whole function, without its decorator and docstring."""
        body: list[ast.stmt] = []
        for statement in node.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                name = statement.targets[0].id
                value = self.visit(statement.value)
                # A variable that is a number stays one: in Triton it would be of the type float32.
                self.numbers.pop(name, None)
                if _is_number(value):
                    self.numbers[name] = value
                else:
                    body.append(ast.Assign([ast.Name(name, ast.Store())], value))
            elif isinstance(statement, ast.Return):
                assert statement.value is not None
                body.append(ast.Return(self.visit(statement.value)))
        return ast.FunctionDef(node.name, node.args, body, [])

    def visit_Name(self, node: ast.Name) -> ast.expr:  # noqa: N802 (the visitor's name)
        if node.id in self.numbers:
            return self.numbers[node.id]
        constant = self.constants.get(node.id)
        return node if constant is None else self.visit(constant)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:  # noqa: N802
        return _expression(f'float("{node.attr}")')  # np.inf, np.nan

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:  # noqa: N802
        node = ast.BinOp(self.visit(node.left), node.op, self.visit(node.right))
        if isinstance(node.op, ast.Div) and self.width == "32":
            return _call("tl.div_rn", node.left, node.right)
        # Triton 3.6 would round a number among fma's operands to float32.
        if isinstance(node.op, ast.Add | ast.Sub) and self.width == "32":
            minus = isinstance(node.op, ast.Sub)
            for product, other in ((node.left, node.right), (node.right, node.left)):
                if isinstance(product, ast.BinOp) and isinstance(product.op, ast.Mult):
                    first = _negated(product.left) if minus and product is node.right else product.left
                    last = _negated(other) if minus and product is node.left else other
                    return _call("tl.fma", first, product.right, last)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:  # noqa: N802
        assert isinstance(node.func, ast.Name)
        if node.func.id == "polynomial":  # Horner's scheme, written out
            x, total, *rest = node.args
            for coefficient in rest:
                total = ast.BinOp(ast.BinOp(total, ast.Mult(), x), ast.Add(), coefficient)
            return self.visit(total)  # type: ignore[no-any-return]
        name, arguments = node.func.id, [self.visit(a) for a in node.args]
        if name in ("f32", "f64", "i32", "i64"):
            (x,) = arguments
            kind = {"f": "float", "i": "int"}[name[0]] + name[1:]
            return x if _is_number(x) else _method(x, "to", f"tl.{kind}")
        if name in ("bits32", "bits64", "of_bits32", "of_bits64"):
            kind = f"float{name[-2:]}" if name.startswith("of_") else f"int{name[-2:]}"
            return _method(arguments[0], "to", f"tl.{kind}", bitcast="True")
        if name in ("select", "fabs", "floor", "ceil"):
            return _call({"select": "tl.where", "fabs": "tl.abs"}.get(name, f"tl.{name}"), *arguments)
        if name == "sqrt":
            return _call("tl.sqrt_rn" if self.width == "32" else "tl.sqrt", *arguments)
        name = {"fmaximum": "maximum", "fminimum": "minimum", "copysign": f"copysign{self.width}",
                "rint": f"rint{self.width}"}.get(name, name)  # fmt: skip
        return _call(name, *arguments)


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _negated(x: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.USub(), x)


def _call(name: str, *arguments: ast.expr) -> ast.expr:
    return ast.Call(_expression(name), list(arguments), [])


def _method(x: ast.expr, name: str, argument: str, **named: str) -> ast.expr:
    keywords = [ast.keyword(key, _expression(value)) for key, value in named.items()]
    return ast.Call(ast.Attribute(x, name, ast.Load()), [_expression(argument)], keywords)


def _is_number(x: ast.expr) -> bool:
    if isinstance(x, ast.UnaryOp):
        return _is_number(x.operand)
    return isinstance(x, ast.Constant) or (
        isinstance(x, ast.Call) and isinstance(x.func, ast.Name) and x.func.id == "float"
    )
