/* A driver library, the simulated or a real one, for native tests: the one that CUDRIVER_LIBRARY
 * names, else the system's. See driver_under_test.h. */
#include "driver_under_test.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

void driver_start(void)
{
    if (!cudriver_driver_load(getenv("CUDRIVER_LIBRARY"))) {
        fprintf(stderr, "%s\n", cudriver_driver.message);
        exit(2);
    }
    CUresult result = cudriver_driver_init();
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "cuInit answers %d\n", (int)result);
        exit(2);
    }
}

bool driver_is_fake(void)
{
    return false;
}

unsigned driver_calls(void)
{
    return 0;
}

void driver_fail(unsigned n, CUresult result)
{
    (void)n, (void)result;
}

bool driver_has_failed(void)
{
    return false;
}

unsigned driver_retains(void)
{
    return 0;
}

unsigned driver_registrations(void)
{
    return 0;
}

size_t driver_registered_bytes(void)
{
    return 0;
}

/* What a real driver can be asked: its flags, at both ends and in between. */
bool driver_is_registered(const void *address, size_t bytes)
{
    const char *library = getenv("CUDRIVER_LIBRARY");
    void *opened = dlopen(library != NULL ? library : "libcuda.so.1", RTLD_LAZY);
    CUresult (*flags_of)(unsigned *, void *);

    *(void **)&flags_of = opened != NULL ? dlsym(opened, "cuMemHostGetFlags") : NULL;
    if (flags_of == NULL) {
        return false;
    }
    for (size_t i = 0; i < bytes; i += bytes / 16 + 1) {
        unsigned flags;
        if (flags_of(&flags, (char *)address + i) != CUDA_SUCCESS) {
            return false;
        }
    }
    return true;
}

void driver_set_read_only(const void *address, size_t bytes)
{
    (void)address, (void)bytes;
}

void driver_set_allocated(const void *address, size_t bytes)
{
    (void)address, (void)bytes;
}

void driver_set_hook(void (*hook)(const void *address))
{
    (void)hook;
}

void driver_set_unregister_hook(void (*hook)(const void *address))
{
    (void)hook;
}
