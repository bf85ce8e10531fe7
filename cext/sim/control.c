/* The knobs, set by the environment and by tests. */
#include "sim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads a whole number with an optional K, M or G (powers of 1024). */
static bool number_parse(const char *text, unsigned long long *value)
{
    unsigned long long number;
    unsigned shift = 0;
    char *end;

    errno = 0;
    number = strtoull(text, &end, 10);
    if (end == text || text[0] == '-' || errno != 0) {
        return false;
    }
    if (*end == 'K' || *end == 'k') {
        shift = 10;
    } else if (*end == 'M' || *end == 'm') {
        shift = 20;
    } else if (*end == 'G' || *end == 'g') {
        shift = 30;
    }
    if (shift != 0) {
        end++;
    }
    if (*end != '\0' || number > ~0ull >> shift) {
        return false;
    }
    *value = number << shift;
    return true;
}

static int set_devices(unsigned long long value)
{
    return value > SIM_MAX_DEVICES ? -1 : cudriver_sim_set_devices((int)value);
}

static int set_version(unsigned long long value)
{
    return value > 1000000 ? -1 : cudriver_sim_set_driver_version((int)value);
}

/* Sets a knob from a number in the environment; reports an invalid value. */
static void knob_from_environment(const char *name, int (*set)(unsigned long long))
{
    const char *text = getenv(name);
    unsigned long long value;

    if (text == NULL || text[0] == '\0') {
        return;
    }
    if (!number_parse(text, &value) || set(value) != 0) {
        fprintf(stderr, "cudriver simulated driver: %s=%s is not understood and has no effect\n",
                name, text);
    }
}

static void text_from_environment(const char *name, int (*set)(const char *))
{
    const char *text = getenv(name);

    if (text != NULL && text[0] != '\0' && set(text) != 0) {
        fprintf(stderr, "cudriver simulated driver: %s=%s is not understood\n", name, text);
    }
}

static __attribute__((constructor)) void read_environment(void)
{
    text_from_environment("CUDRIVER_SIM_PROFILE", cudriver_sim_set_profile);
    knob_from_environment("CUDRIVER_SIM_DEVICES", set_devices);
    knob_from_environment("CUDRIVER_SIM_MEMORY", cudriver_sim_set_memory);
    knob_from_environment("CUDRIVER_SIM_DRIVER_VERSION", set_version);
    knob_from_environment("CUDRIVER_SIM_LATENCY_US", cudriver_sim_set_latency);
    knob_from_environment("CUDRIVER_SIM_LATE_US", cudriver_sim_set_late);
    knob_from_environment("CUDRIVER_SIM_JITTER_US", cudriver_sim_set_jitter);
    knob_from_environment("CUDRIVER_SIM_BANDWIDTH", cudriver_sim_set_bandwidth);
    text_from_environment("CUDRIVER_SIM_FAIL", cudriver_sim_fail);
}

SIM_EXPORT int cudriver_sim_version(void)
{
    return CUDRIVER_SIM_VERSION;
}

/* A real device stays broken for the life of the process; tests continue. */
static void fix_devices(void)
{
    sim_lock();
    for (int i = 0; i < SIM_MAX_DEVICES; i++) {
        sim.devices[i].broken = CUDA_SUCCESS;
    }
    sim_unlock();
}

SIM_EXPORT void cudriver_sim_reset(void)
{
    atomic_store(&sim_knobs.devices, 1);
    atomic_store(&sim_knobs.memory, SIM_DEFAULT_MEMORY);
    atomic_store(&sim_knobs.latency, 0);
    atomic_store(&sim_knobs.late, 0);
    atomic_store(&sim_knobs.jitter, 0);
    atomic_store(&sim_knobs.bandwidth, 0);
    cudriver_sim_set_profile("default");
    cudriver_sim_clear_faults();
    cudriver_sim_reset_counts();
    cudriver_sim_release();
    fix_devices();
    read_environment();
}

SIM_EXPORT int cudriver_sim_set_devices(int count)
{
    if (count < 0 || count > SIM_MAX_DEVICES) {
        return -1;
    }
    atomic_store(&sim_knobs.devices, count);
    return 0;
}

SIM_EXPORT int cudriver_sim_set_memory(unsigned long long bytes)
{
    if (bytes == 0 || bytes > 1ull << 40) {
        return -1;
    }
    atomic_store(&sim_knobs.memory, bytes);
    return 0;
}

SIM_EXPORT int cudriver_sim_set_driver_version(int version)
{
    if (version < 1000) {
        return -1;
    }
    atomic_store(&sim_knobs.version, version);
    return 0;
}

SIM_EXPORT int cudriver_sim_set_latency(unsigned long long microseconds)
{
    if (microseconds > 3600000000ull) {
        return -1;
    }
    atomic_store(&sim_knobs.latency, microseconds);
    return 0;
}

SIM_EXPORT int cudriver_sim_set_late(unsigned long long microseconds)
{
    if (microseconds > 3600000000ull) {
        return -1;
    }
    atomic_store(&sim_knobs.late, microseconds);
    return 0;
}

SIM_EXPORT int cudriver_sim_set_jitter(unsigned long long microseconds)
{
    if (microseconds > 1000000) {
        return -1;
    }
    atomic_store(&sim_knobs.jitter, microseconds);
    return 0;
}

SIM_EXPORT int cudriver_sim_set_bandwidth(unsigned long long bytes_per_second)
{
    atomic_store(&sim_knobs.bandwidth, bytes_per_second);
    return 0;
}

SIM_EXPORT int cudriver_sim_set_registration_limit(unsigned long long bytes)
{
    atomic_store(&sim_knobs.registration_limit,
                 bytes != 0 ? bytes : SIM_DEFAULT_REGISTRATION_LIMIT);
    return 0;
}

SIM_EXPORT int cudriver_sim_set_profile(const char *name)
{
    static const struct profile {
        const char *name;
        int version;
        bool stub;
        bool no_device;
        bool coherent;
        unsigned long long registration_limit; /* 0: the default */
        bool crawls;
    } profiles[] = {
        {"default", SIM_DEFAULT_VERSION, false, false, false, 0, false},
        {"stub", SIM_DEFAULT_VERSION, true, false, false, 0, false},
        {"old", 11000, false, false, false, 0, false},
        {"too_old", 10020, false, false, false, 0, false},
        {"no_device", SIM_DEFAULT_VERSION, false, true, false, 0, false},
        {"coherent", SIM_DEFAULT_VERSION, false, false, true, 0, false},
        {"short_registrations", SIM_DEFAULT_VERSION, false, false, false, (2ull << 30) + 1, false},
        {"crawling", SIM_DEFAULT_VERSION, false, false, true, 0, true},
    };

    for (size_t i = 0; i < sizeof profiles / sizeof profiles[0]; i++) {
        if (strcmp(profiles[i].name, name) == 0) {
            atomic_store(&sim_knobs.version, profiles[i].version);
            atomic_store(&sim_knobs.stub, profiles[i].stub);
            atomic_store(&sim_knobs.no_device, profiles[i].no_device);
            atomic_store(&sim_knobs.coherent, profiles[i].coherent);
            atomic_store(&sim_knobs.crawls, profiles[i].crawls);
            cudriver_sim_set_registration_limit(profiles[i].registration_limit);
            return 0;
        }
    }
    return -1;
}

SIM_EXPORT int cudriver_sim_poison(void)
{
    return SIM_POISON;
}

static long long live_workers(bool unused)
{
    (void)unused;
    return (long long)sim.workers;
}

/* Those that are told by their number alone. */
static const struct {
    const char *name;
    enum sim_kind kind;
} live_objects[] = {
    {"events", KIND_EVENT},           {"modules", KIND_MODULE},    {"graphs", KIND_GRAPH},
    {"executables", KIND_EXECUTABLE}, {"user_objects", KIND_USER},
};

/* In the monitor. */
static long long count_objects(enum sim_kind kind)
{
    long long count = 0;

    for (uint32_t i = 0; i < sim_object_slots(kind); i++) {
        count += sim_object_at(kind, i) != NULL;
    }
    return count;
}

static const struct live_kind {
    const char *name;
    long long (*count)(bool which);
    bool which;
} live_kinds[] = {
    {"contexts", sim_context_live, false},
    {"primary_retains", sim_context_live, true},
    {"streams", sim_stream_live, false},
    {"pending", sim_stream_live, true},
    {"allocations", sim_memory_live, false},
    {"allocation_bytes", sim_memory_live, true},
    {"device_bytes", sim_memory_taken, false},
    {"pools", sim_pool_live, false},
    {"registrations", sim_host_registered, false},
    {"registration_bytes", sim_host_registered, true},
    {"host_allocs", sim_host_allocated, false},
    {"host_alloc_bytes", sim_host_allocated, true},
    {"workers", live_workers, false},
};

SIM_EXPORT long long cudriver_sim_live(const char *what)
{
    long long count = -1;

    sim_lock();
    for (size_t i = 0; i < sizeof live_kinds / sizeof live_kinds[0]; i++) {
        if (strcmp(live_kinds[i].name, what) == 0) {
            count = live_kinds[i].count(live_kinds[i].which);
        }
    }
    for (size_t i = 0; i < sizeof live_objects / sizeof live_objects[0]; i++) {
        if (strcmp(live_objects[i].name, what) == 0) {
            count = count_objects(live_objects[i].kind);
        }
    }
    sim_unlock();
    return count;
}

SIM_EXPORT void cudriver_sim_hold(void)
{
    sim_lock();
    sim.held = true;
    sim.steps = 0;
    sim_unlock();
}

SIM_EXPORT void cudriver_sim_step(unsigned long long count)
{
    sim_lock();
    if (sim.held) {
        sim.steps += count;
        sim_stream_wake_all();
    }
    sim_unlock();
}

SIM_EXPORT void cudriver_sim_release(void)
{
    sim_lock();
    sim.held = false;
    sim.steps = 0;
    sim_stream_wake_all();
    sim_unlock();
}
