"""Compiles Triton kernels to binaries ahead of time. The GPU need not be present.

A binary depends on the kernel's text, its arguments' types and promises, its constants and options, the target, and Triton's version.
Their hash names two files in the cache folder: the image, and JSON with the data of a launch, which is written last. A process that
finds both never imports Triton, which takes a second.

Nothing is taken from the environment. Each kernel says whether products and sums are contracted, and each argument whether it is aligned.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import struct
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from ....graph.core.errors import FailedPreconditionError, InternalError
from ... import artifact_cache
from ...target import WARP, Target, cores
from ..ir import Binary, TritonKernel, layout
from .workers import CompilePool

logger = logging.getLogger(__name__)

_FORMAT = 2  # of the files; a change makes all of them anew
_LAST_WITH_OLD_ASSEMBLER = 90  # see compile_here

_binaries: dict[str, Binary] = {}
# Held by the thread that compiles a kernel.
_underway: weakref.WeakValueDictionary[str, threading.Lock] = weakref.WeakValueDictionary()
_lock = threading.Lock()  # of _underway


def compile_kernel(kernel: TritonKernel, target: Target) -> Binary:
    """A kernel's binary: from this process, from the disk, or compiled now (0.05 to 1 s).

    Safe to call from any thread; several compile at a time, as many as there are cores (`workers`).

    Raises:
        FailedPreconditionError: it must be compiled, and Triton is not installed.
        InternalError: Triton refuses the kernel, or does not lay out its arguments as a launch would. Shows the text.
    """
    key = key_of(kernel, target)
    binary = _binaries.get(key) or _read(key)
    if binary is not None:
        _binaries[key] = binary
        return binary
    with _lock:
        turn = _underway.setdefault(key, threading.Lock())
    with turn:  # or another thread compiles it
        binary = _binaries.get(key)
        if binary is None:
            binary = _binaries[key] = _pool().compile(kernel, target)
            _write(key, binary)
        return binary


def compile_together(kernels: Iterable[TritonKernel], target: Target) -> None:
    """Compile uncached kernels in parallel. A later request for one returns at once, or raises its error."""
    missing = list(dict.fromkeys(kernels))
    if len(missing) < 2:
        return
    with ThreadPoolExecutor(min(len(missing), cores()), "dovetail-triton") as pool:
        for done in [pool.submit(compile_kernel, kernel, target) for kernel in missing]:
            done.exception()  # raised again when the kernel is requested


@cache
def triton_version() -> str:
    """Of the installed Triton, without importing it.

    Raises:
        FailedPreconditionError: there is none.
    """
    from importlib import metadata  # loads the mail package

    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        raise FailedPreconditionError.of(
            "Kernels for GPUs are compiled by Triton, which is not installed. Install it (pip install triton; "
            "there are wheels for Linux on x86-64 and ARM), or run on CPUs."
        ) from None


def key_of(kernel: TritonKernel, target: Target) -> str:
    """The name of a binary: a hash of all that it depends on."""
    return hashlib.sha256(repr((_FORMAT, triton_version(), kernel, target)).encode()).hexdigest()[:40]


@cache
def _pool() -> CompilePool:
    pool = CompilePool(compile_here, cores())
    atexit.register(pool.close)  # a helper would end by itself, but later than its program
    return pool


# --- files -----------------------------------------------------------------------------------------------------------


def _path(key: str) -> Path:
    return artifact_cache.folder("triton") / key[:2] / key


def _read(key: str) -> Binary | None:
    path = _path(key)
    try:
        fields = json.loads(path.with_suffix(".json").read_bytes())
        image = path.with_suffix(".bin").read_bytes()
        if fields.pop("sha256") != hashlib.sha256(image).hexdigest():
            return None
        return Binary.from_fields(fields, image)
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not there, or damaged: it is compiled again


def _write(key: str, binary: Binary) -> None:
    path = _path(key)
    fields = binary.to_fields() | {"sha256": hashlib.sha256(binary.image).hexdigest()}
    artifact_cache.put(path.with_suffix(".bin"), binary.image, anew=True)
    artifact_cache.put(path.with_suffix(".json"), json.dumps(fields, indent=1).encode(), anew=True)


# --- Triton ----------------------------------------------------------------------------------------------------------


def load_source(text: str, purpose: str = "compiled") -> ModuleType:
    """A kernel's text as a module, one per purpose. Triton reads it from a file."""
    key = hashlib.sha256(text.encode()).hexdigest()[:32]
    name = f"_dovetail_triton.{purpose}.k{key}"
    if name in sys.modules:
        return sys.modules[name]
    return artifact_cache.load_module(name, artifact_cache.folder("triton") / "source" / f"k{key}.py", text)


def compile_here(kernel: TritonKernel, target: Target) -> Binary:
    """Compile a kernel in this process, for one thread at a time. Raises what `compile_kernel` does."""
    triton_version()
    import triton  # here, because importing Triton takes a second
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {p.name: p.type for p in kernel.parameters} | {name: "constexpr" for name, _ in kernel.constants}
    promises = {(i,): [["tt.divisibility", 16]] for i, p in enumerate(kernel.parameters) if p.divisible}
    options: dict[str, Any] = {
        "num_warps": kernel.num_warps,
        "num_stages": kernel.num_stages,
        "enable_fp_fusion": kernel.contract,
    }
    knobs = triton.knobs
    with knobs.cache.scope(), knobs.nvidia.scope(), tempfile.TemporaryDirectory(prefix="dovetail-triton-") as own:
        knobs.cache.dir = own  # what Triton keeps of its own would be a second copy
        if target.arch <= _LAST_WITH_OLD_ASSEMBLER:
            # Newer Tritons bring two assemblers. The older one's files can be loaded by the drivers of CUDA 12, too.
            knobs.nvidia.ptxas_blackwell = knobs.nvidia.ptxas.path
        try:
            function = getattr(load_source(kernel.text), kernel.name)
            source = ASTSource(fn=function, signature=signature, constexprs=dict(kernel.constants), attrs=promises)
            made = triton.compile(source, target=GPUTarget("cuda", target.arch, WARP), options=options)
        except Exception as e:
            raise InternalError.of(
                f"Triton {triton_version()} does not compile {kernel.name} for {target}: {e}\n{kernel.text}"
            ) from e
    image, metadata = bytes(made.asm["cubin"]), made.metadata
    facts = facts_of(image, metadata.name)
    expected = layout(kernel.parameters)
    if facts.parameters != expected:
        raise InternalError.of(
            f"Triton {triton_version()} gives {kernel.name} for {target} the parameters {facts.parameters} (offset and size), "
            f"and a launch would pass {expected}.\n{kernel.text}"
        )
    if facts.stack:
        words = "%s for %s keeps %d bytes of each thread on its stack: they do not fit its registers"
        logger.info(words, kernel.name, target, facts.stack)
    return Binary(
        image=image,
        entry=metadata.name,
        parameters=kernel.parameters,
        num_warps=metadata.num_warps,
        shared_bytes=metadata.shared,
        global_scratch=getattr(metadata, "global_scratch_size", 0) or 0,
        registers=facts.registers,
        spills=facts.stack,
        target=target,
    )


# --- reading binaries ------------------------------------------------------------------------------------------------
# A compiler adds parameters of its own and lays all of them out. The launch of a kernel must agree with it to the byte, and no
# driver checks that; so the layout is read back from the binary. It needs neither a GPU nor the vendor's tools.
#
# A cubin has a section `.nv.info.<function>` of attributes, one per parameter, and a section `.nv.info` with registers and frame
# sizes (the attributes' numbers are those that `cuobjdump -elf` prints).


_KPARAM_INFO, _REGCOUNT, _FRAME_SIZE = 0x17, 0x2F, 0x11
_SIZED = 4  # the format of an attribute whose value is as many bytes as its header says


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """One function of a binary. Functions that it calls, which Triton inlines, would count for registers and stack.

    Attributes:
        parameters: offset and size of each, in bytes, the compiler's own included.
        registers: 32-bit registers of a thread.
        stack: bytes of a thread's stack: what did not fit into registers.
    """

    parameters: tuple[tuple[int, int], ...]
    registers: int
    stack: int


def facts_of(image: bytes, entry: str) -> ImageFacts:
    """Read a cubin.

    Raises:
        ValueError: it is none, or has no such function.
    """
    if image[:5] != b"\x7fELF\x02":
        raise ValueError("a GPU binary is an ELF file of 64 bits")
    sections = dict(_sections(image))
    if f".nv.info.{entry}" not in sections:
        raise ValueError(f"the binary has no function {entry!r}")
    parameters: dict[int, tuple[int, int]] = {}
    for kind, body in _attributes(sections[f".nv.info.{entry}"]):
        if kind == _KPARAM_INFO:
            _, ordinal, offset, flags = struct.unpack("<IHHI", body)
            parameters[ordinal] = (offset, flags >> 18)
    most = {_REGCOUNT: 0, _FRAME_SIZE: 0}
    for kind, body in _attributes(sections.get(".nv.info", b"")):
        if kind in most:  # of one function: its symbol, and the number
            most[kind] = max(most[kind], struct.unpack("<II", body)[1])
    return ImageFacts(tuple(parameters[i] for i in sorted(parameters)), most[_REGCOUNT], most[_FRAME_SIZE])


def _sections(image: bytes) -> Iterator[tuple[str, bytes]]:
    (table,) = struct.unpack_from("<Q", image, 40)
    size, count, names = struct.unpack_from("<HHH", image, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, table + i * size) for i in range(count)]
    start = headers[names][4]
    for h in headers:
        at = start + h[0]
        yield image[at : image.index(b"\0", at)].decode(), image[h[4] : h[4] + h[5]]


def _attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(info):
        form, kind, value = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == _SIZED:
            yield kind, info[at : at + value]
            at += value
