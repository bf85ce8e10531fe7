/* Opens libcuda and fills the table. See driver.h. */
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "platform.h"

struct cudriver_table cuda;
struct cudriver_driver cudriver_driver;

static const struct function {
    const char *name;
    size_t offset;
    int since;
} functions[] = {
#define X(name, args, since) {#name, offsetof(struct cudriver_table, name), since},
    CUDRIVER_FUNCTIONS(X)
#undef X
};

#define FUNCTION_COUNT (sizeof functions / sizeof functions[0])

atomic_bool cudriver_driver_ready;
static atomic_bool forked;
static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;

static void message_add(const char *format, ...)
{
    size_t used = strlen(cudriver_driver.message);
    va_list args;

    va_start(args, format);
    vsnprintf(cudriver_driver.message + used, sizeof cudriver_driver.message - used, format, args);
    va_end(args);
}

/* Runs in a forked child: the driver's state is the parent's, and its calls return
 * NOT_INITIALIZED. */
static void mark_forked(void)
{
    if (atomic_exchange(&cudriver_driver_ready, false)) {
        atomic_store(&forked, true);
    }
}

/* Fills `table` from the library. Counts the missing functions that a driver of the oldest version
 * must have, and adds their names to the message. */
static int table_fill(void *library, struct cudriver_table *table)
{
    int missing = 0;

    for (size_t i = 0; i < FUNCTION_COUNT; i++) {
        void *address = dlsym(library, functions[i].name);
        memcpy((char *)table + functions[i].offset, &address, sizeof address);
        if (address == NULL && functions[i].since <= CUDRIVER_OLDEST_API) {
            message_add("%s%s",
                        missing == 0  ? ""
                        : missing < 8 ? ", "
                                      : "",
                        missing < 8 ? functions[i].name : "");
            missing++;
        }
    }
    if (missing > 8) {
        message_add(" and %d more", missing - 8);
    }
    return missing;
}

/* Clears functions that are newer than the driver's version: they may be exported, but return an
 * error. Version 0, a stub's, clears nothing. */
static void table_hide_newer(struct cudriver_table *table, int version)
{
    for (size_t i = 0; i < FUNCTION_COUNT; i++) {
        if (version != 0 && functions[i].since > version) {
            memset((char *)table + functions[i].offset, 0, sizeof(void *));
        }
    }
}

static void *open_first(const char *path)
{
    const char *const *name = platform_driver_names;
    const char *kind;
    void *library;

    if (path != NULL && (kind = platform_no_library(path)) != NULL) {
        message_add("what use_driver() or CUDRIVER_LIBRARY names is not a library: %s is %s", path,
                    kind);
        return NULL;
    }
    if (path != NULL) {
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) {
            message_add("what use_driver() or CUDRIVER_LIBRARY names could not be opened: %s",
                        dlerror());
        }
        return library;
    }
    for (; *name != NULL; name++) {
        library = dlopen(*name, RTLD_NOW | RTLD_LOCAL);
        if (library != NULL) {
            return library;
        }
        message_add("%s%s", cudriver_driver.message[0] ? "; " : "", dlerror());
    }
    platform_describe_search(cudriver_driver.message, sizeof cudriver_driver.message);
    return NULL;
}

static void note_path(void *library, const char *fallback)
{
    struct link_map *map = NULL;

    if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != NULL && map->l_name[0]) {
        snprintf(cudriver_driver.path, sizeof cudriver_driver.path, "%s", map->l_name);
    } else {
        snprintf(cudriver_driver.path, sizeof cudriver_driver.path, "%s", fallback);
    }
}

enum cudriver_load cudriver_driver_load(const char *path)
{
    struct cudriver_table table;
    CUresult result;
    void *library;
    int version = 0;

    if (cudriver_driver.loaded) {
        return CUDRIVER_LOADED;
    }
    cudriver_driver.message[0] = '\0';
    library = open_first(path);
    if (library == NULL) {
        return CUDRIVER_NOT_FOUND;
    }
    note_path(library, path != NULL ? path : platform_driver_names[0]);
    cudriver_driver.message[0] = '\0'; /* drop earlier failures */

    memset(&table, 0, sizeof table);
    int missing = table_fill(library, &table);
    if (table.cuDriverGetVersion == NULL) {
        snprintf(cudriver_driver.message, sizeof cudriver_driver.message,
                 "%s is not a CUDA driver library: it exports no cuDriverGetVersion",
                 cudriver_driver.path);
        dlclose(library);
        return CUDRIVER_UNSUPPORTED;
    }
    result = table.cuDriverGetVersion(&version);
    if (result == CUDA_ERROR_STUB_LIBRARY) {
        version = 0; /* load it, so that each call can answer error 34 by name */
        missing = 0;
    } else if (result != CUDA_SUCCESS) {
        snprintf(cudriver_driver.message, sizeof cudriver_driver.message,
                 "%s: cuDriverGetVersion failed with error %d", cudriver_driver.path, (int)result);
        dlclose(library);
        return CUDRIVER_UNSUPPORTED;
    }
    if (missing > 0 || (version != 0 && version < CUDRIVER_OLDEST_API)) {
        char lacks[2048];
        snprintf(lacks, sizeof lacks, "%.2047s", cudriver_driver.message);
        snprintf(cudriver_driver.message, sizeof cudriver_driver.message,
                 "%s offers CUDA %d.%d; cudriver needs a driver for CUDA %d.%d or newer%s%s",
                 cudriver_driver.path, version / 1000, version % 1000 / 10,
                 CUDRIVER_OLDEST_API / 1000, CUDRIVER_OLDEST_API % 1000 / 10,
                 missing > 0 ? "; it lacks " : "", missing > 0 ? lacks : "");
        dlclose(library);
        return CUDRIVER_UNSUPPORTED;
    }
    table_hide_newer(&table, version);
    pthread_mutex_lock(&init_lock);
    cuda = table;
    pthread_mutex_unlock(&init_lock);
    cudriver_driver.message[0] = '\0';
    cudriver_driver.version = version;
    cudriver_driver.simulated = dlsym(library, "cudriver_sim_version") != NULL;
    cudriver_driver.loaded = true;
    pthread_atfork(NULL, NULL, mark_forked);
    return CUDRIVER_LOADED;
}

CUresult cudriver_driver_init(void)
{
    CUresult result = CUDA_SUCCESS;

    pthread_mutex_lock(&init_lock);
    if (!cudriver_driver_ready) {
        result = cuda.cuInit(0);
        cudriver_driver_ready = result == CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&init_lock);
    return result;
}

bool cudriver_driver_drop(void)
{
    pthread_mutex_lock(&init_lock);
    if (!cudriver_driver_ready && !cudriver_driver_is_forked()) {
        cudriver_driver.loaded = false; /* not closed: it may have threads */
    }
    pthread_mutex_unlock(&init_lock);
    return !cudriver_driver.loaded;
}

bool cudriver_driver_is_forked(void)
{
    return atomic_load_explicit(&forked, memory_order_relaxed);
}

/* Of this thread: how many pairs are open, and its mode outside of them. */
static _Thread_local struct {
    unsigned depth;
    CUstreamCaptureMode before;
} relaxed;

void cudriver_driver_relax(void)
{
    if (relaxed.depth++ > 0) {
        return;
    }
    relaxed.before = CU_STREAM_CAPTURE_MODE_RELAXED; /* nothing to restore */
    if (cuda.cuThreadExchangeStreamCaptureMode != NULL) {
        cuda.cuThreadExchangeStreamCaptureMode(&relaxed.before);
    }
}

void cudriver_driver_restore(void)
{
    if (--relaxed.depth == 0 && relaxed.before != CU_STREAM_CAPTURE_MODE_RELAXED) {
        cuda.cuThreadExchangeStreamCaptureMode(&relaxed.before);
    }
}
