/*
 * The simulated CUDA driver: its exports beside the driver's own functions.
 *
 * It is a libcuda of our own over host memory, for machines without a GPU and for tests. It is
 * opened like the real one; a loader recognises it by the symbol `cudriver_sim_version`.
 *
 * Environment variables, read when the library is loaded and at a reset; for each there is a
 * function below:
 *
 *   CUDRIVER_SIM_DEVICES         devices, 0 to 16; default 1
 *   CUDRIVER_SIM_MEMORY          bytes per device, suffix K, M, G; default 8G
 *   CUDRIVER_SIM_DRIVER_VERSION  1000 * major + 10 * minor; default 13000
 *   CUDRIVER_SIM_LATENCY_US      microseconds before each operation; default 0
 *   CUDRIVER_SIM_LATE_US         microseconds by which copies and fills are late; see
 *                                cudriver_sim_set_late; default 0
 *   CUDRIVER_SIM_JITTER_US       microseconds by which calls begin late, at most; see
 *                                cudriver_sim_set_jitter; default 0
 *   CUDRIVER_SIM_BANDWIDTH       bytes per second, suffix K, M, G; default 0: no limit
 *   CUDRIVER_SIM_FAIL            calls to fail, separated by commas; see cudriver_sim_fail
 *   CUDRIVER_SIM_PROFILE         see cudriver_sim_set_profile
 *
 * Every function here is thread-safe, and works before and after cuInit and in a forked child.
 */
#ifndef CUDRIVER_SIM_H
#define CUDRIVER_SIM_H

#include <stddef.h>

#define CUDRIVER_SIM_VERSION 1

/* CUDRIVER_SIM_VERSION. The symbol identifies a simulated driver. */
int cudriver_sim_version(void);

/* 1 if a driver of the simulated version exports `function`; 0 if it is too old or the name is
 * unknown. A shared library cannot hide its symbols at run time, so a loader asks after dlsym. */
int cudriver_sim_has(const char *function);

/* Sets every knob to its default, then as the environment says; clears faults and counters;
 * releases held streams; fixes devices that an error broke, which hardware does not. Objects stay
 * as they are. */
void cudriver_sim_reset(void);

/* The setters return 0, or -1 for a value out of range. The device count and the memory size take
 * effect from the next call on; objects on a device that no longer exists stay. */
int cudriver_sim_set_devices(int count);
int cudriver_sim_set_memory(unsigned long long bytes);
int cudriver_sim_set_driver_version(int version);
int cudriver_sim_set_latency(unsigned long long microseconds);
int cudriver_sim_set_bandwidth(unsigned long long bytes_per_second);

/* Makes all work late that may be, by the driver's documentation: a copy or fill takes so many
 * microseconds longer, and every call returns before it that may. So do a blocking copy from
 * pageable memory of any size, once the source has been read, and one between device memory. A wait
 * that is missing then shows. 0: as hardware was seen to do it. */
int cudriver_sim_set_late(unsigned long long microseconds);

/* One call in six, at random, begins late, by at most so many microseconds, as if the system had
 * let other threads run first. What two threads must not do at the same time then shows. */
int cudriver_sim_set_jitter(unsigned long long microseconds);

/* A registration of at least this many bytes fails with INVALID_VALUE; 0: the default, 512 GiB. */
int cudriver_sim_set_registration_limit(unsigned long long bytes);

/* "default"; "stub": every call returns STUB_LIBRARY (34); "old": CUDA 11.0; "too_old": CUDA 10.2;
 * "no_device": cuInit returns NO_DEVICE (100); "coherent": the devices read pageable memory through
 * the host's page tables, by their attributes; "short_registrations": a registration of more than
 * 2 GiB fails, as under Linux 6.11 to 6.13; "crawling": "coherent", but copies of pageable
 * memory take 1 ns a byte. -1 for another name. */
int cudriver_sim_set_profile(const char *name);

/*
 * Makes calls fail. `spec` is FUNCTION:NTH:CODE. "cuMemAlloc_v2:3:2" means that the third call of
 * that function from now on fails with error 2 and does nothing else. FUNCTION `*` counts the calls
 * of all functions together, except cuGetErrorName and cuGetErrorString. `async` counts operations
 * as they run on streams; the one that fails breaks its device for the process with CODE, as a
 * faulting kernel would. With NTH `*` every call fails. Specs accumulate until
 * cudriver_sim_clear_faults. -1 for a spec that cannot be read.
 */
int cudriver_sim_fail(const char *spec);
int cudriver_sim_fail_next(const char *function, int code);
void cudriver_sim_clear_faults(void);

/* The nth call of `function` from now on does not begin until cudriver_sim_clear_faults. -1 for an
 * unknown name. */
int cudriver_sim_hold_call(const char *function, unsigned long long nth);

/* How often `function` was called since load or the last reset; NULL or "*": all functions
 * together; "async": operations run on streams. -1 for an unknown name. Failed calls count. */
long long cudriver_sim_call_count(const char *function);
void cudriver_sim_reset_counts(void);

/*
 * The number of live objects of a kind; -1 for an unknown name:
 *   contexts (manual and active primary), primary_retains, streams, events, allocations,
 *   allocation_bytes (as requested, pools included), device_bytes (taken from the devices,
 *   pools' reserves included), pools, registrations, registration_bytes, host_allocs,
 *   host_alloc_bytes, modules, graphs, executables, user_objects, workers (stream threads),
 *   pending (operations issued, not done).
 */
long long cudriver_sim_live(const char *what);

/* Stops every stream before its next operation. Calls that wait for a stream then wait too, so
 * release from this thread before it waits, or from another thread. */
void cudriver_sim_hold(void);

/* Lets `operations` more run while held, in any streams that can proceed. */
void cudriver_sim_step(unsigned long long operations);

/* Ends the hold. */
void cudriver_sim_release(void);

/* The byte with which new and freed device memory is filled. */
int cudriver_sim_poison(void);

#endif
