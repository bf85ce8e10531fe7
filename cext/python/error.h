/*
 * How failures leave this extension:
 *
 *   cudriver_raise     a driver's code -> an exception of cudriver.errors
 *   cudriver_check     the same if the code is an error
 *   cudriver_report    the same in a destructor: keeps the pending exception and calls
 *                      sys.unraisablehook; silent when the driver or the interpreter is going
 *   cudriver_require   before a driver call: library loaded, not forked, driver initialised
 */
#ifndef CUDRIVER_ERROR_H
#define CUDRIVER_ERROR_H

#include "state.h"

#include "driver/driver.h"

/* Raises the exception class for `code`. `function` is the driver function's exported name. The
 * format gives the arguments that matter, as they should appear between its parentheses ("0x%llx,
 * %zu bytes"). Returns NULL, so that `return cudriver_raise(...)` works. Needs the GIL. */
PyObject *cudriver_raise(CUresult code, const char *function, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Raises that if `code` is an error. 0 or -1. */
int cudriver_check(CUresult code, const char *function, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Raises cudriver.errors.<class_name> with a formatted message and no driver code. Returns NULL. */
PyObject *cudriver_raise_plain(const char *class_name, const char *format, ...);

/* Reports a failed free from a destructor. Never raises. Needs the GIL. */
void cudriver_report(CoreState *state, CUresult code, const char *function);

/* Loads the library if that has not happened. 0, or -1 with DriverNotFoundError or
 * UnsupportedDriverError set. */
int cudriver_require_loaded(void);

/* Loads and initialises. 0, or -1 with an exception set (ForkedProcessError in a forked child). */
int cudriver_require_slowly(void);
static inline int cudriver_require(void)
{
    return cudriver_driver_ready ? 0 : cudriver_require_slowly();
}

/* 0, or -1 with ValueError if the object is closed. */
static inline int cudriver_open_check(PyObject *object, bool closed)
{
    if (closed) {
        PyErr_Format(PyExc_ValueError, "%R is closed", object);
        return -1;
    }
    return 0;
}

/* The driver's name for a code, or "" if it knows none. */
const char *cudriver_error_name(CUresult code);

#endif
