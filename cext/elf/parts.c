/* What the loader never asks for: sections, and whether all of the file is there. See elf.h. */
#define _GNU_SOURCE
#include "private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SECTIONS = 1024, MAX_STRINGS = 64 << 20, SHT_STRTAB = 3 };

/* The end of the ELF header. */
struct section_table {
    uint64_t offset;
    uint32_t flags;
    uint16_t header_size, segment_size, segment_count, entry_size, count, names;
};
struct section {
    uint32_t name, type;
    uint64_t flags, address, offset, size;
    uint32_t link, info;
    uint64_t align, entry_size;
};
_Static_assert(sizeof(struct section_table) == 24 && sizeof(struct section) == 64,
               "structures lie as in the file");

enum { SECTION_TABLE = 40 }; /* where that end begins */

/* Whether the file has these bytes. To read others is a fault, which it would keep. */
static bool is_inside(const struct elf_file *file, uint64_t offset, uint64_t length)
{
    return offset <= file->size && length <= file->size - offset;
}

void elf_find_part(const struct elf_file *file, uint64_t address, struct elf_table *part)
{
    part->present = false;
    for (size_t i = 0; i < file->segment_count && !part->present; i++) {
        const struct elf_segment *segment = &file->segments[i];
        if (address >= segment->address && address - segment->address < segment->size) {
            part->offset = segment->offset + (address - segment->address);
            part->end = file->size;
            part->present = part->offset < file->size;
        }
    }
}

/* Compares the name of a section. 1, 0 or -errno. */
static int is_named(struct elf_file *file, const struct section *names, uint64_t at,
                    const char *name, size_t length)
{
    char found[64];
    int status;
    if (length >= sizeof(found) || at >= names->size || length + 1 > names->size - at ||
        !is_inside(file, names->offset + at, length + 1)) {
        return 0;
    }
    status = elf_read(file, names->offset + at, found, length + 1);
    return status < 0 ? status : memcmp(found, name, length + 1) == 0;
}

int elf_find_section(struct elf_file *file, const char *name, struct elf_table *part)
{
    struct section_table table;
    struct section names, section;
    int status = elf_read(file, SECTION_TABLE, &table, sizeof(table));
    part->present = false;
    if (status < 0 || table.entry_size != sizeof(section) || table.count > MAX_SECTIONS ||
        table.names >= table.count ||
        !is_inside(file, table.offset, (uint64_t)table.count * sizeof(section))) {
        return status;
    }
    status = elf_read(file, table.offset + table.names * sizeof(names), &names, sizeof(names));
    if (status < 0 || !is_inside(file, names.offset, names.size)) {
        return status;
    }
    for (size_t i = 0; status == 0 && i < table.count; i++) {
        status = elf_read(file, table.offset + i * sizeof(section), &section, sizeof(section));
        if (status == 0) {
            status = is_named(file, &names, section.name, name, strlen(name));
        }
    }
    if (status > 0 && section.offset <= file->size) {
        uint64_t left = file->size - section.offset;
        part->offset = section.offset;
        part->end = section.offset + (section.size < left ? section.size : left);
        part->present = true;
    }
    return status < 0 ? status : 0;
}

int elf_is_whole(struct elf_file *file)
{
    struct section_table table;
    struct section names;
    int status = elf_read(file, SECTION_TABLE, &table, sizeof(table));
    if (status < 0) {
        return status;
    }
    if (table.offset == 0) { /* whoever stripped it took the sections' headers, too */
        for (size_t i = 0; i < file->segment_count; i++) {
            if (!is_inside(file, file->segments[i].offset, file->segments[i].size)) {
                return 0;
            }
        }
        return 1;
    }
    if (!is_inside(file, table.offset, (uint64_t)table.entry_size * table.count)) {
        return 0;
    }
    if (table.names == 0) {
        return 1;
    }
    table.offset += (uint64_t)table.entry_size * table.names;
    if (!is_inside(file, table.offset, sizeof(names))) {
        return 0;
    }
    status = elf_read(file, table.offset, &names, sizeof(names));
    return status < 0 ? status : names.type == SHT_STRTAB;
}

int elf_find_local(struct elf_file *file, const char *name, uint64_t *address, uint64_t *size)
{
    struct elf_table strings, symbols;
    struct elf_symbol symbol;
    char wanted[256] = ""; /* between two NULs */
    size_t length = strlen(name) + 2;
    char *text, *at = NULL;
    uint64_t index = 0;
    int status = elf_find_section(file, ".strtab", &strings);
    if (status == 0) {
        status = elf_find_section(file, ".symtab", &symbols);
    }
    if (status < 0 || !strings.present || !symbols.present || length > sizeof(wanted) ||
        strings.end - strings.offset > MAX_STRINGS) {
        return status;
    }
    memcpy(wanted + 1, name, length - 1);
    text = malloc((size_t)(strings.end - strings.offset) + 1);
    if (text == NULL) {
        return elf_no_memory(file);
    }
    status = elf_stream(file, strings.offset, text, (size_t)(strings.end - strings.offset));
    if (status == 0) {
        at = memmem(text, (size_t)(strings.end - strings.offset), wanted, length);
        index = at != NULL ? (uint64_t)(at + 1 - text) : 0;
    }
    free(text);
    for (uint64_t next = symbols.offset; status == 0 && index != 0; next += sizeof(symbol)) {
        if (symbols.end - next < sizeof(symbol)) {
            return 0;
        }
        status = elf_read(file, next, &symbol, sizeof(symbol));
        if (status == 0 && symbol.name == index) {
            *address = symbol.value;
            *size = symbol.size;
            return 1;
        }
    }
    return status;
}
