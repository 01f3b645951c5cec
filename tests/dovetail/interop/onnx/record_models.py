"""Writes models/: small networks of PyTorch's as ONNX, each with one input and what PyTorch makes of it.

python record_models.py        # needs torch, onnx and onnxscript; the tests need none of them but onnx
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn

HERE = Path(__file__).parent / "models"


class Block(nn.Module):
    """Two convolutions beside a short cut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.c, self.d = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        short = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        self.e: nn.Module = nn.Identity() if before == after else short

    def forward(self, x: Any) -> Any:
        """One block."""
        return torch.relu(self.d(self.c(torch.relu(self.b(self.a(x))))) + self.e(x))


class Transformer(nn.Module):
    """One layer, with learnt positions."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 8), nn.Parameter(torch.randn(1, 16, 8) * 0.1)
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        """Of words, numbers."""
        return self.out(self.layers(self.words(x) + self.places[:, : x.shape[1]]))


class Recurrent(nn.Module):
    """Both directions of a recurrent layer."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(50, 4), kind(4, 6, 1, batch_first=True, bidirectional=True)
        self.out = nn.Linear(12, 5)

    def forward(self, x: Any) -> Any:
        """Of words, numbers."""
        return self.out(self.layer(self.words(x))[0][:, -1])


def resnet() -> nn.Module:
    """A residual network."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3, 2, 1), Block(4, 4, 1),
        Block(4, 8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
    )  # fmt: skip


def mobile() -> nn.Module:
    """Layers of networks for pictures that have little in common."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.Hardswish(), nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.GroupNorm(4, 8), nn.SiLU(),
        nn.Conv2d(8, 8, 1, groups=4), nn.Upsample(scale_factor=2, mode="bilinear"), nn.ConvTranspose2d(8, 4, 3, 2, 1, 1),
        nn.InstanceNorm2d(4, affine=True), nn.AvgPool2d(2, ceil_mode=True), nn.PReLU(4),
    )  # fmt: skip


def record(name: str, module: nn.Module, x: Any, *, new: bool = False, batch: bool = True) -> None:
    """Write one model, and an input with its result; `new`: by the exporter that follows the code as it runs."""
    module.eval()
    path = HERE / f"{name}.onnx"
    how: dict[str, Any] = {"opset_version": 17, "dynamo": False, "dynamic_axes": {"x": {0: "batch"}} if batch else None}
    if new:
        how = {"dynamo": True, "external_data": False, "dynamic_shapes": ({0: torch.export.Dim("batch")},)}
    torch.onnx.export(module, (x,), path, input_names=["x"], output_names=["y"], **how)
    model = onnx.load(path)
    for node in (
        *model.graph.node,
        *model.graph.input,
        *model.graph.output,
        *model.graph.initializer,
        model.graph,
        model,
    ):
        del node.metadata_props[:]
        node.ClearField("doc_string")
    del model.graph.value_info[:]
    onnx.save(model, path)
    np.savez(path.with_suffix(".npz"), x=x.numpy(), y=module(x).detach().numpy())


if __name__ == "__main__":
    torch.manual_seed(0)
    HERE.mkdir(exist_ok=True)
    pictures, words = torch.randn(2, 3, 16, 16), torch.randint(0, 50, (2, 7))
    record("resnet", resnet(), pictures)
    record("mobile", mobile(), pictures, batch=False)
    record("transformer", Transformer(), words, new=True)
    record("lstm", Recurrent(nn.LSTM), words)
    record("gru", Recurrent(nn.GRU), words)
