/* The access to NumPy. See numpy_bridge.h. */
#include "numpy_bridge.h"

#include <stdatomic.h>

#include "call.h"

#define CUDRIVER_NUMPY_IS_IMPORTED_HERE
#include "numpy_api.h"

#if NPY_ABI_VERSION < 0x02000000
#error "cudriver is built with NumPy 2; it then runs with NumPy 1.26 too"
#endif

/* Whether NumPy's C API is imported; per process, like NumPy's own table. */
static atomic_bool imported;

int cudriver_numpy_require(void)
{
    if (imported) {
        return 0;
    }
    PyObject *core = PyImport_ImportModule("cudriver.memory.numpy_core");
    if (core == NULL) {
        return -1;
    }
    Py_DECREF(core);
    if (_import_array() < 0) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ImportError, "NumPy's C API could not be imported");
        }
        return -1;
    }
    imported = true;
    return 0;
}

bool cudriver_numpy_is_array(PyObject *object)
{
    if (cudriver_numpy_require() < 0) {
        PyErr_Clear(); /* what needs NumPy says so */
        return false;
    }
    return PyArray_Check(object);
}

/* Whether a dtype holds Python objects; if so, sets TypeError. */
static bool holds_objects(PyArray_Descr *descr)
{
    if (PyDataType_REFCHK(descr)) {
        PyErr_Format(PyExc_TypeError,
                     "dtype %S holds Python objects, which have no place in memory that "
                     "a device reads",
                     descr);
        return true;
    }
    return false;
}

bool cudriver_numpy_is_integer(PyObject *object)
{
    return PyArray_IsScalar(object, Integer);
}

int cudriver_numpy_dtype(PyObject *argument, PyObject **dtype, Py_ssize_t *itemsize)
{
    PyArray_Descr *descr = NULL;

    *dtype = NULL;
    if (cudriver_numpy_require() < 0 || !PyArray_DescrConverter(argument, &descr)) {
        return -1;
    }
    if (holds_objects(descr)) {
        Py_DECREF(descr);
        return -1;
    }
    if (PyDataType_ELSIZE(descr) == 0 && PyTypeNum_ISSTRING(descr->type_num)) {
        PyArray_DESCR_REPLACE(descr); /* as np.empty does: 'S' and 'U' mean one character */
        if (descr == NULL) {
            return -1;
        }
        PyDataType_SET_ELSIZE(descr, descr->type_num == NPY_UNICODE ? 4 : 1);
    }
    *dtype = (PyObject *)descr;
    *itemsize = (Py_ssize_t)PyDataType_ELSIZE(descr);
    return 0;
}

int cudriver_numpy_shape(PyObject *argument, int *ndim, Py_ssize_t *shape)
{
    PyArray_Dims lengths = {NULL, 0};
    PyObject *given;
    int good;

    if (cudriver_numpy_require() < 0) {
        return -1;
    }
    if (argument == Py_None) { /* NumPy before 2.0 takes it for () */
        PyErr_SetString(PyExc_TypeError,
                        "expected a sequence of integers or a single integer, got 'None'");
        return -1;
    }
    /* A copy of a list: reading an item may run code that changes it. */
    given = PyList_Check(argument) ? PyList_AsTuple(argument) : Py_NewRef(argument);
    good = given != NULL && PyArray_IntpConverter(given, &lengths);
    Py_XDECREF(given);
    if (!good) {
        return -1;
    }
    *ndim = lengths.len;
    for (int i = 0; i < lengths.len; i++) {
        shape[i] = lengths.ptr[i];
    }
    PyDimMem_FREE(lengths.ptr);
    return 0;
}

Py_ssize_t cudriver_numpy_bytes(int ndim, const Py_ssize_t *shape, Py_ssize_t itemsize)
{
    Py_ssize_t bytes = itemsize;
    bool empty = false, over = false;

    for (int i = 0; i < ndim; i++) {
        if (shape[i] < 0) {
            PyErr_Format(PyExc_ValueError, "negative dimensions are not allowed: %zd", shape[i]);
            return -1;
        }
        empty |= shape[i] == 0;
        over |= __builtin_mul_overflow(bytes, shape[i], &bytes);
    }
    if (over && !empty) {
        return cudriver_do(CALL_refusals_size, cudriver_numpy_tuple(ndim, shape), itemsize);
    }
    return empty ? 0 : bytes;
}

PyObject *cudriver_numpy_tuple(int count, const Py_ssize_t *values)
{
    return PyArray_IntTupleFromIntp(count, (const npy_intp *)values);
}

bool cudriver_numpy_same_dtype(PyObject *first, PyObject *second)
{
    return PyArray_EquivTypes((PyArray_Descr *)first, (PyArray_Descr *)second);
}

bool cudriver_numpy_has_fields(PyObject *dtype)
{
    return PyDataType_HASFIELDS((PyArray_Descr *)dtype);
}

PyObject *cudriver_numpy_hold(PyObject *array)
{
    PyObject *base = array, *held, *both;

    while (base != NULL && PyArray_Check(base)) {
        base = PyArray_BASE((PyArrayObject *)base);
    }
    if (base == NULL || !PyObject_CheckBuffer(base)) {
        return Py_NewRef(array);
    }
    held = PyMemoryView_FromObject(base);
    if (held == NULL && PyErr_ExceptionMatches(PyExc_BufferError)) {
        PyErr_Clear(); /* it has memory of which it lends no such view */
        return Py_NewRef(array);
    }
    both = held != NULL ? PyTuple_Pack(2, array, held) : NULL;
    Py_XDECREF(held);
    return both;
}

int cudriver_numpy_endpoint(PyObject *object, PyObject *owner, struct cudriver_endpoint *end)
{
    PyArrayObject *array = (PyArrayObject *)object;
    PyArray_Descr *descr = PyArray_DESCR(array);

    if (PyDataType_REFCHK(descr) && holds_objects(descr)) {
        return -1;
    }
    cudriver_endpoint_clear(end);
    end->owner = object == owner ? cudriver_numpy_hold(object) : Py_NewRef(owner);
    if (end->owner == NULL) {
        return -1;
    }
    end->dtype = Py_NewRef((PyObject *)descr);
    end->host = PyArray_BYTES(array);
    end->read_only = !PyArray_ISWRITEABLE(array);
    end->itemsize = (size_t)PyArray_ITEMSIZE(array);
    end->ndim = PyArray_NDIM(array);
    for (int i = 0; i < end->ndim; i++) {
        end->shape[i] = PyArray_DIM(array, i);
        end->strides[i] = PyArray_STRIDE(array, i);
    }
    return 0;
}

PyObject *cudriver_numpy_over(PyObject *owner, void *address, PyObject *dtype, int ndim,
                              const Py_ssize_t *shape, const Py_ssize_t *strides, bool fortran,
                              bool writable)
{
    static char nothing; /* for an empty array at NULL, NumPy would allocate */
    int flags = (writable ? NPY_ARRAY_WRITEABLE : 0) | (fortran ? NPY_ARRAY_F_CONTIGUOUS : 0);
    PyObject *array;

    Py_INCREF(dtype); /* PyArray_NewFromDescr takes a reference */
    array = PyArray_NewFromDescr(&PyArray_Type, (PyArray_Descr *)dtype, ndim, (npy_intp *)shape,
                                 (npy_intp *)strides, address != NULL ? address : &nothing, flags,
                                 NULL);
    if (array == NULL || owner == NULL) {
        return array;
    }
    Py_INCREF(owner);
    if (PyArray_SetBaseObject((PyArrayObject *)array, owner) < 0) { /* takes it even on failure */
        Py_DECREF(array);
        return NULL;
    }
    return array;
}

bool cudriver_numpy_is_writable(PyObject *array)
{
    return PyArray_ISWRITEABLE((PyArrayObject *)array);
}

const int64_t *cudriver_numpy_int64(PyObject *object, Py_ssize_t *count)
{
    PyArrayObject *array;

    if (cudriver_numpy_require() < 0) {
        return NULL;
    }
    array = PyArray_Check(object) ? (PyArrayObject *)object : NULL;
    if (array == NULL || PyArray_TYPE(array) != NPY_INT64 || PyArray_NDIM(array) != 1 ||
        !PyArray_ISCARRAY_RO(array)) {
        PyErr_Format(PyExc_TypeError, "expected a dense int64 array of one dimension, not %.100s",
                     Py_TYPE(object)->tp_name);
        return NULL;
    }
    *count = PyArray_DIM(array, 0);
    return (const int64_t *)PyArray_BYTES(array);
}
