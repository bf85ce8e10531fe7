/* Lent tensors kept alive, and given back once. See dlpack.h. */
#include "dlpack.h"

#include <string.h>

#define KEEPER "cudriver dlpack keeper"
#define KEEPER_OLD "cudriver old dlpack keeper"

/* The end of a keeper: gives the tensor back, and keeps the exception, because the deleter may run
 * Python code. */
static void keeper_end(PyObject *capsule)
{
    PyObject *type, *value, *traceback;

    PyErr_Fetch(&type, &value, &traceback);
    if (PyCapsule_IsValid(capsule, KEEPER)) {
        struct cudriver_dl_managed *tensor = PyCapsule_GetPointer(capsule, KEEPER);
        if (tensor->deleter != NULL) {
            tensor->deleter(tensor);
        }
    } else {
        struct cudriver_dl_old *tensor = PyCapsule_GetPointer(capsule, KEEPER_OLD);
        if (tensor->deleter != NULL) {
            tensor->deleter(tensor);
        }
    }
    PyErr_Restore(type, value, traceback);
}

int cudriver_dlpack_take(struct cudriver_dl_managed *tensor, struct cudriver_dl_lent *lent)
{
    lent->keeper = PyCapsule_New(tensor, KEEPER, keeper_end);
    lent->tensor = &tensor->tensor;
    lent->flags = tensor->flags;
    return lent->keeper != NULL ? 0 : -1;
}

/* 0 if we know the layout of a tensor, of which the version and the deleter are always where they
 * are; else -1 with BufferError. */
static int version_check(const struct cudriver_dl_managed *tensor)
{
    if (tensor->version.major == CUDRIVER_DL_MAJOR) {
        return 0;
    }
    PyErr_Format(PyExc_BufferError,
                 "a tensor of DLPack %u.%u cannot be read: this package knows %d.%d",
                 (unsigned)tensor->version.major, (unsigned)tensor->version.minor,
                 CUDRIVER_DL_MAJOR, CUDRIVER_DL_MINOR);
    return -1;
}

/* Says what a capsule is that cannot be taken. */
static int capsule_refuse(PyObject *capsule)
{
    const char *name = PyCapsule_CheckExact(capsule) ? PyCapsule_GetName(capsule) : NULL;

    if (!PyCapsule_CheckExact(capsule)) {
        PyErr_Format(PyExc_TypeError, "__dlpack__() returned %.100s, which is no capsule",
                     Py_TYPE(capsule)->tp_name);
    } else if (name != NULL && strncmp(name, "used_dltensor", 13) == 0) {
        PyErr_SetString(PyExc_ValueError,
                        "__dlpack__() returned a capsule whose tensor was taken already");
    } else {
        PyErr_Format(PyExc_ValueError,
                     "__dlpack__() returned a capsule named '%s', not 'dltensor' or "
                     "'dltensor_versioned'",
                     name != NULL ? name : "");
    }
    return -1;
}

int cudriver_dlpack_take_capsule(PyObject *capsule, struct cudriver_dl_lent *lent)
{
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        struct cudriver_dl_managed *tensor = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        return version_check(tensor) < 0 || cudriver_dlpack_take(tensor, lent) < 0
                   ? -1
                   : PyCapsule_SetName(capsule, "used_dltensor_versioned");
    }
    if (PyCapsule_IsValid(capsule, "dltensor")) {
        struct cudriver_dl_old *tensor = PyCapsule_GetPointer(capsule, "dltensor");
        lent->keeper = PyCapsule_New(tensor, KEEPER_OLD, keeper_end);
        lent->tensor = &tensor->tensor;
        lent->flags = 0;
        return lent->keeper == NULL ? -1 : PyCapsule_SetName(capsule, "used_dltensor");
    }
    return capsule_refuse(capsule);
}
