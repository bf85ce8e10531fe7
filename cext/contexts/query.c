/* What only Python asks of the driver: `_call` calls a function by its name. */
#include "event.h"

#include <string.h>

#include "driver/driver.h"
#include "python/error.h"
#include "docstrings.h"

#define WORDS 4 /* the most arguments, each a number or a pointer */

/* Adds `calls`, 1 or -1, to the users of each Event and Stream in the arguments: while it has any,
 * its close() is refused. */
static void users_count(const CoreState *state, PyObject *arguments, int calls)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arguments); i++) {
        PyObject *item = PyTuple_GET_ITEM(arguments, i);
        if (Py_IS_TYPE(item, state->event_type)) {
            ((EventObject *)item)->users.calls += calls;
        } else if (Py_IS_TYPE(item, state->stream_type)) {
            ((StreamObject *)item)->users.calls += calls;
        }
    }
}

/* Reads an argument: an Event or a Stream, whose handle is meant, a buffer, or a number. 0, or -1
 * with an exception set. */
static int word_read(const CoreState *state, PyObject *item, uintptr_t *word)
{
    if (Py_IS_TYPE(item, state->event_type)) {
        *word = (uintptr_t)((EventObject *)item)->handle;
        return cudriver_open_check(item, ((EventObject *)item)->closed);
    }
    if (Py_IS_TYPE(item, state->stream_type)) {
        *word = (uintptr_t)((StreamObject *)item)->handle;
        return cudriver_open_check(item, ((StreamObject *)item)->closed);
    }
    *word = PyByteArray_CheckExact(item) ? (uintptr_t)PyByteArray_AS_STRING(item)
            : PyBytes_CheckExact(item)   ? (uintptr_t)PyBytes_AS_STRING(item)
                                         : (uintptr_t)PyLong_AsUnsignedLongLong(item);
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

    if (!PyArg_ParseTuple(args, "OssO!", &given, &name, &shown, &PyTuple_Type, &arguments)) {
        return NULL;
    }
    if (PyTuple_GET_SIZE(arguments) > WORDS) {
        return PyErr_Format(PyExc_ValueError, "more than %d arguments", WORDS);
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arguments); i++) {
        if (word_read(state, PyTuple_GET_ITEM(arguments, i), &words[i]) < 0) {
            return NULL;
        }
    }
    users_count(state, arguments, 1);
    context = Py_IS_TYPE(given, state->context_type) ? (ContextObject *)given : NULL;
    if (cudriver_require() < 0 ||
        (context != NULL && cudriver_context_begin(state, context, &pushed) < 0)) {
        users_count(state, arguments, -1);
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
    users_count(state, arguments, -1);
    return cudriver_none(cudriver_check(result, name, "%s", shown));
}

PyMethodDef cudriver_query_functions[] = {
    {"_call", module_call, METH_VARARGS, DOC__call},
    {NULL},
};
