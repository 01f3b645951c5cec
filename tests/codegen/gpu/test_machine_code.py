"""Reading machine code: what the text of the disassembler says, and what follows from it."""

from dataclasses import replace

import machine_code
import pytest
from machine_code import Code, Facts, facts_of_code, one_line, parsed

from dovetail.codegen.gpu.emit.launches import routines
from dovetail.codegen.gpu.ir import HEADER, Parameter, TritonKernel
from dovetail.codegen.gpu.schedule import specialise
from dovetail.codegen.gpu.toolchain.compile import compile_kernel
from dovetail.codegen.ir.loop_nest import LoopNestBuilder
from dovetail.codegen.target import SM90
from dovetail.graph.core.dtypes import float32
from dovetail.graph.core.errors import FailedPreconditionError

pytest.importorskip("triton")

LOOP = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/                   LDG.E.128 R8, desc[UR4][R2.64+0x800] ;
.L_x_0:
        /*0030*/                   FADD R12, R4, R12 ;
        /*0040*/              @!P0 LDG.E.64 R16, desc[UR4][R2.64+0x1000] ;
        /*0050*/                   FADD R12, R9, R12 ;
        /*0060*/                   LDG.E.U16 R18, desc[UR4][R2.64+0x1000] ;
        /*0070*/               @P0 BRA `(.L_x_0) ;
        /*0080*/                   STG.E.128 desc[UR4][R2.64], R12 ;
        /*0090*/                   STL [R1], R4 ;
        /*00a0*/                   EXIT ;
.L_x_1:
        /*00b0*/                   BRA `(.L_x_1);
        /*00c0*/                   NOP;
"""


def test_the_text_becomes_instructions_and_loops() -> None:
    code = parsed(LOOP)
    assert [i.name for i in code.instructions][-3:] == ["STG", "STL", "EXIT"]
    assert code.loads == {16: 2, 8: 1, 2: 1}
    assert code.stores == {16: 1}
    assert code.local == 1
    assert code.moved == 58
    (loop,) = code.loops
    assert [i.at for i in loop.instructions] == [0x30, 0x40, 0x50, 0x60, 0x70]
    assert code.moving == (loop,)
    assert loop.moving == (loop,)
    assert loop.share("FADD") == 0.4
    assert code.instructions[4].predicate == "@!P0"
    assert parsed("/*0000*/ REDG.E.ADD.F32x4.FTZ.RN.STRONG.GPU desc[UR4][R12.64], R4 ;").moved == 16
    assert parsed("/*0000*/ REDG.E.ADD.F32.FTZ.RN.STRONG.GPU desc[UR4][R12.64], R4 ;").moved == 4


def test_loads_are_in_flight_until_they_are_named() -> None:
    # 32 bytes wait before the loop; 16 of them are looked at before 8 more are asked for, and the rest before the last 2.
    assert parsed(LOOP).in_flight == 32
    assert parsed(LOOP.replace("FADD R12, R4, R12", "FADD R12, R20, R12")).in_flight == 40


def test_copies_into_shared_memory_are_in_flight_until_their_group_is_waited_for() -> None:
    copies = "".join(
        f"/*{i:04x}*/ LDGSTS.E.BYPASS.128 [R5+{i}], desc[UR4][R6.64] ;\n/*{i + 1:04x}*/ LDGDEPBAR ;\n"
        for i in (0, 2, 4)
    )
    code = parsed(
        f"{copies}/*0006*/ DEPBAR.LE SB0, 0x1 ;\n/*0007*/ LDGSTS.E.64 [R5], desc[UR4][R6.64] ;\n/*0008*/ EXIT ;"
    )
    assert code.loads == {16: 3, 8: 1}
    assert code.in_flight == 48
    wider = parsed(copies + "/*0006*/ DEPBAR.LE SB0, 0x2 ;\n" + copies.replace("*/ L", "0*/ L"))
    assert wider.in_flight == 80


def test_the_busiest_unit_decides() -> None:
    def cycles(*lines: str) -> int:
        return parsed("\n".join(f"/*{16 * i:04x}*/ {line} ;" for i, line in enumerate(lines))).cycles

    assert cycles("FADD R1, R2, R3", "FMUL R1, R2, R3") == 2
    assert cycles("ISETP.GE.AND P0, PT, R1, R2, PT", "FMNMX R1, R2, R3, PT") == 4
    assert cycles("MUFU.EX2 R1, R2", "FADD R1, R2, R3", "FADD R1, R2, R3") == 8
    assert cycles("IMAD R1, R2, R3, R4", "FADD R1, R2, R3") == 2
    assert cycles("LDG.E.128 R4, desc[UR4][R2.64]") == 16


def test_ways_around_by_a_call_are_not_usual() -> None:
    code = parsed("""
        /*0000*/                   FCHK P0, R3, R18 ;
        /*0010*/              @!P0 BRA `(.L_x_3) ;
        /*0020*/                   MOV R4, R3 ;
        /*0030*/                   CALL.REL.NOINC `($slow) ;
.L_x_3:
        /*0040*/               @P1 BRA `(.L_x_4) ;
        /*0050*/                   FADD R1, R2, R3 ;
.L_x_4:
        /*0060*/                   EXIT ;
        /*0070*/                   MUFU.RCP R4, R5 ;
        /*0080*/                   RET.REL.NODEC R4 `(k) ;
""")
    assert [i.name for i in code.usual.instructions] == ["FCHK", "BRA", "BRA", "FADD", "EXIT"]


def test_blocks_are_bounded_by_registers_threads_and_shared_memory() -> None:
    facts = Facts(Code(()), 128, 32, 0)
    assert facts.blocks == 16  # 2048 threads
    assert replace(facts, registers=65).blocks == 7  # 72 are handed out: 7 warps in each quarter
    assert replace(facts, shared=100 << 10).blocks == 2
    assert replace(facts, threads=32).blocks == 32
    assert replace(facts, threads=1024, registers=64).blocks == 1


@pytest.mark.usefixtures("own_cache")
def test_a_compiled_kernel_is_read() -> None:
    if machine_code.disassembler() is None:
        pytest.skip("Triton's package has no disassembler here")
    text = HEADER + (
        "@triton.jit\ndef double(x, out, BLOCK: tl.constexpr):\n    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
        "    tl.store(out + i, tl.load(x + i) * 2)\n"
    )
    kernel = TritonKernel(
        "double", text, (Parameter("x", "*fp32", True), Parameter("out", "*fp32", True)), (("BLOCK", 1024),)
    )
    binary = compile_kernel(kernel, SM90)
    facts = facts_of_code(binary)
    assert facts.code.loads == facts.code.stores == {16: 2}
    assert (facts.code.in_flight, facts.code.local, facts.threads) == (32, 0, 128)
    assert facts.in_flight == facts.blocks * 128 * 32
    assert 0 < facts.cycles_per_byte < 0.05
    assert one_line(facts).startswith("loads 2 x 16 B, stores 2 x 16 B, 128 threads")
    with pytest.raises(FailedPreconditionError, match="does not read"):
        machine_code.disassembled(b"nothing")


@pytest.mark.skipif(machine_code.disassembler() is None, reason="there is no disassembler beside Triton")
@pytest.mark.usefixtures("own_cache")
def test_floor_and_ceil_of_denormal_numbers() -> None:
    """The machine's own rounding takes them for 0: a comparison that does not must follow each."""
    build = LoopNestBuilder([False])
    x = build.load(0, float32, [0])
    build.store(build.apply("floor", x), [0])
    build.store(build.apply("ceil", x), [0])
    loops, _ = build.finish()
    (launch,) = routines(loops, specialise(loops, [1 << 20]))[0].launches
    code = facts_of_code(compile_kernel(launch.kernel, SM90)).code
    compared = [i for i in code.instructions if i.name == "FSETP"]
    assert code.count("FRND") == len(compared) > 0 and not any("FTZ" in i.opcode for i in compared)
