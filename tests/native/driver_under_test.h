/*
 * The driver that the tests of hostmem run on, behind functions that count, can be told to fail and
 * can stop a thread: a library that is opened as the package does, the simulated one or the
 * system's.
 */
#ifndef DRIVER_UNDER_TEST_H
#define DRIVER_UNDER_TEST_H

#include <stdbool.h>

#include "driver/driver.h"

/* Fills `cuda` and initialises it, or ends the program. */
void driver_start(void);

/* Calls of functions that may fail, so far. */
unsigned driver_calls(void);
/* The nth call from now (1 is the next) answers `result` and does nothing; n = 0: none. */
void driver_fail(unsigned n, CUresult result);
/* Whether the failure asked for has happened. */
bool driver_has_failed(void);
/* What the simulated driver has: "primary_retains", "registrations", "registration_bytes". Of a
 * real one nothing is known: 0. */
size_t driver_live(const char *what);
/* Whether each byte of the range is registered. */
bool driver_is_registered(const void *address, size_t bytes);
/* A function of the library that is not in the table. */
void *driver_function(const char *name);
/* Called inside each cuMemHostRegister, without any lock; NULL for none. */
void driver_set_hook(void (*hook)(const void *address));
/* The same for cuMemHostUnregister. */
void driver_set_unregister_hook(void (*hook)(const void *address));

#endif
