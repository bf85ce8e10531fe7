/*
 * Every threshold of the copies, with its unit, the measurement and the machine. Nothing else tunes
 * them. Some are the initial values of struct staging_settings.
 *
 * "H200": one NVIDIA H200 on PCIe 5, driver 580, 16 CPUs, November 2026. "A, now B": before and
 * after the choice. "Not measured": reasoned, or chosen by eye. "Up": to the device; "down": from
 * it. private.h defines slot, chunk, piece and ring.
 */
#ifndef CUDRIVER_TUNING_H
#define CUDRIVER_TUNING_H

#define TUNING_KIB ((size_t)1 << 10)
#define TUNING_MIB ((size_t)1 << 20)

/* ---- which way a copy goes ---- */

/* Bytes from which on a blocking copy of pageable memory is staged; an asynchronous one from half
 * as many. H200: below about 1 MiB the driver's own path is as fast. */
#define TUNING_STAGED_UP (1536 * TUNING_KIB)
#define TUNING_STAGED_DOWN (1536 * TUNING_KIB)

/* Bytes of a device run from which on 2D copies are as fast as dense ones, so that no kernel is
 * needed. Not measured. */
#define TUNING_GOOD_ROW 512

/* Bytes of a host run worth reading by itself, in any order of the runs. Not measured. */
#define TUNING_GOOD_RUN 256

/* Bytes of a host run that moves like dense memory, with as many threads. H200: with fewer threads
 * for long runs, 64 MiB down went from 43.3 to 48.4 GB/s (among other changes). */
#define TUNING_LONG_RUN 4096

/* Bytes up to which a copy between host and device never uses the kernel: a few small driver copies
 * cost less than its launch. Not measured. */
#define TUNING_PERMUTED_LEAST 16384

/* Bytes up to which a copy between device memory leaves short rows to the driver: one call, and no
 * kernel to load. Not measured. */
#define TUNING_DEVICE_KERNEL_LEAST 16384

/* Bytes of a row below which the driver's 2D copies are slower than packing. Not measured. */
#define TUNING_SHORTEST_ROW 64

/* Driver calls of one copy above which packing is cheaper. Not measured. */
#define TUNING_MOST_CALLS 64

/* Kernel launches of one copy between device memory (more than one if the layout has more
 * dimensions than the kernel) above which the host path is cheaper. Not measured. */
#define TUNING_MOST_LAUNCHES 64

/* Bytes above which it pays to ask the driver whether somebody else has page-locked the memory. Not
 * measured. */
#define TUNING_LOOKED_FROM (32 * TUNING_KIB)

/* ---- threads ---- */

/* Threads for one dense copy, at most. H200: 6, 10 and 12 are no better. */
#define TUNING_PACKERS_MOST 8

/* Threads for a dense copy of up to MEDIUM_BYTES; half as many more up to LARGE_BYTES. H200: more
 * threads get in each other's way. 64 MiB in the CPU's caches takes 1.5 to 1.6 ms with six threads
 * and 6 to 8 % more with eight; uncached, 2.5 ms with four. 96 MiB takes 4.4 ms with six, 3.0 with
 * all. */
#define TUNING_MEDIUM_THREADS 4
#define TUNING_MEDIUM_BYTES (32 * TUNING_MIB)
#define TUNING_LARGE_BYTES (64 * TUNING_MIB)

/* Threads for all copies together, or for one strided copy, at most; and CPUs left to others if
 * there are more than TUNING_FEW_PROCESSORS. Not measured. */
#define TUNING_THREADS_MOST 64
#define TUNING_PROCESSORS_LEFT 2
#define TUNING_FEW_PROCESSORS 4

/* ns that an idle thread polls before it sleeps, if there are CPUs to spare: waking it takes
 * microseconds, tens of them on a virtual machine. */
#define TUNING_LINGER_NS 200000

/* ns between two polls of the counters by a thread that nobody waits for: from LEAST, half as long
 * again each time, to MOST. SPIN: ns that a waiting caller polls without sleeping. Not measured. */
#define TUNING_NAP_LEAST_NS 20000l
#define TUNING_NAP_MOST_NS 500000l
#define TUNING_SPIN_NS 200000ull

/* CPU pauses between two polls (half a microsecond), and polls of a caller before it looks after
 * everything else. Not measured. */
#define TUNING_PAUSES 20
#define TUNING_LOOKS 40

/* Threads that one thread wakes; each of them wakes as many. Not measured. */
#define TUNING_CALLED 8

/* Bytes of a piece: an eighth of a chunk, within these bounds. Not measured. */
#define TUNING_SHARE_LEAST (64 * TUNING_KIB)
#define TUNING_SHARE_MOST (2048 * TUNING_KIB)

/* ---- slots and chunks ---- */

/* Bytes of a slot, at most. Half for a permuted copy up, where each chunk has a kernel launch
 * (H200: `a.T` after others' work 15.9 ms, now 14.0). Down, room for what arrives before the
 * threads are awake. */
#define TUNING_SLOT (16 * TUNING_MIB)

/* The same for a blocking copy up, so that the slots stay in the CPU's caches. H200: 256 MiB after
 * other work 8.1 ms, now 6.0; each thread packed 4.8 GB/s, and 7.7 through 4 MiB. 3, 4, 6 and 8 MiB
 * are no better. */
#define TUNING_SLOT_UP (5 * TUNING_MIB)

/* Bytes of a slot, at least. Not measured. */
#define TUNING_SLOT_LEAST (256 * TUNING_KIB)

/* Bytes of a slot, at least, while many copies share the memory. Not measured. */
#define TUNING_SLOT_SHARED (1024 * TUNING_KIB)

/* Bytes of a ring for small copies down, which use it in turns. What a CPU has read is in its
 * cache, and the device's next write must evict it. H200: 4 MiB 198 us, now 136. */
#define TUNING_TURNED (16 * TUNING_MIB)

/* Chunks of a medium copy. Not measured. */
#define TUNING_CHUNKS 16

/* Bytes of a chunk, at least: smaller ones cost more calls than they save. H200: up, 4 MiB with 512
 * KiB chunks 151 us, now 135. Down, smaller ones are no better. */
#define TUNING_CHUNK_UP (1024 * TUNING_KIB)
#define TUNING_CHUNK_DOWN (512 * TUNING_KIB)

/* Bytes of the first chunk up, at least. It is small, so that the first copy begins soon. Not
 * measured. */
#define TUNING_CHUNK_FIRST (128 * TUNING_KIB)

/* Bytes of the largest blocking copy up that uses streaming stores. H200: using them for all sizes,
 * or for none, is no better. */
#define TUNING_STREAMING (64 * TUNING_MIB)

/* Laps through a ring of TUNING_SLOT up to which an asynchronous copy up uses streaming stores.
 * H200: 1 GiB 24.8 ms with them, 22.6 without; 256 MiB 6.7 with, 7.7 without. */
#define TUNING_STREAMING_LAPS 8

/* ---- small copies, and waiting ---- */

/* Bytes up to which a blocking copy uses one page-locked slot and polls a word that the stream
 * writes. H200, down: 0.87 of the driver's own time at 4 KiB, 0.67 at 64 KiB, 0.81 at 1 MiB. The
 * word saves up to 1 us against cuStreamSynchronize. */
#define TUNING_SMALL_MOST (2 * TUNING_MIB)

/* Bytes up to which polling cuStreamQuery is the fastest wait for a copy up. H200. */
#define TUNING_ASK_MOST (8 * TUNING_KIB)

/* ns that a thread polls before it lets the driver wait. Not measured. */
#define TUNING_LOOK_NS 60000ull

/* Bytes of a copy on a device up to which the word is worth its command. H200: 256 MiB takes 135
 * us, longer than anybody polls, and ran at 0.96 of the driver's own rate with the word. */
#define TUNING_SOON_MOST (64 * TUNING_MIB)

/* A wait for a stream or an event polls for SPIN ns, then sleeps an eighth of the time so far, at
 * most NAP ns: it ends at most that late. Not measured. */
#define TUNING_WAIT_SPIN_NS 50000ull
#define TUNING_WAIT_NAP_NS 250000l

/* ---- by the calling thread alone, and cut ---- */

/* Bytes of the slot of a copy without packing threads. Not measured. */
#define TUNING_ALONE_CHUNK TUNING_MIB

/* Bytes of one call of the driver's own blocking copy: longer copies are cut, so that Ctrl-C need
 * not wait for the whole. 5 ms at 55 GB/s. */
#define TUNING_CUT (256 * TUNING_MIB)

/* ---- moving bytes on the host ---- */

/* Bytes that a tile of a transposed plane spans on one side, in that side's order: a few cache
 * lines, and few enough that both sides stay in the L1 cache. And runs of a tile's edge, at most.
 * Not measured. */
#define TUNING_TILE_BYTES 128
#define TUNING_TILE_RUNS 64

/* A row of fewer runs is not worth its loop if the other dimension is longer: that one is then
 * walked in stretches of SWAPPED_ROW runs. Not measured. */
#define TUNING_SHORT_ROW 8
#define TUNING_SWAPPED_ROW 256

#endif
