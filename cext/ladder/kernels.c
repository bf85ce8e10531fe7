/*
 * Four kernels that only move bytes. See kernels.h.
 *
 * The PTX targets sm_50, and the driver compiles it for the GPU. Each entry takes (memory, vectors,
 * number, sums), 64 bits each, and is launched with LADDER_THREADS threads per block. Every load is
 * added to a sum that is stored at the end, so that no compiler can drop the load. `sums` receives
 * one word from each thread t of a block:
 *
 *   cudriver_ladder_read          the sum of the words that it read; the grid reads all words once
 *   cudriver_ladder_write         how many vectors it wrote
 *   cudriver_ladder_shared_read   the sum of the words that it read: the vectors (t + i) % 256 of
 *                                 the tile's four rows, for i < number
 *   cudriver_ladder_shared_write  the sum of what thread q = 255 - t left in its four vectors, each
 *                                 of them q + (number - 1) * 1024, q + 1, q + 2, q + 3
 *
 * The threads of a warp access adjacent vectors of 16 bytes: accesses to global memory are
 * coalesced, and those to shared memory have no bank conflicts. In shared memory the address
 * changes in every iteration, so that no compiler can hoist the access out of the loop.
 */
#include "kernels.h"

#include <stdio.h>
#include <stdlib.h>

#include "driver/driver.h"

_Static_assert(LADDER_THREADS == 256 && LADDER_TILE == 16384, "as the texts below have it");

static const char ptx_head[] = ".version 6.0\n"
                               ".target sm_50\n"
                               ".address_size 64\n"
                               ".visible .entry ";

static const char ptx_begin[] =
    "(.param .u64 memory, .param .u64 vectors, .param .u64 number, .param .u64 sums)\n"
    ".maxntid 256, 1, 1\n"
    "{\n"
    ".reg .pred p;\n"
    ".reg .u32 t, n, s, u, at, base, place, v<16>;\n"
    ".reg .u64 a, b, c, d, i, w, step, bytes, total, bulk, left, out;\n"
    "ld.param.u64 a, [memory];\n"
    "ld.param.u64 total, [vectors];\n"
    "ld.param.u64 left, [number];\n"
    "ld.param.u64 out, [sums];\n"
    "cvta.to.global.u64 a, a;\n"
    "cvta.to.global.u64 out, out;\n"
    "mov.u32 n, %ntid.x;\n"
    "mov.u32 t, %nctaid.x;\n"
    "mul.wide.u32 step, t, n;\n"
    "mov.u32 t, %ctaid.x;\n"
    "mul.wide.u32 i, t, n;\n"
    "mov.u32 t, %tid.x;\n"
    "cvt.u64.u32 w, t;\n"
    "add.u64 i, i, w;\n"
    "shl.b64 w, i, 2;\n"
    "add.u64 out, out, w;\n"
    "shl.b64 bytes, step, 4;\n"
    "mov.u32 s, 0;\n"
    "mov.u32 u, 0;\n";

static const char ptx_read[] = "shl.b64 w, i, 4;\n"
                               "add.u64 a, a, w;\n"
                               "mul.lo.u64 w, step, 3;\n"
                               "setp.gt.u64 p, total, w;\n"
                               "sub.u64 bulk, total, w;\n"
                               "selp.u64 bulk, bulk, 0, p;\n"
                               "FOUR:\n"
                               "setp.ge.u64 p, i, bulk;\n"
                               "@p bra ONE;\n"
                               "add.u64 b, a, bytes;\n"
                               "add.u64 c, b, bytes;\n"
                               "add.u64 d, c, bytes;\n"
                               "ld.global.v4.u32 {v0, v1, v2, v3}, [a];\n"
                               "ld.global.v4.u32 {v4, v5, v6, v7}, [b];\n"
                               "ld.global.v4.u32 {v8, v9, v10, v11}, [c];\n"
                               "ld.global.v4.u32 {v12, v13, v14, v15}, [d];\n"
                               "add.u64 a, d, bytes;\n"
                               "shl.b64 w, step, 2;\n"
                               "add.u64 i, i, w;\n"
                               "add.u32 s, s, v0;\n"
                               "add.u32 s, s, v1;\n"
                               "add.u32 u, u, v2;\n"
                               "add.u32 u, u, v3;\n"
                               "add.u32 s, s, v4;\n"
                               "add.u32 s, s, v5;\n"
                               "add.u32 u, u, v6;\n"
                               "add.u32 u, u, v7;\n"
                               "add.u32 s, s, v8;\n"
                               "add.u32 s, s, v9;\n"
                               "add.u32 u, u, v10;\n"
                               "add.u32 u, u, v11;\n"
                               "add.u32 s, s, v12;\n"
                               "add.u32 s, s, v13;\n"
                               "add.u32 u, u, v14;\n"
                               "add.u32 u, u, v15;\n"
                               "bra FOUR;\n"
                               "ONE:\n"
                               "setp.ge.u64 p, i, total;\n"
                               "@p bra END;\n"
                               "ld.global.v4.u32 {v0, v1, v2, v3}, [a];\n"
                               "add.u64 a, a, bytes;\n"
                               "add.u64 i, i, step;\n"
                               "add.u32 s, s, v0;\n"
                               "add.u32 s, s, v1;\n"
                               "add.u32 u, u, v2;\n"
                               "add.u32 u, u, v3;\n"
                               "bra ONE;\n"
                               "END:\n";

static const char ptx_write[] = "cvt.u32.u64 v0, w;\n"
                                "cvt.u32.u64 n, left;\n"
                                "mad.lo.u32 v0, v0, 0x9E3779B1, n;\n"
                                "shl.b64 w, step, 2;\n"
                                "cvt.u32.u64 place, w;\n"
                                "mul.lo.u32 place, place, 0x9E3779B1;\n"
                                "shl.b64 w, i, 4;\n"
                                "add.u64 a, a, w;\n"
                                "LOOP:\n"
                                "setp.ge.u64 p, i, total;\n"
                                "@p bra END;\n"
                                "add.u32 v1, v0, 0x9E3779B1;\n"
                                "add.u32 v2, v1, 0x9E3779B1;\n"
                                "add.u32 v3, v2, 0x9E3779B1;\n"
                                "st.global.v4.u32 [a], {v0, v1, v2, v3};\n"
                                "add.u32 v0, v0, place;\n"
                                "add.u64 a, a, bytes;\n"
                                "add.u64 i, i, step;\n"
                                "add.u32 s, s, 1;\n"
                                "bra LOOP;\n"
                                "END:\n";

static const char ptx_shared_read[] = ".shared .align 16 .b8 tile[16384];\n"
                                      "shl.b32 place, t, 4;\n"
                                      "cvt.u64.u32 w, place;\n"
                                      "add.u64 a, a, w;\n"
                                      "mov.u32 base, tile;\n"
                                      "add.u32 at, base, place;\n"
                                      "ld.global.v4.u32 {v0, v1, v2, v3}, [a];\n"
                                      "ld.global.v4.u32 {v4, v5, v6, v7}, [a+4096];\n"
                                      "ld.global.v4.u32 {v8, v9, v10, v11}, [a+8192];\n"
                                      "ld.global.v4.u32 {v12, v13, v14, v15}, [a+12288];\n"
                                      "st.shared.v4.u32 [at], {v0, v1, v2, v3};\n"
                                      "st.shared.v4.u32 [at+4096], {v4, v5, v6, v7};\n"
                                      "st.shared.v4.u32 [at+8192], {v8, v9, v10, v11};\n"
                                      "st.shared.v4.u32 [at+12288], {v12, v13, v14, v15};\n"
                                      "bar.sync 0;\n"
                                      "LOOP:\n"
                                      "setp.eq.u64 p, left, 0;\n"
                                      "@p bra END;\n"
                                      "add.u32 at, base, place;\n"
                                      "ld.shared.v4.u32 {v0, v1, v2, v3}, [at];\n"
                                      "ld.shared.v4.u32 {v4, v5, v6, v7}, [at+4096];\n"
                                      "ld.shared.v4.u32 {v8, v9, v10, v11}, [at+8192];\n"
                                      "ld.shared.v4.u32 {v12, v13, v14, v15}, [at+12288];\n"
                                      "add.u32 place, place, 16;\n"
                                      "and.b32 place, place, 4095;\n"
                                      "sub.u64 left, left, 1;\n"
                                      "add.u32 s, s, v0;\n"
                                      "add.u32 s, s, v1;\n"
                                      "add.u32 u, u, v2;\n"
                                      "add.u32 u, u, v3;\n"
                                      "add.u32 s, s, v4;\n"
                                      "add.u32 s, s, v5;\n"
                                      "add.u32 u, u, v6;\n"
                                      "add.u32 u, u, v7;\n"
                                      "add.u32 s, s, v8;\n"
                                      "add.u32 s, s, v9;\n"
                                      "add.u32 u, u, v10;\n"
                                      "add.u32 u, u, v11;\n"
                                      "add.u32 s, s, v12;\n"
                                      "add.u32 s, s, v13;\n"
                                      "add.u32 u, u, v14;\n"
                                      "add.u32 u, u, v15;\n"
                                      "bra LOOP;\n"
                                      "END:\n";

static const char ptx_shared_write[] = ".shared .align 16 .b8 tile[16384];\n"
                                       "shl.b32 n, t, 4;\n"
                                       "mov.u32 base, tile;\n"
                                       "add.u32 base, base, n;\n"
                                       "mov.u32 place, 0;\n"
                                       "mov.u32 v0, t;\n"
                                       "add.u32 v1, t, 1;\n"
                                       "add.u32 v2, t, 2;\n"
                                       "add.u32 v3, t, 3;\n"
                                       "LOOP:\n"
                                       "setp.eq.u64 p, left, 0;\n"
                                       "@p bra READ;\n"
                                       "add.u32 at, base, place;\n"
                                       "st.shared.v4.u32 [at], {v0, v1, v2, v3};\n"
                                       "add.u32 place, place, 4096;\n"
                                       "and.b32 place, place, 16383;\n"
                                       "add.u32 at, base, place;\n"
                                       "st.shared.v4.u32 [at], {v0, v1, v2, v3};\n"
                                       "add.u32 place, place, 4096;\n"
                                       "and.b32 place, place, 16383;\n"
                                       "add.u32 at, base, place;\n"
                                       "st.shared.v4.u32 [at], {v0, v1, v2, v3};\n"
                                       "add.u32 place, place, 4096;\n"
                                       "and.b32 place, place, 16383;\n"
                                       "add.u32 at, base, place;\n"
                                       "st.shared.v4.u32 [at], {v0, v1, v2, v3};\n"
                                       "add.u32 place, place, 4096;\n"
                                       "and.b32 place, place, 16383;\n"
                                       "add.u32 place, place, 4096;\n"
                                       "and.b32 place, place, 16383;\n"
                                       "add.u32 v0, v0, 1024;\n"
                                       "sub.u64 left, left, 1;\n"
                                       "bra LOOP;\n"
                                       "READ:\n"
                                       "bar.sync 0;\n"
                                       "mov.u32 base, tile;\n"
                                       "sub.u32 n, 4080, n;\n"
                                       "add.u32 at, base, n;\n"
                                       "ld.shared.v4.u32 {v0, v1, v2, v3}, [at];\n"
                                       "add.u32 s, s, v0;\n"
                                       "add.u32 s, s, v1;\n"
                                       "add.u32 u, u, v2;\n"
                                       "add.u32 u, u, v3;\n"
                                       "ld.shared.v4.u32 {v0, v1, v2, v3}, [at+4096];\n"
                                       "add.u32 s, s, v0;\n"
                                       "add.u32 s, s, v1;\n"
                                       "add.u32 u, u, v2;\n"
                                       "add.u32 u, u, v3;\n"
                                       "ld.shared.v4.u32 {v0, v1, v2, v3}, [at+8192];\n"
                                       "add.u32 s, s, v0;\n"
                                       "add.u32 s, s, v1;\n"
                                       "add.u32 u, u, v2;\n"
                                       "add.u32 u, u, v3;\n"
                                       "ld.shared.v4.u32 {v0, v1, v2, v3}, [at+12288];\n"
                                       "add.u32 s, s, v0;\n"
                                       "add.u32 s, s, v1;\n"
                                       "add.u32 u, u, v2;\n"
                                       "add.u32 u, u, v3;\n";

static const char ptx_end[] = "add.u32 s, s, u;\n"
                              "st.global.u32 [out], s;\n"
                              "ret;\n"
                              "}\n";

static const struct {
    const char *name, *body;
} entries[LADDER_KERNELS] = {
    [LADDER_READ] = {"cudriver_ladder_read", ptx_read},
    [LADDER_WRITE] = {"cudriver_ladder_write", ptx_write},
    [LADDER_SHARED_READ] = {"cudriver_ladder_shared_read", ptx_shared_read},
    [LADDER_SHARED_WRITE] = {"cudriver_ladder_shared_write", ptx_shared_write},
};

struct ladder_bench {
    CUmodule module;
    CUfunction function;
    CUstream stream;
    CUevent begin, end;
};

static CUresult module_load(struct ladder_bench *bench, enum ladder_kernel kernel)
{
    char text[4096]; /* the longest has 2.2 KB */
    int length = snprintf(text, sizeof text, "%s%s%s%s%s", ptx_head, entries[kernel].name,
                          ptx_begin, entries[kernel].body, ptx_end);

    if (length < 0 || (size_t)length >= sizeof text) {
        return CUDA_ERROR_INVALID_PTX;
    }
    return cuda.cuModuleLoadDataEx(&bench->module, text, 0, NULL, NULL);
}

CUresult ladder_kernels_open(enum ladder_kernel kernel, struct ladder_bench **made,
                             const char **function)
{
    struct ladder_bench *bench = calloc(1, sizeof *bench);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

    *function = "cuModuleLoadDataEx";
    if (bench != NULL) {
        result = module_load(bench, kernel);
    }
    if (result == CUDA_SUCCESS) {
        *function = "cuModuleGetFunction";
        result = cuda.cuModuleGetFunction(&bench->function, bench->module, entries[kernel].name);
    }
    if (result == CUDA_SUCCESS) {
        *function = "cuStreamCreateWithPriority";
        result = cuda.cuStreamCreateWithPriority(&bench->stream, CU_STREAM_NON_BLOCKING, 0);
    }
    if (result == CUDA_SUCCESS) {
        *function = "cuEventCreate";
        result = cuda.cuEventCreate(&bench->begin, CU_EVENT_DEFAULT);
    }
    if (result == CUDA_SUCCESS) {
        result = cuda.cuEventCreate(&bench->end, CU_EVENT_DEFAULT);
    }
    if (result == CUDA_SUCCESS) {
        *function = "cuCtxSynchronize"; /* work on the memory may still run on other streams */
        result = cuda.cuCtxSynchronize();
    }
    if (result != CUDA_SUCCESS) {
        ladder_kernels_close(bench);
        return result;
    }
    *made = bench;
    return CUDA_SUCCESS;
}

static CUresult launches_issue(struct ladder_bench *bench, const struct ladder_launch *launch,
                               unsigned count)
{
    uint64_t memory = launch->memory, vectors = launch->vectors, number = launch->number;
    uint64_t sums = launch->sums;
    void *parameters[] = {&memory, &vectors, &number, &sums};
    CUresult result = CUDA_SUCCESS;

    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        result = cuda.cuLaunchKernel(bench->function, launch->blocks, 1, 1, LADDER_THREADS, 1, 1, 0,
                                     bench->stream, parameters, NULL);
    }
    return result;
}

CUresult ladder_kernels_time(struct ladder_bench *bench, const struct ladder_launch *launch,
                             unsigned count, float *milliseconds, const char **function)
{
    CUresult result, waited;

    *function = "cuEventRecord";
    result = cuda.cuEventRecord(bench->begin, bench->stream);
    if (result == CUDA_SUCCESS) {
        *function = "cuLaunchKernel";
        result = launches_issue(bench, launch, count);
    }
    if (result == CUDA_SUCCESS) {
        *function = "cuEventRecord";
        result = cuda.cuEventRecord(bench->end, bench->stream);
    }
    waited =
        cuda.cuStreamSynchronize(bench->stream); /* after a failure too: the memory is in use */
    if (result == CUDA_SUCCESS && waited != CUDA_SUCCESS) {
        *function = "cuStreamSynchronize";
        result = waited;
    }
    if (result == CUDA_SUCCESS) {
        *function = "cuEventElapsedTime";
        result = cuda.cuEventElapsedTime(milliseconds, bench->begin, bench->end);
    }
    return result;
}

void ladder_kernels_close(struct ladder_bench *bench)
{
    if (bench == NULL) {
        return;
    }
    if (bench->end != NULL) {
        cuda.cuEventDestroy_v2(bench->end);
    }
    if (bench->begin != NULL) {
        cuda.cuEventDestroy_v2(bench->begin);
    }
    if (bench->stream != NULL) {
        cuda.cuStreamDestroy_v2(bench->stream);
    }
    if (bench->module != NULL) {
        cuda.cuModuleUnload(bench->module);
    }
    free(bench);
}
