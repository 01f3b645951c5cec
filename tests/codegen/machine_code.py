"""A compiled kernel's machine code as facts: how wide its accesses are, what is in flight, what its arithmetic takes.

A kernel that is bound by memory is as fast as a copy when enough bytes are on their way all the time and its arithmetic takes less
time than they do. Both can be read from the machine code, without a GPU:

    bytes in flight    Little's law: speed x latency. Each load that is issued before an earlier one's result is looked at adds its
                       bytes, times the threads that fit on a multiprocessor beside each other. 4.3 TB/s x 700 ns / 132
                       multiprocessors of an H200 are 23 KB; what lies above that hides the moments in which a block does other things
    cycles             of a multiprocessor's quarter for a warp's pass through the code: the busiest of its units decides. An
                       instruction is issued per cycle, and half-rate units are busy for two cycles with it, special functions for 8

The text comes from NVIDIA's disassembler, which Triton's package brings. The rates are those of "Arithmetic Instructions" in the CUDA
C++ Programming Guide, the limits those of its "Technical Specifications per Compute Capability", for 9.0.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from dovetail.codegen.gpu.ir import Binary
from dovetail.codegen.gpu.roofline import blocks_at_a_time
from dovetail.graph.core.errors import FailedPreconditionError
from dovetail.graph.core.gpu_models import GPUS

WARP = 32
QUARTERS = 4  # of a multiprocessor: each issues one instruction of a warp per cycle

_LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);")
_LABEL = re.compile(r"^(\.L_\w+):")
_BRANCH = re.compile(r"`\((\.L_\w+)\)")
_REGISTER = re.compile(r"\bR(\d+)\b")
_BITS = re.compile(r"\.(?:[US]?)(8|16|32|64|128)(?=\.|$)|\.[BF]+(16|32|64)x(\d)")

_LOADS = ("LDG", "LD")
_COPIES = ("LDGSTS",)  # from global to shared memory, without registers between
_STORES = ("STG", "ST")
_ATOMICS = ("RED", "REDG", "ATOM", "ATOMG")
_SHARED_ACCESSES = ("LDS", "STS", "LDSM", "STSM", "SHFL", "ATOMS")
_LOCAL = ("LDL", "STL")

# What an instruction of a warp keeps busy in its quarter, and for how many cycles.
_HALF = frozenset(
    ("IADD3", "VIADD", "LOP3", "SHF", "LEA", "ISETP", "FSETP", "FMNMX", "IMNMX", "VIMNMX", "SEL", "FSEL", "PRMT", "PLOP3", "MOV",
     "IABS", "FCHK", "P2R", "R2P", "I2FP", "F2FP", "VOTE", "SGXT", "BMSK", "LOP", "ISCADD", "HMNMX2", "FSWZADD")
)  # fmt: skip
_FULL = frozenset(("FADD", "FMUL", "FFMA", "HADD2", "HMUL2", "HFMA2"))
_SPECIAL = frozenset(("MUFU", "F2I", "I2F", "F2F", "FRND", "POPC", "BREV", "FLO"))
_DOUBLE = frozenset(("DADD", "DMUL", "DFMA", "DSETP", "DMNMX"))


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
        at: its address in the function.
        opcode: with all of its modifiers: `LDG.E.128`.
        operands: as they are written.
        predicate: what it depends on: `@!P0`; empty: nothing.
        target: the address that a branch goes to; -1: it is none.
    """

    at: int
    opcode: str
    operands: tuple[str, ...]
    predicate: str = ""
    target: int = -1

    @property
    def name(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def bytes(self) -> int:
        """How many bytes of memory a thread accesses by it, if it does."""
        found = _BITS.findall(self.opcode)
        if not found:
            return 4
        plain, bits, times = found[-1]
        return int(plain or bits) * int(times or 1) // 8

    @property
    def results(self) -> range:
        """The registers that a load sets."""
        found = _REGISTER.fullmatch(self.operands[0].partition(".")[0]) if self.operands else None
        first = int(found[1]) if found else -1
        return range(first, first + max(1, self.bytes // 4)) if found else range(0)

    @property
    def registers(self) -> set[int]:
        """The registers that it names: of wider operands, the first."""
        return {int(n) for text in self.operands for n in _REGISTER.findall(text)}


@dataclass(frozen=True)
class Code:
    """Machine code: a function, or a loop of one.

    Attributes:
        instructions: in order.
        loop: whether the last one leads back to the first.
    """

    instructions: tuple[Instruction, ...]
    loop: bool = False

    def count(self, *names: str) -> int:
        """How many instructions have one of these names: `count("LDL", "STL")`."""
        return sum(i.name in names for i in self.instructions)

    def share(self, *names: str) -> float:
        """Which part of the instructions these are."""
        return self.count(*names) / len(self.instructions)

    def widths(self, *names: str) -> Counter[int]:
        """How many instructions of these names access so many bytes of each thread."""
        return Counter(i.bytes for i in self.instructions if i.name in names)

    @property
    def loads(self) -> Counter[int]:
        """Bytes of a load from global memory -> how many there are; copies into shared memory are among them."""
        return self.widths(*_LOADS, *_COPIES)

    @property
    def stores(self) -> Counter[int]:
        """Bytes of a store to global memory -> how many there are."""
        return self.widths(*_STORES)

    @property
    def local(self) -> int:
        """Accesses of local memory: registers that did not fit, and arrays with indices that are not known."""
        return self.count(*_LOCAL)

    @property
    def moved(self) -> int:
        """Bytes that a thread moves from and to global memory in one pass."""
        return sum(i.bytes for i in self.instructions if i.name in (*_LOADS, *_COPIES, *_STORES, *_ATOMICS))

    @cached_property
    def loops(self) -> tuple[Code, ...]:
        """The loops in it that have no loop inside, in order."""
        at = {i.at: n for n, i in enumerate(self.instructions)}
        back = [(at[i.target], n) for n, i in enumerate(self.instructions) if 0 <= i.target < i.at and i.target in at]
        inner = [(a, b) for a, b in back if not any((c, d) != (a, b) and a <= c and d <= b for c, d in back)]
        return tuple(Code(self.instructions[a : b + 1], True) for a, b in sorted(inner))

    @property
    def moving(self) -> tuple[Code, ...]:
        """The loops that move bytes; all of it, if there are none."""
        return tuple(c for c in self.loops if c.moved) or (self,)

    @cached_property
    def usual(self) -> Code:
        """What runs for usual numbers: without the ways around by a call (divisions of denormal numbers), and what is called."""
        at = {i.at: n for n, i in enumerate(self.instructions)}
        seen: set[int] = set()
        todo = [0] if self.instructions else []
        while todo:
            n = todo.pop()
            while n < len(self.instructions) and n not in seen:
                seen.add(n)
                i = self.instructions[n]
                there = at.get(i.target, -1) if i.name == "BRA" else -1
                if i.name in ("EXIT", "RET") and not i.predicate:
                    break
                if there > n and _is_way_around(self.instructions[n + 1 : there]):
                    n = there
                    continue
                if there >= 0:
                    todo.append(there)
                    if not i.predicate:
                        break
                n += 1
        return Code(tuple(i for n, i in enumerate(self.instructions) if n in seen), self.loop)

    @cached_property
    def in_flight(self) -> int:
        """The most bytes of global memory that a thread waits for at a time.

        A load is waited for until an instruction names a register of its result, a copy into shared memory until so few groups
        of copies are left (DEPBAR). Loops are gone through twice: what the next pass needs may be asked for in this one.
        Bulk copies (UTMALDG, UBLKCP) do not say how much they bring, and are not counted.
        """
        most = 0
        loads: list[tuple[range, int]] = []
        groups: list[int] = []
        open_group = 0
        for i in self._twice():
            if loads and (used := i.registers):
                loads = [(r, size) for r, size in loads if not any(n in used for n in r)]
            if i.name in _LOADS:
                loads.append((i.results, i.bytes))
            elif i.name in _COPIES:
                open_group += i.bytes
            elif i.name == "LDGDEPBAR":
                groups, open_group = [*groups, open_group], 0
            elif i.name == "DEPBAR" and "SB0" in i.operands:
                left = int(i.operands[1], 16)
                groups = groups[len(groups) - left :] if left < len(groups) else groups
            most = max(most, sum(size for _, size in loads) + sum(groups) + open_group)
        return most

    def _twice(self) -> list[Instruction]:
        """The instructions in order, innermost loops two times."""
        if self.loop:
            return [*self.instructions, *self.instructions]
        out, ends = [], {c.instructions[-1].at: c.instructions for c in self.loops}
        for i in self.instructions:
            out.append(i)
            out += ends.get(i.at, ())
        return out

    @property
    def cycles(self) -> int:
        """Cycles that a quarter of a multiprocessor is busy with a warp's pass, however many warps there are to choose from."""
        busy: Counter[str] = Counter()
        for i in self.instructions:
            name, plain = i.name, i.name.removesuffix("32I")
            busy["issue"] += 1
            if plain in _FULL:
                busy["fma"] += 1
            elif name == "IMAD":
                busy["fma heavy"] += 2
                busy["fma"] += 1
            elif plain in _HALF:
                busy["alu"] += 2
            elif name in _SPECIAL:
                busy["special"] += 8
            elif name in _DOUBLE:
                busy["double"] += 2
            elif name in (*_LOADS, *_COPIES, *_STORES, *_ATOMICS, *_SHARED_ACCESSES):
                busy["memory"] += QUARTERS * max(1, i.bytes // 4)  # the quarters share it: 128 bytes per cycle
        return max(busy.values(), default=0)

    def __str__(self) -> str:
        return "\n".join(f"{i.at:5x}  {i.predicate:5} {i.opcode} {', '.join(i.operands)}" for i in self.instructions)


@dataclass(frozen=True)
class Facts:
    """What a kernel's machine code says.

    Attributes:
        code: of the function.
        threads, registers, shared: threads of a block, registers of a thread, bytes of shared memory of a block.
    """

    code: Code
    threads: int
    registers: int
    shared: int

    @property
    def blocks(self) -> int:
        """Blocks that fit on a multiprocessor at a time."""
        return blocks_at_a_time(GPUS[90], self.threads, self.registers, self.shared)

    @property
    def in_flight(self) -> int:
        """Bytes of global memory that a multiprocessor waits for when it has all the blocks that fit."""
        return self.blocks * self.threads * self.code.in_flight

    @property
    def cycles_per_byte(self) -> float:
        """Cycles of a multiprocessor for each byte that is moved, in its loops, or in all of it.

        4.3 TB/s for 132 multiprocessors at 1.7 GHz are 19 bytes per cycle, 0.052 cycles each: arithmetic that takes less is hidden.
        """
        parts = self.code.usual.moving
        return sum(p.cycles for p in parts) / QUARTERS / max(1, sum(p.moved for p in parts) * WARP)


def facts_of_code(binary: Binary) -> Facts:
    """Read a kernel's machine code.

    Raises:
        FailedPreconditionError: there is no disassembler here, or the kernel is not for an NVIDIA GPU.
    """
    return Facts(parsed(disassembled(binary.image)), binary.threads, binary.registers, binary.shared_bytes)


@cache
def disassembler() -> Path | None:
    """NVIDIA's nvdisasm, which Triton's package brings; None: it is not here."""
    import importlib.util

    found = importlib.util.find_spec("triton")
    if found is None or found.origin is None:
        return None
    tool = Path(found.origin).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    return tool if tool.exists() else None


def disassembled(image: bytes) -> str:
    """The disassembler's text of a cubin.

    Raises:
        FailedPreconditionError: there is no disassembler here, or it does not take this.
    """
    tool = disassembler()
    if tool is None:
        raise FailedPreconditionError(
            None, None, "Machine code is read by nvdisasm, which comes with Triton for Linux: pip install triton"
        )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(image)
        file.flush()
        done = subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=False)
    if done.returncode:
        raise FailedPreconditionError(None, None, f"{tool} does not read this binary: {done.stderr.strip()}")
    return done.stdout


def parsed(text: str) -> Code:
    """The instructions of a disassembler's text. What follows the last way out, padding and its like, is left out."""
    rows: list[tuple[int, str, str, str]] = []
    labels: dict[str, int] = {}
    waiting: list[str] = []
    for line in text.splitlines():
        label = _LABEL.match(line.strip())
        if label:
            waiting.append(label[1])
            continue
        found = _LINE.search(line)
        if found is None:
            continue
        at = int(found[1], 16)
        labels.update(dict.fromkeys(waiting, at))
        waiting.clear()
        rows.append((at, found[2] or "", found[3], found[4].strip()))
    while rows and rows[-1][2] == "NOP":
        rows.pop()
    if len(rows) > 1 and rows[-1][2] == "BRA":  # to itself: what stands behind the code
        rows.pop()
    out = []
    for at, predicate, opcode, operands in rows:
        branch = _BRANCH.search(operands)
        target = labels.get(branch[1], -1) if branch else -1
        out.append(Instruction(at, opcode, _split(operands), predicate, target))
    return Code(tuple(out))


def _split(operands: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in operands.split(",")) if operands else ()


def _is_way_around(skipped: Sequence[Instruction]) -> bool:
    """Whether these do nothing but prepare a call; a branch goes past them."""
    moves = (*_LOADS, *_COPIES, *_STORES, *_ATOMICS)
    called = any(i.name == "CALL" for i in skipped)
    return called and not any(i.name in moves or 0 <= i.target <= i.at for i in skipped)


def one_line(facts: Facts) -> str:
    """Facts in a line, for people."""
    code = facts.code

    def wide(found: Counter[int]) -> str:
        return " + ".join(f"{n} x {size} B" for size, n in sorted(found.items(), reverse=True)) or "none"

    return (
        f"loads {wide(code.loads)}, stores {wide(code.stores)}, {facts.threads} threads of {facts.registers} registers, "
        f"{facts.shared} B shared: {facts.blocks} blocks, {facts.in_flight / 1024:.0f} KiB in flight, "
        f"{facts.cycles_per_byte:.3f} cycles a byte" + (f", {code.local} local accesses" if code.local else "")
    )
