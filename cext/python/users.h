/* Who uses an object. What close() takes away they still need, so it is refused while there are
 * any; work in flight is asked separately (contexts/work.h). */
#ifndef CUDRIVER_USERS_H
#define CUDRIVER_USERS_H

#include <stdatomic.h>

#include "call.h"

struct cudriver_users {
    atomic_int calls;    /* running calls, perhaps without the GIL */
    Py_ssize_t children; /* of a context: arrays, streams and events in it; of memory: its arrays */
    Py_ssize_t exports;  /* of memory: DLPack tensors that other libraries hold */
};

/* 0 if nothing uses the object, but for `own` of its children; else -1 with an exception, which
 * says that `call` is refused and who uses it. `work`: work in flight uses it. */
static inline int cudriver_users_check(PyObject *object, const char *call,
                                       const struct cudriver_users *users, Py_ssize_t own,
                                       bool work)
{
    int calls = users->calls;

    if (calls == 0 && users->children == own && users->exports == 0 && !work) {
        return 0;
    }
    return cudriver_do(CALL_refusals_used, object, call, users->children - own, calls,
                       users->exports, work ? Py_True : Py_False);
}

#endif
