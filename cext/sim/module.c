/*
 * Modules and kernels. A module is PTX text; only its version and the names of its entries are
 * read. A kernel is a C function in the table below, found by the entry's name.
 */
#define _GNU_SOURCE
#include "sim.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PARAMETERS 24
#define MAX_PARAMETER_BYTES 8

/* A launch, for a kernel's C function. */
struct launch {
    const struct kernel *kernel;
    struct sim_context *context;
    unsigned grid[3], block[3], shared_bytes;
    union {
        uint64_t u64;
        uint32_t u32;
        uint16_t u16;
        uint8_t u8;
        float f32;
        double f64;
        char bytes[MAX_PARAMETER_BYTES];
    } parameters[MAX_PARAMETERS];
    struct sim_pin pins[MAX_PARAMETERS]; /* memory that the kernel uses; unpinned after it */
    unsigned pin_count;
};

struct kernel {
    const char *name; /* of the PTX entry */
    /* Bytes of each parameter, in the entry's order, ended by 0. */
    unsigned char parameters[MAX_PARAMETERS + 1];
    /* Runs all blocks and threads, on the stream's thread. An error breaks the device, as on
     * hardware. */
    CUresult (*run)(struct launch *launch);
};

/* Whether all of it is page-locked, also by several registrations: a kernel may go from one to the
 * next, which a copy by the driver may not. */
static bool host_is_locked(uint64_t address, size_t bytes)
{
    const uint64_t page = 4096;

    for (uint64_t at = address; at < address + bytes; at = (at / page + 1) * page) {
        if (sim_host_kind((uintptr_t)at, 1) != HOST_LOCKED) {
            return false;
        }
    }
    return bytes > 0;
}

/*
 * For kernels: the host's view of memory, or NULL if the kernel may not use it. Memory that is not
 * from a pool belongs to its context alone: by the CUDA programming guide each context has its own
 * address space. Our code must not depend on more, although driver 580 lets a kernel of another
 * context on the device read and write such memory.
 */
static void *launch_memory(struct launch *launch, uint64_t address, size_t bytes)
{
    struct sim_pin *pin = &launch->pins[launch->pin_count];
    CUresult result;

    sim_lock();
    result = launch->pin_count == MAX_PARAMETERS ? CUDA_ERROR_OUT_OF_MEMORY
                                                 : sim_memory_pin(address, bytes, pin);
    if (result == CUDA_ERROR_INVALID_VALUE && sim_space_find(address) == NULL &&
        host_is_locked(address, bytes)) {
        pin->bytes = (char *)(uintptr_t)address;
        result = CUDA_SUCCESS;
    }
    if (result == CUDA_SUCCESS) {
        const struct sim_block *block = pin->block; /* NULL: host memory */
        bool here = block == NULL || block->context == launch->context ||
                    (block->context == NULL && block->device == launch->context->device) ||
                    (launch->context->peers & 1u << block->device) != 0;
        if (!here) {
            sim_memory_unpin(pin);
            result = CUDA_ERROR_ILLEGAL_ADDRESS;
        }
    }
    sim_unlock();
    if (result != CUDA_SUCCESS) {
        return NULL;
    }
    launch->pin_count++;
    return pin->bytes;
}

/* cudriver_sim_fill(u64 destination, u64 bytes, u8 value): the example, used by tests. */
static CUresult kernel_fill(struct launch *launch)
{
    size_t bytes = launch->parameters[1].u64;
    void *memory = launch_memory(launch, launch->parameters[0].u64, bytes);

    if (memory == NULL) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    memset(memory, launch->parameters[2].u8, bytes);
    return CUDA_SUCCESS;
}

#define PERMUTE_DIMS 6

/* The bytes that one side of cudriver_permute touches: the lowest, and how many from there. */
static void permute_extent(const struct launch *launch, int first_stride, size_t item,
                           uint64_t *low, uint64_t *bytes)
{
    *bytes = item;
    for (int d = 0; d < PERMUTE_DIMS; d++) {
        int64_t last = (int64_t)launch->parameters[3 + d].u64 - 1;
        int64_t span = last * (int64_t)launch->parameters[first_stride + d].u64;
        *low += span < 0 ? (uint64_t)span : 0;
        *bytes += (uint64_t)(span < 0 ? -span : span);
    }
}

/*
 * cudriver_permute_N and cudriver_transpose_N, the copy engine's kernels, for items of N bytes:
 * (destination, source, items, lengths of six dimensions, destination strides, source strides).
 */
static CUresult kernel_permute(struct launch *launch)
{
    size_t item = (size_t)strtoul(strrchr(launch->kernel->name, '_') + 1, NULL, 10);
    const int shape = 3, dst_stride = shape + PERMUTE_DIMS, src_stride = dst_stride + PERMUTE_DIMS;
    uint64_t dst = launch->parameters[0].u64, src = launch->parameters[1].u64;
    uint64_t dst_low = dst, src_low = src, dst_bytes, src_bytes;

    permute_extent(launch, dst_stride, item, &dst_low, &dst_bytes);
    permute_extent(launch, src_stride, item, &src_low, &src_bytes);
    char *to = launch_memory(launch, dst_low, dst_bytes);
    const char *from = launch_memory(launch, src_low, src_bytes);
    if (to == NULL || from == NULL || dst % item != 0 || src % item != 0) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    to += dst - dst_low;
    from += src - src_low;
    for (uint64_t i = 0; i < launch->parameters[2].u64; i++) {
        uint64_t rest = i;
        int64_t a = 0, b = 0;
        for (int d = PERMUTE_DIMS - 1; d >= 0; d--) {
            uint64_t length = launch->parameters[shape + d].u64;
            int64_t index = (int64_t)(rest % length);
            a += index * (int64_t)launch->parameters[dst_stride + d].u64;
            b += index * (int64_t)launch->parameters[src_stride + d].u64;
            rest /= length;
        }
        memcpy(to + a, from + b, item);
    }
    return CUDA_SUCCESS;
}

/* cudriver_runs(u64 table, u64 count): dense copies, each as destination, source, bytes, nothing.
 */
static CUresult kernel_runs(struct launch *launch)
{
    uint64_t count = launch->parameters[1].u64;
    const uint64_t *run = launch_memory(launch, launch->parameters[0].u64, count * 32);

    for (; run != NULL && count > 0; count--, run += 4) {
        void *to = launch_memory(launch, run[0], run[2]);
        const void *from = launch_memory(launch, run[1], run[2]);
        if (to == NULL || from == NULL) {
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        memcpy(to, from, run[2]);
        sim_lock();
        while (launch->pin_count > 1) { /* but the table */
            sim_memory_unpin(&launch->pins[--launch->pin_count]);
        }
        sim_unlock();
    }
    return run != NULL ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

#define LADDER_VECTOR 4 /* words */
#define LADDER_ROW 256  /* vectors in a row, and threads in a block */
#define LADDER_ROWS 4   /* in a tile of shared memory */
#define LADDER_STEP 0x9E3779B1u

/* The bench's kernels: (memory, vectors, number, sums); each thread stores a 32-bit sum. */
static uint64_t ladder_threads(const struct launch *launch)
{
    return (uint64_t)launch->grid[0] * launch->block[0];
}

static uint32_t *ladder_sums(struct launch *launch)
{
    return launch_memory(launch, launch->parameters[3].u64, ladder_threads(launch) * 4);
}

/* With T threads, thread t sums the vectors t, t + T, t + 2 T, ... */
static CUresult kernel_ladder_read(struct launch *launch)
{
    uint64_t vectors = launch->parameters[1].u64, threads = ladder_threads(launch);
    const uint32_t *from = launch_memory(launch, launch->parameters[0].u64, vectors * 16);
    uint32_t *sums = ladder_sums(launch);

    if (from == NULL || sums == NULL) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    memset(sums, 0, threads * 4);
    for (uint64_t i = 0; i < vectors; i++, from += LADDER_VECTOR) {
        sums[i % threads] += from[0] + from[1] + from[2] + from[3];
    }
    return CUDA_SUCCESS;
}

static CUresult kernel_ladder_write(struct launch *launch)
{
    uint64_t vectors = launch->parameters[1].u64, threads = ladder_threads(launch);
    uint32_t *to = launch_memory(launch, launch->parameters[0].u64, vectors * 16);
    uint32_t *sums = ladder_sums(launch), word = (uint32_t)launch->parameters[2].u64;

    if (to == NULL || sums == NULL) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    for (uint64_t i = 0; i < vectors * LADDER_VECTOR; i++, word += LADDER_STEP) {
        to[i] = word;
    }
    for (uint64_t t = 0; t < threads; t++) {
        sums[t] = (uint32_t)((vectors + threads - 1 - t) / threads);
    }
    return CUDA_SUCCESS;
}

/* The sum of thread t of any block after `number` steps around a tile: full turns and a rest. */
static uint32_t ladder_turns(const uint32_t columns[LADDER_ROW], unsigned t, uint64_t number)
{
    uint32_t whole = 0, rest = 0;

    for (unsigned i = 0; i < LADDER_ROW; i++) {
        whole += columns[i];
        rest += i < number % LADDER_ROW ? columns[(t + i) % LADDER_ROW] : 0;
    }
    return whole * (uint32_t)(number / LADDER_ROW) + rest;
}

static CUresult kernel_ladder_shared_read(struct launch *launch)
{
    const size_t bytes = (size_t)LADDER_ROWS * LADDER_ROW * LADDER_VECTOR * 4;
    const uint32_t *from = launch_memory(launch, launch->parameters[0].u64, bytes);
    uint32_t *sums = ladder_sums(launch), columns[LADDER_ROW] = {0};

    if (from == NULL || sums == NULL || launch->block[0] != LADDER_ROW) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    for (unsigned i = 0; i < LADDER_ROWS * LADDER_ROW * LADDER_VECTOR; i++) {
        columns[i / LADDER_VECTOR % LADDER_ROW] += from[i];
    }
    for (unsigned t = 0; t < LADDER_ROW; t++) {
        sums[t] = ladder_turns(columns, t, launch->parameters[2].u64);
    }
    for (unsigned block = 1; block < launch->grid[0]; block++) {
        memcpy(sums + (size_t)block * LADDER_ROW, sums, LADDER_ROW * 4);
    }
    return CUDA_SUCCESS;
}

/* A thread reads what the opposite thread has written: four vectors of four words. */
static CUresult kernel_ladder_shared_write(struct launch *launch)
{
    uint32_t *sums = ladder_sums(launch), turns = (uint32_t)launch->parameters[2].u64;

    if (sums == NULL || launch->block[0] != LADDER_ROW) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    for (uint64_t i = 0; i < ladder_threads(launch); i++) {
        uint32_t opposite = LADDER_ROW - 1 - (uint32_t)(i % LADDER_ROW);
        sums[i] = LADDER_ROWS * (4 * opposite + 1024 * (turns - 1) + 1 + 2 + 3);
    }
    return CUDA_SUCCESS;
}

#define PERMUTE {8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8}, kernel_permute

static const struct kernel kernels[] = {
    {"cudriver_sim_fill", {8, 8, 1}, kernel_fill},
    {"cudriver_ladder_read", {8, 8, 8, 8}, kernel_ladder_read},
    {"cudriver_ladder_write", {8, 8, 8, 8}, kernel_ladder_write},
    {"cudriver_ladder_shared_read", {8, 8, 8, 8}, kernel_ladder_shared_read},
    {"cudriver_ladder_shared_write", {8, 8, 8, 8}, kernel_ladder_shared_write},
    {"cudriver_runs", {8, 8}, kernel_runs},
    {"cudriver_permute_1", PERMUTE},
    {"cudriver_permute_2", PERMUTE},
    {"cudriver_permute_4", PERMUTE},
    {"cudriver_permute_8", PERMUTE},
    {"cudriver_permute_16", PERMUTE},
    {"cudriver_transpose_1", PERMUTE},
    {"cudriver_transpose_2", PERMUTE},
    {"cudriver_transpose_4", PERMUTE},
    {"cudriver_transpose_8", PERMUTE},
    {"cudriver_transpose_16", PERMUTE},
};

/* ---- modules ---- */

struct module {
    struct sim_object object;
    struct sim_context *context; /* holds a reference */
    char *text;                  /* owned; the PTX */
};

struct function {
    struct sim_object object;
    struct module *module;       /* borrowed: it frees the function */
    const struct kernel *kernel; /* NULL: the simulator cannot run it */
    char *name;                  /* owned */
};

/* Skips white space and comments. */
static const char *ptx_skip(const char *text)
{
    for (;;) {
        if (isspace((unsigned char)*text)) {
            text++;
        } else if (text[0] == '/' && text[1] == '/') {
            text += strcspn(text, "\n");
        } else if (text[0] == '/' && text[1] == '*') {
            const char *end = strstr(text + 2, "*/");
            if (end == NULL) {
                return text + strlen(text);
            }
            text = end + 2;
        } else {
            return text;
        }
    }
}

/* The newest PTX version that the driver accepts, times 10. */
static int ptx_newest(void)
{
    static const struct {
        int driver, ptx;
    } versions[] = {
        {13000, 90}, {12090, 88}, {12080, 87}, {12070, 86}, {12050, 85}, {12040, 84}, {12030, 83},
        {12020, 82}, {12010, 81}, {12000, 80}, {11080, 78}, {11070, 77}, {11060, 76}, {11050, 75},
        {11040, 74}, {11030, 73}, {11020, 72}, {11010, 71}, {11000, 70},
    };
    int driver = atomic_load(&sim_knobs.version);

    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        if (driver >= versions[i].driver) {
            return driver >= 13010 ? 90 + driver % 1000 / 10 : versions[i].ptx;
        }
    }
    return 65;
}

static CUresult ptx_check(const char *image)
{
    int major, minor;

    if (memcmp(image, "\177ELF", 4) == 0) {
        static atomic_bool said;
        sim_say_once(&said, "runs no kernels: it cannot load a module of machine code");
        return (CUresult)209; /* NO_BINARY_FOR_GPU */
    }
    image = ptx_skip(image);
    if (strncmp(image, ".version", 8) != 0) {
        return CUDA_ERROR_INVALID_IMAGE;
    }
    if (sscanf(image + 8, " %3d.%3d", &major, &minor) != 2) {
        return CUDA_ERROR_INVALID_PTX;
    }
    if (major * 10 + minor > ptx_newest()) {
        return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    }
    return strstr(image, ".target") != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_PTX;
}

/* Writes a line into the log buffer of the caller's options, if there is one. */
static void log_error(unsigned count, const CUjit_option *options, void **values, const char *line)
{
    char *buffer = NULL;
    size_t room = 0;

    for (unsigned i = 0; i < count; i++) {
        if (options[i] == CU_JIT_ERROR_LOG_BUFFER) {
            buffer = values[i];
        } else if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) {
            room = (size_t)(uintptr_t)values[i];
        }
    }
    if (buffer != NULL && room > 0) {
        snprintf(buffer, room, "%s", line);
    }
}

CUresult cuModuleLoadDataEx(CUmodule *handle, const void *image, unsigned int count,
                            CUjit_option *options, void **values)
{
    struct sim_context *context;
    CUresult result = sim_enter_current(CALL_cuModuleLoadDataEx, &context);
    struct module *module;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (handle == NULL || image == NULL || (count > 0 && (options == NULL || values == NULL))) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    result = ptx_check(image);
    if (result != CUDA_SUCCESS) {
        log_error(count, options, values, "the simulated driver takes PTX text only");
        return sim_leave(result);
    }
    module = sim_object_new(KIND_MODULE, sizeof *module);
    if (module == NULL) {
        return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    module->text = strdup(image);
    if (module->text == NULL) {
        sim_object_close(module);
        return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    sim_object_hold(context);
    module->context = context;
    *handle = sim_object_handle(module);
    return sim_leave(CUDA_SUCCESS);
}

static void module_close(struct module *module)
{
    for (uint32_t i = 0; i < sim_object_slots(KIND_FUNCTION); i++) {
        struct function *function = sim_object_at(KIND_FUNCTION, i);
        if (function != NULL && function->module == module) {
            free(function->name);
            sim_object_close(function);
        }
    }
    free(module->text);
    sim_object_drop(module->context);
    sim_object_close(module);
}

CUresult cuModuleUnload(CUmodule handle)
{
    struct sim_context *context;
    CUresult result = sim_enter_current(CALL_cuModuleUnload, &context);
    struct module *module;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    module = sim_object_find(KIND_MODULE, handle);
    if (module == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    }
    module_close(module);
    return sim_leave(CUDA_SUCCESS);
}

static void module_forget(struct sim_context *context)
{
    for (uint32_t i = 0; i < sim_object_slots(KIND_MODULE); i++) {
        struct module *module = sim_object_at(KIND_MODULE, i);
        if (module != NULL && module->context == context) {
            module_close(module);
        }
    }
}

static __attribute__((constructor)) void join(void)
{
    sim_context_on_end(FORGET_MODULES, module_forget);
}

/* ---- functions ---- */

/* Whether the text has `.entry name`. */
static bool ptx_has_entry(const char *text, const char *name)
{
    size_t length = strlen(name);

    while ((text = strstr(text, ".entry")) != NULL) {
        text = ptx_skip(text + strlen(".entry"));
        if (strncmp(text, name, length) == 0 && !isalnum((unsigned char)text[length]) &&
            text[length] != '_' && text[length] != '$') {
            return true;
        }
    }
    return false;
}

static const struct kernel *kernel_find(const char *name)
{
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
        if (strcmp(kernels[i].name, name) == 0) {
            return &kernels[i];
        }
    }
    return NULL;
}

CUresult cuModuleGetFunction(CUfunction *handle, CUmodule module_handle, const char *name)
{
    struct sim_context *context;
    CUresult result = sim_enter_current(CALL_cuModuleGetFunction, &context);
    struct function *function;
    struct module *module;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    module = sim_object_find(KIND_MODULE, module_handle);
    if (module == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    }
    if (handle == NULL || name == NULL || name[0] == '\0') {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (!ptx_has_entry(module->text, name)) {
        return sim_leave(CUDA_ERROR_NOT_FOUND);
    }
    /* One function per name: a second call returns the same handle. */
    for (uint32_t i = 0; i < sim_object_slots(KIND_FUNCTION); i++) {
        function = sim_object_at(KIND_FUNCTION, i);
        if (function != NULL && function->module == module && strcmp(function->name, name) == 0) {
            *handle = sim_object_handle(function);
            return sim_leave(CUDA_SUCCESS);
        }
    }
    function = sim_object_new(KIND_FUNCTION, sizeof *function);
    if (function == NULL) {
        return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    function->name = strdup(name);
    if (function->name == NULL) {
        sim_object_close(function);
        return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    function->module = module;
    function->kernel = kernel_find(name);
    *handle = sim_object_handle(function);
    return sim_leave(CUDA_SUCCESS);
}

/* ---- launches ---- */

struct launch_op {
    struct sim_op op;
    struct launch launch;
};

static CUresult launch_run(struct sim_stream *stream, struct sim_op *op)
{
    struct launch launch = ((struct launch_op *)op)->launch; /* in a graph it runs again */
    CUresult result;

    launch.context = stream->context;
    result = launch.kernel->run(&launch);
    sim_lock();
    for (unsigned i = 0; i < launch.pin_count; i++) {
        sim_memory_unpin(&launch.pins[i]);
    }
    sim_unlock();
    return result;
}

CUresult cuLaunchKernel(CUfunction handle, unsigned int grid_x, unsigned int grid_y,
                        unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                        unsigned int block_z, unsigned int shared_bytes, CUstream stream_handle,
                        void **params, void **extra)
{
    struct sim_context *context;
    CUresult result = sim_enter_current(CALL_cuLaunchKernel, &context);
    struct function *function;
    struct sim_stream *stream;
    struct launch_op *op;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    function = sim_object_find(KIND_FUNCTION, handle);
    if (function == NULL) {
        return sim_leave(sim_object_missing(KIND_FUNCTION, handle));
    }
    result = sim_stream_of(stream_handle, context, &stream);
    if (result == CUDA_SUCCESS) {
        result = sim_capture_stream(CALL_cuLaunchKernel, stream);
    }
    if (result != CUDA_SUCCESS) {
        return sim_leave(result);
    }
    if (stream->context != context || function->module->context != context) {
        return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    }
    if (grid_x == 0 || grid_y == 0 || grid_z == 0 || block_x == 0 || block_y == 0 || block_z == 0 ||
        grid_x > 2147483647u || grid_y > 65535 || grid_z > 65535 || block_x > 1024 ||
        block_y > 1024 || block_z > 64 || (uint64_t)block_x * block_y * block_z > 1024 ||
        shared_bytes > 232448) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (function->kernel == NULL || extra != NULL) {
        static atomic_bool said;
        sim_say_once(&said, "runs no kernels: cuLaunchKernel of %s is not supported",
                     function->name);
        return sim_leave(CUDA_ERROR_NOT_SUPPORTED);
    }
    if (params == NULL && function->kernel->parameters[0] != 0) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    op = sim_op_new(sizeof *op);
    if (op == NULL) {
        return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    op->op.run = launch_run;
    op->launch.kernel = function->kernel;
    memcpy(op->launch.grid, (unsigned[]){grid_x, grid_y, grid_z}, sizeof op->launch.grid);
    memcpy(op->launch.block, (unsigned[]){block_x, block_y, block_z}, sizeof op->launch.block);
    op->launch.shared_bytes = shared_bytes;
    for (size_t i = 0; function->kernel->parameters[i] != 0; i++) {
        memcpy(op->launch.parameters[i].bytes, params[i], function->kernel->parameters[i]);
    }
    return sim_leave(sim_stream_issue(stream, &op->op));
}
