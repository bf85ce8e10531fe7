/* See dlpack_types.h. memory/dlpack.py knows the types; what it has said once is kept. */
#include "dlpack_types.h"

#include "call.h"
#include "numpy_bridge.h"

/* Borrowed: what is kept for a key. NULL, perhaps with an exception set. */
static PyObject *kept(CoreState *state, PyObject *key)
{
    if (state->dlpack_types == NULL) {
        state->dlpack_types = PyDict_New();
    }
    return state->dlpack_types != NULL ? PyDict_GetItemWithError(state->dlpack_types, key) : NULL;
}

/* Keeps what was said for a key, and takes it over. Borrowed; NULL if `said` is NULL. */
static PyObject *keep(CoreState *state, PyObject *key, PyObject *said)
{
    int failed = said != NULL ? PyDict_SetItem(state->dlpack_types, key, said) : -1;

    Py_XDECREF(said);
    return failed < 0 ? NULL : said;
}

int cudriver_dlpack_type(CoreState *state, PyObject *dtype, struct cudriver_dl_type *type)
{
    PyObject *pair = kept(state, dtype);
    int code, bits;

    if (pair == NULL && !PyErr_Occurred()) {
        pair = keep(state, dtype, cudriver_call("dlpack", "type_of", "(O)", dtype));
    }
    if (pair == NULL || !PyArg_ParseTuple(pair, "ii", &code, &bits)) {
        return -1;
    }
    *type = (struct cudriver_dl_type){.code = (uint8_t)code, .bits = (uint8_t)bits, .lanes = 1};
    return 0;
}

PyObject *cudriver_dlpack_dtype(CoreState *state, struct cudriver_dl_type type, bool padded)
{
    PyObject *key =
        PyLong_FromUnsignedLong(type.code | (unsigned long)type.bits << 8 |
                                (unsigned long)type.lanes << 16 | (unsigned long)padded << 32);
    PyObject *dtype = key != NULL && cudriver_numpy_require() == 0 ? kept(state, key) : NULL;

    if (dtype == NULL && !PyErr_Occurred()) {
        dtype = keep(state, key,
                     cudriver_call("dlpack", "dtype_of", "(iiiO)", type.code, type.bits, type.lanes,
                                   padded ? Py_True : Py_False));
    }
    Py_XDECREF(key);
    return Py_XNewRef(dtype);
}
