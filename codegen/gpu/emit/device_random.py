"""Random numbers for kernels on GPUs, as functions in Triton: the words of `graph.philox`, and the numbers made of them.

Each thread scrambles counters of its own; one counter gives four words. Where a tile's rows begin at whole counters, its numbers are
made by the plural functions, which use every word; else by those for single positions, which use one and drop three:

    uniforms32(block, key, draw)    of a tile of counters [.., B]: the numbers of a tile of elements [.., 4 B]
    uniform32(at, key, draw)        of a tile of positions: their numbers

Uniform numbers are those of the CPU, bit for bit. Normal ones are computed in float64, by the polynomials of CPUs, and rounded once.
"""

from __future__ import annotations

_STEP = "tl.full((), 2.3283064365386963e-10, tl.float64)"  # 2**-32

FUNCTIONS = {
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
    "normal_pair": f"""def normal_pair(word, other):
    step = {_STEP}
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
"""Name -> text."""
