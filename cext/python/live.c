/* The list of what is alive. See live.h. */
#include "live.h"

#include <stdio.h>
#include <string.h>

#include "types.h"
#include "docstrings.h"

static PyStructSequence_Field allocation_fields[] = {
    {"kind", DOC_Allocation_kind},       {"nbytes", DOC_Allocation_nbytes},
    {"address", DOC_Allocation_address}, {"device", DOC_Allocation_device},
    {"where", DOC_Allocation_where},     {NULL, NULL},
};

static PyStructSequence_Desc allocation_desc = {
    .name = "cudriver.Allocation",
    .doc = DOC_Allocation,
    .fields = allocation_fields,
    .n_in_sequence = 5,
};

/* Whether a frame runs code of this package. */
static bool is_ours(PyFrameObject *frame)
{
    PyObject *globals = PyObject_GetAttrString((PyObject *)frame, "f_globals");
    PyObject *name = globals != NULL ? PyDict_GetItemString(globals, "__name__") : NULL;
    const char *text = name != NULL && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
    bool ours = text != NULL && strncmp(text, "cudriver.", sizeof "cudriver." - 1) == 0;

    Py_XDECREF(globals);
    return ours;
}

/* New reference: "file:line" of the Python code that called this package, or NULL without an
 * exception. */
static PyObject *line_running(void)
{
    PyFrameObject *frame = (PyFrameObject *)Py_XNewRef((PyObject *)PyEval_GetFrame());
    PyObject *where = NULL;

    while (frame != NULL && is_ours(frame)) {
        PyFrameObject *caller = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = caller;
    }
    if (frame != NULL) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        where = PyUnicode_FromFormat("%U:%d", code->co_filename, PyFrame_GetLineNumber(frame));
        Py_DECREF(code);
        Py_DECREF(frame);
    }
    PyErr_Clear();
    return where;
}

void cudriver_live_add(CoreState *state, struct cudriver_live *entry, const char *kind,
                       size_t bytes, unsigned long long address, int device)
{
    entry->kind = kind;
    entry->bytes = bytes;
    entry->address = address;
    entry->device = device;
    entry->where = state->tracing ? line_running() : NULL;
    entry->prev = NULL;
    entry->next = state->live;
    if (state->live != NULL) {
        state->live->prev = entry;
    }
    state->live = entry;
}

void cudriver_live_remove(CoreState *state, struct cudriver_live *entry)
{
    if (entry->kind == NULL) {
        return;
    }
    if (entry->prev != NULL) {
        entry->prev->next = entry->next;
    } else {
        state->live = entry->next;
    }
    if (entry->next != NULL) {
        entry->next->prev = entry->prev;
    }
    entry->kind = NULL;
    Py_CLEAR(entry->where);
}

static PyObject *allocation_new(CoreState *state, const struct cudriver_live *entry)
{
    return cudriver_tuple_new(
        state->allocation_type, 5, PyUnicode_FromString(entry->kind),
        PyLong_FromSize_t(entry->bytes), PyLong_FromUnsignedLongLong(entry->address),
        entry->device < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(entry->device),
        Py_NewRef(entry->where != NULL ? entry->where : Py_None));
}

PyObject *cudriver_live_list(CoreState *state)
{
    PyObject *list;
    Py_ssize_t count = 0, i = 0;

    for (struct cudriver_live *entry = state->live; entry != NULL; entry = entry->next) {
        count++;
    }
    /* Copy the entries first: building rows may run the collector, which may remove some. */
    list = PyList_New(0);
    if (list == NULL) {
        return NULL;
    }
    struct cudriver_live *rows = PyMem_Calloc((size_t)count + 1, sizeof *rows);
    if (rows == NULL) {
        Py_DECREF(list);
        return PyErr_NoMemory();
    }
    for (struct cudriver_live *entry = state->live; entry != NULL; entry = entry->next) {
        rows[i] = *entry;
        Py_XINCREF(rows[i].where);
        i++;
    }
    while (i-- > 0) {
        PyObject *row = list != NULL ? allocation_new(state, &rows[i]) : NULL;
        Py_XDECREF(rows[i].where);
        if (list != NULL && (row == NULL || PyList_Append(list, row) < 0)) {
            Py_CLEAR(list);
        }
        Py_XDECREF(row);
    }
    PyMem_Free(rows);
    return list;
}

static void report_line(const struct cudriver_live *entry)
{
    char device[32] = "";

    if (entry->device >= 0) {
        snprintf(device, sizeof device, ", device %d", entry->device);
    }
    if (entry->where != NULL) {
        PySys_FormatStderr("  %s, %zu bytes%s, made at %U\n", entry->kind, entry->bytes, device,
                           entry->where);
    } else {
        PySys_FormatStderr("  %s, %zu bytes%s\n", entry->kind, entry->bytes, device);
    }
}

void cudriver_live_report(CoreState *state)
{
    const struct cudriver_live *oldest = NULL;
    size_t count = 0, bytes = 0;

    for (struct cudriver_live *entry = state->live; entry != NULL; entry = entry->next) {
        count += !entry->kept;
        bytes += entry->bytes;
        oldest = entry;
    }
    if (count == 0) {
        return;
    }
    PySys_FormatStderr("cudriver: alive at exit: %zu, %zu bytes in all\n", count, bytes);
    for (const struct cudriver_live *entry = oldest; entry != NULL; entry = entry->prev) {
        if (!entry->kept) {
            report_line(entry);
        }
    }
}

static PyObject *trace_allocations(PyObject *module, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"enabled", NULL};
    CoreState *state = cudriver_state_of_module(module);
    int enabled = 1;

    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|p:trace_allocations", names, &enabled)) {
        return NULL;
    }
    state->tracing = enabled != 0;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"trace_allocations", (PyCFunction)(void (*)(void))trace_allocations,
     METH_VARARGS | METH_KEYWORDS, DOC_trace_allocations},
    {NULL},
};

int cudriver_live_setup(PyObject *module)
{
    CoreState *state = cudriver_state_of_module(module);

    if (cudriver_tuple_add(module, &state->allocation_type, &allocation_desc) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, methods);
}
