/* What Context.limits, a mapping in Python (cudriver/_limits.py), asks of the driver. */
#include "context_private.h"

#include <stdio.h>

#include "driver/driver.h"
#include "python/shape.h"

/* _limit(name, number): its value. */
PyObject *cudriver_context_get_limit(PyObject *object, PyObject *args)
{
    CoreState *state = cudriver_state_of(object);
    ContextObject *self = (ContextObject *)object;
    const char *name;
    size_t value = 0;
    bool pushed;
    int number;

    if (!PyArg_ParseTuple(args, "si", &name, &number) ||
        cudriver_context_begin(state, self, &pushed) < 0 ||
        cudriver_context_finish(state, self, pushed, cuda.cuCtxGetLimit(&value, (CUlimit)number),
                                "cuCtxGetLimit", "%s", name) < 0) {
        return NULL;
    }
    return PyLong_FromSize_t(value);
}

/* _set_limit(name, number, value) */
PyObject *cudriver_context_set_limit(PyObject *object, PyObject *args)
{
    CoreState *state = cudriver_state_of(object);
    ContextObject *self = (ContextObject *)object;
    const char *name;
    char meaning[128];
    PyObject *argument;
    CUresult result;
    size_t value;
    bool pushed;
    int number;

    if (!PyArg_ParseTuple(args, "siO", &name, &number, &argument)) {
        return NULL;
    }
    snprintf(meaning, sizeof meaning, "the limit %s is an int from 0 to 2**64 - 1", name);
    if (cudriver_size_parse(argument, meaning, &value) < 0 ||
        cudriver_context_begin(state, self, &pushed) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    result = cuda.cuCtxSetLimit((CUlimit)number, value);
    Py_END_ALLOW_THREADS
    if (cudriver_context_finish(state, self, pushed, result, "cuCtxSetLimit", "%s, %zu", name,
                                value) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *cudriver_context_limits(PyObject *object, void *Py_UNUSED(closure))
{
    PyObject *module = PyImport_ImportModule("cudriver._limits"), *limits;

    if (module == NULL) {
        return NULL;
    }
    limits = PyObject_CallMethod(module, "ContextLimits", "O", object);
    Py_DECREF(module);
    return limits;
}
