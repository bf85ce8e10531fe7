/* See dlpack_types.h. */
#include "dlpack_types.h"

#include "numpy_bridge.h"

/* NumPy's own types come first: BUILT_IN of them. */
static const struct {
    uint8_t code, bits;
    const char *name; /* of NumPy's dtype, or in ml_dtypes */
} table[] = {
    {CUDRIVER_DL_FLOAT, 32, "float32"},
    {CUDRIVER_DL_FLOAT, 64, "float64"},
    {CUDRIVER_DL_FLOAT, 16, "float16"},
    {CUDRIVER_DL_INT, 64, "int64"},
    {CUDRIVER_DL_INT, 32, "int32"},
    {CUDRIVER_DL_INT, 16, "int16"},
    {CUDRIVER_DL_INT, 8, "int8"},
    {CUDRIVER_DL_UINT, 8, "uint8"},
    {CUDRIVER_DL_UINT, 16, "uint16"},
    {CUDRIVER_DL_UINT, 32, "uint32"},
    {CUDRIVER_DL_UINT, 64, "uint64"},
    {CUDRIVER_DL_BOOL, 8, "bool"},
    {CUDRIVER_DL_COMPLEX, 64, "complex64"},
    {CUDRIVER_DL_COMPLEX, 128, "complex128"},
#define BUILT_IN 14
    {CUDRIVER_DL_BFLOAT, 16, "bfloat16"},
    {CUDRIVER_DL_FLOAT8_E3M4, 8, "float8_e3m4"},
    {CUDRIVER_DL_FLOAT8_E4M3, 8, "float8_e4m3"},
    {CUDRIVER_DL_FLOAT8_E4M3B11FNUZ, 8, "float8_e4m3b11fnuz"},
    {CUDRIVER_DL_FLOAT8_E4M3FN, 8, "float8_e4m3fn"},
    {CUDRIVER_DL_FLOAT8_E4M3FNUZ, 8, "float8_e4m3fnuz"},
    {CUDRIVER_DL_FLOAT8_E5M2, 8, "float8_e5m2"},
    {CUDRIVER_DL_FLOAT8_E5M2FNUZ, 8, "float8_e5m2fnuz"},
    {CUDRIVER_DL_FLOAT8_E8M0FNU, 8, "float8_e8m0fnu"},
    {CUDRIVER_DL_FLOAT6_E2M3FN, 6, "float6_e2m3fn"},
    {CUDRIVER_DL_FLOAT6_E3M2FN, 6, "float6_e3m2fn"},
    {CUDRIVER_DL_FLOAT4_E2M1FN, 4, "float4_e2m1fn"},
    {CUDRIVER_DL_INT, 2, "int2"},
    {CUDRIVER_DL_INT, 4, "int4"},
    {CUDRIVER_DL_UINT, 2, "uint2"},
    {CUDRIVER_DL_UINT, 4, "uint4"},
};

#define TYPES ((int)(sizeof table / sizeof table[0]))

/* A dtype of ml_dtypes. New reference; NULL with ImportError or AttributeError. */
static PyObject *ml_dtype(const char *name)
{
    PyObject *module = PyImport_ImportModule("ml_dtypes"), *type;

    if (module == NULL) {
        if (PyErr_ExceptionMatches(PyExc_ImportError)) {
            PyErr_Format(PyExc_ImportError,
                         "NumPy has no %s of its own: install ml_dtypes (pip install ml_dtypes)",
                         name);
        }
        return NULL;
    }
    type = PyObject_GetAttrString(module, name);
    if (type == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Format(PyExc_ImportError, "this ml_dtypes has no %s: install a newer one", name);
    }
    Py_DECREF(module);
    return type;
}

/* Borrowed: the dtype of a row, looked up once; NULL with an exception set. */
static PyObject *row_dtype(CoreState *state, int row)
{
    PyObject *known, *name, *dtype;
    Py_ssize_t itemsize;
    int failed;

    if (state->dlpack_dtypes == NULL) {
        state->dlpack_dtypes = PyTuple_New(TYPES);
        if (state->dlpack_dtypes == NULL) {
            return NULL;
        }
        PyObject_GC_UnTrack(state->dlpack_dtypes); /* it has holes, which nobody else must see */
    }
    known = PyTuple_GET_ITEM(state->dlpack_dtypes, row);
    if (known != NULL) {
        return known;
    }
    name = row < BUILT_IN ? PyUnicode_FromString(table[row].name) : ml_dtype(table[row].name);
    if (name == NULL) {
        return NULL;
    }
    failed = cudriver_numpy_dtype(name, &dtype, &itemsize);
    Py_DECREF(name);
    if (failed < 0) {
        return NULL;
    }
    known = PyTuple_GET_ITEM(state->dlpack_dtypes, row);
    if (known != NULL) { /* looking it up ran code that was here before us */
        Py_DECREF(dtype);
        return known;
    }
    PyTuple_SET_ITEM(state->dlpack_dtypes, row, dtype);
    return dtype;
}

/* Whether ml_dtypes is imported: else no dtype can be one of its. */
static bool ml_dtypes_is_imported(void)
{
    PyObject *modules = PyImport_GetModuleDict(); /* borrowed */

    return modules != NULL && PyDict_GetItemString(modules, "ml_dtypes") != NULL;
}

/* The row of a dtype; -1: none, or an exception. */
static int row_of(CoreState *state, PyObject *dtype)
{
    int last = BUILT_IN;

    for (int i = 0; state->dlpack_dtypes != NULL && i < TYPES; i++) {
        if (PyTuple_GET_ITEM(state->dlpack_dtypes, i) == dtype) {
            return i;
        }
    }
    for (int i = 0; i < last; i++) {
        PyObject *known = row_dtype(state, i);
        if (known == NULL && i < BUILT_IN) {
            return -1;
        }
        if (known == NULL) {
            PyErr_Clear(); /* an older ml_dtypes lacks it */
        } else if (cudriver_numpy_same_dtype(known, dtype)) {
            return i;
        }
        if (i == BUILT_IN - 1 && ml_dtypes_is_imported()) {
            last = TYPES;
        }
    }
    return -1;
}

int cudriver_dlpack_type(CoreState *state, PyObject *dtype, struct cudriver_dl_type *type,
                         bool *padded)
{
    int row = row_of(state, dtype);

    if (row < 0) {
        if (!PyErr_Occurred()) {
            PyErr_Format(PyExc_BufferError,
                         "DLPack has no data type for dtype %R (it has numbers in the machine's "
                         "byte order)",
                         dtype);
        }
        return -1;
    }
    type->code = table[row].code;
    type->bits = table[row].bits;
    type->lanes = 1;
    *padded = table[row].bits < 8;
    return 0;
}

PyObject *cudriver_dlpack_dtype(CoreState *state, struct cudriver_dl_type type, bool padded,
                                Py_ssize_t *itemsize)
{
    int row = 0;
    PyObject *dtype;

    if (type.lanes != 1) {
        PyErr_Format(PyExc_BufferError, "DLPack: items of %d lanes are not supported, only of 1",
                     (int)type.lanes);
        return NULL;
    }
    while (row < TYPES && (table[row].code != type.code || table[row].bits != type.bits)) {
        row++;
    }
    if (row == TYPES) {
        PyErr_Format(PyExc_BufferError,
                     "DLPack: NumPy has no dtype for the data type with code %d and %d bits",
                     (int)type.code, (int)type.bits);
        return NULL;
    }
    if (type.bits < 8 && !padded) {
        PyErr_Format(PyExc_BufferError,
                     "DLPack: %s is packed, several items in a byte, and NumPy has items of whole "
                     "bytes only; export the bytes instead",
                     table[row].name);
        return NULL;
    }
    dtype = row_dtype(state, row);
    *itemsize = type.bits < 8 ? 1 : type.bits / 8;
    return Py_XNewRef(dtype);
}
