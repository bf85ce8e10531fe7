/* DeviceArray: creation, views, checks, lifetime, and its end of a copy. See device_array.h. */
#include "device_array.h"

#include <string.h>

#include "contexts/batch.h"
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
    Py_ssize_t bytes = cudriver_shape_bytes(ndim, shape, itemsize);
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
    self->dtype = Py_NewRef(dtype);
    self->itemsize = itemsize;
    memcpy(self->shape, shape, (size_t)ndim * sizeof *shape);
    cudriver_shape_strides(ndim, shape, itemsize, false, self->strides);
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

PyObject *cudriver_device_array_over(CoreState *state, const struct cudriver_endpoint *end,
                                     PyObject *lender, bool read_only)
{
    DeviceArrayObject *self = array_alloc(state, end->ndim);

    if (self == NULL) {
        return NULL;
    }
    self->dtype = Py_NewRef(end->dtype);
    self->itemsize = (Py_ssize_t)end->itemsize;
    self->address = end->device;
    self->read_only = read_only;
    self->lender = Py_NewRef(lender);
    memcpy(self->shape, end->shape, (size_t)end->ndim * sizeof *end->shape);
    memcpy(self->strides, end->strides, (size_t)end->ndim * sizeof *end->strides);
    self->context = (ContextObject *)Py_NewRef((PyObject *)end->context);
    self->context->children++;
    return (PyObject *)self;
}

/* ---- basic indexing: integers, slices, ... and None, as NumPy defines them ---- */

/* Adds a dimension to the result. 0 or -1. */
static int view_append(struct cudriver_device_view *view, Py_ssize_t length, Py_ssize_t stride)
{
    if (view->ndim == CUDRIVER_MAX_DIMS) {
        PyErr_Format(PyExc_IndexError, "more than %d dimensions", CUDRIVER_MAX_DIMS);
        return -1;
    }
    view->shape[view->ndim] = length;
    view->strides[view->ndim] = stride;
    view->ndim++;
    return 0;
}

static int apply_slice(DeviceArrayObject *of, int axis, PyObject *item,
                       struct cudriver_device_view *view)
{
    Py_ssize_t start, stop, step, length, stride;

    if (PySlice_Unpack(item, &start, &stop, &step) < 0) {
        return -1;
    }
    length = PySlice_AdjustIndices(of->shape[axis], &start, &stop, step);
    if (length > 0) {
        view->address += (CUdeviceptr)(start * of->strides[axis]);
    }
    /* As in NumPy, the stride is multiplied by the step for one item too, but not for none. If the
     * product overflows, there is only one item and the stride does not matter. */
    if (length == 0 || __builtin_mul_overflow(of->strides[axis], step, &stride)) {
        stride = of->strides[axis];
    }
    return view_append(view, length, stride);
}

static void index_refuse(PyObject *item)
{
    PyErr_Format(PyExc_IndexError,
                 "a DeviceArray takes integers, slices, ... and None as indices, not %.100s",
                 Py_TYPE(item)->tp_name);
}

static int apply_integer(DeviceArrayObject *of, int axis, PyObject *item,
                         struct cudriver_device_view *view)
{
    Py_ssize_t index = PyNumber_AsSsize_t(item, PyExc_IndexError);

    if (index == -1 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) { /* an array of indices, or of booleans */
            index_refuse(item);
        }
        return -1;
    }
    if (index < -of->shape[axis] || index >= of->shape[axis]) {
        PyErr_Format(PyExc_IndexError, "index %zd is out of bounds for axis %d with size %zd",
                     index, axis, of->shape[axis]);
        return -1;
    }
    view->address +=
        (CUdeviceptr)((index < 0 ? index + of->shape[axis] : index) * of->strides[axis]);
    return 0;
}

/* How many axes the key's items consume, or -1. *ellipsis: the index of `...`, or -1. */
static int key_count(PyObject *const *items, Py_ssize_t count, Py_ssize_t *ellipsis)
{
    int axes = 0;

    *ellipsis = -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (items[i] == Py_Ellipsis) {
            if (*ellipsis >= 0) {
                PyErr_SetString(PyExc_IndexError,
                                "an index can only have a single ellipsis ('...')");
                return -1;
            }
            *ellipsis = i;
        } else if (PySlice_Check(items[i]) || (PyIndex_Check(items[i]) && !PyBool_Check(items[i]) &&
                                               !cudriver_numpy_is_bool(items[i]))) {
            axes++;
        } else if (items[i] != Py_None) {
            index_refuse(items[i]);
            return -1;
        }
    }
    return axes;
}

PyObject *cudriver_device_array_view(CoreState *state, DeviceArrayObject *of,
                                     const struct cudriver_device_view *view)
{
    DeviceArrayObject *self = array_alloc(state, view->ndim);

    if (self == NULL) {
        return NULL;
    }
    self->dtype = Py_NewRef(of->dtype);
    self->itemsize = of->itemsize;
    self->address = view->address;
    self->read_only = of->read_only;
    self->root = (DeviceArrayObject *)Py_NewRef((PyObject *)cudriver_device_array_root(of));
    self->root->views++;
    self->context = (ContextObject *)Py_NewRef((PyObject *)of->context);
    memcpy(self->shape, view->shape, (size_t)view->ndim * sizeof *view->shape);
    memcpy(self->strides, view->strides, (size_t)view->ndim * sizeof *view->strides);
    return (PyObject *)self;
}

PyObject *cudriver_device_array_subscript(PyObject *object, PyObject *key)
{
    DeviceArrayObject *self = array_of(object);
    PyObject *const *items = PyTuple_Check(key) ? ((PyTupleObject *)key)->ob_item : &key;
    Py_ssize_t count = PyTuple_Check(key) ? PyTuple_GET_SIZE(key) : 1, ellipsis;
    int axes = key_count(items, count, &ellipsis), axis = 0, failed = 0;
    struct cudriver_device_view view = {.address = self->address};

    if (axes < 0) {
        return NULL;
    }
    if (axes > self->ndim) {
        PyErr_Format(PyExc_IndexError,
                     "too many indices: the array is %d-dimensional, but %d were indexed",
                     self->ndim, axes);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count && failed == 0; i++) {
        if (i == ellipsis) {
            for (int left = self->ndim - axes; left > 0 && failed == 0; left--, axis++) {
                failed = view_append(&view, self->shape[axis], self->strides[axis]);
            }
        } else if (items[i] == Py_None) {
            failed = view_append(&view, 1, 0);
        } else if (PySlice_Check(items[i])) {
            failed = apply_slice(self, axis++, items[i], &view);
        } else {
            failed = apply_integer(self, axis++, items[i], &view);
        }
    }
    for (; axis < self->ndim && failed == 0; axis++) {
        failed = view_append(&view, self->shape[axis], self->strides[axis]);
    }
    if (failed != 0) {
        return NULL;
    }
    return cudriver_device_array_view(cudriver_state_of(object), self, &view);
}

/* ---- the end ---- */

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
    Py_CLEAR(self->lender); /* runs another library's code */
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
            PyErr_Format(PyExc_ValueError,
                         "cannot close %R: a running call, or a graph that copies it, uses its "
                         "memory",
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
    if (self->exports > 0) {
        PyErr_Format(PyExc_ValueError,
                     "cannot close %R: another library's array uses its memory (exported %zd "
                     "time%s by DLPack)",
                     object, self->exports, self->exports == 1 ? "" : "s");
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
    cudriver_endpoint_clear(end);
    end->owner = Py_NewRef(object);
    end->dtype = Py_NewRef(self->dtype);
    end->context = (ContextObject *)Py_NewRef((PyObject *)self->context);
    end->device = self->address;
    end->busy = &cudriver_device_array_root(self)->busy; /* forbids close() until released */
    ++*end->busy;
    cudriver_device_settle(self->context, &cudriver_device_array_root(self)->block);
    end->itemsize = (size_t)self->itemsize;
    end->ndim = self->ndim;
    for (int i = 0; i < self->ndim; i++) { /* few: faster than two calls of memcpy */
        end->shape[i] = self->shape[i];
        end->strides[i] = self->strides[i];
    }
    return 0;
}

bool cudriver_device_array_uses(CoreState *state, PyObject *owner, const void *root)
{
    return Py_IS_TYPE(owner, state->device_array_type) &&
           cudriver_device_array_root(array_of(owner)) == root;
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
               : cudriver_batches_await(state, cudriver_device_array_uses, root);
}
