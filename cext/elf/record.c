/* What a wheel's RECORD lists, and whether the disk has it so. See record.h. */
#define _GNU_SOURCE
#include "record.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MAX_FILES = 50000, /* of one RECORD; the largest framework has 12,000 */
    MAX_PATH = 4096,
};

static const long long MAX_SIZE = 1LL << 50;

/* The size that a line states after its last comma; -1 where it states none. */
static long long stated_size(const struct elf_line *line)
{
    const char *comma = memrchr(line->text, ',', line->length);
    const char *end = line->text + line->length;
    long long size = -1;

    for (const char *at = comma + 1; at < end && *at >= '0' && *at <= '9' && size < MAX_SIZE;
         at++) {
        size = (size < 0 ? 0 : size) * 10 + (*at - '0');
    }
    return size;
}

/* Tests are often left out of images. Badly packed wheels share one folder "tests" at the top. */
static bool is_of_tests(const char *path, size_t length)
{
    return memmem(path, length, "/tests/", 7) != NULL ||
           memmem(path, length, "/test/", 6) != NULL || strncmp(path, "tests/", 6) == 0 ||
           strncmp(path, "test/", 5) == 0;
}

static bool ends_in(const char *path, size_t length, const char *end)
{
    size_t size = strlen(end);
    return length >= size && memcmp(path + length - size, end, size) == 0;
}

/*
 * Documents, headers, static libraries and type stubs: no import opens them. Of what
 * an installer wrote about a package only what Python reads itself.
 */
static bool is_idle(const char *path, size_t length)
{
    static const char *const ends[] = {
        ".h",    ".hpp", ".hxx", ".hh",    ".cuh", ".inl",   ".a",
        ".pyi",  ".pxd", ".pyx", ".cmake", ".md",  ".rst",   ".txt",
        ".html", ".css", ".png", ".svg",   ".pdf", ".ipynb", "/py.typed",
    };
    static const char info[] = ".dist-info/";
    const char *about = memmem(path, length, info, sizeof(info) - 1);

    if (about != NULL) {
        return !ends_in(path, length, "/METADATA") && !ends_in(path, length, "/entry_points.txt");
    }
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        if (ends_in(path, length, ends[i])) {
            return true;
        }
    }
    return false;
}

static bool is_as_listed(const struct elf_record *record, int folder, const struct elf_line *line,
                         size_t path_length)
{
    char path[MAX_PATH];
    struct stat about;
    long long size = stated_size(line);

    if (folder < 0 || path_length >= sizeof(path)) {
        return false;
    }
    memcpy(path, line->text, path_length);
    path[path_length] = '\0';
    return fstatat(folder, path, &about, 0) == 0 && S_ISREG(about.st_mode) &&
           (size < 0 || about.st_size == size) &&
           about.st_mtim.tv_sec * 1000000000LL + about.st_mtim.tv_nsec <= record->since;
}

/* The length of the path of a file below the folder that has a hash; 0 for any other line. */
static size_t listed_path(const struct elf_line *line)
{
    static const char hash[] = ",sha256="; /* or another number */
    size_t hash_length = sizeof(hash) - 1;
    const char *comma = memchr(line->text, ',', line->length);
    size_t length = comma != NULL ? (size_t)(comma - line->text) : 0;

    if (length == 0 || line->length - length < hash_length || memcmp(comma, hash, 4) != 0 ||
        comma[hash_length - 1] != '=' || line->text[0] == '/' || line->text[0] == '"' ||
        (length > 2 && memcmp(line->text, "../", 3) == 0)) {
        return 0;
    }
    return length;
}

static bool record_keep(struct elf_record *record, const struct elf_line *line)
{
    if ((record->count & (record->count - 1)) == 0) { /* full: 0, 1, 2, 4, ... */
        size_t room = record->count > 0 ? 2 * record->count : 1;
        struct elf_line *grown = realloc(record->absent, room * sizeof(*grown));
        if (grown == NULL) {
            return false;
        }
        record->absent = grown;
    }
    record->absent[record->count++] = *line;
    return true;
}

bool elf_record_read(struct elf_record *record, int folder)
{
    struct elf_line line = {0};
    size_t files = 0;

    for (size_t at = 0; at < record->size && files < MAX_FILES; at += line.length + 1) {
        size_t left = record->size - at, length;
        const char *newline = memchr(record->text + at, '\n', left);

        line.text = record->text + at;
        line.length = newline != NULL ? (size_t)(newline - line.text) : left;
        line.number++;
        length = listed_path(&line);
        if (length == 0 || is_of_tests(line.text, length) || is_idle(line.text, length)) {
            continue;
        }
        files++;
        if (!is_as_listed(record, folder, &line, length) && !record_keep(record, &line)) {
            return false;
        }
    }
    return true;
}
