/* What only Python asks of the driver: `_call` calls a function by its name. */
#include "context.h"

#include <string.h>

#include "driver/driver.h"
#include "event.h"
#include "python/error.h"
#include "docstrings.h"

#define WORDS 4 /* the most arguments, each a number or a pointer */

/* The argument as an Event, whose handle is meant; NULL: it is something else. Borrowed. */
static EventObject *event_given(const CoreState *state, PyObject *item)
{
    return Py_IS_TYPE(item, state->event_type) ? (EventObject *)item : NULL;
}

/* Counts the call, or no longer, among the users of each Event, which forbids its close(). */
static void events_use(const CoreState *state, PyObject *arguments, int calls)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arguments); i++) {
        EventObject *event = event_given(state, PyTuple_GET_ITEM(arguments, i));
        if (event != NULL) {
            event->users += calls;
        }
    }
}

/* Reads the arguments of a driver function. 0, or -1 with an exception set. */
static int words_read(const CoreState *state, PyObject *arguments, uintptr_t *words)
{
    if (PyTuple_GET_SIZE(arguments) > WORDS) {
        PyErr_Format(PyExc_ValueError, "more than %d arguments", WORDS);
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arguments); i++) {
        PyObject *item = PyTuple_GET_ITEM(arguments, i);
        EventObject *event = event_given(state, item);
        if (event != NULL && cudriver_event_check(event) < 0) {
            return -1;
        }
        words[i] = event != NULL                  ? (uintptr_t)event->handle
                   : PyByteArray_CheckExact(item) ? (uintptr_t)PyByteArray_AS_STRING(item)
                   : PyBytes_CheckExact(item)     ? (uintptr_t)PyBytes_AS_STRING(item)
                                                  : (uintptr_t)PyLong_AsUnsignedLongLong(item);
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* _call(context or None, function, shown, arguments). A function leaves alone what it has no
 * argument for: each has a register of its own. */
static PyObject *module_call(PyObject *module, PyObject *args)
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of_module(module);
    CUresult (*function)(uintptr_t, uintptr_t, uintptr_t, uintptr_t);
    uintptr_t words[WORDS] = {0};
    PyObject *given, *arguments;
    const char *name, *shown;
    ContextObject *context;
    bool pushed = false;
    CUresult result = CUDA_ERROR_NOT_FOUND;
    void *address;

    if (!PyArg_ParseTuple(args, "OssO!", &given, &name, &shown, &PyTuple_Type, &arguments) ||
        words_read(state, arguments, words) < 0) {
        return NULL;
    }
    events_use(state, arguments, 1);
    context = Py_IS_TYPE(given, state->context_type) ? (ContextObject *)given : NULL;
    if (cudriver_require() < 0 ||
        (context != NULL && cudriver_context_begin(state, context, &pushed) < 0)) {
        events_use(state, arguments, -1);
        return NULL;
    }
    address = cudriver_driver_function(name);
    memcpy(&function, &address, sizeof function);
    Py_BEGIN_ALLOW_THREADS
    if (function != NULL) {
        result = function(words[0], words[1], words[2], words[3]);
    }
    Py_END_ALLOW_THREADS
    if (context != NULL) {
        cudriver_context_end(context, pushed);
    }
    events_use(state, arguments, -1);
    return cudriver_check(result, name, "%s", shown) < 0 ? NULL : Py_NewRef(Py_None);
}

PyMethodDef cudriver_query_functions[] = {
    {"_call", module_call, METH_VARARGS, DOC__call},
    {NULL},
};
