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

/* Whether RECORD gives the file no bytes: its line ends in ",0". */
static bool is_listed_empty(const char *line, size_t length)
{
    if (length > 0 && line[length - 1] == '\r') {
        length--;
    }
    return length >= 2 && memcmp(line + length - 2, ",0", 2) == 0;
}

/* Images are often made smaller by leaving tests out. */
static bool is_of_tests(const char *path, size_t length)
{
    return memmem(path, length, "/tests/", 7) != NULL || memmem(path, length, "/test/", 6) != NULL;
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
           (about.st_size > 0 || is_listed_empty(line, length));
}

bool elf_record_next(struct elf_record *record, const char **path, size_t *path_length)
{
    static const char suffix[] = ".py", hash[] = ",sha256=";
    size_t suffix_length = sizeof(suffix) - 1, hash_length = sizeof(hash) - 1;

    while (record->at < record->size && record->modules < MAX_MODULES) {
        const char *line = record->text + record->at;
        size_t left = record->size - record->at;
        const char *newline = memchr(line, '\n', left);
        size_t length = newline != NULL ? (size_t)(newline - line) : left;
        const char *comma = memchr(line, ',', length);

        record->at += length + 1;
        if (comma == NULL || (size_t)(comma - line) <= suffix_length ||
            memcmp(comma - suffix_length, suffix, suffix_length) != 0 ||
            length - (size_t)(comma - line) < hash_length ||
            memcmp(comma, hash, hash_length) != 0) {
            continue;
        }
        record->modules++;
        *path = line;
        *path_length = (size_t)(comma - line);
        if (!is_of_tests(line, *path_length) && !is_there(record, line, length, *path_length)) {
            return true;
        }
    }
    return false;
}
