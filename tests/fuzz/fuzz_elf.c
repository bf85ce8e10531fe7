/*
 * libFuzzer harness for cext/elf/: one input is one file, read in every way the package reads it,
 * as ELF and as a wheel's RECORD.
 *
 * The ELF file lies in memory (memfd), so that the harness takes the same road as real files: open,
 * pread, close. Beyond the sanitizers it checks what must hold for any input.
 */
#define _GNU_SOURCE
#include "elf/elf.h"
#include "elf/record.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int descriptor = -1;
static char path[64];

static void require(int truth, const char *what)
{
    if (!truth) {
        fprintf(stderr, "broken promise: %s\n", what);
        abort();
    }
}

static void put_file(const uint8_t *data, size_t size)
{
    if (descriptor < 0) {
        descriptor = memfd_create("input", MFD_CLOEXEC);
        require(descriptor >= 0, "memfd_create");
        snprintf(path, sizeof(path), "/proc/self/fd/%d", descriptor);
    }
    require(ftruncate(descriptor, 0) == 0, "ftruncate");
    require(size == 0 || pwrite(descriptor, data, size, 0) == (ssize_t)size, "pwrite");
}

static void check_file(const struct elf_file *file)
{
    for (size_t i = 0; i < file->needed_count; i++) {
        require(file->needed[i] != NULL, "a needed name is a string");
    }
    for (size_t i = 0; i < file->need_count; i++) {
        require(file->needs[i].library != NULL && file->needs[i].version != NULL,
                "a needed version has names");
        require(file->needs[i].index < 0x8000, "a version number has 15 bits");
    }
    for (size_t i = 0; i < file->version_count; i++) {
        require(file->versions[i].name != NULL, "a version has a name");
    }
    require(file->build_id_size <= sizeof(file->build_id), "a build id has its place");
}

/* What is listed as missing was asked for, and nothing that is listed as exported is missing. */
static void check_symbols(struct elf_file *file)
{
    struct elf_references all = {0}, missing = {0};
    struct elf_exports exports = {0};
    struct elf_file *scope[] = {file, file};
    struct elf_file *culprit = NULL;
    uint64_t address, size;
    struct elf_table part;
    if (elf_find_local(file, "one", &address, &size) == 1) {
        elf_find_part(file, address, &part);
        require(!part.present || part.end == file->size, "a part ends in the file");
    }
    if (elf_find_section(file, ".rodata", &part) == 0 && part.present) {
        require(part.offset <= part.end && part.end <= file->size, "a section lies in the file");
    }
    require(elf_is_whole(file) >= 0 || file->fault.text[0] != '\0', "a failure has a reason");
    if (elf_list_references(file, &all) == 0) {
        if (elf_list_missing(file, scope, 2, &missing, &culprit) == 0) {
            require(missing.count <= all.count, "missing symbols are references");
        } else {
            require(culprit == file && file->fault.text[0] != '\0', "a failure has a reason");
        }
    } else {
        require(file->fault.text[0] != '\0', "a failure has a reason");
    }
    if (elf_list_exports(file, NULL, &exports) == 0) {
        for (size_t i = 0; i < exports.count && i < 4; i++) {
            struct elf_exports one = {0};
            elf_list_exports(file, exports.items[i].name, &one);
            for (size_t k = 0; k < one.count; k++) {
                require(strcmp(one.items[k].name, exports.items[i].name) == 0,
                        "a lookup by name gives that name");
            }
            elf_exports_free(&one);
        }
    }
    elf_references_free(&all);
    elf_references_free(&missing);
    elf_exports_free(&exports);
    elf_rest(file);
}

/* A line is a whole one of the text, told by its number. */
static void check_line(const struct elf_record *record, const struct elf_line *line)
{
    const char *start = line->text, *stop = start + line->length;
    const char *end = record->text + record->size;
    size_t number = 1;
    require(start >= record->text && stop <= end, "a line lies in the text");
    require(start == record->text || start[-1] == '\n', "a line starts after another");
    require(stop == end || *stop == '\n', "a line has an end");
    for (const char *at = record->text; at < start; at++) {
        number += *at == '\n';
    }
    require(line->number == number, "a line has its number");
}

/* What the working directory lacks is among all that the text lists. */
static void check_record(const uint8_t *data, size_t size)
{
    static int folder = -1;
    struct elf_record all = {.text = (const char *)data, .size = size}, lost = all;
    size_t next = 0;
    if (folder < 0) {
        folder = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        require(folder >= 0, "open the working directory");
    }
    require(elf_record_read(&all, -1) && elf_record_read(&lost, folder), "memory for lines");
    for (size_t i = 0; i < all.count; i++) {
        check_line(&all, &all.absent[i]);
        if (next < lost.count && lost.absent[next].text == all.absent[i].text) {
            require(lost.absent[next].length == all.absent[i].length &&
                        lost.absent[next].number == all.absent[i].number,
                    "a line is the same twice");
            next++;
        }
    }
    require(next == lost.count, "a missing file is listed");
    free(all.absent);
    free(lost.absent);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct elf_file *file;
    put_file(data, size);
    file = elf_open(path, -1);
    require(file != NULL, "memory for a small file");
    if (file->fault.text[0] == '\0') {
        check_file(file);
        check_symbols(file);
    }
    elf_free(file);
    check_record(data, size);
    return 0;
}
