/*
 * Modules, functions and launches. A module is PTX text; only its version and the names of its
 * entries are read.
 */
#define _GNU_SOURCE
#include "kernel.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    function->kernel = sim_kernel_find(name);
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
