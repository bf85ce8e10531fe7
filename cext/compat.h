/* Every branch on the Python version. (numpy_bridge.c has those on NumPy's.) */
#ifndef CUDRIVER_COMPAT_H
#define CUDRIVER_COMPAT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <structmember.h> /* T_PYSSIZET and the like, which 3.12 renamed */

#if PY_VERSION_HEX < 0x030B0000
#error "cudriver needs CPython 3.11 or newer"
#endif

#if PY_VERSION_HEX < 0x030D0000
/* Public since 3.13. */
#define Py_IsFinalizing _Py_IsFinalizing

/* Since 3.13. An attribute that may be missing: 1 and a new reference; 0 and NULL; -1 and NULL with
 * an exception set. Makes no exception for most types. */
#define PyObject_GetOptionalAttr _PyObject_LookupAttr
#endif

/* ---- without the GIL: README.md, "Locks" ---- */

#if defined(Py_GIL_DISABLED) && PY_VERSION_HEX >= 0x030E0000
#define CUDRIVER_FREE_THREADED
void cudriver_lock_begin(PyCriticalSection *section);
void cudriver_lock_end(PyCriticalSection *section);

/* Waits a moment if another thread has the lock. Call it before the thread takes it again, where
 * many threads may do so at once. */
void cudriver_lock_await(void);

/* Takes the lock until the enclosing block ends. Where the thread has it, does nothing. */
#define CUDRIVER_LOCK()                                                            \
    __attribute__((cleanup(cudriver_lock_end))) PyCriticalSection cudriver_locked; \
    cudriver_lock_begin(&cudriver_locked)
#else
#define CUDRIVER_LOCK() ((void)0)
#define cudriver_lock_await() ((void)0)
#endif

/* A list keeps a borrowed reference to the object, which is new. */
static inline void cudriver_will_borrow(PyObject *object)
{
#ifdef CUDRIVER_FREE_THREADED
    PyUnstable_EnableTryIncRef(object);
#else
    (void)object;
#endif
}

/* Makes such a reference an owned one. False: the object is being deallocated. */
static inline bool cudriver_try_own(PyObject *object)
{
#ifdef CUDRIVER_FREE_THREADED
    return PyUnstable_TryIncRef(object);
#else
    if (Py_REFCNT(object) > 0) {
        Py_INCREF(object);
        return true;
    }
    return false;
#endif
}

/* Whether nobody has a reference but the caller. False also where that is not known. */
static inline bool cudriver_is_sole_owner(PyObject *object)
{
#ifdef CUDRIVER_FREE_THREADED
    return PyUnstable_Object_IsUniquelyReferenced(object);
#else
    return Py_REFCNT(object) == 1;
#endif
}

/* New reference: a type's attribute as it is; NULL, without an exception, if there is none. */
static inline PyObject *cudriver_type_attribute(PyTypeObject *type, PyObject *name)
{
#ifdef CUDRIVER_FREE_THREADED
    return _PyType_LookupRef(type, name);
#else
    return Py_XNewRef(_PyType_Lookup(type, name));
#endif
}

#endif
