/* Page-locked memory for blocks: of the pool, and of a transfer's own. See private.h. */
#include "private.h"

#include "hostmem/hostmem.h"

CUresult staging_slot_get(size_t bytes, void **slot)
{
    bool zeroed;

    return cudriver_hostmem_alloc(bytes, SIZE_MAX, CUDRIVER_NODE_POLICY, slot, &zeroed);
}

/* How many blocks lie in a piece of memory. */
static size_t piece_blocks(const struct cudriver_staging_transfer *transfer)
{
    size_t blocks = TUNING_HELD_PIECE / transfer->parts.largest;

    blocks = blocks < transfer->blocks ? blocks : transfer->blocks;
    return blocks > 0 ? blocks : 1;
}

CUresult staging_blocks_hold(struct cudriver_staging_transfer *transfer)
{
    size_t of = piece_blocks(transfer), piece = of * transfer->parts.largest;
    size_t bytes = (transfer->blocks + of - 1) / of * piece;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    void *memory = NULL;

    staging_lock();
    if (staging.held + bytes <= staging.settings.held) {
        staging.held += transfer->held = bytes;
        result = CUDA_SUCCESS;
    }
    staging_unlock();
    for (size_t i = 0; i < transfer->blocks && result == CUDA_SUCCESS; i++) {
        if (i % of == 0) {
            result = staging_slot_get(piece, &memory);
        }
        transfer->block[i].memory =
            memory != NULL ? (char *)memory + i % of * transfer->parts.largest : NULL;
    }
    return result;
}

void staging_blocks_drop(struct cudriver_staging_transfer *transfer, bool lost)
{
    size_t of = transfer->held > 0 ? piece_blocks(transfer) : 1;

    for (size_t i = 0; i < transfer->blocks && transfer->held > 0 && !lost; i += of) {
        if (transfer->block[i].memory != NULL) {
            cudriver_hostmem_free(transfer->block[i].memory);
        }
    }
    staging.held -= transfer->held;
    transfer->held = 0;
}
