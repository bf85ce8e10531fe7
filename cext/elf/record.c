/* The Python files that a wheel's RECORD lists. See record.h. */
#define _GNU_SOURCE
#include "record.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    MAX_MODULES = 50000, /* of one RECORD; the largest framework has 12,000 */
    MAX_PATH = 4096,
};

/* Whether the file may be empty: its line ends in ",0", or states no size. */
static bool may_be_empty(const char *line, size_t length)
{
    if (length > 0 && line[length - 1] == '\r') {
        length--;
    }
    return (length >= 1 && line[length - 1] == ',') ||
           (length >= 2 && memcmp(line + length - 2, ",0", 2) == 0);
}

/* Tests are often left out of images. Badly packed wheels share one folder "tests" at the top. */
static bool is_of_tests(const char *path, size_t length)
{
    return memmem(path, length, "/tests/", 7) != NULL ||
           memmem(path, length, "/test/", 6) != NULL || strncmp(path, "tests/", 6) == 0 ||
           strncmp(path, "test/", 5) == 0;
}

static bool is_there(int folder, const struct elf_line *line, size_t path_length)
{
    char path[MAX_PATH];
    struct stat about;

    if (folder < 0 || path_length >= sizeof(path)) {
        return false;
    }
    memcpy(path, line->text, path_length);
    path[path_length] = '\0';
    return fstatat(folder, path, &about, 0) == 0 &&
           (about.st_size > 0 || may_be_empty(line->text, line->length));
}

/* The length of the path of a Python file that has a hash; 0 for any other line. */
static size_t module_path(const struct elf_line *line)
{
    static const char suffix[] = ".py", hash[] = ",sha256=";
    size_t suffix_length = sizeof(suffix) - 1, hash_length = sizeof(hash) - 1;
    const char *comma = memchr(line->text, ',', line->length);
    size_t length = comma != NULL ? (size_t)(comma - line->text) : 0;

    if (length <= suffix_length || memcmp(comma - suffix_length, suffix, suffix_length) != 0 ||
        line->length - length < hash_length || memcmp(comma, hash, hash_length) != 0) {
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
    size_t modules = 0;

    for (size_t at = 0; at < record->size && modules < MAX_MODULES; at += line.length + 1) {
        size_t left = record->size - at, length;
        const char *newline = memchr(record->text + at, '\n', left);

        line.text = record->text + at;
        line.length = newline != NULL ? (size_t)(newline - line.text) : left;
        line.number++;
        length = module_path(&line);
        modules += length > 0;
        if (length > 0 && !is_of_tests(line.text, length) && !is_there(folder, &line, length) &&
            !record_keep(record, &line)) {
            return false;
        }
    }
    return true;
}
