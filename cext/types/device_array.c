/* DeviceArray: creation, checks, lifetime, and its end of a copy. See device_array.h. */
#include "device_array.h"

#include <string.h>

#include "batch.h"
#include "python/error.h"
#include "python/numpy_bridge.h"
#include "python/shape.h"

static DeviceArrayObject *array_of(PyObject *object)
{
    return (DeviceArrayObject *)object;
}

/* A zeroed object with room for its shape and strides. */
static DeviceArrayObject *array_alloc(CoreState *state, int ndim)
{
    PyTypeObject *type = state->device_array_type;
    DeviceArrayObject *self = (DeviceArrayObject *)type->tp_alloc(type, 0);

    if (self == NULL) {
        return NULL;
    }
    self->ndim = ndim;
    self->shape = self->inlined;
    if (2 * (size_t)ndim > sizeof self->inlined / sizeof self->inlined[0]) {
        self->shape = PyMem_Calloc(2 * (size_t)ndim, sizeof *self->shape);
        if (self->shape == NULL) {
            self->shape = self->inlined;
            Py_DECREF(self);
            return (DeviceArrayObject *)PyErr_NoMemory();
        }
    }
    self->strides = self->shape + ndim;
    return self;
}

PyObject *cudriver_device_array_new(CoreState *state, ContextObject *context, StreamObject *stream,
                                    PyObject *dtype, Py_ssize_t itemsize, int ndim,
                                    const Py_ssize_t *shape)
{
    Py_ssize_t bytes = cudriver_shape_bytes(ndim, shape, itemsize), stride = itemsize;
    DeviceArrayObject *self;
    bool pushed;
    int failed;

    if (bytes < 0) {
        return NULL;
    }
    self = array_alloc(state, ndim);
    if (self == NULL) {
        return NULL;
    }
    self->dtype = cudriver_numpy_plain_dtype(dtype);
    if (self->dtype == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    self->itemsize = itemsize;
    for (int i = ndim - 1; i >= 0; i--) {
        self->shape[i] = shape[i];
        self->strides[i] = stride;
        stride *= shape[i] > 0 ? shape[i] : 1;
    }
    if (cudriver_context_begin(state, context, &pushed) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    failed = cudriver_device_alloc(state, context, stream, (size_t)bytes, &self->block);
    cudriver_context_end(context, pushed);
    if (failed < 0) {
        Py_DECREF(self);
        return NULL;
    }
    self->address = self->block.address;
    self->context = (ContextObject *)Py_NewRef((PyObject *)context);
    context->children++;
    cudriver_live_add(state, &self->live, "device array", (size_t)bytes, self->address,
                      context->ordinal);
    return (PyObject *)self;
}

PyObject *cudriver_device_view_new(CoreState *state, DeviceArrayObject *of, CUdeviceptr address,
                                   int ndim, const Py_ssize_t *shape, const Py_ssize_t *strides)
{
    DeviceArrayObject *self = array_alloc(state, ndim);

    if (self == NULL) {
        return NULL;
    }
    self->dtype = Py_NewRef(of->dtype);
    self->itemsize = of->itemsize;
    self->address = address;
    self->root = (DeviceArrayObject *)Py_NewRef((PyObject *)cudriver_device_array_root(of));
    self->root->views++;
    self->context = (ContextObject *)Py_NewRef((PyObject *)of->context);
    memcpy(self->shape, shape, (size_t)ndim * sizeof *shape);
    memcpy(self->strides, strides, (size_t)ndim * sizeof *strides);
    return (PyObject *)self;
}

/* Shared by close() and dealloc. */
static CUresult array_release(CoreState *state, DeviceArrayObject *self, const char **function)
{
    CUresult result;

    *function = "";
    if (self->closed || self->root != NULL) {
        return CUDA_SUCCESS;
    }
    self->closed = true;
    if (self->context == NULL) {
        return CUDA_SUCCESS;
    }
    cudriver_live_remove(state, &self->live);
    result = cudriver_device_free(self->context, &self->block, function);
    self->context->children--;
    return result;
}

void cudriver_device_array_dealloc(PyObject *object)
{
    DeviceArrayObject *self = array_of(object);
    CoreState *state = cudriver_state_of(object);
    PyTypeObject *type = Py_TYPE(object);
    const char *function;
    CUresult result;

    if (self->weak != NULL) {
        PyObject_ClearWeakRefs(object);
    }
    result = array_release(state, self, &function);
    cudriver_report(state, result, function, NULL);
    if (self->shape != self->inlined) {
        PyMem_Free(self->shape);
    }
    Py_XDECREF(self->dtype);
    Py_XDECREF(self->context);
    if (self->root != NULL) {
        self->root->views--;
        Py_DECREF(self->root);
    }
    type->tp_free(object);
    Py_DECREF(type);
}

PyObject *cudriver_device_array_close(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    DeviceArrayObject *self = array_of(object);
    CoreState *state = cudriver_state_of(object);
    const char *function;
    CUresult result;

    if (self->root != NULL) {
        PyErr_Format(PyExc_ValueError, "%R is a view: close the array that owns the memory",
                     object);
        return NULL;
    }
    cudriver_batches_reap(state, true); /* a completed copy may hold the last view */
    if (self->views > 0 || self->busy > 0) {
        bool busy = self->busy > 0;
        if (self->views == 0) {
            PyErr_Format(PyExc_ValueError, "cannot close %R: a running call uses its memory",
                         object);
        } else {
            PyErr_Format(PyExc_ValueError, "cannot close %R: %zd view%s%s its memory", object,
                         self->views, self->views == 1 ? "" : "s",
                         busy               ? " and a running call use"
                         : self->views == 1 ? " uses"
                                            : " use");
        }
        return NULL;
    }
    if (Py_REFCNT(object) > 1 && cudriver_batches_hold(state, object)) {
        PyErr_Format(PyExc_ValueError,
                     "cannot close %R: an asynchronous copy uses it; wait() for that first",
                     object);
        return NULL;
    }
    result = array_release(state, self, &function);
    if (result != CUDA_SUCCESS) {
        return cudriver_raise(state, result, function, "0x%llx", (unsigned long long)self->address);
    }
    Py_RETURN_NONE;
}

int cudriver_device_array_check(CoreState *state, DeviceArrayObject *self)
{
    if (cudriver_device_array_root(self)->closed) {
        PyErr_Format(PyExc_ValueError, "%R is closed", self);
        return -1;
    }
    return cudriver_context_check(state, self->context);
}

int cudriver_device_array_endpoint(CoreState *state, PyObject *object,
                                   struct cudriver_endpoint *end)
{
    DeviceArrayObject *self = array_of(object);

    if (cudriver_device_array_check(state, self) < 0) {
        return -1;
    }
    end->owner = Py_NewRef(object);
    end->dtype = Py_NewRef(self->dtype);
    end->context = (ContextObject *)Py_NewRef((PyObject *)self->context);
    end->host = NULL;
    end->device = self->address;
    end->busy = &cudriver_device_array_root(self)->busy; /* forbids close() until released */
    ++*end->busy;
    cudriver_device_settle(self->context, &cudriver_device_array_root(self)->block);
    end->itemsize = (size_t)self->itemsize;
    end->ndim = self->ndim;
    for (int i = 0; i < self->ndim; i++) {
        end->shape[i] = self->shape[i];
        end->strides[i] = self->strides[i];
    }
    return 0;
}

static bool owner_uses(CoreState *state, PyObject *owner, const void *memory)
{
    return Py_IS_TYPE(owner, state->device_array_type) &&
           &cudriver_device_array_root(array_of(owner))->busy == memory;
}

int cudriver_device_array_await(CoreState *state, const Py_ssize_t *busy)
{
    DeviceArrayObject *root;

    if (busy == NULL) {
        return 0;
    }
    root = (DeviceArrayObject *)((char *)(uintptr_t)busy - offsetof(DeviceArrayObject, busy));
    return cudriver_device_reach(state, root->context, &root->block) < 0
               ? -1
               : cudriver_batches_await(state, owner_uses, busy);
}
