/* Sets of address ranges as treaps: expected depth is logarithmic for any order of insertion. */
#include "sim.h"

/* Weights are a cheap hash of the address: deterministic, and independent of the address order. */
static unsigned range_weight(uintptr_t start)
{
    uint64_t mixed = (uint64_t)start * 0x9E3779B97F4A7C15ull;

    return (unsigned)(mixed >> 32) ^ (unsigned)mixed;
}

/* Splits a tree into the ranges that start below `start` and the rest. */
static void range_split(struct sim_range *root, uintptr_t start, struct sim_range **below,
                        struct sim_range **rest)
{
    while (root != NULL) {
        if (root->start < start) {
            *below = root;
            below = &root->right;
            root = root->right;
        } else {
            *rest = root;
            rest = &root->left;
            root = root->left;
        }
    }
    *below = NULL;
    *rest = NULL;
}

void sim_range_insert(struct sim_range **root, struct sim_range *range)
{
    range->weight = range_weight(range->start);
    while (*root != NULL && (*root)->weight >= range->weight) {
        root = (*root)->start < range->start ? &(*root)->right : &(*root)->left;
    }
    range_split(*root, range->start, &range->left, &range->right);
    *root = range;
}

void sim_range_remove(struct sim_range **root, struct sim_range *range)
{
    struct sim_range *left = range->left;
    struct sim_range *right = range->right;

    while (*root != range) {
        root = (*root)->start < range->start ? &(*root)->right : &(*root)->left;
    }
    while (left != NULL && right != NULL) {
        if (left->weight >= right->weight) {
            *root = left;
            root = &left->right;
            left = left->right;
        } else {
            *root = right;
            root = &right->left;
            right = right->left;
        }
    }
    *root = left != NULL ? left : right;
}

/* The last range that starts at or below `address`, or NULL. */
static struct sim_range *range_at_or_below(struct sim_range *root, uintptr_t address)
{
    struct sim_range *best = NULL;

    while (root != NULL) {
        if (root->start <= address) {
            best = root;
            root = root->right;
        } else {
            root = root->left;
        }
    }
    return best;
}

struct sim_range *sim_range_find(struct sim_range *root, uintptr_t address)
{
    struct sim_range *range = range_at_or_below(root, address);

    return range != NULL && address - range->start < range->bytes ? range : NULL;
}

struct sim_range *sim_range_next(struct sim_range *root, uintptr_t address)
{
    struct sim_range *best = NULL;

    while (root != NULL) {
        if (root->start >= address) {
            best = root;
            root = root->left;
        } else {
            root = root->right;
        }
    }
    return best;
}

struct sim_range *sim_range_overlap(struct sim_range *root, uintptr_t start, size_t bytes)
{
    struct sim_range *range = sim_range_find(root, start);

    if (range != NULL) {
        return range;
    }
    range = sim_range_next(root, start);
    return range != NULL && range->start - start < bytes ? range : NULL;
}
