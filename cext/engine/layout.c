/* Strided memory: simplifying layouts, and the loops that copy on the host. See layout.h. */
#include "layout.h"

#include <string.h>

#include "tuning.h"

/* Address arithmetic is modulo 2^64, so that no intermediate product overflows. */
static int64_t times(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a * (uint64_t)b);
}

static int64_t plus(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

static size_t saturating_product(size_t a, size_t b)
{
    size_t product;

    return __builtin_mul_overflow(a, b, &product) ? SIZE_MAX : product;
}

size_t cudriver_layout_bytes(const struct cudriver_layout *layout)
{
    size_t bytes = layout->itemsize;
    bool empty = bytes == 0;

    for (int d = 0; d < layout->ndim; d++) {
        empty |= layout->shape[d] <= 0;
        bytes = saturating_product(bytes, (size_t)layout->shape[d]);
    }
    return empty ? 0 : bytes;
}

static void dimension_move(struct cudriver_layout *layout, int to, int from)
{
    layout->shape[to] = layout->shape[from];
    layout->dst_strides[to] = layout->dst_strides[from];
    layout->src_strides[to] = layout->src_strides[from];
}

void cudriver_layout_flip(struct cudriver_layout *layout, int d)
{
    int64_t last = layout->shape[d] - 1;

    layout->dst_offset = plus(layout->dst_offset, times(last, layout->dst_strides[d]));
    layout->src_offset = plus(layout->src_offset, times(last, layout->src_strides[d]));
    layout->dst_strides[d] = times(-1, layout->dst_strides[d]);
    layout->src_strides[d] = times(-1, layout->src_strides[d]);
}

/* Drops dimensions of length 1, and flips those that run backwards on both sides (a stride of 0
 * does not count). */
static void layout_straighten(struct cudriver_layout *layout)
{
    int kept = 0;

    for (int d = 0; d < layout->ndim; d++) {
        if (layout->shape[d] == 1) {
            continue;
        }
        dimension_move(layout, kept, d);
        int64_t dst = layout->dst_strides[kept], src = layout->src_strides[kept];
        if (dst <= 0 && src <= 0 && (dst | src) != 0) {
            cudriver_layout_flip(layout, kept);
        }
        kept++;
    }
    layout->ndim = kept;
}

/* Whether dimension a belongs outside b, by falling strides: `first`, then `second`. */
static bool is_outer(const int64_t *first, const int64_t *second, int a, int b)
{
    uint64_t x = cudriver_magnitude(first[a]), y = cudriver_magnitude(first[b]);

    return x != y ? x > y : cudriver_magnitude(second[a]) > cudriver_magnitude(second[b]);
}

static void layout_sort(struct cudriver_layout *layout, bool by_dst)
{
    const int64_t *first = by_dst ? layout->dst_strides : layout->src_strides;
    const int64_t *second = by_dst ? layout->src_strides : layout->dst_strides;

    for (int d = 1; d < layout->ndim; d++) {
        for (int e = d; e > 0 && is_outer(first, second, e, e - 1); e--) {
            int64_t shape = layout->shape[e], dst = layout->dst_strides[e],
                    src = layout->src_strides[e];
            dimension_move(layout, e, e - 1);
            layout->shape[e - 1] = shape;
            layout->dst_strides[e - 1] = dst;
            layout->src_strides[e - 1] = src;
        }
    }
}

static bool is_continued(int64_t outer, int64_t inner, int64_t length)
{
    int64_t span;

    return !__builtin_mul_overflow(inner, length, &span) && span == outer;
}

/* Merges neighbours, and folds the innermost dimension into the item, where both sides allow it.
 * Keeps the order of the walk. */
static void layout_merge(struct cudriver_layout *layout)
{
    int top = layout->ndim - 1; /* dimensions from top to the end are done */

    for (int d = layout->ndim - 2; d >= 0; d--) {
        int64_t length;
        if (is_continued(layout->dst_strides[d], layout->dst_strides[top], layout->shape[top]) &&
            is_continued(layout->src_strides[d], layout->src_strides[top], layout->shape[top]) &&
            !__builtin_mul_overflow(layout->shape[d], layout->shape[top], &length)) {
            layout->shape[top] = length;
        } else {
            dimension_move(layout, --top, d);
        }
    }
    if (top > 0) {
        for (int d = top; d < layout->ndim; d++) {
            dimension_move(layout, d - top, d);
        }
        layout->ndim -= top;
    }
    if (layout->ndim > 0) {
        int inner = layout->ndim - 1;
        size_t run;
        if (layout->dst_strides[inner] > 0 &&
            (uint64_t)layout->dst_strides[inner] == layout->itemsize &&
            layout->src_strides[inner] == layout->dst_strides[inner] &&
            !__builtin_mul_overflow(layout->itemsize, (size_t)layout->shape[inner], &run)) {
            layout->itemsize = run;
            layout->ndim = inner;
        }
    }
}

size_t cudriver_layout_simplify(struct cudriver_layout *layout, bool by_dst)
{
    size_t bytes = layout->itemsize;
    int joined = layout->ndim;

    while (joined > 0 && layout->shape[joined - 1] > 0 &&
           layout->dst_strides[joined - 1] == layout->src_strides[joined - 1] &&
           layout->dst_strides[joined - 1] >= 0 &&
           (size_t)layout->dst_strides[joined - 1] == bytes &&
           !__builtin_mul_overflow(bytes, (size_t)layout->shape[joined - 1], &bytes)) {
        joined--;
    }
    if (joined == 0 && bytes > 0) { /* dense in C order on both sides, as most are: one run */
        layout->ndim = 0;
        return layout->itemsize = bytes;
    }
    if (cudriver_layout_bytes(layout) == 0) {
        layout->ndim = 1;
        layout->shape[0] = 0;
        layout->dst_strides[0] = layout->src_strides[0] = 0;
        return 0;
    }
    layout_straighten(layout);
    layout_sort(layout, by_dst);
    layout_merge(layout);
    return cudriver_layout_bytes(layout);
}

void cudriver_layout_pack(struct cudriver_layout *layout, bool dst)
{
    int64_t stride = (int64_t)layout->itemsize;

    for (int d = layout->ndim - 1; d >= 0; d--) {
        (dst ? layout->dst_strides : layout->src_strides)[d] = stride;
        stride = times(stride, layout->shape[d]);
    }
    *(dst ? &layout->dst_offset : &layout->src_offset) = 0;
    if (layout->ndim > 0) {
        layout_merge(layout);
    }
}

/* ---- loops ---- */

/* Inlined with a constant `size`, and constant strides where they are known, so that the compiler
 * can unroll and vectorise. */
static inline __attribute__((always_inline)) void row_of(size_t size, char *restrict dst,
                                                         int64_t dst_stride,
                                                         const char *restrict src,
                                                         int64_t src_stride, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        memcpy(dst + i * dst_stride, src + i * src_stride, size);
    }
}

static inline __attribute__((always_inline)) void row_sized(size_t size, char *restrict dst,
                                                            int64_t dst_stride,
                                                            const char *restrict src,
                                                            int64_t src_stride, int64_t count)
{
    int64_t item = (int64_t)size;

    if (dst_stride == item && src_stride == 2 * item) {
        row_of(size, dst, item, src, 2 * item, count);
    } else if (dst_stride == item && src_stride == -item) {
        row_of(size, dst, item, src, -item, count);
    } else if (dst_stride == item && src_stride == 0) {
        row_of(size, dst, item, src, 0, count);
    } else if (dst_stride == item) {
        row_of(size, dst, item, src, src_stride, count);
    } else if (src_stride == item && dst_stride == 2 * item) {
        row_of(size, dst, 2 * item, src, item, count);
    } else if (src_stride == item) {
        row_of(size, dst, dst_stride, src, item, count);
    } else {
        row_of(size, dst, dst_stride, src, src_stride, count);
    }
}

/* Runs of half < size <= 2 * half bytes, as two overlapping halves. */
static inline __attribute__((always_inline)) void row_halves(size_t half, size_t size,
                                                             char *restrict dst, int64_t dst_stride,
                                                             const char *restrict src,
                                                             int64_t src_stride, int64_t count)
{
    size_t second = size - half;

    for (int64_t i = 0; i < count; i++) {
        char *to = dst + i * dst_stride;
        const char *from = src + i * src_stride;
        memcpy(to, from, half);
        memcpy(to + second, from + second, half);
    }
}

/* One dimension: `count` runs of `size` bytes. */
static void row_copy(size_t size, char *dst, int64_t dst_stride, const char *src,
                     int64_t src_stride, int64_t count)
{
    if (size > 32) {
        row_of(size, dst, dst_stride, src, src_stride, count);
        return;
    }
    switch (size) {
    case 1:
        row_sized(1, dst, dst_stride, src, src_stride, count);
        break;
    case 2:
        row_sized(2, dst, dst_stride, src, src_stride, count);
        break;
    case 3:
        row_halves(2, 3, dst, dst_stride, src, src_stride, count);
        break;
    case 4:
        row_sized(4, dst, dst_stride, src, src_stride, count);
        break;
    case 8:
        row_sized(8, dst, dst_stride, src, src_stride, count);
        break;
    case 16:
        row_sized(16, dst, dst_stride, src, src_stride, count);
        break;
    default:
        if (size < 8) {
            row_halves(4, size, dst, dst_stride, src, src_stride, count);
        } else if (size < 16) {
            row_halves(8, size, dst, dst_stride, src, src_stride, count);
        } else {
            row_halves(16, size, dst, dst_stride, src, src_stride, count);
        }
    }
}

/* One dimension of both sides. */
struct axis {
    int64_t count;
    int64_t dst;
    int64_t src;
};

static void rows_copy(size_t size, struct axis outer, struct axis inner, char *dst, const char *src)
{
    for (int64_t i = 0; i < outer.count; i++) {
        row_copy(size, dst + i * outer.dst, inner.dst, src + i * outer.src, inner.src, inner.count);
    }
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Copies a plane. If the sides disagree about the inner dimension, tile by tile, so that the cache
 * lines of one side are used up before they are evicted. With few runs a row, the outer dimension,
 * in long stretches, becomes the row. */
static void plane_copy(size_t size, struct axis outer, struct axis inner, char *dst,
                       const char *src)
{
    bool thin = inner.count < TUNING_SHORT_ROW && outer.count > inner.count && size <= 16;
    bool agree = (cudriver_magnitude(inner.dst) <= cudriver_magnitude(outer.dst)) ==
                 (cudriver_magnitude(inner.src) <= cudriver_magnitude(outer.src));
    int64_t high = outer.count, wide = inner.count;

    if (thin) {
        high = TUNING_SWAPPED_ROW;
    } else if (!agree && size < TUNING_TILE_BYTES && outer.count >= TUNING_SHORT_ROW) {
        wide = least((int64_t)(TUNING_TILE_BYTES / size), TUNING_TILE_RUNS);
        high = wide = wide < 8 ? 8 : wide;
    }
    for (int64_t i = 0; i < outer.count; i += high) {
        struct axis rows = outer;
        rows.count = least(high, outer.count - i);
        for (int64_t j = 0; j < inner.count; j += wide) {
            struct axis columns = inner;
            columns.count = least(wide, inner.count - j);
            rows_copy(size, thin ? columns : rows, thin ? rows : columns,
                      dst + i * outer.dst + j * inner.dst, src + i * outer.src + j * inner.src);
        }
    }
}

static struct axis axis_of(const struct cudriver_layout *layout, int d)
{
    return (struct axis){layout->shape[d], layout->dst_strides[d], layout->src_strides[d]};
}

/* Copies `count` entries of dimension `d`, with all dimensions inside it. */
static void block_copy(const struct cudriver_layout *layout, int d, int64_t count, char *dst,
                       const char *src)
{
    struct axis outer = axis_of(layout, d);

    outer.count = count;
    if (d == layout->ndim - 1) {
        row_copy(layout->itemsize, dst, outer.dst, src, outer.src, count);
        return;
    }
    if (d == layout->ndim - 2) {
        plane_copy(layout->itemsize, outer, axis_of(layout, d + 1), dst, src);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        block_copy(layout, d + 1, layout->shape[d + 1], dst + i * outer.dst, src + i * outer.src);
    }
}

/* Copies bytes [begin, end) of the dimensions from `d` inwards; begin < end. */
static void range_copy(const struct cudriver_layout *layout, int d, char *dst, const char *src,
                       size_t begin, size_t end)
{
    if (d == layout->ndim) {
        memcpy(dst + begin, src + begin, end - begin);
        return;
    }
    size_t inside = layout->itemsize;
    for (int e = d + 1; e < layout->ndim; e++) {
        inside = saturating_product(inside, (size_t)layout->shape[e]);
    }
    size_t from = begin / inside, to = end / inside;
    struct axis axis = axis_of(layout, d);

    if (begin % inside != 0) {
        size_t stop = from == to ? end % inside : inside;
        range_copy(layout, d + 1, dst + times((int64_t)from, axis.dst),
                   src + times((int64_t)from, axis.src), begin % inside, stop);
        if (from == to) {
            return;
        }
        from++;
    }
    if (to > from) {
        block_copy(layout, d, (int64_t)(to - from), dst + times((int64_t)from, axis.dst),
                   src + times((int64_t)from, axis.src));
    }
    if (end % inside != 0) {
        range_copy(layout, d + 1, dst + times((int64_t)to, axis.dst),
                   src + times((int64_t)to, axis.src), 0, end % inside);
    }
}

void cudriver_layout_copy(const struct cudriver_layout *layout, char *dst, const char *src,
                          size_t begin, size_t end)
{
    if (begin < end) {
        range_copy(layout, 0, dst + layout->dst_offset, src + layout->src_offset, begin, end);
    }
}

/* Bytes; every driver takes a pitch (bytes between rows) up to here. */
#define PITCH_MOST 0x7fffffff

int cudriver_layout_rows(const struct cudriver_layout *layout)
{
    int rows = layout->ndim - 1;
    int64_t run = (int64_t)layout->itemsize;

    if (rows < 0) {
        return 0;
    }
    int64_t dst = layout->dst_strides[rows], src = layout->src_strides[rows];
    if (dst < run || src < run || dst > PITCH_MOST || src > PITCH_MOST) {
        return 0;
    }
    if (rows == 0) {
        return 1;
    }
    int64_t height = layout->shape[rows];
    int64_t dst_plane = layout->dst_strides[rows - 1], src_plane = layout->src_strides[rows - 1];
    bool stacked = dst_plane % dst == 0 && src_plane % src == 0 && dst_plane / dst >= height &&
                   src_plane / src >= height;
    return stacked ? 2 : 1;
}

void cudriver_extent(int ndim, size_t itemsize, const int64_t *shape, const int64_t *strides,
                     int64_t *low, int64_t *high)
{
    __int128 first = 0, last = (__int128)itemsize;

    *low = *high = 0;
    for (int d = 0; d < ndim; d++) {
        __int128 span = (__int128)(shape[d] - 1) * strides[d];
        if (shape[d] <= 0 || itemsize == 0) {
            return;
        }
        *(span < 0 ? &first : &last) += span;
    }
    *low = first < INT64_MIN ? INT64_MIN : (int64_t)first;
    *high = last > INT64_MAX ? INT64_MAX : (int64_t)last;
}
