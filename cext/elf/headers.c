/* Headers and the dynamic section. See elf.h. */
#define _GNU_SOURCE
#include "private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "structures are copied as they lie in little-endian files"
#endif

enum {
    MAX_DYNAMIC = 1 << 14, /* entries of the dynamic section */
    MAX_NEEDED = 4096,
    MAX_PATHS = 1 << 18, /* bytes of an RPATH */
    MAX_NOTES = 1 << 16, /* bytes of a PT_NOTE; a larger one is ignored */
    MAX_ABI = 8,         /* glibc 2.36 accepts up to 4, and rarely adds one */
};

enum { PT_LOAD = 1, PT_DYNAMIC = 2, PT_INTERP = 3, PT_NOTE = 4, PT_GNU_STACK = 0x6474e551 };
enum { PF_X = 1, EM_X86_64 = 62 };
enum { ET_EXEC = 2, ET_DYN = 3 };
enum { NT_GNU_BUILD_ID = 3 };
enum { DF_BIND_NOW = 8, DF_1_NOW = 1 };

/* Tags below 40 are their own slot numbers; the others get a slot after them. */
enum {
    DT_NULL = 0,
    DT_NEEDED = 1,
    DT_PLTRELSZ = 2,
    DT_HASH = 4,
    DT_STRTAB = 5,
    DT_SYMTAB = 6,
    DT_RELA = 7,
    DT_RELASZ = 8,
    DT_RELAENT = 9,
    DT_STRSZ = 10,
    DT_SYMENT = 11,
    DT_SONAME = 14,
    DT_RPATH = 15,
    DT_REL = 17,
    DT_PLTREL = 20,
    DT_JMPREL = 23,
    DT_BIND_NOW = 24,
    DT_RUNPATH = 29,
    DT_FLAGS = 30,
    DT_PLAIN = 40,
    SLOT_GNU_HASH = 40,
    SLOT_VERSYM,
    SLOT_RELACOUNT,
    SLOT_FLAGS_1,
    SLOT_VERDEF,
    SLOT_VERNEED,
    SLOTS
};

struct header {
    uint8_t ident[16];
    uint16_t type, machine;
    uint32_t version;
    uint64_t entry, phoff, shoff;
    uint32_t flags;
    uint16_t ehsize, phentsize, phnum, shentsize, shnum, shstrndx;
};
struct program_header {
    uint32_t type, flags;
    uint64_t offset, address, physical, file_size, memory_size, align;
};
struct dynamic_entry {
    int64_t tag;
    uint64_t value;
};
struct note {
    uint32_t name_size, size, type;
};
_Static_assert(sizeof(struct header) == 64 && sizeof(struct program_header) == 56,
               "structures lie as in the file");

/* The dynamic section by slot. */
struct dynamic {
    uint64_t value[SLOTS];
    bool has[SLOTS];
    struct dynamic_entry *entries; /* owned */
    size_t count;
};

/* ---- headers ---- */

/* Finds the file's bytes for `address`. False if no segment contains it. */
static bool find_address(const struct elf_file *file, uint64_t address, struct elf_table *table)
{
    for (size_t i = 0; i < file->segment_count; i++) {
        const struct elf_segment *segment = &file->segments[i];
        if (address >= segment->address && address - segment->address < segment->size) {
            table->offset = segment->offset + (address - segment->address);
            table->end = segment->offset + segment->size;
            table->present = true;
            return true;
        }
    }
    return false;
}

static int check_identity(struct elf_file *file, const struct header *header)
{
    const uint8_t *ident = header->ident;
    static const uint8_t padding[7];
    if (memcmp(ident, "\177ELF", 4) != 0) {
        return elf_refused(file, "invalid ELF header");
    }
    file->elf_class = ident[4] == 2 ? 64 : 32; /* as in ld.so: all but 64 is 32 */
    file->big_endian = ident[5] == 2;
    file->machine = header->machine;
    if (file->big_endian) {
        file->machine = (uint16_t)(header->machine >> 8 | header->machine << 8);
    }
    if (ident[4] != 2) {
        elf_damaged(file, "ELF class %d, where 1 is 32-bit and 2 is 64-bit", ident[4]);
        file->fault.foreign = true;
        return -EBADMSG;
    }
    if (ident[5] != 1) {
        elf_refused(file, "ELF file data encoding not little-endian");
        file->fault.foreign = ident[5] == 2;
        return -EBADMSG;
    }
    if (ident[6] != 1) {
        return elf_refused(file, "ELF file version ident does not match current one");
    }
    if (ident[7] != 0 && ident[7] != 3) {
        return elf_refused(file, "ELF file OS ABI invalid");
    }
    if (ident[8] != 0 && (ident[7] != 3 || ident[8] > MAX_ABI)) {
        return elf_refused(file, "ELF file ABI version invalid");
    }
    if (memcmp(ident + 9, padding, sizeof(padding)) != 0) {
        return elf_refused(file, "nonzero padding in e_ident");
    }
    if (header->version != 1) {
        return elf_refused(file, "ELF file version does not match current one");
    }
    file->type = header->type;
    if (header->type != ET_DYN && header->type != ET_EXEC) {
        return elf_refused(file, "only ET_DYN and ET_EXEC can be loaded");
    }
    if (header->phentsize != sizeof(struct program_header)) {
        return elf_refused(file, "ELF file's phentsize not the expected size");
    }
    return 0;
}

static int read_interpreter(struct elf_file *file, const struct program_header *header)
{
    int status;
    if (header->file_size == 0 || header->file_size > ELF_MAX_NAME || file->interpreter != NULL) {
        return elf_damaged(file, "a bad PT_INTERP");
    }
    file->interpreter = calloc(1, (size_t)header->file_size + 1);
    if (file->interpreter == NULL) {
        return elf_no_memory(file);
    }
    status = elf_read(file, header->offset, file->interpreter, (size_t)header->file_size);
    return status;
}

/* Finds the build id in the notes. Malformed notes are not a fault: the loader ignores them. */
static int read_notes(struct elf_file *file, const struct program_header *header)
{
    uint64_t at = header->offset;
    uint64_t end, step = header->align == 8 ? 8 : 4;
    if (header->file_size > MAX_NOTES || header->offset > file->size ||
        header->file_size > file->size - header->offset) {
        return 0;
    }
    end = header->offset + header->file_size;
    while (file->build_id_size == 0 && end - at >= sizeof(struct note)) {
        struct note note;
        uint64_t name, value, next;
        char owner[4];
        int status = elf_read(file, at, &note, sizeof(note));
        if (status < 0) {
            return status;
        }
        name = at + sizeof(note);
        /* Offsets are aligned relative to the note; its header has 12 bytes. */
        value = at + (sizeof(note) + note.name_size + step - 1) / step * step;
        next = value + (note.size + step - 1) / step * step;
        if (value > end || note.size > end - value) {
            return 0;
        }
        if (note.type == NT_GNU_BUILD_ID && note.name_size == 4 && note.size > 0 &&
            note.size <= sizeof(file->build_id)) {
            status = elf_read(file, name, owner, sizeof(owner));
            if (status < 0) {
                return status;
            }
            if (memcmp(owner, "GNU", 4) == 0) {
                status = elf_read(file, value, file->build_id, note.size);
                if (status < 0) {
                    return status;
                }
                file->build_id_size = note.size;
            }
        }
        if (next > end) {
            return 0;
        }
        at = next;
    }
    return 0;
}

/* The smallest of the processors that are read here. */
#define PAGE 4096

static int read_segments(struct elf_file *file, const struct header *header, uint64_t *dynamic)
{
    bool has_dynamic = false;
    if (header->phnum == 0) {
        return elf_refused(file, "object file has no loadable segments");
    }
    if (header->phnum == 0xffff) {
        return elf_damaged(file, "65535 or more program headers");
    }
    file->segments = calloc(header->phnum, sizeof(*file->segments));
    if (file->segments == NULL) {
        return elf_no_memory(file);
    }
    file->exec_stack = header->machine == EM_X86_64; /* the default without PT_GNU_STACK */
    for (uint32_t i = 0; i < header->phnum; i++) {
        struct program_header segment;
        uint64_t offset = header->phoff + (uint64_t)i * sizeof(segment);
        int status;
        if (offset < header->phoff) {
            return elf_damaged(file, "program headers past the end");
        }
        status = elf_read(file, offset, &segment, sizeof(segment));
        if (status == 0 && segment.type == PT_LOAD &&
            (segment.address - segment.offset) % PAGE != 0) {
            /* strip does this to what patchelf has grown */
            return elf_refused(file, "ELF load command address/offset not page-aligned");
        }
        if (status == 0 && segment.type == PT_LOAD && segment.file_size > 0) {
            struct elf_segment *kept = &file->segments[file->segment_count];
            uint64_t mapped = (file->size + PAGE - 1) / PAGE * PAGE; /* beyond its end: zeros */
            if (segment.offset > file->size || segment.file_size > mapped - segment.offset) {
                return elf_damaged(file,
                                   "truncated: a segment ends at byte %llu, the file has %llu",
                                   (unsigned long long)(segment.offset + segment.file_size),
                                   (unsigned long long)file->size);
            }
            if (segment.address + segment.file_size < segment.address) {
                return elf_damaged(file, "a segment wraps around the address space");
            }
            *kept = (struct elf_segment){segment.address, segment.offset, segment.file_size};
            file->segment_count++;
        } else if (status == 0 && segment.type == PT_DYNAMIC) {
            has_dynamic = true;
            *dynamic = segment.address;
        } else if (status == 0 && segment.type == PT_INTERP) {
            status = read_interpreter(file, &segment);
        } else if (status == 0 && segment.type == PT_NOTE && file->build_id_size == 0) {
            status = read_notes(file, &segment);
        } else if (status == 0 && segment.type == PT_GNU_STACK) {
            file->exec_stack = (segment.flags & PF_X) != 0;
        }
        if (status < 0) {
            return status;
        }
    }
    if (file->segment_count == 0) {
        return elf_refused(file, "object file has no loadable segments");
    }
    file->dynamic = has_dynamic;
    return 0;
}

/* ---- the dynamic section ---- */

static int slot_of(int64_t tag)
{
    if (tag >= 0 && tag < DT_PLAIN) {
        return (int)tag;
    }
    switch (tag) {
    case 0x6ffffef5:
        return SLOT_GNU_HASH;
    case 0x6ffffff0:
        return SLOT_VERSYM;
    case 0x6ffffff9:
        return SLOT_RELACOUNT;
    case 0x6ffffffb:
        return SLOT_FLAGS_1;
    case 0x6ffffffc:
        return SLOT_VERDEF;
    case 0x6ffffffe:
        return SLOT_VERNEED;
    default:
        return -1;
    }
}

/* Reads the entries up to DT_NULL. If a tag occurs twice, the last one counts, as in ld.so. */
static int read_dynamic(struct elf_file *file, uint64_t address, struct dynamic *dynamic)
{
    struct elf_table table = {0};
    size_t room = 0;
    if (!find_address(file, address, &table)) {
        return elf_damaged(file, "the dynamic section is in no segment");
    }
    for (uint64_t at = table.offset;; at += sizeof(struct dynamic_entry)) {
        struct dynamic_entry entry;
        int slot, status;
        if (table.end - at < sizeof(entry)) {
            return elf_damaged(file, "the dynamic section has no end");
        }
        status = elf_read(file, at, &entry, sizeof(entry));
        if (status < 0) {
            return status;
        }
        if (entry.tag == DT_NULL) {
            return 0;
        }
        if (dynamic->count == room) {
            struct dynamic_entry *grown;
            room = room == 0 ? 64 : 2 * room;
            if (room > MAX_DYNAMIC) {
                return elf_damaged(file, "more than %d dynamic entries", MAX_DYNAMIC);
            }
            grown = realloc(dynamic->entries, room * sizeof(*grown));
            if (grown == NULL) {
                return elf_no_memory(file);
            }
            dynamic->entries = grown;
        }
        dynamic->entries[dynamic->count++] = entry;
        slot = slot_of(entry.tag);
        if (slot >= 0) {
            dynamic->value[slot] = entry.value;
            dynamic->has[slot] = true;
        }
    }
}

/* Finds the table to which a tag points; absent if there is no such tag. */
static int find_table(struct elf_file *file, const struct dynamic *dynamic, int slot,
                      const char *what, struct elf_table *table)
{
    if (dynamic->has[slot] && !find_address(file, dynamic->value[slot], table)) {
        return elf_damaged(file, "%s is in no segment", what);
    }
    return 0;
}

/* The same for a table of known size, which must fit into its segment. */
static int find_sized(struct elf_file *file, const struct dynamic *dynamic, int slot, uint64_t size,
                      const char *what, struct elf_table *table)
{
    int status;
    if (!dynamic->has[slot] || size == 0) {
        return 0;
    }
    status = find_table(file, dynamic, slot, what, table);
    if (status < 0) {
        return status;
    }
    if (size > table->end - table->offset) {
        return elf_damaged(file, "%s is larger than its segment", what);
    }
    table->end = table->offset + size;
    return 0;
}

static int find_tables(struct elf_file *file, const struct dynamic *dynamic)
{
    int status = find_sized(file, dynamic, DT_STRTAB, dynamic->value[DT_STRSZ], "the string table",
                            &file->strings);
    if (status == 0) {
        status = find_table(file, dynamic, DT_SYMTAB, "the symbol table", &file->symbols);
    }
    if (status == 0) {
        status = find_table(file, dynamic, SLOT_VERSYM, "the version table", &file->versym);
    }
    if (status == 0) {
        status = find_table(file, dynamic, SLOT_GNU_HASH, "the GNU hash table", &file->gnu_hash);
    }
    if (status == 0) {
        status = find_table(file, dynamic, DT_HASH, "the hash table", &file->sysv_hash);
    }
    if (status == 0) {
        status = find_sized(file, dynamic, DT_RELA, dynamic->value[DT_RELASZ],
                            "the relocation table", &file->rela);
    }
    if (status == 0) {
        status = find_sized(file, dynamic, DT_JMPREL, dynamic->value[DT_PLTRELSZ],
                            "the PLT relocation table", &file->plt_rela);
    }
    if (status < 0) {
        return status;
    }
    if (dynamic->has[DT_SYMENT] && dynamic->value[DT_SYMENT] != 24) {
        return elf_damaged(file, "symbols of an unknown size");
    }
    if (dynamic->has[DT_RELAENT] && dynamic->value[DT_RELAENT] != 24) {
        return elf_damaged(file, "relocations of an unknown size");
    }
    if (file->plt_rela.present && dynamic->value[DT_PLTREL] != DT_RELA) {
        return elf_damaged(file, "PLT relocations without addends");
    }
    return 0;
}

static int dynamic_string(struct elf_file *file, const struct dynamic *dynamic, int slot,
                          size_t limit, char **out)
{
    size_t length;
    if (!dynamic->has[slot]) {
        return 0;
    }
    return elf_string(file, dynamic->value[slot], limit, out, &length);
}

static int read_needed(struct elf_file *file, const struct dynamic *dynamic)
{
    size_t count = 0;
    for (size_t i = 0; i < dynamic->count; i++) {
        count += dynamic->entries[i].tag == DT_NEEDED;
    }
    if (count > MAX_NEEDED) {
        return elf_damaged(file, "more than %d needed libraries", MAX_NEEDED);
    }
    file->needed = calloc(count + 1, sizeof(*file->needed));
    if (file->needed == NULL) {
        return elf_no_memory(file);
    }
    for (size_t i = 0; i < dynamic->count; i++) {
        size_t length;
        int status;
        if (dynamic->entries[i].tag != DT_NEEDED) {
            continue;
        }
        status = elf_string(file, dynamic->entries[i].value, ELF_MAX_NAME,
                            &file->needed[file->needed_count], &length);
        if (status < 0) {
            return status;
        }
        file->needed_count++;
    }
    return 0;
}

static int read_versions(struct elf_file *file, const struct dynamic *dynamic)
{
    struct elf_table needs = {0}, definitions = {0};
    int status = find_table(file, dynamic, SLOT_VERNEED, "DT_VERNEED", &needs);
    if (status == 0 && needs.present) {
        status = elf_read_verneed(file, &needs);
    }
    if (status == 0) {
        status = find_table(file, dynamic, SLOT_VERDEF, "DT_VERDEF", &definitions);
    }
    if (status == 0 && definitions.present) {
        file->has_versions = true;
        status = elf_read_verdef(file, &definitions);
    }
    return status;
}

static int read_all(struct elf_file *file)
{
    struct header header;
    struct dynamic dynamic = {0};
    uint64_t address = 0;
    int status = elf_open_descriptor(file, true);
    if (status < 0) {
        return status;
    }
    if (file->size < sizeof(header)) {
        return elf_refused(file, "file too short");
    }
    status = elf_read(file, 0, &header, sizeof(header));
    if (status == 0) {
        status = check_identity(file, &header);
    }
    if (status == 0) {
        status = read_segments(file, &header, &address);
    }
    if (status < 0 || !file->dynamic) {
        return status;
    }
    status = read_dynamic(file, address, &dynamic);
    if (status == 0) {
        status = find_tables(file, &dynamic);
    }
    if (status == 0) {
        status = read_needed(file, &dynamic);
    }
    if (status == 0) {
        status = dynamic_string(file, &dynamic, DT_SONAME, ELF_MAX_NAME, &file->soname);
    }
    if (status == 0) {
        status = dynamic_string(file, &dynamic, DT_RPATH, MAX_PATHS, &file->rpath);
    }
    if (status == 0) {
        status = dynamic_string(file, &dynamic, DT_RUNPATH, MAX_PATHS, &file->runpath);
    }
    if (status == 0) {
        status = read_versions(file, &dynamic);
    }
    if (status == 0) {
        file->relative_count = dynamic.value[SLOT_RELACOUNT];
        file->flags = dynamic.value[DT_FLAGS];
        file->flags_1 = dynamic.value[SLOT_FLAGS_1];
        file->bind_now = dynamic.has[DT_BIND_NOW] || (file->flags & DF_BIND_NOW) != 0 ||
                         (file->flags_1 & DF_1_NOW) != 0;
    }
    free(dynamic.entries);
    return status;
}

struct elf_file *elf_open(const char *path, int root)
{
    struct elf_file *file = calloc(1, sizeof(*file));
    if (file == NULL) {
        return NULL;
    }
    file->fd = -1;
    file->root = root;
    file->path = strdup(path);
    if (file->path == NULL) {
        free(file);
        return NULL;
    }
    /* file->fault has the failure */
    if (read_all(file) == 0) {
        elf_hold(file, &file->strings_held, 2 * file->copied); /* Python copies them once more */
    }
    elf_rest(file);
    return file;
}

void elf_free(struct elf_file *file)
{
    if (file == NULL) {
        return;
    }
    elf_drop(file);
    elf_let_go(&file->strings_held);
    for (size_t i = 0; i < file->needed_count; i++) {
        free(file->needed[i]);
    }
    for (size_t i = 0; i < file->need_count; i++) {
        free(file->needs[i].library);
        free(file->needs[i].version);
    }
    for (size_t i = 0; i < file->version_count; i++) {
        free(file->versions[i].name);
    }
    free(file->needed);
    free(file->needs);
    free(file->versions);
    free(file->meanings);
    free(file->segments);
    free(file->interpreter);
    free(file->soname);
    free(file->rpath);
    free(file->runpath);
    free(file->path);
    free(file);
}
