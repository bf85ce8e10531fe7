/* The functions of CUDA that the simulator does not have: they say so and do nothing. */
#include "others.h"

#include "absent.h"

#include <string.h>

/* Why, for the kinds that people meet. */
static const char *reason(const char *function)
{
    static const char *const kernels[] = {"cuLaunch", "cuLibrary", "cuKernel",    "cuLink",
                                          "cuFunc",   "cuModule",  "cuOccupancy", "cuParamSet"};

    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
        if (strncmp(function, kernels[i], strlen(kernels[i])) == 0) {
            return "runs no kernels";
        }
    }
    if (strcmp(function, "cuGetExportTable") == 0) {
        return "does not carry the CUDA runtime, only programs that call the driver";
    }
    return "has memory, streams, events, pools, contexts and devices only";
}

static CUresult absent(atomic_bool *said, const char *function)
{
    if (atomic_load(&sim_knobs.stub)) {
        return CUDA_ERROR_STUB_LIBRARY;
    }
    sim_say_once(said, "%s: %s is not supported", reason(function), function);
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* They look at no argument, and have C names of their own. */
#define X(name, since)               \
    CUresult absent_##name(void)     \
    {                                \
        static atomic_bool said;     \
        return absent(&said, #name); \
    }
SIM_ABSENT(X)
#undef X
