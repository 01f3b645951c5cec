"""The published figures of GPUs, and which of them counts for a node."""

import re
from pathlib import Path

import pytest

import dovetail as dt
from dovetail.codegen.gpu.ops.conv import IMAGE_MAKERS
from dovetail.codegen.gpu.ops.products import ATTENTION_MAKERS
from dovetail.codegen.ir.nodes import PRODUCTS
from dovetail.graph.core.gpu_models import DEFAULT_GPU, GPU_MODELS, MATRIX_OPS, Work, model_named, work_of


@pytest.mark.parametrize(
    ("product", "architecture", "name"),
    [
        ("NVIDIA H100 80GB HBM3", 90, "H100"),
        ("NVIDIA H200", 90, "H200"),
        ("NVIDIA A100-SXM4-80GB", 80, "A100"),
        ("NVIDIA B200", 100, "B200"),
        ("NVIDIA GeForce RTX 4090", 89, "A100"),
        ("NVIDIA B300 SXM6 AC", 103, "B200"),
        ("Tesla V100-SXM2-16GB", 70, "A100"),
        ("Strict GPU", 90, "H100"),
    ],
)
def test_a_product_has_its_figures_or_those_of_its_architecture(product: str, architecture: int, name: str) -> None:
    assert model_named(product, architecture) is GPU_MODELS[name]


def test_all_ops_whose_templates_multiply_matrices_count_as_such() -> None:
    convolutions = {op for op in IMAGE_MAKERS if op.startswith("Conv2D")}
    assert {*PRODUCTS} | ATTENTION_MAKERS.keys() | convolutions == MATRIX_OPS


def test_the_kind_of_a_node_s_arithmetic() -> None:
    with dt.Graph().as_default():
        exact = dt.placeholder(dt.float32, [8, 8])
        half, narrow = (dt.cast(exact, t) for t in (dt.bfloat16, dt.dtypes.float8_e4m3fn))
        image, filters = dt.ones([1, 8, 8, 16], dt.bfloat16), dt.ones([3, 3, 16, 16], dt.bfloat16)
        gradient = dt.nn.conv2d_backprop_input([1, 8, 8, 16], filters, image, [1, 1, 1, 1], "SAME")
        cases = [
            (dt.matmul(exact, exact), Work.FLOAT32),
            (dt.matmul(half, half), Work.FLOAT16),
            (dt.matmul(dt.cast(narrow, dt.bfloat16), dt.cast(narrow, dt.bfloat16)), Work.FLOAT8),
            (dt.matmul(dt.cast(narrow, dt.bfloat16), half), Work.FLOAT16),
            (dt.matmul(dt.cast(exact, dt.float64), dt.cast(exact, dt.float64)), Work.FLOAT64),
            (gradient, Work.FLOAT16),  # its first input is a shape
            (dt.exp(half), Work.ELEMENTWISE),
            (dt.exp(dt.cast(exact, dt.float64)), Work.ELEMENTWISE_64),
        ]
        assert [work_of(t.op) for t, _ in cases] == [kind for _, kind in cases]
        assert work_of(cases[0][0].op, tf32=True) is Work.TF32 and work_of(cases[1][0].op, tf32=True) is Work.FLOAT16


def test_a_kernel_takes_its_bytes_or_its_operations_whichever_is_longer() -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.bfloat16, [1024, 1024])
        product, cost = dt.matmul(x, x).op, 2 * 1024**3 / DEFAULT_GPU.rates[Work.FLOAT16]
    assert DEFAULT_GPU.seconds([product], 1.0, lambda n: n.opdef.cost_of(n)) == cost
    assert DEFAULT_GPU.seconds([product], 1e9, lambda n: n.opdef.cost_of(n)) == 1e9 / DEFAULT_GPU.bytes_per_second


def test_the_page_about_gpus_has_these_figures() -> None:
    page = (Path(__file__).parents[3] / "docs/concepts/kernels-gpu.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in page.splitlines()
        if re.match(r"\| [ABH]\d00", line)
    ]
    assert [name.split()[0] for name, *_ in rows] == list(GPU_MODELS)
    for name, target, *told in rows:
        m = GPU_MODELS[name.split()[0]]
        products = [m.rates[kind] / 1e12 for kind in (Work.FLOAT8, Work.FLOAT16, Work.TF32, Work.FLOAT32, Work.FLOAT64)]
        figures = [m.multiprocessors, m.bytes_per_second / 1e12, *products]
        assert target == f"sm_{m.architecture}"
        assert [x if t == "-" else float(t) for t, x in zip(told, figures, strict=True)] == pytest.approx(figures)
