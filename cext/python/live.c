/* The list of what is alive. See live.h. */
#include "live.h"

#include "call.h"

void cudriver_live_add(CoreState *state, struct cudriver_live *entry, const char *kind,
                       size_t bytes, unsigned long long address, int device)
{
    CUDRIVER_LOCK();
    entry->kind = kind;
    entry->bytes = bytes;
    entry->address = address;
    entry->device = device;
    entry->where = NULL;
    if (state->live.tracing) { /* the line of Python that called this package */
        entry->where = cudriver_call(CALL_live_line_running);
        if (entry->where == NULL && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
            PyErr_SetInterrupt(); /* Ctrl-C came just then: it is raised when the next line runs */
        }
        PyErr_Clear();
    }
    entry->prev = NULL;
    entry->next = state->live.newest;
    if (state->live.newest != NULL) {
        state->live.newest->prev = entry;
    }
    state->live.newest = entry;
}

void cudriver_live_remove(CoreState *state, struct cudriver_live *entry)
{
    CUDRIVER_LOCK();
    if (entry->kind == NULL) {
        return;
    }
    if (entry->prev != NULL) {
        entry->prev->next = entry->next;
    } else {
        state->live.newest = entry->next;
    }
    if (entry->next != NULL) {
        entry->next->prev = entry->prev;
    }
    entry->kind = NULL;
    Py_CLEAR(entry->where);
}

#define Allocation_FIELDS(X)                 \
    X(kind, "s", entry->kind)                \
    X(nbytes, "n", (Py_ssize_t)entry->bytes) \
    X(address, "K", entry->address)          \
    X(device, "N", device)                   \
    X(where, "O", entry->where != NULL ? entry->where : Py_None)

PyObject *cudriver_live_list(CoreState *state)
{
    int collected = PyGC_Disable(); /* it may run objects' ends, which changes the list */
    PyObject *list = PyList_New(0);

    for (struct cudriver_live *entry = state->live.newest; entry != NULL && list != NULL;
         entry = entry->next) {
        PyObject *device = entry->device < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(entry->device);
        PyObject *row = Py_BuildValue("(NO)", CUDRIVER_TUPLE(Allocation_FIELDS),
                                      entry->kept ? Py_True : Py_False);
        if (row == NULL || PyList_Append(list, row) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(row);
    }
    if (collected) {
        PyGC_Enable();
    }
    return list;
}
