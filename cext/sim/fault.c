/* The knobs as they are; counts calls, and injects faults. */
#include "sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ANY_CALL SIM_CALLS
#define OPERATIONS (SIM_CALLS + 1)
#define MAX_FAULTS 64

struct sim_knobs sim_knobs = {
    .devices = 1,
    .memory = SIM_DEFAULT_MEMORY,
    .version = SIM_DEFAULT_VERSION,
    .registration_limit = SIM_DEFAULT_REGISTRATION_LIMIT,
};

void sim_say_once(atomic_bool *said, const char *format, ...)
{
    char line[400];
    va_list arguments;

    if (!atomic_exchange(said, true)) {
        va_start(arguments, format);
        vsnprintf(line, sizeof line, format, arguments);
        va_end(arguments);
        fprintf(stderr, "cudriver's simulated driver %s\n", line);
    }
}

struct fault {
    int call;               /* an enum sim_call, ANY_CALL or OPERATIONS */
    unsigned long long nth; /* the nth matching call since it was set; 0: every one */
    unsigned long long seen;
    CUresult code; /* SUCCESS: the call waits until faults are cleared */
};

static const struct call_info {
    const char *name;
    int since;
} call_infos[SIM_CALLS] = {
#define X(name, args, since) {#name, since},
    SIM_FUNCTIONS(X)
#undef X
};

static atomic_ullong counts[SIM_CALLS];
static atomic_ullong operations;

/* Protects the faults; taken alone. A call does not take it while there are no faults. */
static pthread_mutex_t fault_lock = PTHREAD_MUTEX_INITIALIZER;
static struct fault faults[MAX_FAULTS];
static atomic_int fault_count;
static unsigned long long clears; /* how often */
static pthread_cond_t cleared = PTHREAD_COND_INITIALIZER;

int sim_call_since(enum sim_call call)
{
    return call_infos[call].since;
}

void sim_fault_lock(void)
{
    pthread_mutex_lock(&fault_lock);
}

void sim_fault_unlock(void)
{
    pthread_mutex_unlock(&fault_lock);
}

/* An enum sim_call, ANY_CALL for `*`, OPERATIONS for `async`, or -1. */
static int call_find(const char *name, size_t length)
{
    if (length == 1 && name[0] == '*') {
        return ANY_CALL;
    }
    if (length == strlen("async") && memcmp(name, "async", length) == 0) {
        return OPERATIONS;
    }
    for (int i = 0; i < SIM_CALLS; i++) {
        if (strlen(call_infos[i].name) == length && memcmp(call_infos[i].name, name, length) == 0) {
            return i;
        }
    }
    return -1;
}

SIM_EXPORT int cudriver_sim_has(const char *function)
{
    int call = call_find(function, strlen(function));

    return call >= 0 && call < SIM_CALLS &&
           call_infos[call].since <= atomic_load(&sim_knobs.version);
}

void sim_fault_count(enum sim_call call)
{
    atomic_fetch_add_explicit(&counts[call], 1, memory_order_relaxed);
}

/* Whether a fault set on `wanted` counts a call of `call`. */
static bool fault_matches(int wanted, int call)
{
    if (wanted == ANY_CALL) {
        /* These two only read a table; if they failed they would hide the error being named. */
        return call < SIM_CALLS && call != CALL_cuGetErrorName && call != CALL_cuGetErrorString;
    }
    return wanted == call;
}

static CUresult fault_check(int call)
{
    CUresult result = CUDA_SUCCESS;
    bool held = false;

    if (atomic_load_explicit(&fault_count, memory_order_relaxed) == 0) {
        return CUDA_SUCCESS;
    }
    pthread_mutex_lock(&fault_lock);
    for (int i = 0; i < atomic_load(&fault_count); i++) {
        struct fault *fault = &faults[i];
        if (!fault_matches(fault->call, call)) {
            continue;
        }
        fault->seen++;
        if ((fault->nth == 0 || fault->seen == fault->nth) && result == CUDA_SUCCESS) {
            result = fault->code;
        }
        held = held || (fault->code == CUDA_SUCCESS && fault->seen == fault->nth);
    }
    for (unsigned long long before = clears; held && clears == before;) {
        pthread_cond_wait(&cleared, &fault_lock);
    }
    pthread_mutex_unlock(&fault_lock);
    return result;
}

CUresult sim_fault_call(enum sim_call call)
{
    return fault_check((int)call);
}

CUresult sim_fault_operation(void)
{
    atomic_fetch_add_explicit(&operations, 1, memory_order_relaxed);
    return fault_check(OPERATIONS);
}

static int fault_add(int call, unsigned long long nth, int code)
{
    int result = -1;

    if (call < 0 || code < 0) {
        return -1;
    }
    pthread_mutex_lock(&fault_lock);
    int count = atomic_load(&fault_count);
    if (count < MAX_FAULTS) {
        faults[count] = (struct fault){.call = call, .nth = nth, .code = (CUresult)code};
        atomic_store(&fault_count, count + 1);
        result = 0;
    }
    pthread_mutex_unlock(&fault_lock);
    return result;
}

/* Reads one FUNCTION:NTH:CODE of `length` characters. 0 or -1. */
static int fault_parse(const char *spec, size_t length)
{
    char text[128];
    char *nth, *code, *end;
    unsigned long long number = 0;
    long error;

    if (length >= sizeof text) {
        return -1;
    }
    memcpy(text, spec, length);
    text[length] = '\0';
    nth = strchr(text, ':');
    code = nth != NULL ? strchr(nth + 1, ':') : NULL;
    if (code == NULL) {
        return -1;
    }
    *nth++ = '\0';
    *code++ = '\0';
    if (strcmp(nth, "*") != 0) {
        number = strtoull(nth, &end, 10);
        if (end == nth || *end != '\0' || nth[0] == '-' || number == 0) {
            return -1;
        }
    }
    error = strtol(code, &end, 10);
    if (end == code || *end != '\0' || error <= 0 || error > 99999) {
        return -1;
    }
    return fault_add(call_find(text, strlen(text)), number, (int)error);
}

SIM_EXPORT int cudriver_sim_fail(const char *spec)
{
    int result = 0;

    while (*spec != '\0') {
        size_t length = strcspn(spec, ",");
        if (length > 0 && fault_parse(spec, length) != 0) {
            result = -1;
        }
        spec += length + (spec[length] == ',');
    }
    return result;
}

SIM_EXPORT int cudriver_sim_fail_next(const char *function, int code)
{
    return code <= 0 ? -1 : fault_add(call_find(function, strlen(function)), 1, code);
}

SIM_EXPORT int cudriver_sim_hold_call(const char *function, unsigned long long nth)
{
    int call = call_find(function, strlen(function));

    return call >= SIM_CALLS ? -1 : fault_add(call, nth, CUDA_SUCCESS);
}

SIM_EXPORT void cudriver_sim_clear_faults(void)
{
    pthread_mutex_lock(&fault_lock);
    atomic_store(&fault_count, 0);
    clears++;
    pthread_cond_broadcast(&cleared);
    pthread_mutex_unlock(&fault_lock);
}

SIM_EXPORT long long cudriver_sim_call_count(const char *function)
{
    int call = function == NULL ? ANY_CALL : call_find(function, strlen(function));
    unsigned long long sum = 0;

    if (call < 0) {
        return -1;
    }
    if (call == OPERATIONS) {
        return (long long)atomic_load(&operations);
    }
    if (call != ANY_CALL) {
        return (long long)atomic_load(&counts[call]);
    }
    for (int i = 0; i < SIM_CALLS; i++) {
        sum += atomic_load(&counts[i]);
    }
    return (long long)sum;
}

SIM_EXPORT void cudriver_sim_reset_counts(void)
{
    for (int i = 0; i < SIM_CALLS; i++) {
        atomic_store(&counts[i], 0);
    }
    atomic_store(&operations, 0);
}
