/* What was read, and what went wrong, as Python objects. See python.h. */
#include "python.h"

#include "docstrings.h"

#include <errno.h>

PyObject *elf_py_text(const char *bytes)
{
    if (bytes == NULL) {
        Py_RETURN_NONE;
    }
    return PyUnicode_DecodeUTF8(bytes, (Py_ssize_t)strlen(bytes), "surrogateescape");
}

int elf_py_put(PyObject *fields, const char *name, PyObject *value)
{
    int status;
    if (value == NULL) {
        return -1;
    }
    status = PyDict_SetItemString(fields, name, value);
    Py_DECREF(value);
    return status;
}

PyObject *elf_py_row(PyTypeObject *type, PyObject *const *values, int count)
{
    PyObject *made = PyStructSequence_New(type);
    bool complete = made != NULL;
    for (int i = 0; i < count; i++) {
        complete = complete && values[i] != NULL;
        if (made != NULL) {
            PyStructSequence_SetItem(made, i, values[i]);
        } else {
            Py_XDECREF(values[i]);
        }
    }
    if (!complete) {
        Py_CLEAR(made);
    }
    return made;
}

static PyObject *reference_row(const struct elf_state *state, const struct elf_references *list,
                               const struct elf_reference *item)
{
    PyObject *values[] = {elf_py_text(list->names.bytes + item->name),
                          elf_py_text(item->version != NULL ? item->version->version : NULL),
                          elf_py_text(item->version != NULL ? item->version->library : NULL),
                          PyBool_FromLong(item->weak), PyBool_FromLong(item->lazy)};
    return elf_py_row(state->reference_type, values, 5);
}

PyObject *elf_py_references(const struct elf_state *state, const struct elf_references *list)
{
    PyObject *made = PyList_New((Py_ssize_t)list->count);
    for (size_t i = 0; made != NULL && i < list->count; i++) {
        PyObject *item = reference_row(state, list, &list->items[i]);
        if (item == NULL) {
            Py_CLEAR(made);
        } else {
            PyList_SET_ITEM(made, (Py_ssize_t)i, item);
        }
    }
    return made;
}

PyObject *elf_py_exports(const struct elf_state *state, const struct elf_exports *list)
{
    PyObject *made = PyList_New((Py_ssize_t)list->count);
    for (size_t i = 0; made != NULL && i < list->count; i++) {
        const struct elf_export *item = &list->items[i];
        PyObject *values[] = {elf_py_text(item->name),
                              elf_py_text(item->version),
                              PyBool_FromLong(item->version != NULL && !item->hidden),
                              PyBool_FromLong(item->weak),
                              PyLong_FromUnsignedLongLong(item->address),
                              PyLong_FromUnsignedLongLong(item->size)};
        PyObject *entry = elf_py_row(state->export_type, values, 6);
        if (entry == NULL) {
            Py_CLEAR(made);
        } else {
            PyList_SET_ITEM(made, (Py_ssize_t)i, entry);
        }
    }
    return made;
}

PyObject *elf_py_strings(char **items, size_t count)
{
    PyObject *made = PyTuple_New((Py_ssize_t)count);
    for (size_t i = 0; made != NULL && i < count; i++) {
        PyObject *item = elf_py_text(items[i]);
        if (item == NULL) {
            Py_CLEAR(made);
        } else {
            PyTuple_SET_ITEM(made, (Py_ssize_t)i, item);
        }
    }
    return made;
}

PyObject *elf_py_error(const struct elf_state *state, const struct elf_file *file, PyObject *shown)
{
    const struct elf_fault *fault = &file->fault;
    PyObject *type = fault->foreign ? state->foreign_error : state->error;
    PyObject *error =
        PyObject_CallFunction(type, "N", PyUnicode_FromFormat("%U: %s", shown, fault->text));
    PyObject *fields = error != NULL ? PyDict_New() : NULL;
    bool complete =
        fields != NULL && PyDict_SetItemString(fields, "filename", shown) == 0 &&
        elf_py_put(fields, "reason", elf_py_text(fault->text)) == 0 &&
        elf_py_put(fields, "loader_text", elf_py_text(fault->loader_text)) == 0 &&
        elf_py_put(fields, "errno",
                   fault->error == EBADMSG ? Py_NewRef(Py_None) : PyLong_FromLong(fault->error)) ==
            0 &&
        elf_py_put(fields, "machine",
                   file->elf_class == 0 ? Py_NewRef(Py_None) : PyLong_FromLong(file->machine)) == 0;
    if (complete && fault->foreign) {
        complete =
            elf_py_put(fields, "elf_class", PyLong_FromLong(file->elf_class)) == 0 &&
            elf_py_put(fields, "byte_order", elf_py_text(file->big_endian ? "big" : "little")) == 0;
    }
    if (complete) {
        PyObject *key, *value;
        Py_ssize_t at = 0;
        while (complete && PyDict_Next(fields, &at, &key, &value)) {
            complete = PyObject_SetAttr(error, key, value) == 0;
        }
    }
    Py_XDECREF(fields);
    if (!complete) {
        Py_CLEAR(error);
    }
    return error;
}

PyObject *elf_py_raise(const struct elf_state *state, const struct elf_file *file, PyObject *shown)
{
    PyObject *error;
    if (file->fault.error == ENOMEM) {
        return PyErr_NoMemory();
    }
    error = elf_py_error(state, file, shown);
    if (error != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    }
    return NULL;
}

/* ---- their types ---- */

static PyStructSequence_Field need_fields[] = {{"library", DOC_VersionNeed_library},
                                               {"version", DOC_VersionNeed_version},
                                               {"weak", DOC_VersionNeed_weak},
                                               {0}};
static PyStructSequence_Desc need_description = {"cudriver._elf.VersionNeed", DOC_VersionNeed,
                                                 need_fields, 3};

static PyStructSequence_Field reference_fields[] = {
    {"name", DOC_Reference_name},       {"version", DOC_Reference_version},
    {"library", DOC_Reference_library}, {"weak", DOC_Reference_weak},
    {"lazy", DOC_Reference_lazy},       {0}};
static PyStructSequence_Desc reference_description = {"cudriver._elf.Reference", DOC_Reference,
                                                      reference_fields, 5};

static PyStructSequence_Field export_fields[] = {{"name", DOC_Export_name},
                                                 {"version", DOC_Export_version},
                                                 {"default", DOC_Export_default},
                                                 {"weak", DOC_Export_weak},
                                                 {"address", DOC_Export_address},
                                                 {"size", DOC_Export_size},
                                                 {0}};
static PyStructSequence_Desc export_description = {"cudriver._elf.Export", DOC_Export,
                                                   export_fields, 4};

int elf_py_add_type(PyObject *module, PyTypeObject *type)
{
    return type != NULL ? PyModule_AddType(module, type) : -1;
}

int elf_py_values_setup(PyObject *module, struct elf_state *state)
{
    state->need_type = PyStructSequence_NewType(&need_description);
    state->reference_type = PyStructSequence_NewType(&reference_description);
    state->export_type = PyStructSequence_NewType(&export_description);
    if (elf_py_add_type(module, state->need_type) < 0 ||
        elf_py_add_type(module, state->reference_type) < 0 ||
        elf_py_add_type(module, state->export_type) < 0) {
        return -1;
    }
    return 0;
}
