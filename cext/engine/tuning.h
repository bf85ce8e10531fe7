/*
 * Every threshold of the copies: its unit, the measurement behind it, the machine. Nothing else
 * tunes them; struct staging_settings begins with some of these.
 *
 * "H200": one NVIDIA H200 on PCIe 5, driver 580, 16 processors, November 2026; figures with two
 * times are before and after the choice. "Not measured": reasoned, or chosen by eye.
 */
#ifndef CUDRIVER_TUNING_H
#define CUDRIVER_TUNING_H

#define TUNING_KIB ((size_t)1 << 10)
#define TUNING_MIB ((size_t)1 << 20)

/* ---- which way a copy goes ---- */

/* Bytes from which on a blocking copy of plain memory is staged; from half as many an asynchronous
 * one. H200: the driver's own path is as good below about 1 MiB. */
#define TUNING_STAGED_UP (1536 * TUNING_KIB)
#define TUNING_STAGED_DOWN (1536 * TUNING_KIB)

/* Bytes in one piece on the device from which on 2D copies are as fast as dense ones, so that no
 * kernel is needed. Not measured. */
#define TUNING_GOOD_ROW 512

/* Bytes in a row of the host's memory that are worth fetching on their own, whatever the order.
 * Not measured. */
#define TUNING_GOOD_RUN 256

/* Bytes in a row that are moved like memory in one piece, by as many threads. H200: with fewer
 * threads for long rows 64 MiB down went from 43.3 to 48.4 GB/s (among other changes). */
#define TUNING_LONG_RUN 4096

/* Bytes up to which the driver's small copies one by one cost less than the kernel's launch, of a
 * copy with the host. Not measured. */
#define TUNING_PERMUTED_LEAST 16384

/* Between device memory, bytes up to which short rows are left to the driver: one call, and no
 * kernel to load. Not measured. */
#define TUNING_DEVICE_KERNEL_LEAST 16384

/* Bytes of a row: shorter ones travel slower by the driver's 2D copies than packed. Not measured.
 */
#define TUNING_SHORTEST_ROW 64

/* Driver calls of one copy: more cost more than packing does. Not measured. */
#define TUNING_MOST_CALLS 64

/* Launches of the kernel between device memory, for layouts of more dimensions than it has: more
 * cost more than going through the host. Not measured. */
#define TUNING_MOST_LAUNCHES 64

/* Bytes from which on it pays to ask the driver whether somebody else has page-locked the memory.
 * Not measured. */
#define TUNING_LOOKED_FROM (32 * TUNING_KIB)

/* ---- threads ---- */

/* Threads for one dense copy, at most. H200: 6, 10 and 12 are no better. */
#define TUNING_PACKERS_MOST 8

/* Threads for one dense copy of at most so many bytes; and for one of at most so many half as many
 * more. H200: more threads only get into each other's way: 64 MiB that is in a cache takes 1.5 to
 * 1.6 ms with six and 6 to 8 % more with eight, 2.5 ms with four where it is not; 96 MiB took 4.4
 * ms with six, 3.0 with all. */
#define TUNING_MEDIUM_THREADS 4
#define TUNING_MEDIUM_BYTES (32 * TUNING_MIB)
#define TUNING_LARGE_BYTES (64 * TUNING_MIB)

/* Threads for all copies together, and for a strided one, at most; and how many processors are left
 * to others, where there are more than TUNING_FEW_PROCESSORS. Not measured. */
#define TUNING_THREADS_MOST 64
#define TUNING_PROCESSORS_LEFT 2
#define TUNING_FEW_PROCESSORS 4

/* ns that a thread without work looks for more before it sleeps, where there are processors to
 * spare: it takes microseconds to wake one, tens of them on a virtual machine. */
#define TUNING_LINGER_NS 200000

/* ns between two looks at the counters: of a thread that nobody waits for, half as long again each
 * time; and how long a waiting caller looks without a nap. Not measured. */
#define TUNING_NAP_LEAST_NS 20000l
#define TUNING_NAP_MOST_NS 500000l
#define TUNING_SPIN_NS 200000ull

/* The processor's pauses between two looks (half a microsecond), and looks of a caller before it
 * sees to all else. Not measured. */
#define TUNING_PAUSES 20
#define TUNING_LOOKS 40

/* Threads that one wakes, each of which wakes as many. Not measured. */
#define TUNING_CALLED 8

/* Bytes that a thread takes at once: an eighth of a chunk, within these. Not measured. */
#define TUNING_SHARE_LEAST (64 * TUNING_KIB)
#define TUNING_SHARE_MOST (2048 * TUNING_KIB)

/* ---- slots and chunks ---- */

/* Bytes of one of a ring's four slots, at most: half of it for a permuted copy up, where each has a
 * kernel's launch (`a.T` after others' work: 15.9 ms, now 14.0), room down for what arrives before
 * the threads are awake. H200. */
#define TUNING_SLOT (16 * TUNING_MIB)

/* The same of a blocking copy up, so that the slots stay in the processors' caches. H200: 256 MiB
 * after other work 8.1 ms, now 6.0; each thread packed at 4.8 GB/s, and at 7.7 through 4 MiB. 3, 4,
 * 6 and 8 MiB are no better. */
#define TUNING_SLOT_UP (5 * TUNING_MIB)

/* Bytes of a slot, at least. Not measured. */
#define TUNING_SLOT_LEAST (256 * TUNING_KIB)

/* Bytes of a slot, at least, where many copies share the memory. Not measured. */
#define TUNING_SLOT_SHARED (1024 * TUNING_KIB)

/* Bytes of a ring for small copies down, which take turns in it: what a processor has read lies in
 * its cache, and the device's next write must throw it out. H200: 4 MiB 198 us, now 136. */
#define TUNING_TURNED (16 * TUNING_MIB)

/* Chunks of a copy that is not large. Not measured. */
#define TUNING_CHUNKS 16

/* Bytes of a chunk, at least: less costs more calls than it saves. H200, up: 4 MiB with 512 KiB 151
 * us, now 135. Down: smaller ones are no better. */
#define TUNING_CHUNK_UP (1024 * TUNING_KIB)
#define TUNING_CHUNK_DOWN (512 * TUNING_KIB)

/* Bytes of the first chunk up, at least, so that the first copy begins soon. Not measured. */
#define TUNING_CHUNK_FIRST (128 * TUNING_KIB)

/* Bytes of the largest blocking copy up with streaming stores. H200: for all sizes, or for none,
 * they are no better. */
#define TUNING_STREAMING (64 * TUNING_MIB)

/* Laps through four slots of the largest size up to which an asynchronous copy up has them. H200:
 * 1 GiB 24.8 ms with them, 22.6 without; 256 MiB 6.7 and 7.7. */
#define TUNING_STREAMING_LAPS 8

/* ---- in pieces ----
 *
 * H200: in a batch a piece costs 1.3 us beside its bytes, one by one 2.4 us, of which 1.05 us are
 * the caller's; a page-locked copy moves 55 GB/s, threads that pack about 8 GB/s each and 40 GB/s
 * together. A piece in a batch is thus worth 52 KiB of packing, or 10 KiB where there is one
 * thread; it pays to leave the processors alone, so a little less than the next power of two will
 * do. One by one it takes twice that. */
#define TUNING_PIECE_LEAST (64 * TUNING_KIB)
#define TUNING_PIECE_A_THREAD (12 * TUNING_KIB)

/* Pieces: fewer are copied one by one, since a batch's own cost is not known to be smaller. */
#define TUNING_BATCH_LEAST 4

/* The same from a default stream, which takes no batches (INVALID_VALUE). Two events that hang a
 * stream of the engine's between its work cost about as much as ten pieces. */
#define TUNING_BATCH_BESIDE 16

/* Pieces of one batch. Not measured. */
#define TUNING_BATCH_MOST 1024

/* ---- small copies, and waiting ---- */

/* Bytes of a copy that goes through one page-locked slot and waits by a word that the stream
 * writes. H200: from the device it takes 0.87 of the driver's own time at 4 KiB, 0.67 at 64 KiB and
 * 0.81 at 1 MiB; the word up to 1 us less than cuStreamSynchronize. */
#define TUNING_SMALL_MOST (2 * TUNING_MIB)

/* Bytes up to which asking the stream is the quickest of all ways to wait, up. H200. */
#define TUNING_ASK_MOST (8 * TUNING_KIB)

/* ns that a thread looks by itself; then it lets the driver wait. Not measured. */
#define TUNING_LOOK_NS 60000ull

/* Bytes on a device up to which the word is worth its command. H200: a copy of 256 MiB takes 135
 * us, longer than anybody looks, and was 0.96 of the driver's own with it. */
#define TUNING_SOON_MOST (64 * TUNING_MIB)

/* ns that a wait for a stream looks before it takes a host function, which wakes a thread of the
 * driver's and this one: some hundred microseconds. An event on an idle NULL stream takes some. */
#define TUNING_STREAM_SPIN_NS 50000ull

/* Bytes of work that has an event of its own, so that waiting for another never waits for it. The
 * event costs about as much as a small copy's call. Not measured. */
#define TUNING_BATCH_ALONE (64 * TUNING_KIB)

/* ---- by the calling thread alone, and cut ---- */

/* Bytes of the one slot of a copy without threads. Not measured. */
#define TUNING_ALONE_CHUNK TUNING_MIB

/* Bytes of a driver's own blocking copy: it is cut, so that Ctrl-C need not wait for the whole.
 * 5 ms at 55 GB/s. */
#define TUNING_CUT (256 * TUNING_MIB)

/* ---- moving bytes on the host ---- */

/* Bytes of one side that a tile of a transposed plane spans in its own order: a few cache lines,
 * and little enough that both sides stay in the first-level cache; and runs of it, at most. Not
 * measured. */
#define TUNING_TILE_BYTES 128
#define TUNING_TILE_RUNS 64

/* Runs: fewer are not worth a row of their own where the other dimension is longer, which is then
 * walked in stretches of so many. Not measured. */
#define TUNING_SHORT_ROW 8
#define TUNING_SWAPPED_ROW 256

#endif
