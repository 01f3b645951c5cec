"""The machines that code is generated for: cores, caches, costs of one core, and sizes for GPUs (models: `graph/core/gpu_models.py`).

These numbers are rough on purpose: a kernel that is tiled for a cache of 2 MiB runs well with one of 1 or 4 MiB.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ..graph.core.gpu_models import GPUS, SMALLEST_BLOCK_SHARED_BYTES
from ..graph.core.interpreter_state import own_cores

# --- CPUs ------------------------------------------------------------------------------------------------------------

# The second cache of one core. The working set of one unit of work is a half or a quarter of it.
L2_BYTES = 1 << 21
# Rows of a product that are larger than this are not in the second cache before a unit of work reads them.
FAR_BYTES = L2_BYTES // 8
# Matrices that stay in the first cache, or nearly, while a product goes over them: packing them takes longer than it saves.
SMALL_MATRIX_BYTES = 40 << 10
# Steps of a sum whose second factor is packed at a time: a panel of 256 x 32 float32 is 32 KiB, as large as the L1 cache.
PANEL_STEPS = 256
# Groups of rows that are interleaved at a time: more would conflict in the same sets of the L1 cache.
INTERLEAVED_GROUPS = 4
# Rough cost of one element on one core, float32, measured on a 2.6 GHz Zen 4.
NS_PER_BYTE, NS_PER_OPERATION, NS_PER_COSTLY = 0.05, 0.03, 0.25
NS_PER_RANDOM = {"uniform": 0.8, "normal": 5.0}
NS_PER_SCAN_STEP = 1.2  # of a running sum: each step depends on the one before
NS_PER_FLOP = 0.011  # of a product whose tiles come from the caches
NS_PER_STREAMED_BYTE = 0.02  # of a matrix that is read once, for a single row or column
NS_PER_SUM = 0.3  # of a number that is added to a row of a table
NS_PER_PART = 0.5  # of adding up a part of a pixel
NS_PER_COMPARED, NS_PER_FOUND = 0.15, 10.0  # of a number that may be among the largest, and of one that is

# Work that takes longer is shared by threads: to wake one that sleeps takes about as long.
PARALLEL_NS = 80_000.0
# The same in a task that has neighbours: its helpers sleep between kernels, and a neighbour may need the core that they would run on.
TASK_PARALLEL_NS = 2 * PARALLEL_NS
# Elements of a row that are summed in its own type: long enough for speed, short enough for accuracy, and for the L1 cache.
SUM_BLOCK = 4096
# Elements that one thread reduces at a time, if everything is reduced: a constant, so that results do not depend on the threads.
REDUCED_PIECE = 1 << 16
# Elements of a short row: two vectors of 64 bytes. Elements of several rows are not contiguous and are gathered one by one.
SHORT_ROW = 32
# How many short rows are processed at a time: vectors of this length stay in the L1 cache.
ROWS_AT_A_TIME = 512
# Elements of a row whose loop is unrolled: one less than a vector has. The same where nothing is reduced, and nothing costly computed.
# Operations of a row that is unrolled: with more, compiling takes seconds.
LONGEST_UNROLLED, CHEAP_UNROLLED, MOST_UNROLLED = 15, 7, 256

# Also the alignment of the widest vector loads.
CACHE_LINE_BYTES = 64
# Elements below which NumPy's few calls are as fast as one kernel call, as measured.
SMALL_ELEMENTS = 4096
# Elements from which on a kernel of one operation pays. A selection, in which NumPy jumps, pays from SMALL_ELEMENTS on.
LONE_ELEMENTS = 1 << 16
# Elements of an update below which NumPy takes about as long as a launch.
SMALLEST_UPDATE = 8
# Elements of a tensor that stays in the caches until it is read again.
CACHED_ELEMENTS = 1 << 14
# Multiply-adds of one product: from where OpenBLAS takes threads, to where they pay even on a busy machine.
SMALLEST_PRODUCT, LARGEST_PRODUCT = 1 << 18, 1 << 30
# Pixels that a part of a filter's gradient sums at least: to write and add it takes a few hundredths of making it. Elements of all parts.
FILTER_PART_PIXELS, FILTER_PART_ELEMENTS = 2048, 1 << 18
# Bytes of a matrix that threads share when a row is multiplied by it, and in how many parts its sum is made then. A thread has whole rows:
# parts of rows whose length is a power of two would take a part of the sets of its caches.
SHARED_MATRIX_BYTES, SHARED_MATRIX_PARTS = 1 << 22, 8
# Channels that fill half a register tile.
FEW_CHANNELS = 8
# Columns that a thread's part of columns should have: memory is fast along rows.
COLUMN_STRIP = 512
# Bytes of a sparse gradient that one thread adds without summing: 4 ms.
LONE_UPDATE_BYTES = 1 << 24
# Bytes of a result from which on the C library gives fresh memory. Smaller ones get memory that was used before, which is as fast.
FRESH_BYTES = 32 << 20
# Elements of an axis that are too few to be shared by threads, and of the innermost one that are enough: vectors are as long as before.
FEW_SHARED, MANY_SHARED = 4, 256

# Operations that take as long as one byte of memory.
OPERATIONS_PER_BYTE = NS_PER_BYTE / NS_PER_OPERATION


@cache
def cores() -> int:
    """How many cores this process may use."""
    return own_cores()


@cache
def vector_bytes() -> int:
    """Bytes of a vector register: 64 with AVX-512, else 32."""
    from llvmlite.binding import get_host_cpu_features  # loads LLVM

    return 64 if get_host_cpu_features().get("avx512f", False) else 32


def register_tile(itemsize: int) -> tuple[int, int]:
    """Rows and columns of the sums that stay in registers: two vectors wide, sixteen of 32 registers with AVX-512, else twelve of 16."""
    return 8 if vector_bytes() == 64 else 6, 2 * vector_bytes() // itemsize


# --- GPUs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """An NVIDIA GPU's architecture, to compile for.

    Attributes:
        arch: its compute capability, times ten: 90.
    """

    arch: int

    @property
    def has_float8(self) -> bool:
        """Whether its instructions convert and multiply numbers of 8 bits, as IEEE-like formats without infinities have them."""
        return self.arch >= 89

    @property
    def has_copy_engine(self) -> bool:
        """Whether tiles of matrices are fetched by an engine (TMA) that knows where a matrix ends."""
        return self.arch >= 90

    @property
    def multiprocessors(self) -> int:
        """How many there are; 0: that is not known."""
        return GPUS[self.arch].multiprocessors if self.arch in GPUS else 0

    @property
    def block_shared_bytes(self) -> int:
        """The most shared memory of a block. A device's own limit, `Device.block_shared_bytes`, is asked of its driver."""
        known = GPUS.get(self.arch)
        return known.block_shared_bytes if known else SMALLEST_BLOCK_SHARED_BYTES

    def __str__(self) -> str:
        return f"sm_{self.arch}"


SM80 = Target(80)  # A100
SM90 = Target(90)  # H100, H200
SM100 = Target(100)  # B200


# Threads of a GPU that run in step.
WARP = 32
# Blocks that a launch may have along x and y.
MOST_BLOCKS = (2**31 - 1, 65535)
# Shared memory that barriers and a row of the epilogue take beside the tiles of the copy engine: 40 to 1,200 bytes by compiling.
GPU_BARRIER_BYTES = 2048
# Products of float8 that Hopper may add up with few bits before they go to a sum in float32.
GPU_FLOAT8_SUMS = 128
# Operations of float32 that take as long as one byte of memory: by the maker's figures 20 on an H100, 10 to 12 on an A100. The lower
# number: a function may be more instructions than it counts.
GPU_OPERATIONS_PER_BYTE = 10.0
# How far the offsets of a block's tile may reach beyond an array: with 32 bits they must not come around to where it begins.
GPU_INDEX_MARGIN = 1 << 20
# Elements that a block of 4 warps has at once where nothing says otherwise: 8 for each thread.
GPU_BLOCK_ELEMENTS = 1024
# Elements of a row that one block has at once: 32 for each of 512 threads. Templates serve longer running sums and arg-extremes.
GPU_LONGEST_ROW = 16384
# Neighbours in memory that a tile has when it goes across them: 512 bytes of float32.
GPU_ROW_NEIGHBOURS = 128
# Elements of a tile's piece of rows that several blocks share; below it a second kernel costs more than it gains.
GPU_SHORTEST_PIECE = 4096
# What templates assume where the kernel text is chosen before the GPU is known.
H100_MULTIPROCESSORS = GPUS[90].multiprocessors
# Blocks of 4 warps that keep the memory of an H200 busy: with fewer than half, rows are cut.
GPU_BLOCKS = 8 * H100_MULTIPROCESSORS
# Dynamic shared memory that a block may have without asking for more (CUDA C++ programming guide, compute capabilities).
GPU_DEFAULT_SHARED_BYTES = 48 << 10
# Elements of a row that one block sorts: as words of 64 bits they take 32 KiB of shared memory.
GPU_LONGEST_SORTED = 4096
# Elements from which on a variable is updated by a launch of its own, which takes some 10 µs, the time of three launches.
GPU_LARGE_UPDATE = 1 << 20
# Bytes up to which a copy is small, to the host and to the device; and of the pieces of larger ones: starting one does not show.
GPU_SMALL_DOWNLOAD, GPU_SMALL_UPLOAD, GPU_COPY_PIECE = 64 << 10, 256 << 10, 4 << 20
# Bytes of a tensor that another process maps. Smaller ones are faster through host memory.
GPU_SMALLEST_LEASE = 256 << 10
