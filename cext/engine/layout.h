/*
 * Strided memory: two arrays of one shape, reduced to the fewest dimensions, and the loops that
 * move bytes between them on the host. Plain C: no CUDA, no Python.
 */
#ifndef CUDRIVER_LAYOUT_H
#define CUDRIVER_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CUDRIVER_MAX_DIMS 64

/* A pair of arrays of the same shape and item size. Strides are in bytes, of any sign or zero. */
struct cudriver_layout {
    int ndim;
    size_t itemsize;
    int64_t shape[CUDRIVER_MAX_DIMS]; /* outermost first */
    int64_t dst_strides[CUDRIVER_MAX_DIMS];
    int64_t src_strides[CUDRIVER_MAX_DIMS];
    int64_t dst_offset; /* bytes from the array's pointer to its first item */
    int64_t src_offset;
};

static inline uint64_t cudriver_magnitude(int64_t value)
{
    return value < 0 ? -(uint64_t)value : (uint64_t)value;
}

/*
 * Reduces a layout to its simplest form, which moves the same bytes: drops dimensions of length 1;
 * flips those that run backwards on both sides (a stride of 0 does not count) and adjusts the
 * offsets; sorts them, outer to inner, by falling strides of the destination, then of the source
 * (`by_dst`; else the source's come first), so that the walk visits that side in order; merges
 * neighbours where both sides allow. An innermost dimension that is dense on both sides is folded
 * into itemsize, which then is the length of one run. So dense memory ends with ndim 0.
 *
 * Returns the number of bytes: 0 if a dimension is 0, SIZE_MAX if it overflows size_t.
 */
size_t cudriver_layout_simplify(struct cudriver_layout *layout, bool by_dst);

/* Walks a dimension in the other direction, on both sides. */
void cudriver_layout_flip(struct cudriver_layout *layout, int dimension);

/* Makes one side dense, from its pointer on, in the walk's order, and merges what that lets. */
void cudriver_layout_pack(struct cudriver_layout *layout, bool dst);

/* The number of bytes that a layout moves: 0 if it is empty, SIZE_MAX if it overflows size_t. */
size_t cudriver_layout_bytes(const struct cudriver_layout *layout);

/*
 * Copies bytes [begin, end) of a layout, counted in the order of its walk, in the calling thread.
 * So several threads can share one copy. dst and src do not overlap. Of a packed side only these
 * bytes need to be there.
 */
void cudriver_layout_copy(const struct cudriver_layout *layout, char *dst, const char *src,
                          size_t begin, size_t end);

/* How many dimensions one of the driver's copies takes: 2 (stacks of rows), 1 (rows), or 0 (a run).
 */
int cudriver_layout_rows(const struct cudriver_layout *layout);

/* The lowest byte that an array touches, and one past the highest, relative to its first item; 0, 0
 * if it is empty. Where 64 bits do not hold them, the nearest that do. */
void cudriver_extent(int ndim, size_t itemsize, const int64_t *shape, const int64_t *strides,
                     int64_t *low, int64_t *high);

#endif
