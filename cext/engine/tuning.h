/*
 * Every threshold of the copies, with its unit, the measurement and the machine. Nothing else tunes
 * them. Some are the initial values of struct staging_settings.
 *
 * "H200": one NVIDIA H200 on PCIe 5, driver 580, 16 CPUs, November 2026. "A, now B": before and
 * after the choice. "Not measured": reasoned, or chosen by eye. "Up": to the device; "down": from
 * it. private.h defines block, part, piece and lane.
 */
#ifndef CUDRIVER_TUNING_H
#define CUDRIVER_TUNING_H

#define TUNING_KIB ((size_t)1 << 10)
#define TUNING_MIB ((size_t)1 << 20)

/* ---- which way a copy goes ---- */

/* Bytes from which on a blocking copy of pageable memory is staged; an asynchronous one from half
 * as many. H200: below about 1 MiB the driver's own path is as fast. */
#define TUNING_STAGED (1536 * TUNING_KIB)

/* Bytes up to which the driver's own call reads pageable memory and returns, whatever the stream
 * does: H200, up to 2 MiB. Packing is faster from here on. Not measured. */
#define TUNING_READ (64 * TUNING_KIB)

/* Bytes of a device run from which on 2D copies are as fast as dense ones, so that no kernel is
 * needed; and of a host run worth reading by itself, in any order of the runs. Not measured. */
#define TUNING_GOOD_ROW 512

/* Bytes of a host run that moves like dense memory, with as many threads. H200: with fewer threads
 * for long runs, 64 MiB down went from 43.3 to 48.4 GB/s (among other changes). */
#define TUNING_LONG_RUN 4096

/* Bytes up to which a copy between host and device never uses the kernel, and one between device
 * memory leaves short rows to the driver: a few small driver copies cost less than a launch. Not
 * measured. */
#define TUNING_KERNEL_LEAST 16384

/* log2 of the bytes of a kernel's item from which on it copies rows between device memory faster
 * than the driver does. H200, 64 MiB, GB/s by the driver, by the kernel: rows of 64 bytes, items of
 * 16: 470, 1367; rows of 1 KiB 1195, 1374; of 64 KiB 729, 1441; 3D, items of 4 bytes: 903, 461. */
#define TUNING_DEVICE_KERNEL_UNIT 3

/* Bytes of a row below which the driver's 2D copies are slower than packing. Not measured. */
#define TUNING_SHORTEST_ROW 64

/* Driver calls of one copy above which packing is cheaper. Not measured. */
#define TUNING_MOST_CALLS 64

/* Bytes above which it pays to ask the driver whether somebody else has page-locked the memory. Not
 * measured. */
#define TUNING_LOOKED_FROM (32 * TUNING_KIB)

/* GB/s of a big copy below which pageable memory is not left to a device that reads it through the
 * host's page tables. Not measured: one driver release was reported to move less than 0.1. */
#define TUNING_CRAWL 5

/* ---- many copies at once ---- */

/* Bytes in flight from which on a small copy in the same direction does not queue behind them, and
 * bytes that are counted: a copy engine moves 55 GB/s, so that it would wait a millisecond. Bytes
 * of a small copy, at most, which a kernel moves meanwhile. H200, ms behind 1 GiB, by the copy
 * engine and by the kernel: 64 KiB 17.4, 0.028; 1 MiB 17.6, 0.088; 16 MiB 17.8, 0.98, while the big
 * one moves at 53, 44 and 38 GB/s instead of 54.8. */
#define TUNING_BIG (64 * TUNING_MIB)
#define TUNING_BIG_COUNTED TUNING_MIB
#define TUNING_BESIDE_MOST (16 * TUNING_MIB)

/* Bytes from which on a run has a driver copy of its own, which needs no multiprocessor (H200, 1
 * MiB: 48 GB/s by a call for each, 54 by one for 256, 51 by the kernel); and runs below which the
 * kernel is not worth its launch (not measured). */
#define TUNING_RUN_MOST TUNING_MIB
#define TUNING_RUNS_LEAST 4

/* Blocks of the kernel that copies runs. H200, 4,096 random rows of 4, 16 and 256 KiB, GB/s up and
 * down: 32 blocks with 128 threads for a row 49.1, 50.6; 50.8, 52.1; 51.2, 52.5, and no more blocks
 * or fewer threads are faster; 64 blocks with 256 threads for a row 42.7, 49.9; 50.8, 52.1. */
#define TUNING_RUN_BLOCKS 32

/* Pieces that the kernel's work is cut into at least, so that all blocks have their share; and
 * bytes of one, at least. H200, 8 rows of 512 KiB: 36.7 and 47.5 GB/s, cut 45.3 and 46.9. */
#define TUNING_RUN_PIECES 512
#define TUNING_RUN_PIECE 4096

/* Bytes of a piece of a staged run, at most. Not measured. */
#define TUNING_RUN_STAGED (16 * TUNING_KIB)

/* Blocks of a staged copy of runs up. H200, rows of 4, 16, 64 and 256 KiB, GB/s: with room for 64
 * MiB 29.0, 39.0, 40.9, 45.9; with 4, which stay in the caches, 29.1, 38.3, 43.6, 47.1. On another
 * with streaming stores 24.8, 28.9, 31.8, 44.7; without, by all threads, 24.5, 35.6, 42.7, 46.2. */
#define TUNING_RUN_STAGED_BLOCKS 4

/* Bytes from one row of a file to the next, up to which rows are read with what lies between them,
 * and bytes of such a read, at most. A read takes 0.6 us, and 0.12 us for each KiB of it. */
#define TUNING_ROWS_APART (8 * (int64_t)TUNING_KIB)
#define TUNING_WINDOW (64 * (int64_t)TUNING_KIB)

/* ---- threads ---- */

/* Threads for one dense copy, at most. H200: 6, 10 and 12 are no better. */
#define TUNING_PACKERS_MOST 8

/* Threads for all copies together, or for one strided copy, at most; and CPUs left to others if
 * there are more than TUNING_FEW_PROCESSORS. Not measured. */
#define TUNING_THREADS_MOST 64
#define TUNING_PROCESSORS_LEFT 2
#define TUNING_FEW_PROCESSORS 4

/* ns that an idle thread polls before it sleeps, if there are CPUs to spare: waking it takes
 * microseconds, tens of them on a virtual machine. */
#define TUNING_LINGER_NS 200000

/* ns that somebody who waits for a part polls without sleeping; and then sleeps, between two polls.
 * Not measured. */
#define TUNING_SPIN_NS 200000ull
#define TUNING_NAP_NS 20000l

/* ns between two looks at the words by a thread that nobody waits for: from NAP, half as long again
 * each time, to this. Not measured. */
#define TUNING_NAP_MOST_NS 500000l

/* CPU pauses between two polls (half a microsecond). Not measured. */
#define TUNING_PAUSES 20

/* Threads that one thread wakes; each of them wakes as many. Not measured. */
#define TUNING_CALLED 8

/* Bytes of a piece. Not measured. */
#define TUNING_PIECE (128 * TUNING_KIB)

/* ---- blocks and parts ---- */

/* Bytes of a part, at least; half as many where the copy would be one part. Smaller ones cost more
 * calls than they save. H200, GB/s with half as many for all: 4 MiB up, asynchronously, 19.8, now
 * 28.9; down 27.0, now 31.7. */
#define TUNING_PART_LEAST TUNING_MIB

/* A part of a blocking copy up is doubled until it has this many bytes times the square root of the
 * copy's bytes. H200, other arrays each time, GB/s with 256 and 512: 64 MiB 40.5, 40.3;
 * 256 MiB 46.2, 48.7; before, by one part size and more threads for larger copies, 38.4 and 46.7.
 */
#define TUNING_PART_STEP 512

/* Parts of another copy, at least: up, where nobody waits for the call, fewer. H200: 64 MiB down,
 * asynchronously, 38 GB/s with 8, 46 with 16; up alike, but the calls take half as long. */
#define TUNING_PARTS_UP 8
#define TUNING_PARTS_DOWN 16

/* Bytes of a part, at most. H200: 8 and 16 MiB are alike. */
#define TUNING_PART (8 * TUNING_MIB)

/* Bytes of the blocks of a copy, unless it is a blocking one up. H200: with four blocks 16 MiB down
 * 27 GB/s, with room for all 41. */
#define TUNING_ROOM (64 * TUNING_MIB)

/* Bytes of page-locked memory in which sources wait, read already, for their streams, in all; and
 * of a piece of it, which holds several blocks. Not measured. */
#define TUNING_HELD (256 * TUNING_MIB)
#define TUNING_HELD_PIECE (8 * TUNING_MIB)

/* Bytes of a lane, at least. Not measured. */
#define TUNING_LANE_LEAST (256 * TUNING_KIB)

/* Bytes of a lane for copies down, each of which begins where the one before ended: what a CPU has
 * read is in its cache, and the device's next write there must evict it. H200: 4 MiB 198 us, now
 * 136. */
#define TUNING_TURNED (16 * TUNING_MIB)

/* Bytes of the largest blocking copy up that uses streaming stores. H200: using them for all sizes,
 * or for none, is no better. */
#define TUNING_STREAMING (64 * TUNING_MIB)

/* How many times as large an asynchronous one may be. H200: 1 GiB 24.8 ms with them, 22.6 without;
 * 256 MiB 6.7 with, 7.7 without. */
#define TUNING_STREAMING_ASYNC 8

/* ---- small copies, and waiting ---- */

/* Bytes up to which a dense blocking copy is issued before anybody knows whether its stream is
 * idle, and polls for its end. H200, us by the driver's own call; by ours, when it asked
 * for the stream first; by ours now: 64 bytes up 6.9, 7.3, 7.1, down 6.7, 8.6, 6.5; 64 KiB
 * up 9.8, 11.7, 9.8, down 8.1, 9.7, 8.0; 64 KiB down to pageable memory, through a page-locked
 * slot, 15.8, 14.5, 12.6.
 */
#define TUNING_SMALL_MOST (2 * TUNING_MIB)

/* The same of a copy on a device. H200, ours over the driver's own call, two runs: 4 MiB 0.83,
 * 0.80, now 0.99, 0.99; 16 MiB 0.88, 0.86, now 0.97, 0.98; 64 MiB 0.96, 0.85, now 0.98, 1.01. */
#define TUNING_SMALL_INSIDE (64 * TUNING_MIB)

/* Bytes of a part of a copy that goes down through a page-locked slot. H200, 1 MiB right after
 * another, GB/s in two runs: in one part 8.1, 8.1; parts of 512 KiB 9.0, 9.0; 256 KiB 10.0, 9.7;
 * 128 KiB 8.4, 8.7; the driver's own call 9.1 to 10.7. */
#define TUNING_SLOT_PART (256 * TUNING_KIB)

/* A wait for a stream or an event polls for SPIN ns, then sleeps a NAPS-th of the time so far, at
 * most NAP ns: it ends at most that late. H200, 16 calls of copy_rows, 4 KiB, GB/s up and down, and
 * ms of CPU of 5.5: with 8, and sleeps 50 us too long, 46.7, 49.3, 1.6; 32 48.3, 49.6, 2.0;
 * 64 48.2, 50.1, 2.3; polling all the time 48.8, 50.5, 5.5. */
#define TUNING_WAIT_SPIN_NS 50000ull
#define TUNING_WAIT_NAPS 64
#define TUNING_WAIT_NAP_NS 250000l

/* ---- without page-locked memory, and cut ---- */

/* Bytes of a block of ordinary memory, at most. Not measured. */
#define TUNING_ALONE TUNING_MIB

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
