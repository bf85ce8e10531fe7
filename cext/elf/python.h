/*
 * elf.h for Python: what the files of this folder share that know Python, which are module.c,
 * file_type.c and values.c.
 *
 * Nothing here needs the GIL. A struct elf_file belongs to one thread at a time, so the module's
 * lock is held while one is used, and only then: it is taken after the GIL is released and released
 * before the GIL is taken again, so no thread waits for one while it holds the other, and no code
 * of others runs under it. Three things are read without it: what elf_open read, `fields` and
 * `shown`, which never change; a file's fault, once a call under the lock has failed, as a file
 * keeps its first; and a call's own results.
 */
#ifndef CUDRIVER_ELF_PYTHON_H
#define CUDRIVER_ELF_PYTHON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "elf.h"

#include <pthread.h>

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
    PyObject *root;        /* owned: keeps the file's root open */
    PyObject *fields;      /* owned: dictionary of the attributes */
};

/* ---- values.c ---- */

/* New reference. File names and symbols are bytes; those that are not UTF-8 become surrogates. */
PyObject *elf_py_text(const char *bytes);

/* Stores a new reference (stolen, may be NULL) under a name. 0 or -1. */
int elf_py_put(PyObject *fields, const char *name, PyObject *value);

/* New reference: a structseq of `count` values, which are stolen and may be NULL. */
PyObject *elf_py_row(PyTypeObject *type, PyObject *const *values, int count);

/* New references. */
PyObject *elf_py_references(const struct elf_state *state, const struct elf_references *list);
PyObject *elf_py_exports(const struct elf_state *state, const struct elf_exports *list);
PyObject *elf_py_strings(char **items, size_t count);

/* New reference: an exception for the file's fault, or NULL. `shown` is borrowed. */
PyObject *elf_py_error(const struct elf_state *state, const struct elf_file *file, PyObject *shown);

/* Raises the fault. Returns NULL, for `return elf_py_raise(...)`. */
PyObject *elf_py_raise(const struct elf_state *state, const struct elf_file *file, PyObject *shown);

/* Adds a type, which may be NULL, or the types of rows. 0, or -1 with an exception set. */
int elf_py_add_type(PyObject *module, PyTypeObject *type);
int elf_py_values_setup(PyObject *module, struct elf_state *state);

/* ---- file_type.c ---- */

/* The same for ElfFile. */
int elf_py_file_setup(PyObject *module, struct elf_state *state);

#endif
