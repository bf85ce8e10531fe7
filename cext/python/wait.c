/* See wait.h. */
#include "wait.h"

#include <time.h>

#include "engine/engine.h"
#include "error.h"

bool cudriver_signal_arrived(void *data)
{
    PyThreadState **saved = data;
    bool arrived;

    PyEval_RestoreThread(*saved);
    arrived = PyErr_CheckSignals() < 0;
    *saved = PyEval_SaveThread();
    return arrived;
}

void cudriver_nap(long milliseconds)
{
    struct timespec length = {milliseconds / 1000, milliseconds % 1000 * 1000000};

    Py_BEGIN_ALLOW_THREADS
    nanosleep(&length, NULL);
    Py_END_ALLOW_THREADS
}

int cudriver_wait(CUresult (*query)(void *handle), void *handle, const char *function)
{
    PyThreadState *saved = PyEval_SaveThread();
    CUresult result = cudriver_staging_poll(query, handle, cudriver_signal_arrived, &saved);

    PyEval_RestoreThread(saved);
    if (result == CUDA_SUCCESS) {
        return 0;
    }
    return result == CUDRIVER_STAGING_INTERRUPTED ? -1 : cudriver_check(result, function, "%s", "");
}
