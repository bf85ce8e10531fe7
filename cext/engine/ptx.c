/*
 * The kernels' PTX. No CUDA. See private.h.
 *
 * It is for sm_50 (Maxwell) and ISA 6.0, which every driver from CUDA 11 on takes; the driver
 * compiles it at first use. Each item size of N bytes has a module with two entries:
 *   cudriver_permute_N    any strides: each thread moves items, one after another
 *   cudriver_transpose_N  through a tile of 32 x 32 items in shared memory. Dimension 5 is the
 *                         innermost of the destination, dimension 4 that of the source
 *
 * Both take (dst, src, count, lengths 0..5, destination's strides 0..5, source's strides 0..5), 64
 * bits each, strides in bytes. Dimension 5 is the fastest; unused dimensions have length 1. `count`
 * is the number of items; only permute reads it, transpose has one block for each tile.
 *
 * One more module has the entry cudriver_runs: (table, count). The table has a struct cudriver_run
 * for each dense copy; each half of a block takes every so many of them, by the largest items that
 * fit.
 */
#include "private.h"

#include <stdlib.h>
#include <string.h>

#define DIMS STAGING_KERNEL_DIMS

/* In these texts $N is the item size in bytes, $T its type, $V the registers that hold it, $R their
 * type, $P those of the same type with a number, $S the bytes of a tile, $D a dimension or number.
 */
static const char ptx_head[] = ".version 6.0\n"
                               ".target sm_50\n"
                               ".address_size 64\n";

static const char ptx_parameters[] =
    "(.param .u64 dst, .param .u64 src, .param .u64 count,\n"
    " .param .u64 n0, .param .u64 n1, .param .u64 n2, .param .u64 n3, .param .u64 n4, .param .u64 "
    "n5,\n"
    " .param .u64 d0, .param .u64 d1, .param .u64 d2, .param .u64 d3, .param .u64 d4, .param .u64 "
    "d5,\n"
    " .param .u64 s0, .param .u64 s1, .param .u64 s2, .param .u64 s3, .param .u64 s4, .param .u64 "
    "s5)\n"
    "{\n"
    ".reg .pred p, inside;\n"
    ".reg .u32 tx, ty, w, by;\n"
    ".reg .u64 i, step, total, rest, q, r, n, k, a, b, nx, ny, x, y, x0, y0, shared, at;\n"
    ".reg .$R v0, v1;\n"
    "ld.param.u64 a, [dst];\n"
    "ld.param.u64 b, [src];\n"
    "cvta.to.global.u64 a, a;\n"
    "cvta.to.global.u64 b, b;\n";

/* Takes the index in dimension $D from `rest`, and moves a and b by it. A division of 32 bits,
 * which is several times as fast, where both numbers have no more. */
static const char ptx_dimension[] = "ld.param.u64 n, [n$D];\n"
                                    "setp.eq.u64 p, n, 1;\n"
                                    "@p bra SKIP$D;\n"
                                    "or.b64 q, rest, n;\n"
                                    "shr.u64 q, q, 32;\n"
                                    "setp.ne.u64 p, q, 0;\n"
                                    "@p bra LONG$D;\n"
                                    "cvt.u32.u64 w, rest;\n"
                                    "cvt.u32.u64 by, n;\n"
                                    "div.u32 w, w, by;\n"
                                    "cvt.u64.u32 q, w;\n"
                                    "bra DIVIDED$D;\n"
                                    "LONG$D:\n"
                                    "div.u64 q, rest, n;\n"
                                    "DIVIDED$D:\n"
                                    "mul.lo.u64 r, q, n;\n"
                                    "sub.u64 r, rest, r;\n"
                                    "mov.u64 rest, q;\n"
                                    "ld.param.u64 k, [d$D];\n"
                                    "mad.lo.u64 a, r, k, a;\n"
                                    "ld.param.u64 k, [s$D];\n"
                                    "mad.lo.u64 b, r, k, b;\n"
                                    "SKIP$D:\n";

/* Each block has a range of items, and each thread every 256th of them, beginning at i. */
static const char ptx_permute_begin[] = "mov.u64 x0, a;\n"
                                        "mov.u64 y0, b;\n"
                                        "ld.param.u64 total, [count];\n"
                                        "sub.u64 q, total, 1;\n"
                                        "mov.u32 w, %nctaid.x;\n"
                                        "cvt.u64.u32 r, w;\n"
                                        "div.u64 q, q, r;\n"
                                        "shr.u64 q, q, 8;\n"
                                        "add.u64 q, q, 1;\n"
                                        "shl.b64 step, q, 8;\n"
                                        "mov.u32 w, %ctaid.x;\n"
                                        "cvt.u64.u32 q, w;\n"
                                        "mul.lo.u64 i, q, step;\n"
                                        "add.u64 q, i, step;\n"
                                        "min.u64 total, total, q;\n"
                                        "mov.u32 w, %tid.x;\n"
                                        "cvt.u64.u32 q, w;\n"
                                        "add.u64 i, i, q;\n"
                                        "ld.param.u64 nx, [n5];\n"
                                        "ld.param.u64 x, [d5];\n"
                                        "shl.b64 x, x, 8;\n"
                                        "ld.param.u64 y, [s5];\n"
                                        "shl.b64 y, y, 8;\n"
                                        "PLACE:\n"
                                        "setp.ge.u64 p, i, total;\n"
                                        "@p bra END;\n"
                                        "mov.u64 rest, i;\n"
                                        "mov.u64 a, x0;\n"
                                        "mov.u64 b, y0;\n"
                                        "mov.u64 r, 0;\n";

static const char ptx_permute_row[] = "mov.u64 at, r;\n";

/* If the thread's next item lies in the same row of the fastest dimension, where this one has the
 * index `at`, its addresses need no division. H200: 192 MiB of images from NHWC to NCHW 25.6 GB/s,
 * now 40.1. */
static const char ptx_permute_end[] = "NEXT:\n"
                                      "ld.global.$T $V, [b];\n"
                                      "st.global.$T [a], $V;\n"
                                      "add.u64 i, i, 256;\n"
                                      "add.u64 at, at, 256;\n"
                                      "add.u64 a, a, x;\n"
                                      "add.u64 b, b, y;\n"
                                      "setp.ge.u64 p, at, nx;\n"
                                      "@p bra PLACE;\n"
                                      "setp.lt.u64 p, i, total;\n"
                                      "@p bra NEXT;\n"
                                      "END:\n"
                                      "ret;\n"
                                      "}\n";

/* The block's number gives the tile (x0, y0); the rest of it, the index in the other dimensions. */
static const char ptx_transpose_begin[] = ".shared .align 16 .b8 tile[$S];\n"
                                          "mov.u32 tx, %ctaid.x;\n"
                                          "cvt.u64.u32 rest, tx;\n"
                                          "ld.param.u64 nx, [n5];\n"
                                          "ld.param.u64 ny, [n4];\n"
                                          "add.u64 n, nx, 31;\n"
                                          "shr.u64 n, n, 5;\n"
                                          "div.u64 q, rest, n;\n"
                                          "mul.lo.u64 r, q, n;\n"
                                          "sub.u64 x0, rest, r;\n"
                                          "shl.b64 x0, x0, 5;\n"
                                          "mov.u64 rest, q;\n"
                                          "add.u64 n, ny, 31;\n"
                                          "shr.u64 n, n, 5;\n"
                                          "div.u64 q, rest, n;\n"
                                          "mul.lo.u64 r, q, n;\n"
                                          "sub.u64 y0, rest, r;\n"
                                          "shl.b64 y0, y0, 5;\n"
                                          "mov.u64 rest, q;\n";

/* Neighbouring threads read neighbours along y, one row for each x. */
static const char ptx_transpose_read[] = "mov.u32 tx, %tid.x;\n"
                                         "mov.u32 ty, %tid.y;\n"
                                         "cvt.u64.u32 y, tx;\n"
                                         "add.u64 y, y, y0;\n"
                                         "setp.lt.u64 inside, y, ny;\n"
                                         "ld.param.u64 k, [s4];\n"
                                         "mad.lo.u64 b, y, k, b;\n"
                                         "ld.param.u64 k, [s5];\n"
                                         "mov.u64 shared, tile;\n"
                                         "mad.lo.u32 w, ty, 33, tx;\n"
                                         "mul.wide.u32 at, w, $N;\n"
                                         "add.u64 at, at, shared;\n"
                                         "cvt.u64.u32 x, ty;\n"
                                         "add.u64 x, x, x0;\n";

static const char ptx_transpose_read_row[] = "setp.lt.and.u64 p, x, nx, inside;\n"
                                             "mad.lo.u64 q, x, k, b;\n"
                                             "@p ld.global.$T $V, [q];\n"
                                             "@p st.shared.$T [at], $V;\n"
                                             "add.u64 x, x, 8;\n"
                                             "add.u64 at, at, 264 * $N;\n";

/* Then they write neighbours along x, one row for each y. */
static const char ptx_transpose_write[] = "bar.sync 0;\n"
                                          "cvt.u64.u32 x, tx;\n"
                                          "add.u64 x, x, x0;\n"
                                          "setp.lt.u64 inside, x, nx;\n"
                                          "ld.param.u64 k, [d5];\n"
                                          "mad.lo.u64 a, x, k, a;\n"
                                          "ld.param.u64 k, [d4];\n"
                                          "mad.lo.u32 w, tx, 33, ty;\n"
                                          "mul.wide.u32 at, w, $N;\n"
                                          "add.u64 at, at, shared;\n"
                                          "cvt.u64.u32 y, ty;\n"
                                          "add.u64 y, y, y0;\n";

static const char ptx_transpose_write_row[] = "setp.lt.and.u64 p, y, ny, inside;\n"
                                              "mad.lo.u64 q, y, k, a;\n"
                                              "@p ld.shared.$T $V, [at];\n"
                                              "@p st.global.$T [q], $V;\n"
                                              "add.u64 y, y, 8;\n"
                                              "add.u64 at, at, 8 * $N;\n";

static const char ptx_end[] = "ret;\n"
                              "}\n";

static const struct item {
    const char *size, *type, *registers, *held, *numbered, *tile;
} items[STAGING_KERNEL_UNITS] = {
    {"1", "u8", "v0", "u16", "v$D", "1056"},
    {"2", "u16", "v0", "u16", "v$D", "2112"},
    {"4", "u32", "v0", "u32", "v$D", "4224"},
    {"8", "u64", "v0", "u64", "v$D", "8448"},
    {"16", "v2.u64", "{v0, v1}", "u64", "{u$D, v$D}", "16896"},
};

/* Half a block, 128 threads, copies a run, and reads its next one before, which hides the wait for
 * the table. */
static const char ptx_runs_begin[] = ".visible .entry cudriver_runs(.param .u64 table, .param .u64 "
                                     "count)\n"
                                     ".maxntid 256, 1, 1\n"
                                     "{\n"
                                     ".reg .pred p, p0, p1, p2, p3;\n"
                                     ".reg .u32 w;\n"
                                     ".reg .u64 i, total, run, step, me, bits;\n"
                                     ".reg .u64 a, b, n, a1, b1, n1, at, x, y;\n"
                                     "ld.param.u64 run, [table];\n"
                                     "ld.param.u64 total, [count];\n"
                                     "cvta.to.global.u64 run, run;\n"
                                     "mov.u32 w, %tid.x;\n"
                                     "cvt.u64.u32 me, w;\n"
                                     "shr.u64 x, me, 7;\n"
                                     "and.b64 me, me, 127;\n"
                                     "mov.u32 w, %ctaid.x;\n"
                                     "cvt.u64.u32 i, w;\n"
                                     "mad.lo.u64 i, i, 2, x;\n"
                                     "mov.u32 w, %nctaid.x;\n"
                                     "cvt.u64.u32 step, w;\n"
                                     "shl.b64 step, step, 1;\n"
                                     "setp.ge.u64 p, i, total;\n"
                                     "@p ret;\n"
                                     "mad.lo.u64 run, i, 32, run;\n"
                                     "ld.global.u64 a1, [run];\n"
                                     "ld.global.u64 b1, [run+8];\n"
                                     "ld.global.u64 n1, [run+16];\n"
                                     "RUN:\n"
                                     "cvta.to.global.u64 a, a1;\n"
                                     "cvta.to.global.u64 b, b1;\n"
                                     "mov.u64 n, n1;\n"
                                     "mad.lo.u64 run, step, 32, run;\n"
                                     "add.u64 i, i, step;\n"
                                     "setp.lt.u64 p, i, total;\n"
                                     "@p ld.global.u64 a1, [run];\n"
                                     "@p ld.global.u64 b1, [run+8];\n"
                                     "@p ld.global.u64 n1, [run+16];\n"
                                     "or.b64 bits, a, b;\n"
                                     "or.b64 bits, bits, n;\n";

/* Each thread moves every 128th item, four at a time: first all reads, then all writes. */
static const char ptx_runs_move[] = "and.b64 at, bits, $N - 1;\n"
                                    "setp.ne.u64 p0, at, 0;\n"
                                    "@p0 bra NOT$N;\n"
                                    "{\n"
                                    ".reg .$R u<4>, v<4>;\n"
                                    "mul.lo.u64 at, me, $N;\n"
                                    "add.u64 x, b, at;\n"
                                    "add.u64 y, a, at;\n"
                                    "MOVE$N:\n";
static const char ptx_runs_read[] = "setp.lt.u64 p$D, at, n;\n"
                                    "@p$D ld.global.$T $P, [x];\n"
                                    "add.u64 at, at, 128 * $N;\n"
                                    "add.u64 x, x, 128 * $N;\n";
static const char ptx_runs_write[] = "@p$D st.global.$T [y], $P;\n"
                                     "add.u64 y, y, 128 * $N;\n";
static const char ptx_runs_moved[] = "setp.lt.u64 p0, at, n;\n"
                                     "@p0 bra MOVE$N;\n"
                                     "bra NEXT;\n"
                                     "}\n"
                                     "NOT$N:\n";
static const char ptx_runs_end[] = "NEXT:\n"
                                   "@p bra RUN;\n"
                                   "ret;\n"
                                   "}\n";

/* Appends a text with its marks replaced. The caller's buffer is large enough. */
static void ptx_add(char **end, const char *text, const struct item *item, int dimension)
{
    for (; *text; text++) {
        const char digit[2] = {(char)('0' + dimension), '\0'};
        const char *with;
        if (*text != '$') {
            *(*end)++ = *text;
            continue;
        }
        text++;
        if (*text == 'P') {
            ptx_add(end, item->numbered, item, dimension);
            continue;
        }
        with = *text == 'N'   ? item->size
               : *text == 'T' ? item->type
               : *text == 'V' ? item->registers
               : *text == 'R' ? item->held
               : *text == 'S' ? item->tile
                              : digit;
        size_t length = strlen(with);
        memcpy(*end, with, length);
        *end += length;
    }
    **end = '\0';
}

/* For items of 16, 4 and 1 bytes. */
static void runs_make(char **end)
{
    ptx_add(end, ptx_runs_begin, items, 0);
    for (const struct item *item = items + STAGING_KERNEL_UNITS - 1; item >= items; item -= 2) {
        ptx_add(end, ptx_runs_move, item, 0);
        for (int row = 0; row < 4; row++) {
            ptx_add(end, ptx_runs_read, item, row);
        }
        for (int row = 0; row < 4; row++) {
            ptx_add(end, ptx_runs_write, item, row);
        }
        ptx_add(end, ptx_runs_moved, item, 0);
    }
    ptx_add(end, ptx_runs_end, items, 0);
}

char *staging_ptx_make(int unit)
{
    const struct item *item = &items[unit];
    char *text = malloc((size_t)1 << 15), *end = text;

    if (text == NULL) {
        return NULL;
    }
    ptx_add(&end, ptx_head, items, 0);
    if (unit == STAGING_KERNEL_RUNS) {
        runs_make(&end);
        return text;
    }
    ptx_add(&end, ".visible .entry cudriver_permute_$N", item, 0);
    ptx_add(&end, ptx_parameters, item, 0);
    ptx_add(&end, ptx_permute_begin, item, 0);
    ptx_add(&end, ptx_dimension, item, DIMS - 1);
    ptx_add(&end, ptx_permute_row, item, 0);
    for (int d = DIMS - 2; d >= 0; d--) {
        ptx_add(&end, ptx_dimension, item, d);
    }
    ptx_add(&end, ptx_permute_end, item, 0);

    ptx_add(&end, ".visible .entry cudriver_transpose_$N", item, 0);
    ptx_add(&end, ptx_parameters, item, 0);
    ptx_add(&end, ptx_transpose_begin, item, 0);
    for (int d = DIMS - 3; d >= 0; d--) {
        ptx_add(&end, ptx_dimension, item, d);
    }
    ptx_add(&end, ptx_transpose_read, item, 0);
    for (int row = 0; row < STAGING_KERNEL_TILE; row += STAGING_KERNEL_TILE_ROWS) {
        ptx_add(&end, ptx_transpose_read_row, item, 0);
    }
    ptx_add(&end, ptx_transpose_write, item, 0);
    for (int row = 0; row < STAGING_KERNEL_TILE; row += STAGING_KERNEL_TILE_ROWS) {
        ptx_add(&end, ptx_transpose_write_row, item, 0);
    }
    ptx_add(&end, ptx_end, item, 0);
    return text;
}
