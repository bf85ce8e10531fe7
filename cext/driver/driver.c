/* Opens libcuda and fills the table. See driver.h. */
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
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

static void message_add(const char *separator, const char *text)
{
    size_t used = strlen(cudriver_driver.message);

    snprintf(cudriver_driver.message + used, sizeof cudriver_driver.message - used, "%s%s",
             used > 0 ? separator : "", text);
}

/* Runs in a forked child: the driver's state is the parent's, and its calls return
 * NOT_INITIALIZED. */
static void mark_forked(void)
{
    if (atomic_exchange(&cudriver_driver_ready, false)) {
        atomic_store(&forked, true);
    }
}

/* Fills `table` from the library. Adds the names of missing functions that a driver of the oldest
 * version must have to the message. */
static void table_fill(void *library, struct cudriver_table *table)
{
    for (size_t i = 0; i < FUNCTION_COUNT; i++) {
        void *address = dlsym(library, functions[i].name);
        memcpy((char *)table + functions[i].offset, &address, sizeof address);
        if (address == NULL && functions[i].since <= CUDRIVER_OLDEST_API) {
            message_add(", ", functions[i].name);
        }
    }
}

void *cudriver_driver_function(const char *name)
{
    void *address = NULL;

    for (size_t i = 0; i < FUNCTION_COUNT; i++) {
        if (strcmp(functions[i].name, name) == 0) {
            memcpy(&address, (char *)&cuda + functions[i].offset, sizeof address);
        }
    }
    return address;
}

/* Opens the path, or if that is NULL the first of the system's names that can be opened. */
static void *open_first(const char *path)
{
    const char *const only[] = {path, NULL};
    const char *const *name = path != NULL ? only : platform_driver_names;
    void *library = NULL;

    for (; *name != NULL && library == NULL; name++) {
        library = dlopen(*name, RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) {
            message_add("; ", dlerror());
        }
    }
    return library;
}

bool cudriver_driver_load(const char *path)
{
    struct cudriver_table table;
    struct link_map *map = NULL;
    CUresult result;
    void *library;
    int version = 0;
    bool known;

    if (cudriver_driver.loaded) {
        return true;
    }
    cudriver_driver.path[0] = cudriver_driver.message[0] = '\0';
    library = open_first(path);
    if (library == NULL) {
        return false;
    }
    known = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != NULL && map->l_name[0] != '\0';
    path = path != NULL ? path : platform_driver_names[0];
    snprintf(cudriver_driver.path, sizeof cudriver_driver.path, "%s", known ? map->l_name : path);
    cudriver_driver.message[0] = '\0'; /* drop earlier failures */
    table_fill(library, &table);
    result = table.cuDriverGetVersion != NULL ? table.cuDriverGetVersion(&version)
                                              : CUDA_ERROR_NOT_FOUND;
    if (result == CUDA_ERROR_STUB_LIBRARY) {
        version = 0; /* load it, so that each call can answer error 34 by name */
    } else if (result != CUDA_SUCCESS || cudriver_driver.message[0] ||
               (version != 0 && version < CUDRIVER_OLDEST_API)) {
        cudriver_driver.version = version;
        cudriver_driver.asked = result;
        dlclose(library);
        return false;
    }
    for (size_t i = 0; i < FUNCTION_COUNT && version != 0; i++) { /* 0: a stub's */
        if (functions[i].since > version) { /* it may be exported, but returns an error */
            memset((char *)&table + functions[i].offset, 0, sizeof(void *));
        }
    }
    pthread_mutex_lock(&init_lock);
    cuda = table;
    pthread_mutex_unlock(&init_lock);
    cudriver_driver.message[0] = '\0';
    cudriver_driver.version = version;
    cudriver_driver.simulated = dlsym(library, "cudriver_sim_version") != NULL;
    cudriver_driver.loaded = true;
    pthread_atfork(NULL, NULL, mark_forked);
    return true;
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
