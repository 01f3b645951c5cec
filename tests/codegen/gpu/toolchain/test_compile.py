"""Compiling ahead of time: the cache, what a binary says about itself, and the functions of vecmath in Triton."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_runner import run_kernel

from dovetail.codegen.gpu.emit.device_math import functions
from dovetail.codegen.gpu.ir import HEADER, Binary, Count, Grid, Parameter, Scratch, TritonKernel, layout
from dovetail.codegen.gpu.toolchain import compile
from dovetail.codegen.gpu.toolchain.compile import compile_kernel, facts_of, key_of
from dovetail.codegen.gpu.toolchain.workers import CompilePool, Helper
from dovetail.codegen.target import SM80, SM90, SM100, Target
from dovetail.graph.core.errors import InternalError

pytest.importorskip("triton")

pytestmark = pytest.mark.usefixtures("own_cache")

ADD = TritonKernel(
    "add",
    HEADER
    + """@triton.jit
def add(x, y, out, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    tl.store(out + i, tl.load(x + i, mask=m) + tl.load(y + i, mask=m) * scale, mask=m)
""",
    (Parameter("x", "*fp32", True), Parameter("y", "*fp32", True), Parameter("out", "*fp32", True), Parameter("n", "i32"),
     Parameter("scale", "i32")),
    (("BLOCK", 1024),),
)  # fmt: skip


def is_compiled(kernel: TritonKernel, target: Target) -> bool:
    """Whether a kernel's binary is at hand, here or on disk."""
    key = key_of(kernel, target)
    return key in compile._binaries or compile._path(key).with_suffix(".json").exists()


# --- values ----------------------------------------------------------------------------------------------------------


def test_a_kernel_must_say_all_its_arguments() -> None:
    with pytest.raises(ValueError, match="add takes x, y, out, n, scale, BLOCK; given are x, y"):
        TritonKernel("add", ADD.text, ADD.parameters[:2])
    with pytest.raises(ValueError, match="no function 'sub'"):
        TritonKernel("sub", ADD.text, ADD.parameters)
    with pytest.raises(ValueError, match="warps"):
        TritonKernel("add", ADD.text, ADD.parameters, ADD.constants, num_warps=3)


def test_parameters_are_checked() -> None:
    with pytest.raises(ValueError, match="fp33"):
        Parameter("x", "*fp33")
    with pytest.raises(ValueError, match="no name"):
        Parameter("x y", "i32")


def test_grids_and_scratch_follow_the_sizes() -> None:
    grid = Grid((Count(("m",), 128), Count((), times=4)), (Count(("n", "k"), 64),))
    assert grid.of({"m": 300, "n": 10, "k": 20}) == (12, 4, 1)
    assert grid.of({"m": 0, "n": 10, "k": 20}) == (0, 4, 1)
    with pytest.raises(ValueError, match="larger"):
        grid.of({"m": 300, "n": 65536, "k": 65})
    assert Scratch("s", "bf16", (Count(("m",)), Count((), times=4))).bytes({"m": 3}) == 24


def test_arguments_are_laid_out_as_c_does() -> None:
    kinds = ["i32", "*fp32", "i32", "i32", "i64", "i32"]
    parameters = [Parameter(f"a{i}", kind) for i, kind in enumerate(kinds)]
    assert layout(parameters) == ((0, 4), (8, 8), (16, 4), (20, 4), (24, 8), (32, 4), (40, 8), (48, 8))


# --- binaries --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [SM80, SM90, SM100], ids=str)
def test_a_binary_is_complete(target: Target) -> None:
    binary = compile_kernel(ADD, target)
    assert binary.image[:4] == b"\x7fELF"
    assert (binary.entry, binary.parameters, binary.target) == ("add", ADD.parameters, target)
    assert binary.threads == 4 * 32
    assert binary.registers > 0
    assert (binary.spills, binary.shared_bytes, binary.global_scratch) == (0, 0, 0)
    assert facts_of(binary.image, "add").parameters == ((0, 8), (8, 8), (16, 8), (24, 4), (28, 4), (32, 8), (40, 8))
    assert Binary.from_fields(json.loads(json.dumps(binary.to_fields())), binary.image) == binary
    with pytest.raises(ValueError, match="no function 'sub'"):
        facts_of(binary.image, "sub")


def test_what_is_no_binary_is_refused() -> None:
    with pytest.raises(ValueError, match="ELF"):
        facts_of(b"\x7fELF\x01" + bytes(100), "add")


def test_registers_and_stack_are_those_that_the_vendors_tool_reads(tmp_path: Path) -> None:
    import triton

    many = TritonKernel("add", ADD.text, ADD.parameters, (("BLOCK", 16384),), num_warps=1)
    for kernel in (ADD, many):
        binary = compile_kernel(kernel, SM80)
        (tmp_path / "k.cubin").write_bytes(binary.image)
        tool = triton.knobs.nvidia.cuobjdump.path
        text = subprocess.run(
            [tool, "--dump-resource-usage", tmp_path / "k.cubin"], check=True, capture_output=True, text=True
        )
        found = re.search(r"REG:(\d+) STACK:(\d+)", text.stdout)
        assert found is not None
        assert (binary.registers, binary.spills) == (int(found[1]), int(found[2]))
    assert compile_kernel(many, SM80).spills > 0


def test_alignment_that_is_promised_makes_vector_loads() -> None:
    aligned = TritonKernel(
        "add", ADD.text, (*ADD.parameters[:3], Parameter("n", "i32", True), ADD.parameters[4]), ADD.constants
    )
    # 4 loads of 16 bytes instead of 16 loads of 4 bytes, each with an address and a condition of its own
    assert len(compile_kernel(aligned, SM80).image) < len(compile_kernel(ADD, SM80).image)


def test_a_kernel_that_triton_refuses_is_shown() -> None:
    text = HEADER + "@triton.jit\ndef wrong(x):\n    tl.store(x, nothing_of_this_name)\n"
    with pytest.raises(InternalError, match=r"does not compile wrong for sm_90(.|\n)*nothing_of_this_name"):
        compile_kernel(TritonKernel("wrong", text, (Parameter("x", "*fp32"),)), SM90)


# --- the cache -------------------------------------------------------------------------------------------------------

WARM = """
import sys
import dovetail
assert "triton" not in sys.modules and "numba" not in sys.modules
sys.path.insert(0, {here!r})
from test_compile import ADD, SM90
from dovetail.codegen.gpu.toolchain.compile import compile_kernel
before = "triton" in sys.modules
binary = compile_kernel(ADD, SM90)
print(len(binary.image), "triton" in sys.modules and not before)
"""


def test_a_warm_start_does_not_import_triton() -> None:
    binary = compile_kernel(ADD, SM90)
    program = WARM.format(here=str(Path(__file__).parent)).replace(
        "from test_compile import ADD, SM90",
        "from dovetail.codegen.gpu.ir import *\nfrom dovetail.codegen.target import SM90\nADD = " + repr(ADD),
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=Path(__file__).parents[4]
    )
    assert done.stdout.split() == [str(len(binary.image)), "False"]


def test_a_damaged_file_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = TritonKernel("add", ADD.text, ADD.parameters, (("BLOCK", 256),))
    assert not is_compiled(kernel, SM90)
    binary = compile_kernel(kernel, SM90)
    assert is_compiled(kernel, SM90)
    path = compile._path(compile.key_of(kernel, SM90)).with_suffix(".bin")
    assert path.stat().st_mode & 0o077 == 0
    for damaged in (binary.image[:100], bytes(len(binary.image))):
        path.write_bytes(damaged)
        monkeypatch.setattr(compile, "_binaries", {})
        assert compile_kernel(kernel, SM90).parameters == binary.parameters
        assert facts_of(path.read_bytes(), "add").parameters == facts_of(binary.image, "add").parameters


def test_what_decides_a_binary_is_in_its_name() -> None:
    others = [
        TritonKernel("add", ADD.text + "# more\n", ADD.parameters, ADD.constants),
        TritonKernel("add", ADD.text, (Parameter("x", "*fp32"), *ADD.parameters[1:]), ADD.constants),
        TritonKernel("add", ADD.text, ADD.parameters, (("BLOCK", 512),)),
        TritonKernel("add", ADD.text, ADD.parameters, ADD.constants, num_warps=8),
        TritonKernel("add", ADD.text, ADD.parameters, ADD.constants, contract=True),
    ]
    keys = {compile.key_of(k, SM90) for k in (ADD, *others)} | {compile.key_of(ADD, SM80)}
    assert len(keys) == 7


@pytest.mark.slow
def test_processes_that_compile_the_same_do_not_disturb_each_other(tmp_path: Path) -> None:
    program = "from dovetail.codegen.gpu.ir import *\nfrom dovetail.codegen.target import SM90\n" \
              "from dovetail.codegen.gpu.toolchain.compile import compile_kernel\n" \
              f"print(compile_kernel({ADD!r}, SM90).image.hex())"  # fmt: skip
    environment = {**os.environ, "DOVETAIL_CACHE_DIR": str(tmp_path)}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment, cwd=Path(__file__).parents[4]
        )
        for _ in range(3)
    ]
    images = {w.communicate()[0] for w in workers}
    assert [w.returncode for w in workers] == [0, 0, 0]
    assert len(images) == 1
    assert not list(tmp_path.rglob("*.part"))
    assert len(list(tmp_path.rglob("*.bin"))) == 1


# --- side by side ----------------------------------------------------------------------------------------------------


def sized(*blocks: int) -> list[TritonKernel]:
    return [TritonKernel("add", ADD.text, ADD.parameters, (("BLOCK", b),)) for b in blocks]


def test_helpers_compile_what_this_process_would(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compile, "_binaries", {})
    here, helped = sized(32, 64)
    wrong = TritonKernel(
        "wrong", HEADER + "@triton.jit\ndef wrong(x):\n    tl.store(x, nothing)\n", (ADD.parameters[0],)
    )
    helper = Helper()
    try:
        binary = helper.compile(helped, SM90)
        with pytest.raises(InternalError, match="does not compile wrong for sm_90"):
            helper.compile(wrong, SM90)
        assert helper.process is not None
        os.kill(helper.process.pid, signal.SIGSEGV)  # as if Triton had crashed
        helper.process.wait()
        with pytest.raises(InternalError, match="Triton crashes .SIGSEGV. on add"):
            helper.compile(helped, SM90)
    finally:
        assert helper.close() == 0
    assert facts_of(binary.image, "add").parameters == layout(helped.parameters)
    same = compile.compile_here(helped, SM90)  # but for the name of the source, which lies elsewhere
    assert replace(binary, image=b"") == replace(same, image=b"")
    assert not is_compiled(here, SM90) and not is_compiled(helped, SM90)


def test_places_are_used_at_the_same_time_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    places = CompilePool(lambda kernel, target: meet(), 3)
    together = threading.Barrier(3)
    binary = Binary(b"", "add", (), 4, 0, 0, 0, 0, SM90)
    inside: list[int] = []
    most = 0

    def meet(*_: Any) -> Binary:
        nonlocal most
        inside.append(1)
        most = max(most, len(inside))
        together.wait(60)
        inside.pop()
        return binary

    monkeypatch.setattr(Helper, "compile", meet)
    with ThreadPoolExecutor(9) as pool:
        assert list(pool.map(lambda kernel: places.compile(kernel, SM90), [ADD] * 9)) == [binary] * 9
    assert most == 3


def test_without_a_helper_everything_is_compiled_here(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    binary = Binary(b"", "add", (), 4, 0, 0, 0, 0, SM90)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    places = CompilePool(lambda kernel, target: binary, 2)
    places._free.get()  # somebody compiles here
    assert places.compile(ADD, SM90) is binary
    assert "no process can be started that helps to compile" in caplog.text


def test_an_idle_helper_ends_and_is_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    helper = Helper(idle=0.0)
    started: list[Any] = []

    def asked(process: Any, kernel: TritonKernel, target: Target) -> Any:
        started.append(process)
        if len(started) == 1:
            process.wait(60)  # it has ended for want of work when it is asked
            return Helper._asked(helper, process, kernel, target)
        return "a binary"

    monkeypatch.setattr(helper, "_asked", asked)
    assert helper.compile(ADD, SM90) == "a binary"  # type: ignore[comparison-overlap]
    assert len(started) == 2
    helper.close()


def test_closing_ends_the_helpers_that_compile_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    binary = Binary(b"", "add", (), 4, 0, 0, 0, 0, SM90)
    monkeypatch.setattr(Helper, "_asked", lambda *_: binary)
    places = CompilePool(lambda kernel, target: binary, 2)
    here = places._free.get()  # somebody compiles here
    assert here is None and places.compile(ADD, SM90) is binary
    helper = places._free.queue[0]
    assert helper is not None and helper.process is not None
    process = helper.process
    assert process.poll() is None
    places.close()
    assert process.returncode is not None
    assert places._free.queue == [helper] and helper.process is None


def test_threads_that_want_the_same_kernel_wait_for_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compile, "_binaries", {})
    binary = Binary(b"", "add", (), 4, 0, 0, 0, 0, SM90)
    compiled: list[TritonKernel] = []
    both = threading.Barrier(2)

    class Counting:
        def compile(self, kernel: TritonKernel, target: Target) -> Binary:
            compiled.append(kernel)
            if kernel.constants == (("BLOCK", 8192),):
                raise InternalError(None, None, "refused")
            return binary

    def ask(_: int) -> Any:
        both.wait(60)
        return compile_kernel(ADD, SM90)

    monkeypatch.setattr(compile, "_pool", lambda: Counting())
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(ask, range(2))) == [binary, binary]
    assert compiled == [ADD]
    good, refused = sized(2048, 8192)
    compile.compile_together([good, refused, ADD, good], SM90)
    assert set(compiled) == {ADD, good, refused} and is_compiled(good, SM90)
    with pytest.raises(InternalError, match="refused"):
        compile_kernel(refused, SM90)
    assert not compile._underway


# --- functions -------------------------------------------------------------------------------------------------------

LARGEST_ERRORS = {"exp": 1, "expm1": 2, "log": 1, "log1p": 2, "tanh": 3, "erf": 2,
                  "sin": 1, "cos": 1, "tan": 1, "erfc": 1, "gammaln": 2}  # fmt: skip
"""In units in the last place: vecmath's."""


def points(dtype: Any) -> Any:
    rng = np.random.default_rng(3)
    near = rng.standard_normal(3000) * np.exp(rng.uniform(-30, 5, 3000))
    special = [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        1,
        -1,
        0.5,
        1e-40,
        -1e-40,
        88.7,
        -103.9,
        709.7,
        2.5,
        3.5,
        -0.5,
        1e30,
        -1e30,
    ]
    out = np.concatenate([near, special, np.ones(4096)]).astype(dtype)
    return out[:4096]


def applied(name: str, x: Any) -> Any:
    kind = "fp32" if x.dtype == np.float32 else "fp64"
    text = HEADER + functions(f"{name}()") + f"@triton.jit\ndef k(x, out, N: tl.constexpr):\n    i = tl.arange(0, N)\n" \
                                        f"    tl.store(out + i, {name}(tl.load(x + i)))\n"  # fmt: skip
    kernel = TritonKernel(
        "k", text, (Parameter("x", f"*{kind}", True), Parameter("out", f"*{kind}", True)), (("N", len(x)),)
    )
    out = np.empty_like(x)
    run_kernel(kernel, (1, 1, 1), {"x": x, "out": out})
    return out


@pytest.mark.gpu
@pytest.mark.parametrize("name", LARGEST_ERRORS)
def test_functions_have_the_errors_of_vecmath(name: str) -> None:
    from scipy import special

    x = points(np.float32)
    mine = applied("lgamma32" if name == "gammaln" else f"{name}32", x).astype(np.float64)
    with np.errstate(all="ignore"):
        exact = (getattr(np, name, None) or getattr(special, name))(x.astype(np.float64))
        rounded = exact.astype(np.float32)
    if name == "gammaln":  # SciPy has another value at -inf than C
        rounded = np.where(np.isneginf(x), np.float32(np.inf), rounded)
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(mine[~finite], rounded[~finite].astype(np.float64))
    errors = np.abs(mine[finite] - exact[finite]) / np.spacing(np.abs(rounded[finite])).astype(np.float64)
    assert errors.max() <= LARGEST_ERRORS[name]
    np.testing.assert_array_equal(np.signbit(mine[np.isfinite(mine)]), np.signbit(exact[np.isfinite(mine)]))


@pytest.mark.gpu
@pytest.mark.parametrize("name", list(LARGEST_ERRORS)[:6])  # the others have no form for float64
def test_functions_of_doubles(name: str) -> None:
    from scipy import special

    x = points(np.float64)
    mine = applied(f"{name}64", x)
    with np.errstate(all="ignore"):
        exact = getattr(special if name == "erf" else np, name)(x)
    np.testing.assert_allclose(mine, exact, rtol=2e-15, atol=5e-324)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["rint32", "rint64", "trunc"])
def test_rounding(name: str) -> None:
    x = points(np.float64 if name == "rint64" else np.float32)
    exact = np.trunc(x) if name == "trunc" else np.rint(x)
    np.testing.assert_array_equal(applied(name, x), exact)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["exp", "tanh"])
def test_functions_of_narrow_types_are_more_precise_than_these(name: str) -> None:
    x = points(np.float32)
    mine = applied(f"{name}_narrow", x).astype(np.float64)
    with np.errstate(all="ignore"):
        exact = getattr(np, name)(x.astype(np.float64))
    normal = (np.abs(exact) > 1e-37) & (np.abs(exact) < 3e38)
    np.testing.assert_allclose(mine[normal], exact[normal], rtol=2**-14)
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float32)
    np.testing.assert_allclose(mine[~normal], rounded[~normal], rtol=2**-14, atol=1e-37)


def quotients(name: str, x: Any, total: Any) -> Any:
    text = (
        HEADER
        + functions(f"{name}()")
        + (
            "@triton.jit\ndef k(x, y, out, N: tl.constexpr):\n    i = tl.arange(0, N)\n"
            f"    tl.store(out + i, {name}(tl.load(x + i), tl.load(y + i)))\n"
        )
    )
    parameters = tuple(Parameter(n, "*fp32", True) for n in ("x", "y", "out"))
    out = np.empty_like(x)
    run_kernel(TritonKernel("k", text, parameters, (("N", len(x)),)), (1, 1, 1), {"x": x, "y": total, "out": out})
    return out


@pytest.mark.gpu
def test_a_quotient_within_a_function_is_rounded_once() -> None:
    rng = np.random.default_rng(5)
    x, y = (np.exp(rng.uniform(-20, 20, 4096)).astype(np.float32) for _ in range(2))
    np.testing.assert_array_equal(quotients("quotient32", x, y), x / y)


@pytest.mark.gpu
def test_numbers_are_arguments() -> None:
    out = np.zeros(1024, np.float32)
    x = np.ones(1024, np.float32)
    run_kernel(ADD, (1, 1, 1), {"x": x, "y": x, "out": out, "n": 1000, "scale": -3})
    assert (out[999], out[1000]) == (-2, 0)
