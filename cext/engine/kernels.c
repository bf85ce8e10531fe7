/*
 * The permuting kernel: copies device memory from one strided layout to another. See private.h.
 *
 * The PTX is for sm_50 (Maxwell) and ISA 6.0, which every driver from CUDA 11 on takes; the driver
 * compiles it at first use. Each item size of N bytes has a module with two entries:
 *   cudriver_permute_N    any strides: each thread moves items, one after another
 *   cudriver_transpose_N  through a tile of 32 x 32 items in shared memory. Dimension 5 is the
 *                         innermost of the destination, dimension 4 that of the source
 *
 * Both take (dst, src, count, lengths 0..5, destination's strides 0..5, source's strides 0..5), 64
 * bits each, strides in bytes. Dimension 5 is the fastest; unused dimensions have length 1. `count`
 * is the number of items; only permute reads it, transpose has one block for each tile.
 */
#include "private.h"

#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"

#define DIMS STAGING_KERNEL_DIMS
#define SIZES STAGING_KERNEL_UNITS
#define TILE 32
#define TILE_ROWS 8
#define THREADS 256
#define BLOCKS_MOST 4096 /* of permute: enough for every GPU, and threads have several items */

/* In these texts $N is the item size in bytes, $T its type, $V the registers that hold it, $R their
 * type, $S the bytes of a tile, $D a dimension. */
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
    const char *size, *type, *registers, *held, *tile;
} items[SIZES] = {
    {"1", "u8", "v0", "u16", "1056"},
    {"2", "u16", "v0", "u16", "2112"},
    {"4", "u32", "v0", "u32", "4224"},
    {"8", "u64", "v0", "u64", "8448"},
    {"16", "v2.u64", "{v0, v1}", "u64", "16896"},
};

/* The loaded module of one item size. Each size has its own, since compiling takes a while. */
struct staging_kernels {
    int unit; /* log2 of the item size */
    CUmodule module;
    CUfunction permute;
    CUfunction transpose;
};

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

static char *ptx_make(const struct item *item)
{
    char *text = malloc((size_t)1 << 15), *end = text;

    if (text == NULL) {
        return NULL;
    }
    ptx_add(&end, ptx_head, item, 0);
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
    for (int row = 0; row < TILE; row += TILE_ROWS) {
        ptx_add(&end, ptx_transpose_read_row, item, 0);
    }
    ptx_add(&end, ptx_transpose_write, item, 0);
    for (int row = 0; row < TILE; row += TILE_ROWS) {
        ptx_add(&end, ptx_transpose_write_row, item, 0);
    }
    ptx_add(&end, ptx_end, item, 0);
    return text;
}

static CUresult entry_get(CUfunction *function, CUmodule module, const char *text,
                          const struct item *item)
{
    char name[32], *end = name;

    ptx_add(&end, text, item, 0);
    return cuda.cuModuleGetFunction(function, module, name);
}

CUresult staging_kernels_load(int unit, struct staging_kernels **made)
{
    struct staging_kernels *kernels = calloc(1, sizeof *kernels);
    char *text = ptx_make(&items[unit]);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

    if (kernels != NULL && text != NULL) {
        result = cuda.cuModuleLoadDataEx(&kernels->module, text, 0, NULL, NULL);
    }
    free(text);
    if (result == CUDA_SUCCESS) {
        result = entry_get(&kernels->permute, kernels->module, "cudriver_permute_$N", &items[unit]);
        if (result == CUDA_SUCCESS) {
            result = entry_get(&kernels->transpose, kernels->module, "cudriver_transpose_$N",
                               &items[unit]);
        }
        if (result != CUDA_SUCCESS) {
            cuda.cuModuleUnload(kernels->module);
        }
    }
    if (result != CUDA_SUCCESS) {
        free(kernels);
        return result;
    }
    kernels->unit = unit;
    *made = kernels;
    return CUDA_SUCCESS;
}

void staging_kernels_unload(struct staging_kernels *kernels)
{
    if (kernels != NULL) {
        cuda.cuModuleUnload(kernels->module);
        free(kernels);
    }
}

/* ---- launching ---- */

static uint64_t magnitude(int64_t value)
{
    return value < 0 ? -(uint64_t)value : (uint64_t)value;
}

int staging_kernels_size(const struct cudriver_layout *layout, CUdeviceptr dst, CUdeviceptr src,
                         int most)
{
    uint64_t bits = layout->itemsize | (uint64_t)1 << most;
    int log = 0;

    bits |= (dst + (CUdeviceptr)layout->dst_offset) | (src + (CUdeviceptr)layout->src_offset);
    for (int d = 0; d < layout->ndim; d++) {
        bits |= (uint64_t)layout->dst_strides[d] | (uint64_t)layout->src_strides[d];
    }
    while ((bits >> log & 1) == 0) {
        log++;
    }
    return log;
}

bool staging_kernels_fit(const struct cudriver_layout *layout, int unit)
{
    return layout->ndim + (layout->itemsize != (size_t)1 << unit) <= DIMS;
}

/* Rewrites a layout in items of the largest size, at most 1 << most bytes, that divides all its
 * addresses and strides. Returns log2 of that size, or -1 if it needs more dimensions than the
 * kernel has. */
static int units_make(const struct cudriver_layout *layout, CUdeviceptr dst, CUdeviceptr src,
                      int most, struct cudriver_layout *units)
{
    int log = staging_kernels_size(layout, dst, src, most);
    bool split = layout->itemsize != (size_t)1 << log;

    if (!staging_kernels_fit(layout, log)) {
        return -1;
    }
    *units = *layout;
    units->itemsize = (size_t)1 << log;
    if (split) {
        units->shape[units->ndim] = (int64_t)(layout->itemsize >> log);
        units->dst_strides[units->ndim] = units->src_strides[units->ndim] = (int64_t)1 << log;
        units->ndim++;
    }
    return log;
}

int staging_kernels_unit(const struct cudriver_layout *layout, CUdeviceptr dst, CUdeviceptr src)
{
    struct cudriver_layout units;

    return units_make(layout, dst, src, SIZES - 1, &units);
}

/* The dimension with the smallest stride that is not 0; -1: none. */
static int innermost(const struct cudriver_layout *units, const int64_t *strides)
{
    int best = -1;

    for (int d = 0; d < units->ndim; d++) {
        if (strides[d] != 0 && units->shape[d] > 1 &&
            (best < 0 || magnitude(strides[d]) < magnitude(strides[best]))) {
            best = d;
        }
    }
    return best;
}

/* The order of the kernel's dimensions, fastest first: `first` and `second` (-1: none), then the
 * others by rising strides of the destination. */
static void order_make(const struct cudriver_layout *units, int first, int second, int *order)
{
    int count = 0;

    if (first >= 0) {
        order[count++] = first;
    }
    if (second >= 0) {
        order[count++] = second;
    }
    int fixed = count;
    for (int d = units->ndim - 1; d >= 0; d--) {
        int at = count;
        if (d == first || d == second) {
            continue;
        }
        while (at > fixed &&
               magnitude(units->dst_strides[d]) < magnitude(units->dst_strides[order[at - 1]])) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = d;
        count++;
    }
}

CUresult staging_kernels_launch(const struct staging_kernels *kernels,
                                const struct cudriver_layout *layout, CUdeviceptr dst,
                                CUdeviceptr src, CUstream stream)
{
    struct cudriver_layout units;
    int log = units_make(layout, dst, src, kernels->unit, &units);
    uint64_t values[3 + 3 * DIMS];
    void *parameters[3 + 3 * DIMS];
    int order[DIMS];
    uint64_t count = 1;

    if (log != kernels->unit) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int x = innermost(&units, units.dst_strides), y = innermost(&units, units.src_strides);
    bool tiled =
        x >= 0 && y >= 0 && x != y && units.shape[x] >= TILE / 2 && units.shape[y] >= TILE / 2;
    order_make(&units, tiled ? x : -1, tiled ? y : -1, order);

    for (int i = 0; i < DIMS; i++) {
        int to = DIMS - 1 - i;
        bool used = i < units.ndim;
        values[3 + to] = used ? (uint64_t)units.shape[order[i]] : 1;
        values[3 + DIMS + to] = used ? (uint64_t)units.dst_strides[order[i]] : 0;
        values[3 + 2 * DIMS + to] = used ? (uint64_t)units.src_strides[order[i]] : 0;
        count *= values[3 + to];
    }
    values[0] = dst + (CUdeviceptr)layout->dst_offset;
    values[1] = src + (CUdeviceptr)layout->src_offset;
    values[2] = count;
    for (int i = 0; i < 3 + 3 * DIMS; i++) {
        parameters[i] = &values[i];
    }
    if (tiled) {
        uint64_t nx = values[3 + DIMS - 1], ny = values[3 + DIMS - 2];
        uint64_t blocks = (nx + TILE - 1) / TILE * ((ny + TILE - 1) / TILE) * (count / nx / ny);
        if (blocks <= 0x7fffffff) {
            return cuda.cuLaunchKernel(kernels->transpose, (unsigned)blocks, 1, 1, TILE, TILE_ROWS,
                                       1, 0, stream, parameters, NULL);
        }
    }
    uint64_t blocks = (count + THREADS - 1) / THREADS;
    return cuda.cuLaunchKernel(kernels->permute,
                               (unsigned)(blocks < BLOCKS_MOST ? blocks : BLOCKS_MOST), 1, 1,
                               THREADS, 1, 1, 0, stream, parameters, NULL);
}
