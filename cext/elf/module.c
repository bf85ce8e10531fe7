/* cudriver._elf: its functions, and the module. See python.h. */
#include "python.h"

#include "record.h"
#include "byte_code.h"
#include "docstrings.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

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
 * Closes a job's files. What was read of them stays, unless that is much: the next dlopen reads the
 * same libraries. The caller holds the module's lock; the GIL is not needed.
 */
static void job_close(struct job *job)
{
    void (*finish)(struct elf_file *) = elf_much_held() ? elf_drop : elf_close;
    finish(job->file->file);
    for (Py_ssize_t i = 0; i < job->scope_count; i++) {
        finish(job->files[i]);
    }
}

/* New reference: the result of one job, a list or an ElfError as a value. */
static PyObject *job_answer(const struct elf_state *state, const struct job *job)
{
    PyObject *shown = job->file->shown;
    if (job->status == 0) {
        return elf_py_references(state, &job->found);
    }
    for (Py_ssize_t i = 0; i < job->scope_count; i++) {
        if (job->files[i] == job->culprit) {
            shown = job->scope[i]->shown;
        }
    }
    if (job->culprit->fault.error == ENOMEM) {
        return PyErr_NoMemory();
    }
    return elf_py_error(state, job->culprit, shown);
}

static PyObject *missing(PyObject *module, PyObject *argument)
{
    struct elf_state *state = PyModule_GetState(module);
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

/* One wheel's RECORD, and the folder that it lies in. */
struct wheel {
    struct elf_record record; /* its text: borrowed */
    PyObject *folder;         /* owned: its name as bytes; NULL: none */
    bool read;                /* false: no memory */
};

static void wheels_free(struct wheel *wheels, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        free(wheels[i].record.absent);
        Py_XDECREF(wheels[i].folder);
    }
    PyMem_Free(wheels);
}

static int wheel_take(struct wheel *wheel, PyObject *pair)
{
    PyObject *text, *folder;
    if (!PyTuple_Check(pair)) {
        PyErr_SetString(PyExc_TypeError, "a wheel is a RECORD, a folder and a time");
        return -1;
    }
    wheel->record.since = LLONG_MAX;
    if (!PyArg_ParseTuple(pair, "SO|L:absent", &text, &folder, &wheel->record.since) ||
        (folder != Py_None && !PyUnicode_FSConverter(folder, &wheel->folder))) {
        return -1;
    }
    wheel->record.text = PyBytes_AS_STRING(text);
    wheel->record.size = (size_t)PyBytes_GET_SIZE(text);
    return 0;
}

/* Looks for the modules of one wheel. Needs no GIL. */
static void wheel_read(struct wheel *wheel)
{
    int folder = -1;
    if (wheel->folder != NULL) {
        folder = open(PyBytes_AS_STRING(wheel->folder), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    wheel->read = elf_record_read(&wheel->record, folder);
    if (folder >= 0) {
        close(folder);
    }
}

/* New reference: number and text of the lines whose modules are not there. */
static PyObject *wheel_answer(const struct wheel *wheel)
{
    PyObject *made = wheel->read ? PyList_New((Py_ssize_t)wheel->record.count) : PyErr_NoMemory();
    for (size_t i = 0; made != NULL && i < wheel->record.count; i++) {
        const struct elf_line *line = &wheel->record.absent[i];
        PyObject *text = PyUnicode_DecodeFSDefaultAndSize(line->text, (Py_ssize_t)line->length);
        PyObject *item = text != NULL ? Py_BuildValue("nN", (Py_ssize_t)line->number, text) : NULL;
        if (item == NULL) {
            Py_CLEAR(made);
        } else {
            PyList_SET_ITEM(made, (Py_ssize_t)i, item);
        }
    }
    return made;
}

static PyObject *absent(PyObject *Py_UNUSED(module), PyObject *argument)
{
    PyObject *given = PySequence_Tuple(argument);
    PyObject *made = NULL;
    struct wheel *wheels;
    Py_ssize_t count;
    if (given == NULL) {
        return NULL;
    }
    count = PyTuple_GET_SIZE(given);
    wheels = PyMem_Calloc((size_t)count + 1, sizeof(*wheels));
    if (wheels == NULL) {
        Py_DECREF(given);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (wheel_take(&wheels[i], PyTuple_GET_ITEM(given, i)) < 0) {
            goto done;
        }
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++) {
        wheel_read(&wheels[i]);
    }
    Py_END_ALLOW_THREADS
    made = PyList_New(count);
    for (Py_ssize_t i = 0; made != NULL && i < count; i++) {
        PyObject *answer = wheel_answer(&wheels[i]);
        if (answer == NULL) {
            Py_CLEAR(made);
        } else {
            PyList_SET_ITEM(made, i, answer);
        }
    }
done:
    wheels_free(wheels, count);
    Py_DECREF(given);
    return made;
}

/* ---- byte code ---- */

static PyObject *cut_short(PyObject *Py_UNUSED(module), PyObject *argument)
{
    Py_buffer view;
    const char *says;
    if (PyObject_GetBuffer(argument, &view, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    says = elf_byte_code_cut(view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    return says != NULL ? PyUnicode_FromString(says) : Py_NewRef(Py_None);
}

/* ---- the module ---- */

static PyMethodDef functions[] = {
    {"missing", missing, METH_O, DOC_missing},
    {"absent", absent, METH_O, DOC_absent},
    {"cut_short", cut_short, METH_O, DOC_cut_short},
    {0},
};

static int elf_exec(PyObject *module)
{
    struct elf_state *state = PyModule_GetState(module);
    if (pthread_mutex_init(&state->lock, NULL) != 0) {
        PyErr_SetString(PyExc_RuntimeError, "pthread_mutex_init failed");
        return -1;
    }
    state->lock_made = true;
    state->error = PyErr_NewExceptionWithDoc("cudriver._elf.ElfError", DOC_ElfError, NULL, NULL);
    if (state->error == NULL || PyModule_AddObjectRef(module, "ElfError", state->error) < 0) {
        return -1;
    }
    state->foreign_error = PyErr_NewExceptionWithDoc("cudriver._elf.ForeignElfError",
                                                     DOC_ForeignElfError, state->error, NULL);
    if (state->foreign_error == NULL ||
        PyModule_AddObjectRef(module, "ForeignElfError", state->foreign_error) < 0) {
        return -1;
    }
    if (elf_py_file_setup(module, state) < 0 || elf_py_values_setup(module, state) < 0) {
        return -1;
    }
    return 0;
}

static int elf_traverse(PyObject *module, visitproc visit, void *arg)
{
    struct elf_state *state = PyModule_GetState(module);
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
    struct elf_state *state = PyModule_GetState(module);
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
    struct elf_state *state = PyModule_GetState(module);
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

static struct PyModuleDef elf_module = {
    PyModuleDef_HEAD_INIT,      .m_name = "cudriver._elf",
    .m_doc = DOC_module,        .m_size = sizeof(struct elf_state),
    .m_methods = functions,     .m_slots = module_slots,
    .m_traverse = elf_traverse, .m_clear = elf_clear,
    .m_free = elf_module_free,
};

PyMODINIT_FUNC PyInit__elf(void)
{
    return PyModuleDef_Init(&elf_module);
}
