/*
 * Strided memory: how two arrays of one shape lie, reduced to the fewest dimensions that say the
 * same, and the loops that move bytes between them on the host. Plain C: no CUDA, no Python.
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
    int64_t dst_offset; /* bytes from the pointer given to where the walk begins */
    int64_t src_offset;
};

/*
 * Brings a layout into its simplest form, moving the same bytes: dimensions of length 1 dropped,
 * those negative on both sides flipped (into the offsets), sorted so that the destination's strides
 * (then the source's) fall from outer to inner, neighbours merged where both sides allow. After it
 * a copy of contiguous memory has ndim 0 or 1. Returns the number of bytes in all; 0 where a
 * dimension is 0. Afterwards itemsize is the length of one run: an innermost dimension that is
 * dense on both sides is folded into it. SIZE_MAX where the number of bytes has no room in size_t.
 */
size_t cudriver_layout_simplify(struct cudriver_layout *layout);

/* The same, sorted by the source's strides first: a walk that reads the source in order. */
size_t cudriver_layout_simplify_by_src(struct cudriver_layout *layout);

/* The number of bytes that a layout moves; 0 where it is empty, SIZE_MAX where size_t has no room.
 */
size_t cudriver_layout_bytes(const struct cudriver_layout *layout);

/*
 * Moves bytes [begin, end) of a layout, counted in the order of its walk, on the host and in one
 * thread; so that threads can share one copy, and a packed side can be a slot that holds only that
 * part. dst and src do not overlap.
 * `packed_dst` or `packed_src`: that side is dense and begins at byte `begin` of the walk.
 */
void cudriver_layout_copy_part(const struct cudriver_layout *layout, char *dst, bool packed_dst,
                               const char *src, bool packed_src, size_t begin, size_t end);

/* The lowest and one past the highest byte that one side touches, relative to its pointer. */
void cudriver_layout_extent(const struct cudriver_layout *layout, bool of_dst, int64_t *low,
                            int64_t *high);

#endif
