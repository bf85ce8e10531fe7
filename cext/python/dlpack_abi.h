/* DLPack's binary interface, version 1.3: the layouts and numbers that two libraries agree on.
 * tests/project/test_dlpack_abi.py compares them with the official header. */
#ifndef CUDRIVER_DLPACK_ABI_H
#define CUDRIVER_DLPACK_ABI_H

#include <stdint.h>

#define CUDRIVER_DL_MAJOR 1
#define CUDRIVER_DL_MINOR 3

/* Kinds of devices. */
enum {
    CUDRIVER_DL_CPU = 1,
    CUDRIVER_DL_CUDA = 2,
    CUDRIVER_DL_CUDA_HOST = 3,
    CUDRIVER_DL_CUDA_MANAGED = 13,
};

/* Kinds of numbers that C tells apart; memory/dlpack.py has them all. */
enum {
    CUDRIVER_DL_FLOAT = 2,
    CUDRIVER_DL_COMPLEX = 5,
};

/* Flags of a versioned tensor. */
enum {
    CUDRIVER_DL_READ_ONLY = 1,
    CUDRIVER_DL_IS_COPIED = 2,
    CUDRIVER_DL_PADDED = 4, /* items of less than 8 bits take a byte each */
};

struct cudriver_dl_version {
    uint32_t major, minor;
};

struct cudriver_dl_device {
    int32_t type, id;
};

struct cudriver_dl_type {
    uint8_t code, bits;
    uint16_t lanes;
};

struct cudriver_dl_tensor {
    void *data;
    struct cudriver_dl_device device;
    int32_t ndim;
    struct cudriver_dl_type dtype;
    int64_t *shape;
    int64_t *strides; /* in items, not bytes; NULL: dense, in C order */
    uint64_t byte_offset;
};

/* The older kind: in a capsule "dltensor". */
struct cudriver_dl_old {
    struct cudriver_dl_tensor tensor;
    void *manager;
    void (*deleter)(struct cudriver_dl_old *self); /* may be NULL, and frees `self` too */
};

/* The versioned kind: in a capsule "dltensor_versioned". */
struct cudriver_dl_managed {
    struct cudriver_dl_version version;
    void *manager;
    void (*deleter)(struct cudriver_dl_managed *self); /* as above */
    uint64_t flags;
    struct cudriver_dl_tensor tensor;
};

/*
 * The exchange table: what a type offers in C, in a capsule "dlpack_exchange_api", its attribute
 * __dlpack_c_exchange_api__. No function synchronises streams. Each returns 0, or -1 with a Python
 * exception set (`allocate`: after set_error was called).
 */
struct cudriver_dl_exchange {
    struct cudriver_dl_version version;
    struct cudriver_dl_exchange *older; /* NULL: none */
    int (*allocate)(struct cudriver_dl_tensor *like, struct cudriver_dl_managed **out,
                    void *error_context,
                    void (*set_error)(void *error_context, const char *kind, const char *message));
    int (*from_object)(void *object, struct cudriver_dl_managed **out);
    int (*to_object)(struct cudriver_dl_managed *tensor, void **object);
    int (*borrow)(void *object, struct cudriver_dl_tensor *out); /* NULL: not offered */
    int (*current_stream)(int32_t device_type, int32_t device_id, void **stream);
};

#endif
