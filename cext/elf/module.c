/*
 * cudriver._elf: elf.h for Python.
 *
 * Reading releases the GIL. A struct elf_file belongs to one thread at a time, so the module's lock
 * is held while one is used. It is taken after the GIL is released and released before the GIL is
 * taken again, so no thread waits for one while it holds the other.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "elf.h"
#include "record.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

struct elf_state {
    PyObject *error;         /* ElfError */
    PyObject *foreign_error; /* ForeignElfError */
    PyTypeObject *file_type;
    PyTypeObject *need_type;
    PyTypeObject *reference_type;
    PyTypeObject *export_type;
    pthread_mutex_t lock; /* protects every struct elf_file of this module */
    bool lock_made;
};

struct elf_object {
    PyObject_HEAD
    struct elf_file *file; /* owned */
    PyObject *shown;       /* owned: the name in error messages */
    PyObject *fields;      /* owned: dictionary of the attributes */
};

static struct PyModuleDef elf_module;

static struct elf_state *state_of(PyObject *module)
{
    return PyModule_GetState(module);
}

/* Borrowed; NULL with an exception set. `type` is ours: it cannot be subclassed. */
static struct elf_state *state_of_type(PyTypeObject *type)
{
    PyObject *module = PyType_GetModule(type);
    return module != NULL ? state_of(module) : NULL;
}

/* ---- values ---- */

/* New reference. File names and symbols are bytes; those that are not UTF-8 become surrogates. */
static PyObject *text(const char *bytes)
{
    if (bytes == NULL) {
        Py_RETURN_NONE;
    }
    return PyUnicode_DecodeUTF8(bytes, (Py_ssize_t)strlen(bytes), "surrogateescape");
}

/* Stores a new reference (stolen, may be NULL) under a name. 0 or -1. */
static int put(PyObject *fields, const char *name, PyObject *value)
{
    int status;
    if (value == NULL) {
        return -1;
    }
    status = PyDict_SetItemString(fields, name, value);
    Py_DECREF(value);
    return status;
}

/* New reference: a structseq of `count` values, which are stolen and may be NULL. */
static PyObject *row(PyTypeObject *type, PyObject *const *values, int count)
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
    PyObject *values[] = {text(list->names.bytes + item->name),
                          text(item->version != NULL ? item->version->version : NULL),
                          text(item->version != NULL ? item->version->library : NULL),
                          PyBool_FromLong(item->weak), PyBool_FromLong(item->lazy)};
    return row(state->reference_type, values, 5);
}

static PyObject *reference_list(const struct elf_state *state, const struct elf_references *list)
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

static PyObject *export_list(const struct elf_state *state, const struct elf_exports *list)
{
    PyObject *made = PyList_New((Py_ssize_t)list->count);
    for (size_t i = 0; made != NULL && i < list->count; i++) {
        const struct elf_export *item = &list->items[i];
        PyObject *values[] = {text(item->name), text(item->version),
                              PyBool_FromLong(item->version != NULL && !item->hidden),
                              PyBool_FromLong(item->weak)};
        PyObject *entry = row(state->export_type, values, 4);
        if (entry == NULL) {
            Py_CLEAR(made);
        } else {
            PyList_SET_ITEM(made, (Py_ssize_t)i, entry);
        }
    }
    return made;
}

static PyObject *string_tuple(char **items, size_t count)
{
    PyObject *made = PyTuple_New((Py_ssize_t)count);
    for (size_t i = 0; made != NULL && i < count; i++) {
        PyObject *item = text(items[i]);
        if (item == NULL) {
            Py_CLEAR(made);
        } else {
            PyTuple_SET_ITEM(made, (Py_ssize_t)i, item);
        }
    }
    return made;
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
        name = text(file->versions[i].name);
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
            return text(file->versions[i].name);
        }
    }
    Py_RETURN_NONE;
}

static PyObject *need_tuple(const struct elf_state *state, const struct elf_file *file)
{
    PyObject *made = PyTuple_New((Py_ssize_t)file->need_count);
    for (size_t i = 0; made != NULL && i < file->need_count; i++) {
        const struct elf_need *need = &file->needs[i];
        PyObject *values[] = {text(need->library), text(need->version),
                              PyBool_FromLong(need->weak)};
        PyObject *item = row(state->need_type, values, 3);
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

/* ---- errors ---- */

/* New reference: an exception for the file's fault, or NULL. `shown` is borrowed. */
static PyObject *make_error(const struct elf_state *state, const struct elf_file *file,
                            PyObject *shown)
{
    const struct elf_fault *fault = &file->fault;
    PyObject *type = fault->foreign ? state->foreign_error : state->error;
    PyObject *error =
        PyObject_CallFunction(type, "N", PyUnicode_FromFormat("%U: %s", shown, fault->text));
    PyObject *fields = error != NULL ? PyDict_New() : NULL;
    bool complete =
        fields != NULL && PyDict_SetItemString(fields, "filename", shown) == 0 &&
        put(fields, "reason", text(fault->text)) == 0 &&
        put(fields, "loader_text", text(fault->loader_text)) == 0 &&
        put(fields, "errno",
            fault->error == EBADMSG ? Py_NewRef(Py_None) : PyLong_FromLong(fault->error)) == 0 &&
        put(fields, "machine",
            file->elf_class == 0 ? Py_NewRef(Py_None) : PyLong_FromLong(file->machine)) == 0;
    if (complete && fault->foreign) {
        complete = put(fields, "elf_class", PyLong_FromLong(file->elf_class)) == 0 &&
                   put(fields, "byte_order", text(file->big_endian ? "big" : "little")) == 0;
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

/* Raises the fault. Returns NULL, for `return raise_fault(...)`. */
static PyObject *raise_fault(const struct elf_state *state, const struct elf_file *file,
                             PyObject *shown)
{
    PyObject *error;
    if (file->fault.error == ENOMEM) {
        return PyErr_NoMemory();
    }
    error = make_error(state, file, shown);
    if (error != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    }
    return NULL;
}

/* ---- ElfFile ---- */

static int fill_fields(const struct elf_state *state, const struct elf_file *file, PyObject *fields)
{
    if (put(fields, "path", text(file->path)) < 0 ||
        put(fields, "device", PyLong_FromUnsignedLongLong(file->device)) < 0 ||
        put(fields, "inode", PyLong_FromUnsignedLongLong(file->inode)) < 0 ||
        put(fields, "size", PyLong_FromUnsignedLongLong(file->size)) < 0 ||
        put(fields, "machine", PyLong_FromLong(file->machine)) < 0 ||
        put(fields, "type", PyLong_FromLong(file->type)) < 0 ||
        put(fields, "soname", text(file->soname)) < 0 ||
        put(fields, "needed", string_tuple(file->needed, file->needed_count)) < 0 ||
        put(fields, "rpath", text(file->rpath)) < 0 ||
        put(fields, "runpath", text(file->runpath)) < 0 ||
        put(fields, "flags", PyLong_FromUnsignedLongLong(file->flags)) < 0 ||
        put(fields, "flags_1", PyLong_FromUnsignedLongLong(file->flags_1)) < 0 ||
        put(fields, "bind_now", PyBool_FromLong(file->bind_now)) < 0 ||
        put(fields, "dynamic", PyBool_FromLong(file->dynamic)) < 0 ||
        put(fields, "exec_stack", PyBool_FromLong(file->exec_stack)) < 0 ||
        put(fields, "interpreter", text(file->interpreter)) < 0 ||
        put(fields, "build_id", build_id(file)) < 0 ||
        put(fields, "versions", version_tuple(file)) < 0 ||
        put(fields, "base_version", base_version(file)) < 0 ||
        put(fields, "has_versions", PyBool_FromLong(file->has_versions)) < 0 ||
        put(fields, "has_symbol_versions", PyBool_FromLong(file->versym.present)) < 0 ||
        put(fields, "version_needs", need_tuple(state, file)) < 0) {
        return -1;
    }
    return 0;
}

static PyObject *file_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"", "shown", NULL};
    struct elf_state *state = state_of_type(type);
    PyObject *path, *shown = Py_None;
    struct elf_object *self = NULL;
    const char *bytes;
    struct elf_file *file;
    if (state == NULL || !PyArg_ParseTupleAndKeywords(args, kwargs, "O&|O:ElfFile", names,
                                                      PyUnicode_FSConverter, &path, &shown)) {
        return NULL;
    }
    if (shown != Py_None && !PyUnicode_Check(shown)) {
        Py_DECREF(path);
        return PyErr_Format(PyExc_TypeError, "shown must be str or None");
    }
    bytes = PyBytes_AS_STRING(path);
    Py_BEGIN_ALLOW_THREADS
    file = elf_open(bytes);
    Py_END_ALLOW_THREADS
    shown =
        shown != Py_None ? Py_NewRef(shown) : PyUnicode_DecodeFSDefault(PyBytes_AS_STRING(path));
    Py_DECREF(path);
    if (file == NULL) {
        PyErr_NoMemory();
    } else if (shown != NULL && file->fault.text[0] != '\0') {
        raise_fault(state, file, shown);
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
    Py_XDECREF(self->fields);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *file_getattro(struct elf_object *self, PyObject *name)
{
    PyObject *value = PyDict_GetItemWithError(self->fields, name);
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
    static const char *const methods[] = {"exports", "find", "references"};
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
    made = status < 0 ? raise_fault(state, self->file, self->shown) : export_list(state, &list);
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
    made = status < 0 ? raise_fault(state, self->file, self->shown) : reference_list(state, &list);
    elf_references_free(&list);
    return made;
}

PyDoc_STRVAR(find_doc,
             "find($self, name, /)\n--\n\nEvery definition of one name, through the hash table.");
PyDoc_STRVAR(exports_doc,
             "exports($self, /)\n--\n\nEvery definition, in hash order. Slow on a large "
             "library; for tests and tools.");
PyDoc_STRVAR(references_doc,
             "references($self, /)\n--\n\nUndefined symbols in the order in which the "
             "loader meets them, each once.");

static PyMethodDef file_methods[] = {
    {"find", (PyCFunction)file_find, METH_O, find_doc},
    {"exports", (PyCFunction)file_exports, METH_NOARGS, exports_doc},
    {"references", (PyCFunction)file_references, METH_NOARGS, references_doc},
    {"__dir__", (PyCFunction)file_dir, METH_NOARGS, NULL},
    {0},
};

PyDoc_STRVAR(file_doc, "ElfFile(path, /, shown=None)\n--\n\n"
                       "The dynamic section of a 64-bit little-endian file. Raises ElfError.\n\n"
                       "shown: the name to put in errors (a path inside another root).");

static PyType_Slot file_slots[] = {
    {Py_tp_new, file_new},
    {Py_tp_dealloc, file_dealloc},
    {Py_tp_getattro, file_getattro},
    {Py_tp_repr, file_repr},
    {Py_tp_methods, file_methods},
    {Py_tp_doc, (void *)file_doc},
    {0},
};

static PyType_Spec file_spec = {
    .name = "cudriver._elf.ElfFile",
    .basicsize = sizeof(struct elf_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = file_slots,
};

/* ---- missing() ---- */

/* One job: a file and its scope. */
struct job {
    struct elf_object *file;   /* borrowed from `tuple` */
    struct elf_object **scope; /* owned array of borrowed objects */
    struct elf_file **files;   /* owned array */
    Py_ssize_t scope_count;
    PyObject *tuple; /* owned: the pair */
    PyObject *fast;  /* owned: the scope as a tuple of our own */
    struct elf_references found;
    struct elf_file *culprit; /* borrowed */
    int status;
};

static void jobs_free(struct job *jobs, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        elf_references_free(&jobs[i].found);
        PyMem_Free(jobs[i].scope);
        PyMem_Free(jobs[i].files);
        Py_XDECREF(jobs[i].tuple);
        Py_XDECREF(jobs[i].fast);
    }
    PyMem_Free(jobs);
}

static int job_take(const struct elf_state *state, struct job *job, PyObject *pair)
{
    PyObject *file, *scope;
    job->tuple = PySequence_Tuple(pair);
    if (job->tuple == NULL) {
        return -1;
    }
    if (PyTuple_GET_SIZE(job->tuple) != 2) {
        PyErr_SetString(PyExc_ValueError, "a job is a pair of a file and a scope");
        return -1;
    }
    file = PyTuple_GET_ITEM(job->tuple, 0);
    scope = PyTuple_GET_ITEM(job->tuple, 1);
    job->fast = PySequence_Tuple(scope); /* ours: nobody can change it while the GIL is released */
    if (job->fast == NULL) {
        return -1;
    }
    job->scope_count = PyTuple_GET_SIZE(job->fast);
    job->scope = PyMem_Calloc((size_t)job->scope_count + 1, sizeof(*job->scope));
    job->files = PyMem_Calloc((size_t)job->scope_count + 1, sizeof(*job->files));
    if (job->scope == NULL || job->files == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (!Py_IS_TYPE(file, state->file_type)) {
        PyErr_SetString(PyExc_TypeError, "a job's file must be an ElfFile");
        return -1;
    }
    job->file = (struct elf_object *)file;
    for (Py_ssize_t i = 0; i < job->scope_count; i++) {
        PyObject *item = PyTuple_GET_ITEM(job->fast, i);
        if (!Py_IS_TYPE(item, state->file_type)) {
            PyErr_SetString(PyExc_TypeError, "a scope must hold ElfFile objects");
            return -1;
        }
        job->scope[i] = (struct elf_object *)item;
        job->files[i] = job->scope[i]->file;
    }
    return 0;
}

/*
 * Closes a job's files. Their cached blocks stay: the next dlopen reads the same libraries.
 * The caller holds the module's lock; the GIL is not needed.
 */
static void job_close(struct job *job)
{
    elf_close(job->file->file);
    for (Py_ssize_t i = 0; i < job->scope_count; i++) {
        elf_close(job->files[i]);
    }
}

/* New reference: the result of one job, a list or an ElfError as a value. */
static PyObject *job_answer(const struct elf_state *state, const struct job *job)
{
    PyObject *shown = job->file->shown;
    if (job->status == 0) {
        return reference_list(state, &job->found);
    }
    for (Py_ssize_t i = 0; i < job->scope_count; i++) {
        if (job->files[i] == job->culprit) {
            shown = job->scope[i]->shown;
        }
    }
    if (job->culprit->fault.error == ENOMEM) {
        return PyErr_NoMemory();
    }
    return make_error(state, job->culprit, shown);
}

static PyObject *missing(PyObject *module, PyObject *argument)
{
    struct elf_state *state = state_of(module);
    PyObject *given = PySequence_Tuple(argument);
    PyObject *made = NULL;
    struct job *jobs;
    Py_ssize_t count;
    if (given == NULL) {
        return NULL;
    }
    count = PyTuple_GET_SIZE(given);
    jobs = PyMem_Calloc((size_t)count + 1, sizeof(*jobs));
    if (jobs == NULL) {
        Py_DECREF(given);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (job_take(state, &jobs[i], PyTuple_GET_ITEM(given, i)) < 0) {
            goto done;
        }
    }
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&state->lock);
    for (Py_ssize_t i = 0; i < count; i++) {
        jobs[i].status =
            elf_list_missing(jobs[i].file->file, jobs[i].files, (size_t)jobs[i].scope_count,
                             &jobs[i].found, &jobs[i].culprit);
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        job_close(&jobs[i]);
    }
    pthread_mutex_unlock(&state->lock);
    Py_END_ALLOW_THREADS
    made = PyList_New(count);
    for (Py_ssize_t i = 0; made != NULL && i < count; i++) {
        PyObject *answer = job_answer(state, &jobs[i]);
        if (answer == NULL) {
            Py_CLEAR(made);
        } else {
            PyList_SET_ITEM(made, i, answer);
        }
    }
done:
    jobs_free(jobs, count);
    Py_DECREF(given);
    return made;
}

/* ---- absent() ---- */

/* New reference: the modules of a record that are not in its folder, as str. */
static PyObject *absent_list(struct elf_record *record)
{
    PyObject *made = PyList_New(0);

    while (made != NULL) {
        PyObject *item;
        const char *path = NULL;
        size_t length = 0;
        bool found;

        Py_BEGIN_ALLOW_THREADS
        found = elf_record_next(record, &path, &length);
        Py_END_ALLOW_THREADS
        if (!found) {
            return made;
        }
        item = PyUnicode_DecodeFSDefaultAndSize(path, (Py_ssize_t)length);
        if (item == NULL || PyList_Append(made, item) < 0) {
            Py_CLEAR(made);
        }
        Py_XDECREF(item);
    }
    return NULL;
}

static PyObject *absent(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *text, *given, *folder = NULL, *made;
    struct elf_record record = {.folder = -1};

    if (!PyArg_ParseTuple(args, "SO:absent", &text, &given) ||
        (given != Py_None && !PyUnicode_FSConverter(given, &folder))) {
        return NULL;
    }
    record.text = PyBytes_AS_STRING(text);
    record.size = (size_t)PyBytes_GET_SIZE(text);
    if (folder != NULL) {
        Py_BEGIN_ALLOW_THREADS
        record.folder = open(PyBytes_AS_STRING(folder), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        Py_END_ALLOW_THREADS
    }
    made = absent_list(&record);
    if (record.folder >= 0) {
        close(record.folder);
    }
    Py_XDECREF(folder);
    return made;
}

/* ---- the module ---- */

static PyStructSequence_Field need_fields[] = {
    {"library", "the DT_NEEDED name that should have it"}, {"version", NULL}, {"weak", NULL}, {0}};
static PyStructSequence_Desc need_description = {"cudriver._elf.VersionNeed",
                                                 "One entry of DT_VERNEED.", need_fields, 3};

static PyStructSequence_Field reference_fields[] = {
    {"name", NULL},
    {"version", "str or None"},
    {"library", "of the DT_VERNEED entry, or None"},
    {"weak", NULL},
    {"lazy", "every relocation of it is in DT_JMPREL"},
    {0}};
static PyStructSequence_Desc reference_description = {
    "cudriver._elf.Reference", "An undefined symbol that a relocation binds.", reference_fields, 5};

static PyStructSequence_Field export_fields[] = {
    {"name", NULL},
    {"version", "str or None"},
    {"default", "NAME@@VERSION; False: NAME@VERSION, or no version"},
    {"weak", NULL},
    {0}};
static PyStructSequence_Desc export_description = {
    "cudriver._elf.Export", "A definition that the hash table offers.", export_fields, 4};

PyDoc_STRVAR(missing_doc,
             "missing($module, jobs, /)\n--\n\n"
             "For each (file, scope): the references of `file`, weak ones aside, that no file of\n"
             "`scope` defines. A damaged file gives its ElfError in the place of the answer.");
PyDoc_STRVAR(absent_doc,
             "absent($module, record, folder, /)\n--\n\n"
             "The Python files that a wheel's RECORD lists, tests aside, and that `folder` lacks, or\n"
             "has empty where RECORD gives them bytes. folder: None: all that it lists.");
PyDoc_STRVAR(error_doc, "A file that cannot be read as ELF: missing, damaged, hostile.");
PyDoc_STRVAR(foreign_doc,
             "A sound ELF header of a class or byte order that this reader leaves alone.");

static PyMethodDef functions[] = {
    {"missing", missing, METH_O, missing_doc},
    {"absent", absent, METH_VARARGS, absent_doc},
    {0},
};

static int add_type(PyObject *module, PyTypeObject *type)
{
    return type != NULL ? PyModule_AddType(module, type) : -1;
}

static int elf_exec(PyObject *module)
{
    struct elf_state *state = state_of(module);
    if (pthread_mutex_init(&state->lock, NULL) != 0) {
        PyErr_SetString(PyExc_RuntimeError, "pthread_mutex_init failed");
        return -1;
    }
    state->lock_made = true;
    state->error = PyErr_NewExceptionWithDoc("cudriver._elf.ElfError", error_doc, NULL, NULL);
    if (state->error == NULL || PyModule_AddObjectRef(module, "ElfError", state->error) < 0) {
        return -1;
    }
    state->foreign_error =
        PyErr_NewExceptionWithDoc("cudriver._elf.ForeignElfError", foreign_doc, state->error, NULL);
    if (state->foreign_error == NULL ||
        PyModule_AddObjectRef(module, "ForeignElfError", state->foreign_error) < 0) {
        return -1;
    }
    state->file_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &file_spec, NULL);
    state->need_type = PyStructSequence_NewType(&need_description);
    state->reference_type = PyStructSequence_NewType(&reference_description);
    state->export_type = PyStructSequence_NewType(&export_description);
    if (add_type(module, state->file_type) < 0 || add_type(module, state->need_type) < 0 ||
        add_type(module, state->reference_type) < 0 || add_type(module, state->export_type) < 0) {
        return -1;
    }
    return 0;
}

static int elf_traverse(PyObject *module, visitproc visit, void *arg)
{
    struct elf_state *state = state_of(module);
    Py_VISIT(state->error);
    Py_VISIT(state->foreign_error);
    Py_VISIT(state->file_type);
    Py_VISIT(state->need_type);
    Py_VISIT(state->reference_type);
    Py_VISIT(state->export_type);
    return 0;
}

static int elf_clear(PyObject *module)
{
    struct elf_state *state = state_of(module);
    Py_CLEAR(state->error);
    Py_CLEAR(state->foreign_error);
    Py_CLEAR(state->file_type);
    Py_CLEAR(state->need_type);
    Py_CLEAR(state->reference_type);
    Py_CLEAR(state->export_type);
    return 0;
}

static void elf_module_free(void *module)
{
    struct elf_state *state = state_of(module);
    elf_clear(module);
    if (state->lock_made) {
        pthread_mutex_destroy(&state->lock);
        state->lock_made = false;
    }
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, elf_exec},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0},
};

PyDoc_STRVAR(module_doc,
             "A bounded reader of ELF files: what a dynamic loader would read of them.");

static struct PyModuleDef elf_module = {
    PyModuleDef_HEAD_INIT,      .m_name = "cudriver._elf",
    .m_doc = module_doc,        .m_size = sizeof(struct elf_state),
    .m_methods = functions,     .m_slots = module_slots,
    .m_traverse = elf_traverse, .m_clear = elf_clear,
    .m_free = elf_module_free,
};

PyMODINIT_FUNC PyInit__elf(void)
{
    return PyModuleDef_Init(&elf_module);
}
