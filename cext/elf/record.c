/* The Python files that a wheel's RECORD lists. See record.h. */
#define _GNU_SOURCE
#include "record.h"

#include <fcntl.h>
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

static bool is_there(const struct elf_record *record, const char *line, size_t length,
                     size_t path_length)
{
    char path[MAX_PATH];
    struct stat about;

    if (record->folder < 0 || path_length >= sizeof(path)) {
        return false;
    }
    memcpy(path, line, path_length);
    path[path_length] = '\0';
    return fstatat(record->folder, path, &about, 0) == 0 &&
           (about.st_size > 0 || may_be_empty(line, length));
}

bool elf_record_next(struct elf_record *record, const char **line, size_t *length)
{
    static const char suffix[] = ".py", hash[] = ",sha256=";
    size_t suffix_length = sizeof(suffix) - 1, hash_length = sizeof(hash) - 1;

    while (record->at < record->size && record->modules < MAX_MODULES) {
        const char *start = record->text + record->at;
        size_t left = record->size - record->at;
        const char *newline = memchr(start, '\n', left);
        size_t path_length;
        const char *comma;

        *line = start;
        *length = newline != NULL ? (size_t)(newline - start) : left;
        record->at += *length + 1;
        record->number++;
        comma = memchr(start, ',', *length);
        path_length = comma != NULL ? (size_t)(comma - start) : 0;
        if (path_length <= suffix_length ||
            memcmp(comma - suffix_length, suffix, suffix_length) != 0 ||
            *length - path_length < hash_length || memcmp(comma, hash, hash_length) != 0) {
            continue;
        }
        record->modules++;
        if (!is_of_tests(start, path_length) && !is_there(record, start, *length, path_length)) {
            return true;
        }
    }
    return false;
}
