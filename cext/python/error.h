/*
 * How failures leave this extension. Three channels, one table:
 *
 *   cudriver_raise        a driver's code -> an exception of cudriver.errors; for calls that return
 *   cudriver_report       the same for destructors: the pending exception is kept, the failure is
 *                         written by sys.unraisablehook; silent when the driver or the
 *                         interpreter goes
 *   cudriver_require      before a driver call: library there, not forked, initialised
 */
#ifndef CUDRIVER_ERROR_H
#define CUDRIVER_ERROR_H

#include "state.h"

/*
 * Raises the exception class for `code`. `function` is the driver function's exported name; the
 * format gives the arguments that matter, as they shall stand between its parentheses ("0x%llx, %zu
 * bytes"). Always returns NULL, so that `return cudriver_raise(...)` reads as one thought. Needs
 * the GIL.
 */
PyObject *cudriver_raise(CoreState *state, CUresult code, const char *function, const char *format,
                         ...) __attribute__((format(printf, 4, 5)));

/* Raises cudriver.errors.<class_name> with a formatted text and no driver code. Returns NULL. */
PyObject *cudriver_raise_plain(CoreState *state, const char *class_name, const char *format, ...);

/* Reports a failed free from a destructor. Never raises. Needs the GIL. */
void cudriver_report(CoreState *state, CUresult code, const char *function, PyObject *owner);

/* Loads the library where that has not happened. 0, or -1 with DriverNotFoundError or
 * UnsupportedDriverError set. */
int cudriver_require_loaded(CoreState *state);

/* Loads and initialises. 0, or -1 with an exception set (ForkedProcessError in a forked child). */
int cudriver_require(CoreState *state);

/* A code's name, for every code of the newest driver known. Never NULL. */
const char *cudriver_error_name(CUresult code);

/* Adds the module functions of this file (error_names, _error_text). 0 or -1. */
int cudriver_error_setup(PyObject *module);

#endif
