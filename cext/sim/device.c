/* The driver itself and its devices: names, identifiers, attributes. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_errors.h"

static const struct error_text {
    int code;
    const char *name;
    const char *text;
} error_texts[] = {
#define X(code, name, text) {code, #name, text},
    CUDRIVER_ERRORS(X)
#undef X
};

/* The attributes of cuda.h by number, as on a data-centre GPU of compute capability 9.0. */
static const struct attribute_value {
    int attribute;
    int value;
} attribute_values[] = {
    {1, 1024},      {2, 1024},       {3, 1024},    {4, 64},         {5, 2147483647},  {6, 65535},
    {7, 65535},     {8, 49152},      {9, 65536},   {10, 32},        {11, 2147483647}, {12, 65536},
    {13, 1980000},  {14, 512},       {15, 1},      {16, 132},       {17, 0},          {18, 0},
    {19, 1},        {20, 0},         {21, 131072}, {22, 131072},    {23, 65536},      {24, 16384},
    {25, 16384},    {26, 16384},     {27, 32768},  {28, 32768},     {29, 2048},       {30, 512},
    {31, 1},        {32, 1},         {34, 0},      {35, 0},         {36, 3201000},    {37, 6016},
    {38, 62914560}, {39, 2048},      {40, 3},      {41, 1},         {42, 32768},      {43, 2048},
    {44, 1},        {45, 32768},     {46, 32768},  {47, 8192},      {48, 8192},       {49, 32768},
    {50, 0},        {51, 32},        {52, 32768},  {53, 32768},     {54, 2046},       {55, 32768},
    {56, 131072},   {57, 65536},     {58, 16384},  {59, 16384},     {60, 16384},      {61, 32768},
    {62, 2048},     {63, 32768},     {64, 32768},  {65, 2048},      {66, 32768},      {67, 32768},
    {68, 2046},     {69, 268435456}, {70, 131072}, {71, 65000},     {72, 2097120},    {73, 32768},
    {74, 32768},    {75, 9},         {76, 0},      {77, 32768},     {78, 1},          {79, 1},
    {80, 1},        {81, 233472},    {82, 65536},  {83, 1},         {84, 0},          {86, 0},
    {87, 2},        {88, 0},         {89, 1},      {90, 1},         {91, 1},          {92, 0},
    {93, 0},        {94, 0},         {95, 1},      {96, 1},         {97, 232448},     {98, 0},
    {99, 1},        {100, 0},        {101, 0},     {102, 1},        {103, 1},         {104, 0},
    {105, 0},       {106, 32},       {107, 1},     {108, 39321600}, {109, 134217728}, {110, 0},
    {111, 1024},    {112, 1},        {113, 1},     {114, 1},        {115, 1},         {116, 0},
    {117, 0},       {118, 0},        {119, 0},     {120, 1},        {121, 1},         {122, 1},
    {123, 1},       {124, 0},        {125, 0},     {126, 4},        {127, 1},         {128, 0},
    {129, 1},       {130, 0},        {131, -1},    {132, 0},        {133, 0},         {134, 0},
    {135, 0},       {136, 0},        {137, 0},     {138, 0},        {139, 0},         {140, 0},
    {141, 0},       {142, 0},        {143, 0},     {144, 0},        {145, 0},         {146, 0},
    {147, 0},
};

bool sim_device_is_valid(CUdevice device)
{
    return device >= 0 && device < atomic_load_explicit(&sim_knobs.devices, memory_order_relaxed);
}

/* Begins a call on `device`. */
static CUresult device_enter(enum sim_call call, CUdevice device)
{
    CUresult result = sim_enter(call);

    if (result == CUDA_SUCCESS && !sim_device_is_valid(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    return result;
}

/* ---- the driver ---- */

CUresult cuInit(unsigned int flags)
{
    CUresult result = sim_enter(CALL_cuInit);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    return flags != 0 ? CUDA_ERROR_INVALID_VALUE : sim_initialise();
}

CUresult cuDriverGetVersion(int *version)
{
    CUresult result = sim_enter(CALL_cuDriverGetVersion);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (version == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *version = atomic_load(&sim_knobs.version);
    return CUDA_SUCCESS;
}

static const struct error_text *error_find(CUresult error)
{
    for (size_t i = 0; i < sizeof error_texts / sizeof error_texts[0]; i++) {
        if (error_texts[i].code == (int)error) {
            return &error_texts[i];
        }
    }
    return NULL;
}

CUresult cuGetErrorName(CUresult error, const char **text)
{
    CUresult result = sim_enter(CALL_cuGetErrorName);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (text == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const struct error_text *found = error_find(error);
    *text = found != NULL ? found->name : NULL;
    return found != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    CUresult result = sim_enter(CALL_cuGetErrorString);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (text == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const struct error_text *found = error_find(error);
    *text = found != NULL ? found->text : NULL;
    return found != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- devices ---- */

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult result = device_enter(CALL_cuDeviceGet, ordinal);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (device == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    CUresult result = sim_enter(CALL_cuDeviceGetCount);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (count == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *count = atomic_load(&sim_knobs.devices);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
    CUresult result = device_enter(CALL_cuDeviceGetName, device);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (name == NULL || size <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    snprintf(name, (size_t)size, "cudriver simulated GPU %d", device);
    return CUDA_SUCCESS;
}

static CUresult device_uuid(enum sim_call call, CUuuid *uuid, CUdevice device)
{
    /* A UUID of version 8 (free form), with the variant of RFC 9562. */
    static const unsigned char base[16] = {0xc0, 0xd4, 0x1f, 0x3e, 0x51, 0x6d, 0x80, 0x00,
                                           0xb0, 0x0b, 0x5e, 0x1e, 0x57, 0xac, 0x4d, 0x00};
    CUresult result = device_enter(call, device);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (uuid == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(uuid->bytes, base, sizeof base);
    uuid->bytes[15] = (char)device;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    return device_uuid(CALL_cuDeviceGetUuid, uuid, device);
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    return device_uuid(CALL_cuDeviceGetUuid_v2, uuid, device);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    CUresult result = device_enter(CALL_cuDeviceTotalMem_v2, device);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (bytes == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *bytes = (size_t)atomic_load(&sim_knobs.memory);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    CUresult result = device_enter(CALL_cuDeviceGetAttribute, device);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (value == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    /* Two attributes differ between devices; an old driver does not know one. */
    if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) {
        *value = device + 1;
        return CUDA_SUCCESS;
    }
    if ((int)attribute == 85) { /* MULTI_GPU_BOARD_GROUP_ID */
        *value = device;
        return CUDA_SUCCESS;
    }
    if (attribute == CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED &&
        atomic_load(&sim_knobs.version) < sim_call_since(CALL_cuMemPoolCreate)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if ((attribute == CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS ||
         attribute == CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES) &&
        atomic_load(&sim_knobs.coherent)) {
        *value = 1;
        return CUDA_SUCCESS;
    }
    for (size_t i = 0; i < sizeof attribute_values / sizeof attribute_values[0]; i++) {
        if (attribute_values[i].attribute == (int)attribute) {
            *value = attribute_values[i].value;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

/* [domain:]bus:device[.function], in hexadecimal: device 0 is 0000:01:00.0, 1 is 0000:02:00.0. */
CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *id)
{
    CUresult result = sim_enter(CALL_cuDeviceGetByPCIBusId);
    unsigned domain = 0, bus = 0, slot = 0, function = 0;
    int used = 0;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (device == NULL || id == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (sscanf(id, "%8x:%2x:%2x%n", &domain, &bus, &slot, &used) != 3) {
        domain = 0;
        if (sscanf(id, "%2x:%2x%n", &bus, &slot, &used) != 2) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    if (id[used] == '.') {
        int more = 0;
        if (sscanf(id + used, ".%1x%n", &function, &more) != 1) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        used += more;
    }
    if (id[used] != '\0') {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (domain != 0 || slot != 0 || function != 0 || !sim_device_is_valid((int)bus - 1)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *device = (int)bus - 1;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *id, int size, CUdevice device)
{
    CUresult result = device_enter(CALL_cuDeviceGetPCIBusId, device);
    char text[16];

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (id == NULL || size <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int length = snprintf(text, sizeof text, "0000:%02X:00.0", (unsigned)(device + 1) & 0xFF);
    if (length >= size) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(id, text, (size_t)length + 1);
    return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    CUresult result = device_enter(CALL_cuDeviceCanAccessPeer, device);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!sim_device_is_valid(peer)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (can == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *can = device != peer;
    return CUDA_SUCCESS;
}
