/* What is packed from files: the bytes of open files instead of the host's memory. No CUDA. See
 * engine.h and private.h. */
#define _GNU_SOURCE
#include "private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads so many bytes of a file. False: it cannot be read, or ends before. A file system that
 * refuses to read these bytes directly (weights/source.py) is asked through the page cache. */
static bool bytes_read(int64_t file, char *to, int64_t bytes, int64_t offset)
{
    bool again = true;

    while (bytes > 0) {
        ssize_t count = pread((int)file, to, (size_t)bytes, offset);
        if (count > 0) {
            to += count;
            offset += count;
            bytes -= count;
        } else if (count < 0 && errno != EINTR && again) {
            again = false;
            (void)fcntl((int)file, F_SETFL, fcntl((int)file, F_GETFL) & ~O_DIRECT);
        } else if (count == 0 || errno != EINTR) {
            return false;
        }
    }
    return true;
}

/* Bytes [from, until) of a run whose rows lie apart. */
static bool apart_read(const struct cudriver_file_run *run, char *to, int64_t from, int64_t until)
{
    char *window = run->pitch <= TUNING_ROWS_APART ? malloc(TUNING_WINDOW) : NULL;
    bool good = true;

    for (int64_t at = from, bytes; at < until && good; at += bytes) {
        int64_t row = at / run->row, in = at % run->row;
        int64_t rows = window != NULL && in == 0 ? (until - at) / run->row : 0;
        if (rows > 0) {
            rows = rows < TUNING_WINDOW / run->pitch ? rows : TUNING_WINDOW / run->pitch;
            bytes = rows * run->row;
            good = bytes_read(run->file, window, (rows - 1) * run->pitch + run->row,
                              run->offset + row * run->pitch);
            for (int64_t i = 0; i < rows; i++) { /* without what lies between them */
                memcpy(to + (at - from) + i * run->row, window + i * run->pitch, (size_t)run->row);
            }
        } else {
            bytes = run->row - in < until - at ? run->row - in : until - at;
            good =
                bytes_read(run->file, to + (at - from), bytes, run->offset + row * run->pitch + in);
        }
    }
    free(window);
    return good;
}

void staging_files_read(const struct cudriver_files *files, char *block, size_t begin, size_t end)
{
    int64_t low = (int64_t)begin, high = (int64_t)end, none = 0;

    for (const struct cudriver_file_run *run =
             staging_item_at(files->run, sizeof *run, files->count, begin);
         run < files->run + files->count && run->begin < high && atomic_load(files->ended) == 0;
         run++) {
        int64_t from = run->begin > low ? 0 : low - run->begin;
        int64_t until = run->begin + run->bytes < high ? run->bytes : high - run->begin;
        char *to = block + (run->begin + from - low);
        if (from >= until) {
            continue; /* a gap */
        }
        if (!(run->pitch > 0 ? apart_read(run, to, from, until)
                             : bytes_read(run->file, to, until - from, run->offset + from))) {
            atomic_compare_exchange_strong(files->ended, &none, run - files->run + 1);
        }
        atomic_fetch_add(files->moved, until - from);
    }
}
