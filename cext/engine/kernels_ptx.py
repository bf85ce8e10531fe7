"""The kernels' PTX: setup.py makes a C header of it, and tests do.

It is for sm_50 (Maxwell) and ISA 6.0, which every driver from CUDA 11 on takes; the driver
compiles it at first use. Each item size of N bytes has two entries:

  cudriver_permute_N    any strides: each thread moves items, one after another
  cudriver_transpose_N  through a tile of 32 x 32 items in shared memory. Dimension 5 is the
                        innermost of the destination, dimension 4 that of the source

Both take (dst, src, count, lengths 0..5, destination's strides 0..5, source's strides 0..5), 64
bits each, strides in bytes. Dimension 5 is the fastest; unused dimensions have length 1. `count`
is the number of items; only permute reads it, transpose has one block for each tile.

One more entry is cudriver_runs: (table, count). The table has a struct cudriver_run
for each dense copy; each half of a block takes every so many of them, by the largest items that
fit.
"""

from __future__ import annotations

import json
from string import Template

HEAD = """\
.version 6.0
.target sm_50
.address_size 64
"""

PARAMETERS = """\
(.param .u64 dst, .param .u64 src, .param .u64 count,
 .param .u64 n0, .param .u64 n1, .param .u64 n2, .param .u64 n3, .param .u64 n4, .param .u64 n5,
 .param .u64 d0, .param .u64 d1, .param .u64 d2, .param .u64 d3, .param .u64 d4, .param .u64 d5,
 .param .u64 s0, .param .u64 s1, .param .u64 s2, .param .u64 s3, .param .u64 s4, .param .u64 s5)
{
.reg .pred p, inside;
.reg .u32 tx, ty, w, by;
.reg .u64 i, step, total, rest, q, r, n, k, a, b, nx, ny, x, y, x0, y0, shared, at;
.reg .$held v0, v1;
ld.param.u64 a, [dst];
ld.param.u64 b, [src];
cvta.to.global.u64 a, a;
cvta.to.global.u64 b, b;
"""

# Takes the index in dimension $d from `rest`, and moves a and b by it. A division of 32 bits, which
# is several times as fast, where both numbers have no more.
DIMENSION = """\
ld.param.u64 n, [n$d];
setp.eq.u64 p, n, 1;
@p bra SKIP$d;
or.b64 q, rest, n;
shr.u64 q, q, 32;
setp.ne.u64 p, q, 0;
@p bra LONG$d;
cvt.u32.u64 w, rest;
cvt.u32.u64 by, n;
div.u32 w, w, by;
cvt.u64.u32 q, w;
bra DIVIDED$d;
LONG$d:
div.u64 q, rest, n;
DIVIDED$d:
mul.lo.u64 r, q, n;
sub.u64 r, rest, r;
mov.u64 rest, q;
ld.param.u64 k, [d$d];
mad.lo.u64 a, r, k, a;
ld.param.u64 k, [s$d];
mad.lo.u64 b, r, k, b;
SKIP$d:
"""

# Each block has a range of items, and each thread every 256th of them, beginning at i.
PERMUTE = """\
mov.u64 x0, a;
mov.u64 y0, b;
ld.param.u64 total, [count];
sub.u64 q, total, 1;
mov.u32 w, %nctaid.x;
cvt.u64.u32 r, w;
div.u64 q, q, r;
shr.u64 q, q, 8;
add.u64 q, q, 1;
shl.b64 step, q, 8;
mov.u32 w, %ctaid.x;
cvt.u64.u32 q, w;
mul.lo.u64 i, q, step;
add.u64 q, i, step;
min.u64 total, total, q;
mov.u32 w, %tid.x;
cvt.u64.u32 q, w;
add.u64 i, i, q;
ld.param.u64 nx, [n5];
ld.param.u64 x, [d5];
shl.b64 x, x, 8;
ld.param.u64 y, [s5];
shl.b64 y, y, 8;
PLACE:
setp.ge.u64 p, i, total;
@p bra END;
mov.u64 rest, i;
mov.u64 a, x0;
mov.u64 b, y0;
mov.u64 r, 0;
"""

# If the thread's next item lies in the same row of the fastest dimension, where this one has the
# index `at`, its addresses need no division. H200: 192 MiB of images from NHWC to NCHW 25.6 GB/s,
# now 40.1.
PERMUTE_END = """\
NEXT:
ld.global.$type $value, [b];
st.global.$type [a], $value;
add.u64 i, i, 256;
add.u64 at, at, 256;
add.u64 a, a, x;
add.u64 b, b, y;
setp.ge.u64 p, at, nx;
@p bra PLACE;
setp.lt.u64 p, i, total;
@p bra NEXT;
END:
ret;
}
"""

# The block's number gives the tile (x0, y0); the rest of it, the index in the other dimensions.
TRANSPOSE = """\
.shared .align 16 .b8 tile[$tile];
mov.u32 tx, %ctaid.x;
cvt.u64.u32 rest, tx;
ld.param.u64 nx, [n5];
ld.param.u64 ny, [n4];
add.u64 n, nx, 31;
shr.u64 n, n, 5;
div.u64 q, rest, n;
mul.lo.u64 r, q, n;
sub.u64 x0, rest, r;
shl.b64 x0, x0, 5;
mov.u64 rest, q;
add.u64 n, ny, 31;
shr.u64 n, n, 5;
div.u64 q, rest, n;
mul.lo.u64 r, q, n;
sub.u64 y0, rest, r;
shl.b64 y0, y0, 5;
mov.u64 rest, q;
"""

# Neighbouring threads read neighbours along y, one row for each x.
TRANSPOSE_READ = """\
mov.u32 tx, %tid.x;
mov.u32 ty, %tid.y;
cvt.u64.u32 y, tx;
add.u64 y, y, y0;
setp.lt.u64 inside, y, ny;
ld.param.u64 k, [s4];
mad.lo.u64 b, y, k, b;
ld.param.u64 k, [s5];
mov.u64 shared, tile;
mad.lo.u32 w, ty, 33, tx;
mul.wide.u32 at, w, $size;
add.u64 at, at, shared;
cvt.u64.u32 x, ty;
add.u64 x, x, x0;
"""
TRANSPOSE_READ_ROW = """\
setp.lt.and.u64 p, x, nx, inside;
mad.lo.u64 q, x, k, b;
@p ld.global.$type $value, [q];
@p st.shared.$type [at], $value;
add.u64 x, x, 8;
add.u64 at, at, 264 * $size;
"""

# Then they write neighbours along x, one row for each y.
TRANSPOSE_WRITE = """\
bar.sync 0;
cvt.u64.u32 x, tx;
add.u64 x, x, x0;
setp.lt.u64 inside, x, nx;
ld.param.u64 k, [d5];
mad.lo.u64 a, x, k, a;
ld.param.u64 k, [d4];
mad.lo.u32 w, tx, 33, ty;
mul.wide.u32 at, w, $size;
add.u64 at, at, shared;
cvt.u64.u32 y, ty;
add.u64 y, y, y0;
"""
TRANSPOSE_WRITE_ROW = """\
setp.lt.and.u64 p, y, ny, inside;
mad.lo.u64 q, y, k, a;
@p ld.shared.$type $value, [at];
@p st.global.$type [q], $value;
add.u64 y, y, 8;
add.u64 at, at, 8 * $size;
"""

END = """\
ret;
}
"""

# Half a block, 128 threads, copies a run, and reads its next one before, which hides the wait for
# the table.
RUNS = """\
.visible .entry cudriver_runs(.param .u64 table, .param .u64 count)
.maxntid 256, 1, 1
{
.reg .pred p, p0, p1, p2, p3;
.reg .u32 w;
.reg .u64 i, total, run, step, me, bits;
.reg .u64 a, b, n, a1, b1, n1, at, x, y;
ld.param.u64 run, [table];
ld.param.u64 total, [count];
cvta.to.global.u64 run, run;
mov.u32 w, %tid.x;
cvt.u64.u32 me, w;
shr.u64 x, me, 7;
and.b64 me, me, 127;
mov.u32 w, %ctaid.x;
cvt.u64.u32 i, w;
mad.lo.u64 i, i, 2, x;
mov.u32 w, %nctaid.x;
cvt.u64.u32 step, w;
shl.b64 step, step, 1;
setp.ge.u64 p, i, total;
@p ret;
mad.lo.u64 run, i, 32, run;
ld.global.u64 a1, [run];
ld.global.u64 b1, [run+8];
ld.global.u64 n1, [run+16];
RUN:
cvta.to.global.u64 a, a1;
cvta.to.global.u64 b, b1;
mov.u64 n, n1;
mad.lo.u64 run, step, 32, run;
add.u64 i, i, step;
setp.lt.u64 p, i, total;
@p ld.global.u64 a1, [run];
@p ld.global.u64 b1, [run+8];
@p ld.global.u64 n1, [run+16];
or.b64 bits, a, b;
or.b64 bits, bits, n;
"""

# Each thread moves every 128th item, four at a time: first all reads, then all writes.
RUNS_MOVE = """\
and.b64 at, bits, $size - 1;
setp.ne.u64 p0, at, 0;
@p0 bra NOT$size;
{
.reg .$held u<4>, v<4>;
mul.lo.u64 at, me, $size;
add.u64 x, b, at;
add.u64 y, a, at;
MOVE$size:
"""
RUNS_READ = """\
setp.lt.u64 p$d, at, n;
@p$d ld.global.$type $numbered, [x];
add.u64 at, at, 128 * $size;
add.u64 x, x, 128 * $size;
"""
RUNS_WRITE = """\
@p$d st.global.$type [y], $numbered;
add.u64 y, y, 128 * $size;
"""
RUNS_MOVED = """\
setp.lt.u64 p0, at, n;
@p0 bra MOVE$size;
bra NEXT;
}
NOT$size:
"""
RUNS_END = """\
NEXT:
@p bra RUN;
ret;
}
"""


def item(size: int) -> dict[str, str]:
    """What stands in the texts above for items of so many bytes."""
    kind = "v2.u64" if size == 16 else f"u{8 * size}"
    return {
        "size": str(size),
        "type": kind,
        "held": f"u{min(max(8 * size, 16), 64)}",  # no register holds 8 bits
        "value": "{v0, v1}" if size == 16 else "v0",
        "tile": str(32 * 33 * size),
    }


def fill(text: str, size: int, d: int = 0) -> str:
    numbered = f"{{u{d}, v{d}}}" if size == 16 else f"v{d}"
    return Template(text).substitute(item(size), d=d, numbered=numbered)


def permuting(size: int) -> str:
    """The entries for items of so many bytes."""

    def dimensions(last: int) -> str:
        return "".join(DIMENSION.replace("$d", str(d)) for d in range(last, -1, -1))

    permute = PERMUTE + DIMENSION.replace("$d", "5") + "mov.u64 at, r;\n" + dimensions(4)
    transpose = TRANSPOSE + dimensions(3) + TRANSPOSE_READ + TRANSPOSE_READ_ROW * 4
    transpose += TRANSPOSE_WRITE + TRANSPOSE_WRITE_ROW * 4
    text = ".visible .entry cudriver_permute_$size" + PARAMETERS + permute + PERMUTE_END
    text += ".visible .entry cudriver_transpose_$size" + PARAMETERS + transpose + END
    return fill(text, size)


def runs() -> str:
    """The entry that copies runs, by items of 16, 4 and 1 bytes."""
    text = RUNS
    for size in 16, 4, 1:
        moves = [fill(RUNS_READ, size, d) for d in range(4)]
        moves += [fill(RUNS_WRITE, size, d) for d in range(4)]
        text += fill(RUNS_MOVE, size) + "".join(moves) + fill(RUNS_MOVED, size)
    return text + RUNS_END


def header() -> str:
    """C: the text of the module."""
    text = HEAD + "".join(map(permuting, (1, 2, 4, 8, 16))) + runs()
    return f"static const char kernels_ptx[] = {json.dumps(text)};\n"
