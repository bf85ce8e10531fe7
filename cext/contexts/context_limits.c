/* The mapping Context.limits. */
#include "context.h"

#include <stdio.h>

#include "driver/driver.h"
#include "python/error.h"
#include "python/shape.h"

typedef struct {
    PyObject_HEAD
    ContextObject *context; /* owned */
} LimitsObject;

static const struct {
    const char *name;
    CUlimit limit;
} limits[] = {
    {"stack_size", CU_LIMIT_STACK_SIZE},
    {"printf_fifo_size", CU_LIMIT_PRINTF_FIFO_SIZE},
    {"malloc_heap_size", CU_LIMIT_MALLOC_HEAP_SIZE},
    {"dev_runtime_sync_depth", CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH},
    {"dev_runtime_pending_launch_count", CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT},
    {"max_l2_fetch_granularity", CU_LIMIT_MAX_L2_FETCH_GRANULARITY},
    {"persisting_l2_cache_size", CU_LIMIT_PERSISTING_L2_CACHE_SIZE},
};

#define LIMIT_COUNT ((Py_ssize_t)(sizeof limits / sizeof limits[0]))

PyObject *cudriver_limits_new(CoreState *state, ContextObject *context)
{
    LimitsObject *self = (LimitsObject *)state->limits_type->tp_alloc(state->limits_type, 0);

    if (self != NULL) {
        self->context = (ContextObject *)Py_NewRef((PyObject *)context);
    }
    return (PyObject *)self;
}

static void limits_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);

    Py_XDECREF(((LimitsObject *)self)->context);
    type->tp_free(self);
    Py_DECREF(type);
}

/* The index of a limit's name; -1 with KeyError set. */
static Py_ssize_t limit_find(PyObject *key)
{
    for (Py_ssize_t i = 0; PyUnicode_Check(key) && i < LIMIT_COUNT; i++) {
        if (PyUnicode_CompareWithASCIIString(key, limits[i].name) == 0) {
            return i;
        }
    }
    PyErr_SetObject(PyExc_KeyError, key);
    return -1;
}

/* Reads a limit; returns the driver's code for one that the device does not have. *failed: an
 * exception is set. */
static CUresult limit_read(LimitsObject *self, Py_ssize_t index, size_t *value, bool *failed)
{
    CoreState *state = cudriver_state_of((PyObject *)self);
    CUresult result;
    bool pushed;

    *failed = cudriver_context_begin(state, self->context, &pushed) < 0;
    if (*failed) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    result = cuda.cuCtxGetLimit(value, limits[index].limit);
    cudriver_context_end(self->context, pushed);
    return result;
}

static PyObject *limits_get(PyObject *self, PyObject *key)
{
    Py_ssize_t index = limit_find(key);
    CUresult result;
    bool failed;
    size_t value;

    if (index < 0) {
        return NULL;
    }
    result = limit_read((LimitsObject *)self, index, &value, &failed);
    if (failed) {
        return NULL;
    }
    if (result != CUDA_SUCCESS) {
        return cudriver_raise(cudriver_state_of(self), result, "cuCtxGetLimit", "%s",
                              limits[index].name);
    }
    return PyLong_FromSize_t(value);
}

static int limits_set(PyObject *object, PyObject *key, PyObject *value)
{
    LimitsObject *self = (LimitsObject *)object;
    CoreState *state = cudriver_state_of(object);
    Py_ssize_t index = limit_find(key);
    char meaning[128];
    CUresult result;
    size_t number;
    bool pushed;

    if (index < 0) {
        return -1;
    }
    if (value == NULL) {
        PyErr_SetString(PyExc_TypeError, "a limit can be set, not deleted");
        return -1;
    }
    snprintf(meaning, sizeof meaning, "the limit %s is an int from 0 to 2**64 - 1",
             limits[index].name);
    if (cudriver_size_parse(value, meaning, &number) < 0 ||
        cudriver_context_begin(state, self->context, &pushed) < 0) {
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    result = cuda.cuCtxSetLimit(limits[index].limit, number);
    Py_END_ALLOW_THREADS
    return cudriver_context_finish(state, self->context, pushed, result, "cuCtxSetLimit", "%s, %zu",
                                   limits[index].name, number);
}

/* New reference: a dict of the limits that this device has. */
static PyObject *limits_dict(PyObject *self)
{
    PyObject *dict = PyDict_New();

    for (Py_ssize_t i = 0; dict != NULL && i < LIMIT_COUNT; i++) {
        bool failed;
        size_t value;
        CUresult result = limit_read((LimitsObject *)self, i, &value, &failed);
        PyObject *number = NULL;
        if (failed) {
            Py_CLEAR(dict);
        } else if (result == CUDA_SUCCESS) {
            number = PyLong_FromSize_t(value);
            if (number == NULL || PyDict_SetItemString(dict, limits[i].name, number) < 0) {
                Py_CLEAR(dict);
            }
            Py_XDECREF(number);
        }
    }
    return dict;
}

static Py_ssize_t limits_length(PyObject *self)
{
    PyObject *dict = limits_dict(self);
    Py_ssize_t length = dict != NULL ? PyDict_Size(dict) : -1;

    Py_XDECREF(dict);
    return length;
}

/* New reference: what `view` makes of that dict. */
static PyObject *limits_view(PyObject *self, PyObject *(*view)(PyObject *dict))
{
    PyObject *dict = limits_dict(self);
    PyObject *made = dict != NULL ? view(dict) : NULL;

    Py_XDECREF(dict);
    return made;
}

static PyObject *limits_iter(PyObject *self)
{
    return limits_view(self, PyObject_GetIter);
}

static PyObject *limits_repr(PyObject *self)
{
    ContextObject *context = ((LimitsObject *)self)->context;
    PyObject *dict, *text;

    if (context->state != CUDRIVER_CONTEXT_OPEN) {
        return PyUnicode_FromFormat("<limits of %R>", context);
    }
    dict = limits_dict(self);
    text = dict != NULL ? PyUnicode_FromFormat("<limits %R>", dict) : NULL;
    Py_XDECREF(dict);
    return text;
}

PyDoc_STRVAR(limits_keys_doc,
             "keys($self, /)\n"
             "--\n"
             "\n"
             "Return the names of the limits that this device has.\n"
             "\n"
             "Returns\n"
             "-------\n"
             "list of str\n"
             "    See `Context.limits`.");

static PyObject *limits_keys(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    return limits_view(self, PyDict_Keys);
}

PyDoc_STRVAR(limits_items_doc,
             "items($self, /)\n"
             "--\n"
             "\n"
             "Return the limits that this device has, with their values.\n"
             "\n"
             "Returns\n"
             "-------\n"
             "list of tuple\n"
             "    Pairs of name and value.\n"
             "\n"
             "Notes\n"
             "-----\n"
             "Uses ``cuCtxGetLimit``.");

static PyObject *limits_items(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    return limits_view(self, PyDict_Items);
}

static PyMethodDef limits_methods[] = {
    {"keys", limits_keys, METH_NOARGS, limits_keys_doc},
    {"items", limits_items, METH_NOARGS, limits_items_doc},
    {NULL},
};

static PyType_Slot limits_slots[] = {
    {Py_tp_doc, "The limits of a Context: a mapping of name to int; assignment sets one."},
    {Py_tp_dealloc, limits_dealloc},
    {Py_tp_repr, limits_repr},
    {Py_tp_iter, limits_iter},
    {Py_mp_subscript, limits_get},
    {Py_mp_ass_subscript, limits_set},
    {Py_mp_length, limits_length},
    {Py_tp_methods, limits_methods},
    {0, NULL},
};

static PyType_Spec limits_spec = {
    .name = "cudriver.ContextLimits",
    .basicsize = sizeof(LimitsObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = limits_slots,
};

int cudriver_limits_setup(PyObject *module)
{
    CoreState *state = cudriver_state_of_module(module);

    state->limits_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &limits_spec, NULL);
    return state->limits_type == NULL ? -1 : 0;
}
