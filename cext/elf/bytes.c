/* Faults, and the bytes of a file. See elf.h. */
#define _GNU_SOURCE
#include "private.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bytes that all files of the process may hold. libtensorflow_cc, the largest known, has 46 MiB. */
static const uint64_t MAX_HELD = 512u << 20;
static const uint64_t MAX_FILE = (uint64_t)1 << 40; /* bytes */

static _Atomic uint64_t held_by_all;

/* ---- faults ---- */

static void note_fault(struct elf_file *file, int error, const char *loader_text,
                       const char *format, va_list args)
{
    if (file->fault.text[0] != '\0') {
        return;
    }
    vsnprintf(file->fault.text, sizeof(file->fault.text), format, args);
    file->fault.error = error;
    file->fault.loader_text = loader_text;
}

int elf_damaged(struct elf_file *file, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    note_fault(file, EBADMSG, NULL, format, args);
    va_end(args);
    return -EBADMSG;
}

int elf_refused(struct elf_file *file, const char *loader_text)
{
    elf_damaged(file, "%s", loader_text);
    file->fault.loader_text = loader_text;
    return -EBADMSG;
}

int elf_failed(struct elf_file *file, int error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    note_fault(file, error, NULL, format, args);
    va_end(args);
    return -error;
}

int elf_no_memory(struct elf_file *file)
{
    return elf_failed(file, ENOMEM, "out of memory");
}

/* ---- what all files hold ---- */

int elf_hold(struct elf_file *file, uint64_t *held, uint64_t bytes)
{
    if (atomic_fetch_add(&held_by_all, bytes) + bytes > MAX_HELD) {
        atomic_fetch_sub(&held_by_all, bytes);
        return elf_failed(file, EFBIG, "the tables of all libraries take more than %llu MiB",
                          (unsigned long long)(MAX_HELD >> 20));
    }
    *held += bytes;
    return 0;
}

void elf_let_go(uint64_t *held)
{
    atomic_fetch_sub(&held_by_all, *held);
    *held = 0;
}

bool elf_much_held(void)
{
    return atomic_load(&held_by_all) > MAX_HELD / 2;
}

/* ---- bytes ---- */

static bool same_file(const struct elf_file *file, const struct stat *now)
{
    return file->device == (uint64_t)now->st_dev && file->inode == (uint64_t)now->st_ino &&
           file->size == (uint64_t)now->st_size && file->modified_s == now->st_mtim.tv_sec &&
           file->modified_ns == now->st_mtim.tv_nsec;
}

/* Opens the next step of a path, `length` bytes of `name`. No link is followed. */
static int open_step(int folder, const char *name, size_t length)
{
    char step[NAME_MAX + 1];
    if (length >= sizeof(step)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(step, name, length);
    step[length] = '\0';
    if (strcmp(step, "..") == 0) { /* the caller has taken those out; this one leads outside */
        errno = ELOOP;
        return -1;
    }
    return openat(folder, step, O_PATH | O_NOFOLLOW | O_CLOEXEC);
}

/*
 * Opens `path` as O_PATH: what it is, is looked at before it is read, for to open a device is to
 * use it. Below a root each step is opened from the one before it, as a folder may become a link
 * to a place outside at any time. A descriptor, or -1 and errno.
 */
static int open_path(const char *path, int root)
{
    int folder = root;
    if (root < 0) {
        return open(path, O_PATH | O_CLOEXEC);
    }
    for (;;) {
        size_t length;
        int next, error;
        path += strspn(path, "/");
        length = strcspn(path, "/");
        next = open_step(folder, path, length);
        error = errno;
        if (folder != root) {
            close(folder);
        }
        errno = error;
        path += length;
        if (next < 0 || *path == '\0') {
            return next;
        }
        folder = next;
    }
}

/*
 * Opens for reading what `found` (O_PATH) stands for. A descriptor, or -1 and errno. It does not
 * wait for another process that holds a lease on the file.
 */
static int open_found(int found, const struct elf_file *file, const struct stat *about)
{
    char name[64];
    struct stat now;
    int fd;
    snprintf(name, sizeof(name), "/proc/self/fd/%d", found);
    fd = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0 || errno != ENOENT || file->root >= 0) {
        return fd;
    }
    /* There is no /proc. */
    fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd >= 0 &&
        (fstat(fd, &now) != 0 || now.st_dev != about->st_dev || now.st_ino != about->st_ino)) {
        close(fd);
        errno = ESTALE;
        return -1;
    }
    return fd;
}

int elf_open_descriptor(struct elf_file *file, bool first)
{
    struct stat status = {0};
    int found = open_path(file->path, file->root);
    int error, fd = -1;
    if (found >= 0 && fstat(found, &status) == 0 && S_ISREG(status.st_mode)) {
        fd = open_found(found, file, &status);
    }
    error = errno;
    if (found >= 0) {
        close(found);
    }
    if (S_ISDIR(status.st_mode)) {
        return elf_refused(file, "cannot read file data: Is a directory");
    }
    if (status.st_mode != 0 && !S_ISREG(status.st_mode)) {
        return elf_damaged(file, "not a regular file");
    }
    if (fd < 0) {
        return elf_failed(file, error, "%s", strerror(error));
    }
    if (first) {
        file->device = (uint64_t)status.st_dev;
        file->inode = (uint64_t)status.st_ino;
        file->size = (uint64_t)status.st_size;
        file->modified_s = status.st_mtim.tv_sec;
        file->modified_ns = status.st_mtim.tv_nsec;
    } else if (!same_file(file, &status)) {
        close(fd);
        return elf_damaged(file, "the file changed while it was read");
    }
    file->fd = fd;
    return 0;
}

int elf_stream(struct elf_file *file, uint64_t offset, void *to, size_t length)
{
    char *at = to;
    if (offset > file->size || length > file->size - offset) {
        return elf_damaged(file, "bytes %llu to %llu are past the end (%llu bytes)",
                           (unsigned long long)offset, (unsigned long long)(offset + length),
                           (unsigned long long)file->size);
    }
    if (file->fd < 0) {
        int status = elf_open_descriptor(file, false);
        if (status < 0) {
            return status;
        }
    }
    while (length > 0) {
        ssize_t got = pread(file->fd, at, length, (off_t)offset);
        if (got < 0) {
            int error = errno;
            if (error == EINTR) {
                continue;
            }
            return elf_failed(file, error, "%s", strerror(error));
        }
        if (got == 0) {
            return elf_damaged(file, "the file shrank while it was read");
        }
        at += got;
        offset += (uint64_t)got;
        length -= (size_t)got;
    }
    return 0;
}

/* Allocates the shelf of block `number`. A library of 1 GiB uses only a few. */
static int make_shelf(struct elf_file *file, size_t number)
{
    int status = 0;
    if (file->shelves == NULL) {
        uint64_t count = (file->size >> (ELF_BLOCK_BITS + ELF_SHELF_BITS)) + 1;
        if (count > SIZE_MAX / sizeof(*file->shelves) || file->size > MAX_FILE) {
            return elf_damaged(file, "the file is too large (%llu bytes)",
                               (unsigned long long)file->size);
        }
        status = elf_hold(file, &file->blocks_held, count * sizeof(*file->shelves));
        if (status < 0) {
            return status;
        }
        file->shelves = calloc((size_t)count, sizeof(*file->shelves));
        if (file->shelves == NULL) {
            return elf_no_memory(file);
        }
        file->shelf_count = (size_t)count;
    }
    uint8_t ***shelf = &file->shelves[number >> ELF_SHELF_BITS];
    if (*shelf != NULL) {
        return 0;
    }
    status = elf_hold(file, &file->blocks_held, ELF_SHELF * sizeof(**shelf));
    if (status < 0) {
        return status;
    }
    *shelf = calloc(ELF_SHELF, sizeof(**shelf));
    if (*shelf == NULL) {
        return elf_no_memory(file);
    }
    return 0;
}

/* Reads block `number` into the cache. The caller has checked that it begins inside the file. */
static int load_block(struct elf_file *file, size_t number)
{
    uint64_t start = (uint64_t)number << ELF_BLOCK_BITS;
    size_t length = file->size - start < ELF_BLOCK ? (size_t)(file->size - start) : ELF_BLOCK;
    uint8_t *block;
    int status = make_shelf(file, number);
    if (status == 0) {
        status = elf_hold(file, &file->blocks_held, length);
    }
    if (status < 0) {
        return status;
    }
    block = malloc(length);
    if (block == NULL) {
        return elf_no_memory(file);
    }
    status = elf_stream(file, start, block, length);
    if (status < 0) {
        free(block);
        return status;
    }
    file->shelves[number >> ELF_SHELF_BITS][number & (ELF_SHELF - 1)] = block;
    return 0;
}

/*
 * Points *at to the byte at `offset`. *available counts the bytes from there in the same block,
 * at most `end - offset`. The pointer is valid until elf_rest.
 */
static int peek(struct elf_file *file, uint64_t offset, uint64_t end, const uint8_t **at,
                size_t *available)
{
    size_t number = (size_t)(offset >> ELF_BLOCK_BITS);
    size_t within = (size_t)(offset & (ELF_BLOCK - 1));
    const uint8_t *block;
    uint64_t left;
    *at = NULL;
    *available = 0;
    if (offset >= end || end > file->size) {
        return elf_damaged(file, "byte %llu is past the end (%llu bytes)",
                           (unsigned long long)offset,
                           (unsigned long long)(end < file->size ? end : file->size));
    }
    block = elf_block_held(file, number);
    if (block == NULL) {
        int status = load_block(file, number);
        if (status < 0) {
            return status;
        }
        block = elf_block_held(file, number);
    }
    left = end - offset;
    *at = block + within;
    *available = left < ELF_BLOCK - within ? (size_t)left : ELF_BLOCK - within;
    return 0;
}

int elf_read_pieces(struct elf_file *file, uint64_t offset, void *to, size_t length)
{
    char *target = to;
    if (offset > file->size || length > file->size - offset) {
        return elf_damaged(file, "bytes %llu to %llu are past the end (%llu bytes)",
                           (unsigned long long)offset, (unsigned long long)(offset + length),
                           (unsigned long long)file->size);
    }
    while (length > 0) {
        const uint8_t *at;
        size_t piece;
        int status = peek(file, offset, offset + length, &at, &piece);
        if (status < 0) {
            return status;
        }
        memcpy(target, at, piece);
        target += piece;
        offset += piece;
        length -= piece;
    }
    return 0;
}

int elf_text_append(struct elf_text *text, const char *bytes, size_t length)
{
    size_t needed = text->used + length + 1;
    if (needed > text->room) {
        size_t room = needed < 2 * text->room ? 2 * text->room : needed;
        char *grown = realloc(text->bytes, room);
        if (grown == NULL) {
            return -ENOMEM;
        }
        text->bytes = grown;
        text->room = room;
    }
    memcpy(text->bytes + text->used, bytes, length);
    text->used += length;
    text->bytes[text->used++] = '\0';
    return 0;
}

int elf_string_append(struct elf_file *file, uint64_t index, size_t limit, struct elf_text *text,
                      size_t *length)
{
    uint64_t offset, end;
    size_t start = text->used, size = 0;
    int status = 0;
    if (!file->strings.present || index >= file->strings.end - file->strings.offset) {
        return elf_damaged(file, "a name lies outside the string table");
    }
    offset = file->strings.offset + index;
    end = file->strings.end;
    while (status == 0) {
        const uint8_t *at, *nul;
        size_t available, piece;
        status = peek(file, offset, end, &at, &available);
        if (status < 0) {
            break;
        }
        nul = memchr(at, '\0', available);
        piece = nul != NULL ? (size_t)(nul - at) : available;
        text->used = start + size; /* a piece goes on over the NUL of the one before it */
        if (piece > limit - size) {
            status = elf_damaged(file, "a name is longer than %zu bytes", limit);
        } else if (elf_text_append(text, (const char *)at, piece) < 0) {
            status = elf_no_memory(file);
        } else if (nul != NULL) {
            *length = size + piece;
            return 0;
        }
        size += piece;
        offset += piece;
        if (status == 0 && offset >= end) {
            status = elf_damaged(file, "the string table does not end in a NUL");
        }
    }
    text->used = start;
    return status;
}

int elf_string(struct elf_file *file, uint64_t index, size_t limit, char **out, size_t *length)
{
    struct elf_text text = {0};
    int status = elf_string_append(file, index, limit, &text, length);
    if (status < 0) {
        free(text.bytes);
        return status;
    }
    file->copied += *length;
    *out = text.bytes;
    return 0;
}

int elf_string_equals(struct elf_file *file, uint64_t index, const char *text, size_t length)
{
    uint64_t offset;
    size_t left = length;
    if (!file->strings.present || index >= file->strings.end - file->strings.offset) {
        return elf_damaged(file, "a name lies outside the string table");
    }
    if (length >= file->strings.end - file->strings.offset - index) {
        return 0;
    }
    offset = file->strings.offset + index;
    while (left > 0) {
        const uint8_t *at;
        size_t available;
        int status = peek(file, offset, offset + left, &at, &available);
        if (status < 0) {
            return status;
        }
        if (memcmp(at, text, available) != 0) {
            return 0;
        }
        text += available;
        offset += available;
        left -= available;
    }
    {
        uint8_t last = 0;
        int status = elf_read(file, offset, &last, 1);
        return status < 0 ? status : last == '\0';
    }
}

void elf_close(struct elf_file *file)
{
    if (file->fd >= 0) {
        close(file->fd);
        file->fd = -1;
    }
}

void elf_rest(struct elf_file *file)
{
    elf_close(file);
    for (size_t i = 0; i < file->shelf_count; i++) {
        for (size_t j = 0; file->shelves[i] != NULL && j < ELF_SHELF; j++) {
            free(file->shelves[i][j]);
        }
        free(file->shelves[i]);
    }
    free(file->shelves);
    file->shelves = NULL;
    file->shelf_count = 0;
    elf_let_go(&file->blocks_held);
}
