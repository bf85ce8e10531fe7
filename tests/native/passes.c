/* Records the functions that the main thread enters, for tests/passes.py: loaded before a core that
 * is built with -finstrument-functions. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#define MOST (1 << 20)

static void *entered[MOST];
static size_t count;
static volatile bool recording;

void passes_begin(void)
{
    count = 0;
    recording = true;
}

/* Prints a line for each entry: the library, and the function's offset in it. */
void passes_end(const char *path)
{
    FILE *file = fopen(path, "w");
    Dl_info found;

    recording = false;
    for (size_t i = 0; file != NULL && i < count; i++) {
        if (dladdr(entered[i], &found) != 0) {
            fprintf(file, "%s %zx\n", found.dli_fname,
                    (size_t)((char *)entered[i] - (char *)found.dli_fbase));
        }
    }
    if (file != NULL) {
        fclose(file);
    }
}

void __cyg_profile_func_enter(void *function, void *from)
{
    (void)from;
    if (recording && count < MOST && gettid() == getpid()) {
        entered[count++] = function;
    }
}

void __cyg_profile_func_exit(void *function, void *from)
{
    (void)function;
    (void)from;
}
