/* cuGetProcAddress: the library's functions by their names without suffixes, and versions. */
#include "others.h"

#include "absent.h"

#include <string.h>

static const struct entry {
    const char *name; /* exported */
    int since;
    void (*function)(void);
} entries[] = {
#define X(name, args, since) {#name, since, (void (*)(void))name},
    SIM_FUNCTIONS(X) SIM_PER_THREAD(X)
#undef X
#define X(name, since) {#name, since, (void (*)(void))absent_##name},
        SIM_ABSENT(X)
#undef X
};

/* Whether an exported name is `symbol`, a name without suffixes, or that with _v2, _v3, ... and
 * _ptsz or _ptds. */
static bool entry_matches(const char *name, const char *symbol, bool *per_thread)
{
    size_t length = strlen(symbol);
    const char *rest = name + length;

    if (strncmp(name, symbol, length) != 0) {
        return false;
    }
    if (rest[0] == '_' && rest[1] == 'v' && rest[2] >= '2' && rest[2] <= '9') {
        rest += 3;
    }
    *per_thread = strcmp(rest, "_ptsz") == 0 || strcmp(rest, "_ptds") == 0;
    return *per_thread || rest[0] == '\0';
}

/* The generation in an exported name: 1, or what follows _v. */
static int entry_generation(const struct entry *entry, size_t base)
{
    const char *rest = entry->name + base;

    return rest[0] == '_' && rest[1] == 'v' ? rest[2] - '0' : 1;
}

/*
 * The newest generation that is not newer than `version`. Of that, if `per_thread`, the variant for
 * per-thread default streams, where there is one. *known: some version has the symbol.
 */
static const struct entry *entry_find(const char *symbol, int version, bool per_thread, bool *known)
{
    const struct entry *found = NULL;
    int best = 0;

    *known = false;
    if (strchr(symbol, '_') != NULL) {
        return NULL; /* it has a suffix */
    }
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        const struct entry *entry = &entries[i];
        bool variant;
        int rank;
        if (!entry_matches(entry->name, symbol, &variant) || (variant && !per_thread)) {
            continue;
        }
        *known = true;
        rank = 2 * entry_generation(entry, strlen(symbol)) + variant;
        if (entry->since <= version && rank > best) {
            best = rank;
            found = entry;
        }
    }
    return found;
}

static CUresult address_of(const char *symbol, void **function, int version, cuuint64_t flags,
                           CUdriverProcAddressQueryResult *status)
{
    const cuuint64_t both =
        CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    const struct entry *found;
    bool known;

    if (symbol == NULL || function == NULL || symbol[0] == '\0' || (flags & ~both) != 0 ||
        flags == both || version > atomic_load(&sim_knobs.version)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    found = entry_find(symbol, version,
                       (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0, &known);
    *function = NULL;
    if (found != NULL) {
        memcpy(function, &found->function, sizeof *function);
    }
    *status = found != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
              : known       ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                            : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
}

/* That of CUDA 11.3: no address is an error. */
CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags)
{
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    CUresult result = sim_enter(CALL_cuGetProcAddress);

    if (result == CUDA_SUCCESS) {
        result = address_of(symbol, function, version, flags, &status);
    }
    if (result == CUDA_SUCCESS && status != CU_GET_PROC_ADDRESS_SUCCESS) {
        return CUDA_ERROR_NOT_FOUND;
    }
    return result;
}

/* That of CUDA 12: no address is a status. */
CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status)
{
    CUdriverProcAddressQueryResult unused;
    CUresult result = sim_enter(CALL_cuGetProcAddress_v2);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    return address_of(symbol, function, version, flags, status != NULL ? status : &unused);
}
