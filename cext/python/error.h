/*
 * How failures leave this extension:
 *
 *   cudriver_check     a driver's code, if it is an error -> an exception of cudriver.errors
 *   cudriver_report    the same in a destructor: keeps the pending exception and calls
 *                      sys.unraisablehook; silent when the driver or the interpreter is going
 *   cudriver_require   before a driver call: library loaded, not forked, driver initialised
 */
#ifndef CUDRIVER_ERROR_H
#define CUDRIVER_ERROR_H

#include "state.h"

#include "driver/driver.h"

/* If `code` is an error, raises its exception class. `function` is the driver function's exported
 * name. The format gives the arguments that matter, as they should appear between its parentheses
 * ("0x%llx, %zu bytes"). 0 or -1. Needs the GIL. */
int cudriver_check(CUresult code, const char *function, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same of what is an error, as an expression of a pointer: `return CUDRIVER_RAISE(...)`. */
#define CUDRIVER_RAISE(...) ((void)cudriver_check(__VA_ARGS__), NULL)

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

/* What a function without a result returns: None, or NULL if it has failed. */
static inline PyObject *cudriver_none(int failed)
{
    return failed < 0 ? NULL : Py_NewRef(Py_None);
}

/* ---- names of other libraries ---- */

/* tp_getattro of our types: where an attribute is missing, the error says what they have in place
 * of another library's. */
PyObject *cudriver_getattro(PyObject *object, PyObject *name);

/* NULL: the keyword arguments of a type's call could not be read. Says what ours is called instead.
 */
PyObject *cudriver_keywords_refused(const char *kind, PyObject *keywords);

/* ---- waiting without the GIL: Ctrl-C ends it ---- */

/* The copy engine's `interrupted`, called without the GIL. `data`: the saved thread state. */
bool cudriver_signal_arrived(void *data);

/* Waits while query(handle) returns NOT_READY, as cudriver_staging_poll does. 0, or -1 with an
 * exception set: a signal handler's, or one that names `function`. */
int cudriver_wait(CUresult (*query)(void *handle), void *handle, const char *function);

#endif
