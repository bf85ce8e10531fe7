/* The type ElfFile. See python.h. */
#include "python.h"

#include "docstrings.h"

/* Borrowed; NULL with an exception set. `type` is ours: it cannot be subclassed. */
static struct elf_state *state_of_type(PyTypeObject *type)
{
    PyObject *module = PyType_GetModule(type);

    return module != NULL ? PyModule_GetState(module) : NULL;
}

static PyObject *version_tuple(const struct elf_file *file)
{
    PyObject *list = PyList_New(0);
    PyObject *made;
    for (size_t i = 0; list != NULL && i < file->version_count; i++) {
        PyObject *name;
        if (file->versions[i].base) {
            continue;
        }
        name = elf_py_text(file->versions[i].name);
        if (name == NULL || PyList_Append(list, name) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(name);
    }
    made = list != NULL ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return made;
}

static PyObject *base_version(const struct elf_file *file)
{
    for (size_t i = 0; i < file->version_count; i++) {
        if (file->versions[i].base) {
            return elf_py_text(file->versions[i].name);
        }
    }
    Py_RETURN_NONE;
}

static PyObject *need_tuple(const struct elf_state *state, const struct elf_file *file)
{
    PyObject *made = PyTuple_New((Py_ssize_t)file->need_count);
    for (size_t i = 0; made != NULL && i < file->need_count; i++) {
        const struct elf_need *need = &file->needs[i];
        PyObject *values[] = {elf_py_text(need->library), elf_py_text(need->version),
                              PyBool_FromLong(need->weak)};
        PyObject *item = elf_py_row(state->need_type, values, 3);
        if (item == NULL) {
            Py_CLEAR(made);
        } else {
            PyTuple_SET_ITEM(made, (Py_ssize_t)i, item);
        }
    }
    return made;
}

static PyObject *build_id(const struct elf_file *file)
{
    static const char digits[] = "0123456789abcdef";
    char hexadecimal[2 * sizeof(file->build_id)];
    if (file->build_id_size == 0) {
        Py_RETURN_NONE;
    }
    for (size_t i = 0; i < file->build_id_size; i++) {
        hexadecimal[2 * i] = digits[file->build_id[i] >> 4];
        hexadecimal[2 * i + 1] = digits[file->build_id[i] & 15];
    }
    return PyUnicode_FromStringAndSize(hexadecimal, (Py_ssize_t)(2 * file->build_id_size));
}

static int fill_fields(const struct elf_state *state, const struct elf_file *file, PyObject *fields)
{
    if (elf_py_put(fields, "path", elf_py_text(file->path)) < 0 ||
        elf_py_put(fields, "device", PyLong_FromUnsignedLongLong(file->device)) < 0 ||
        elf_py_put(fields, "inode", PyLong_FromUnsignedLongLong(file->inode)) < 0 ||
        elf_py_put(fields, "size", PyLong_FromUnsignedLongLong(file->size)) < 0 ||
        elf_py_put(fields, "machine", PyLong_FromLong(file->machine)) < 0 ||
        elf_py_put(fields, "type", PyLong_FromLong(file->type)) < 0 ||
        elf_py_put(fields, "soname", elf_py_text(file->soname)) < 0 ||
        elf_py_put(fields, "needed", elf_py_strings(file->needed, file->needed_count)) < 0 ||
        elf_py_put(fields, "rpath", elf_py_text(file->rpath)) < 0 ||
        elf_py_put(fields, "runpath", elf_py_text(file->runpath)) < 0 ||
        elf_py_put(fields, "flags", PyLong_FromUnsignedLongLong(file->flags)) < 0 ||
        elf_py_put(fields, "flags_1", PyLong_FromUnsignedLongLong(file->flags_1)) < 0 ||
        elf_py_put(fields, "bind_now", PyBool_FromLong(file->bind_now)) < 0 ||
        elf_py_put(fields, "dynamic", PyBool_FromLong(file->dynamic)) < 0 ||
        elf_py_put(fields, "exec_stack", PyBool_FromLong(file->exec_stack)) < 0 ||
        elf_py_put(fields, "interpreter", elf_py_text(file->interpreter)) < 0 ||
        elf_py_put(fields, "build_id", build_id(file)) < 0 ||
        elf_py_put(fields, "versions", version_tuple(file)) < 0 ||
        elf_py_put(fields, "base_version", base_version(file)) < 0 ||
        elf_py_put(fields, "has_versions", PyBool_FromLong(file->has_versions)) < 0 ||
        elf_py_put(fields, "has_symbol_versions", PyBool_FromLong(file->versym.present)) < 0 ||
        elf_py_put(fields, "version_needs", need_tuple(state, file)) < 0) {
        return -1;
    }
    return 0;
}

static PyObject *file_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"", "shown", "root", NULL};
    struct elf_state *state = state_of_type(type);
    PyObject *path, *shown = Py_None, *root = Py_None;
    int folder = -1;
    struct elf_object *self = NULL;
    const char *bytes;
    struct elf_file *file;
    if (state == NULL ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "O&|OO:ElfFile", names, PyUnicode_FSConverter,
                                     &path, &shown, &root)) {
        return NULL;
    }
    if (root != Py_None) {
        folder = PyObject_AsFileDescriptor(root);
        if (folder < 0) {
            Py_DECREF(path);
            return NULL;
        }
    }
    if (shown != Py_None && !PyUnicode_Check(shown)) {
        Py_DECREF(path);
        return PyErr_Format(PyExc_TypeError, "shown must be str or None");
    }
    bytes = PyBytes_AS_STRING(path);
    Py_BEGIN_ALLOW_THREADS
    file = elf_open(bytes, folder);
    Py_END_ALLOW_THREADS
    shown =
        shown != Py_None ? Py_NewRef(shown) : PyUnicode_DecodeFSDefault(PyBytes_AS_STRING(path));
    Py_DECREF(path);
    if (file == NULL) {
        PyErr_NoMemory();
    } else if (shown != NULL && file->fault.text[0] != '\0') {
        elf_py_raise(state, file, shown);
    } else if (shown != NULL) {
        self = (struct elf_object *)type->tp_alloc(type, 0);
    }
    if (self == NULL) {
        Py_XDECREF(shown);
        elf_free(file);
        return NULL;
    }
    self->file = file;
    self->shown = shown;
    self->root = Py_NewRef(root);
    self->fields = PyDict_New();
    if (self->fields == NULL || fill_fields(state, file, self->fields) < 0 ||
        PyDict_SetItemString(self->fields, "shown", shown) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void file_dealloc(struct elf_object *self)
{
    PyTypeObject *type = Py_TYPE(self);
    elf_free(self->file);
    Py_XDECREF(self->shown);
    Py_XDECREF(self->root);
    Py_XDECREF(self->fields);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *file_getattro(struct elf_object *self, PyObject *name)
{
    PyObject *value = PyDict_GetItemWithError(self->fields, name); /* borrowed: they never change */
    if (value != NULL || PyErr_Occurred()) {
        return Py_XNewRef(value);
    }
    return PyObject_GenericGetAttr((PyObject *)self, name);
}

static PyObject *file_repr(struct elf_object *self)
{
    return PyUnicode_FromFormat("<ElfFile %R>", self->shown);
}

static PyObject *file_dir(struct elf_object *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *names = PyDict_Keys(self->fields);
    static const char *const methods[] = {"exports",    "find",    "local", "memory",
                                          "references", "section", "whole"};
    for (size_t i = 0; names != NULL && i < sizeof(methods) / sizeof(*methods); i++) {
        PyObject *name = PyUnicode_FromString(methods[i]);
        if (name == NULL || PyList_Append(names, name) < 0) {
            Py_CLEAR(names);
        }
        Py_XDECREF(name);
    }
    return names;
}

/* New reference: the exports of one name, or all of them if `name` is NULL. */
static PyObject *exports_of(struct elf_object *self, const char *name)
{
    struct elf_state *state = state_of_type(Py_TYPE(self));
    struct elf_exports list = {0};
    PyObject *made;
    int status;
    if (state == NULL) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&state->lock);
    status = elf_list_exports(self->file, name, &list);
    elf_rest(self->file);
    pthread_mutex_unlock(&state->lock);
    Py_END_ALLOW_THREADS
    made = status < 0 ? elf_py_raise(state, self->file, self->shown) : elf_py_exports(state, &list);
    elf_exports_free(&list);
    return made;
}

static PyObject *file_find(struct elf_object *self, PyObject *name)
{
    PyObject *bytes, *made;
    char *text_bytes;
    if (!PyUnicode_Check(name)) {
        return PyErr_Format(PyExc_TypeError, "a symbol name must be str");
    }
    bytes = PyUnicode_AsEncodedString(name, "utf-8", "surrogateescape");
    if (bytes == NULL) {
        return NULL;
    }
    made = PyBytes_AsStringAndSize(bytes, &text_bytes, NULL) == 0 ? exports_of(self, text_bytes)
                                                                  : NULL; /* contains a NUL */
    Py_DECREF(bytes);
    return made;
}

static PyObject *file_exports(struct elf_object *self, PyObject *Py_UNUSED(ignored))
{
    return exports_of(self, NULL);
}

static PyObject *file_references(struct elf_object *self, PyObject *Py_UNUSED(ignored))
{
    struct elf_state *state = state_of_type(Py_TYPE(self));
    struct elf_references list = {0};
    PyObject *made;
    int status;
    if (state == NULL) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&state->lock);
    status = elf_list_references(self->file, &list);
    elf_rest(self->file);
    pthread_mutex_unlock(&state->lock);
    Py_END_ALLOW_THREADS
    made =
        status < 0 ? elf_py_raise(state, self->file, self->shown) : elf_py_references(state, &list);
    elf_references_free(&list);
    return made;
}

/* New reference: at most `limit` bytes of a part; None where it is not there. */
static PyObject *bytes_of(struct elf_object *self, const struct elf_table *part, Py_ssize_t limit)
{
    struct elf_state *state = state_of_type(Py_TYPE(self));
    PyObject *made;
    uint64_t size;
    char *to;
    int status;
    if (!part->present) {
        Py_RETURN_NONE;
    }
    size = part->end - part->offset;
    size = size < (uint64_t)limit ? size : (uint64_t)limit;
    made = state != NULL ? PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size) : NULL;
    if (made == NULL) {
        return NULL;
    }
    to = PyBytes_AS_STRING(made);
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&state->lock);
    status = elf_stream(self->file, part->offset, to, (size_t)size);
    elf_rest(self->file);
    pthread_mutex_unlock(&state->lock);
    Py_END_ALLOW_THREADS
    if (status < 0) {
        Py_DECREF(made);
        return elf_py_raise(state, self->file, self->shown);
    }
    return made;
}

static PyObject *file_memory(struct elf_object *self, PyObject *args)
{
    struct elf_table part;
    unsigned long long address;
    Py_ssize_t size;
    PyObject *number;
    if (!PyArg_ParseTuple(args, "O!n:memory", &PyLong_Type, &number, &size)) {
        return NULL;
    }
    address = PyLong_AsUnsignedLongLong(number);
    if (address == (unsigned long long)-1 && PyErr_Occurred()) {
        return NULL;
    }
    if (size < 0) {
        return PyErr_Format(PyExc_ValueError, "size is %zd, less than 0", size);
    }
    elf_find_part(self->file, address, &part);
    return bytes_of(self, &part, size);
}

static PyObject *file_section(struct elf_object *self, PyObject *args)
{
    struct elf_state *state = state_of_type(Py_TYPE(self));
    struct elf_table part;
    const char *name;
    Py_ssize_t limit;
    int status;
    if (state == NULL || !PyArg_ParseTuple(args, "sn:section", &name, &limit)) {
        return NULL;
    }
    if (limit < 0) {
        return PyErr_Format(PyExc_ValueError, "limit is %zd, less than 0", limit);
    }
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&state->lock);
    status = elf_find_section(self->file, name, &part);
    elf_rest(self->file);
    pthread_mutex_unlock(&state->lock);
    Py_END_ALLOW_THREADS
    return status < 0 ? elf_py_raise(state, self->file, self->shown) : bytes_of(self, &part, limit);
}

static PyObject *file_local(struct elf_object *self, PyObject *args)
{
    struct elf_state *state = state_of_type(Py_TYPE(self));
    uint64_t address = 0, size = 0;
    const char *name;
    int status;
    if (state == NULL || !PyArg_ParseTuple(args, "s:local", &name)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&state->lock);
    status = elf_find_local(self->file, name, &address, &size);
    elf_rest(self->file);
    pthread_mutex_unlock(&state->lock);
    Py_END_ALLOW_THREADS
    if (status < 0) {
        return elf_py_raise(state, self->file, self->shown);
    }
    if (status == 0) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("KK", (unsigned long long)address, (unsigned long long)size);
}

static PyObject *file_whole(struct elf_object *self, PyObject *Py_UNUSED(ignored))
{
    struct elf_state *state = state_of_type(Py_TYPE(self));
    int status;
    if (state == NULL) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&state->lock);
    status = elf_is_whole(self->file);
    elf_rest(self->file);
    pthread_mutex_unlock(&state->lock);
    Py_END_ALLOW_THREADS
    return status < 0 ? elf_py_raise(state, self->file, self->shown) : PyBool_FromLong(status);
}

static PyMethodDef file_methods[] = {
    {"find", (PyCFunction)file_find, METH_O, DOC_ElfFile_find},
    {"exports", (PyCFunction)file_exports, METH_NOARGS, DOC_ElfFile_exports},
    {"references", (PyCFunction)file_references, METH_NOARGS, DOC_ElfFile_references},
    {"memory", (PyCFunction)file_memory, METH_VARARGS, DOC_ElfFile_memory},
    {"section", (PyCFunction)file_section, METH_VARARGS, DOC_ElfFile_section},
    {"local", (PyCFunction)file_local, METH_VARARGS, DOC_ElfFile_local},
    {"whole", (PyCFunction)file_whole, METH_NOARGS, DOC_ElfFile_whole},
    {"__dir__", (PyCFunction)file_dir, METH_NOARGS, NULL},
    {0},
};

static PyType_Slot file_slots[] = {
    {Py_tp_new, file_new},
    {Py_tp_dealloc, file_dealloc},
    {Py_tp_getattro, file_getattro},
    {Py_tp_repr, file_repr},
    {Py_tp_methods, file_methods},
    {Py_tp_doc, DOC_ElfFile},
    {0},
};

static PyType_Spec file_spec = {
    .name = "cudriver._elf.ElfFile",
    .basicsize = sizeof(struct elf_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = file_slots,
};

int elf_py_file_setup(PyObject *module, struct elf_state *state)
{
    state->file_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &file_spec, NULL);
    return elf_py_add_type(module, state->file_type);
}
