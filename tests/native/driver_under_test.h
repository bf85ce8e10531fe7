/*
 * The driver that a native test runs on: fake_driver.c or loaded_driver.c. Both fill `cuda`; the
 * fake one counts and can be told to fail.
 */
#ifndef DRIVER_UNDER_TEST_H
#define DRIVER_UNDER_TEST_H

#include <stdbool.h>

#include "driver/driver.h"

/* Fills `cuda` and initialises it, or ends the program. */
void driver_start(void);

/* Whether the functions below do anything. */
bool driver_is_fake(void);

/* Calls of functions that may fail, since the last reset. */
unsigned driver_calls(void);
/* The nth call from now (1 is the next) answers `result` and does nothing; n = 0: none. */
void driver_fail(unsigned n, CUresult result);
/* Whether the failure asked for has happened. */
bool driver_has_failed(void);
/* References to the primary context. */
unsigned driver_retains(void);
/* Registrations alive, and their bytes. */
unsigned driver_registrations(void);
size_t driver_registered_bytes(void);
/* Whether each byte of the range is registered. */
bool driver_is_registered(const void *address, size_t bytes);
/* Makes plain registrations of the range fail, as those of memory without write permission do. */
void driver_set_read_only(const void *address, size_t bytes);
/* A range that the driver itself has allocated: overlap answers INVALID_VALUE. NULL takes it away.
 */
void driver_set_allocated(const void *address, size_t bytes);
/* Called inside each cuMemHostRegister, without any lock; NULL for none. */
void driver_set_hook(void (*hook)(const void *address));
/* The same for cuMemHostUnregister. */
void driver_set_unregister_hook(void (*hook)(const void *address));

#endif
