/*
 * The simulated CUDA driver: what it exports beside the driver's own functions.
 *
 * A libcuda of our own over host memory, for machines without a GPU and for tests. It is opened
 * through the same door as the real one; `cudriver_sim_version` is how a loader knows what it has
 * opened.
 *
 * Knobs by environment, read when the library is loaded; each has a function below that does the
 * same later:
 *
 *   CUDRIVER_SIM_DEVICES         devices, 0 to 16; default 1
 *   CUDRIVER_SIM_MEMORY          bytes a device, suffix K, M, G; default 8G
 *   CUDRIVER_SIM_DRIVER_VERSION  1000 * major + 10 * minor; default 13000
 *   CUDRIVER_SIM_LATENCY_US      microseconds before each operation; default 0
 *   CUDRIVER_SIM_BANDWIDTH       bytes a second, suffix K, M, G; default 0: as fast as memcpy
 *   CUDRIVER_SIM_FAIL            calls to fail, see cudriver_sim_fail; several with commas between
 *   CUDRIVER_SIM_PROFILE         see cudriver_sim_set_profile
 *
 * Every function here is thread-safe, and works before cuInit, after it and in a forked child.
 */
#ifndef CUDRIVER_SIM_H
#define CUDRIVER_SIM_H

#include <stddef.h>

#define CUDRIVER_SIM_VERSION 1

/* CUDRIVER_SIM_VERSION. The symbol is the mark of a simulated driver. */
int cudriver_sim_version(void);

/* 1 where the simulated driver's version exports `function`, 0 where it is too old or the name
 * unknown. A shared library cannot hide its own symbols at run time: a loader asks here after
 * dlsym. */
int cudriver_sim_has(const char *function);

/* Puts every knob back to what the environment said at load; clears faults and counters; releases
 * held streams; mends devices that an error broke, which hardware does not. Objects stay as they
 * are. */
void cudriver_sim_reset(void);

/* The setters return 0, or -1 for a value out of range. The device count and the memory size count
 * from the next call on: what exists on a device that is gone stays. */
int cudriver_sim_set_devices(int count);
int cudriver_sim_set_memory(unsigned long long bytes);
int cudriver_sim_set_driver_version(int version);
int cudriver_sim_set_latency(unsigned long long microseconds);
int cudriver_sim_set_bandwidth(unsigned long long bytes_per_second);

/* A single registration of at least this many bytes fails with INVALID_VALUE; 0: the default, 512
 * GiB. */
int cudriver_sim_set_registration_limit(unsigned long long bytes);

/* "default"; "stub": every call answers STUB_LIBRARY (34); "old": CUDA 11.0; "too_old": CUDA 10.2;
 * "no_device": cuInit answers NO_DEVICE (100). -1 for another name. */
int cudriver_sim_set_profile(const char *name);

/*
 * Makes calls fail. `spec` is FUNCTION:NTH:CODE, as in "cuMemAlloc_v2:3:2": the third call of that
 * function from now on fails with error 2 and does nothing else. FUNCTION `*` counts the calls of
 * all functions together (not those of cuGetErrorName and cuGetErrorString); `async` counts
 * operations as they run on streams, and the one that fails breaks its device for the process with
 * CODE, as a faulting kernel would. NTH `*` fails every call. Specs add up until
 * cudriver_sim_clear_faults. -1 for a spec it cannot read.
 */
int cudriver_sim_fail(const char *spec);
int cudriver_sim_fail_next(const char *function, int code);
void cudriver_sim_clear_faults(void);

/* How often `function` was called since load or the last reset; NULL or "*": all functions
 * together; "async": operations run on streams. -1 for an unknown name. Failed calls count. */
long long cudriver_sim_call_count(const char *function);
void cudriver_sim_reset_counts(void);

/*
 * What is alive, by name; -1 for an unknown one:
 *   contexts (manual and active primary), primary_retains, streams, events, allocations,
 *   allocation_bytes (as asked for, from pools too), device_bytes (taken from the devices, what
 * pools hold in reserve too), pools, registrations, registration_bytes, host_allocs,
 * host_alloc_bytes, modules, workers (stream threads), pending (operations issued and not done).
 */
long long cudriver_sim_live(const char *what);

/* Holds every stream still before its next operation. Calls that wait for a stream wait then too,
 * so the release must come from this thread before it waits, or from another; not from a Python
 * thread while cudriver resets a primary context, which keeps the GIL until the reset is over. */
void cudriver_sim_hold(void);

/* Lets `operations` more run while held, in whatever streams can go on. */
void cudriver_sim_step(unsigned long long operations);

/* Ends the hold. */
void cudriver_sim_release(void);

/* Whether a byte of device memory is live and never written since it was allocated, as far as its
 * value tells: the byte that fresh and freed device memory is filled with. */
int cudriver_sim_poison(void);

#endif
