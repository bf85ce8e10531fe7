/* The tables of needed and defined versions. See elf.h. */
#define _GNU_SOURCE
#include "private.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_RECORDS = 4096,     /* libraries from which versions are needed */
    MAX_VERSIONS = 1 << 15, /* DT_VERSYM numbers have 15 bits */
};
enum { VER_FLG_BASE = 1, VER_FLG_WEAK = 2 };

struct verneed {
    uint16_t version, count;
    uint32_t file, aux, next;
};
struct vernaux {
    uint32_t hash;
    uint16_t flags, other;
    uint32_t name, next;
};
struct verdef {
    uint16_t version, flags, index, count;
    uint32_t hash, aux, next;
};
struct verdaux {
    uint32_t name, next;
};
_Static_assert(sizeof(struct verneed) == 16 && sizeof(struct vernaux) == 16 &&
                   sizeof(struct verdef) == 20,
               "structures lie as in the file");

/* Grows an array by one zeroed item. Returns the array, or NULL (the old one stays valid). */
static void *grow(void *array, size_t count, size_t item)
{
    char *grown = array;
    if ((count & (count - 1)) == 0) { /* full at every power of two */
        grown = realloc(array, (count == 0 ? 1 : 2 * count) * item);
        if (grown == NULL) {
            return NULL;
        }
    }
    memset(grown + count * item, 0, item);
    return grown;
}

/* Moves *at by `step` inside the table; a fault if less than `size` bytes remain there. */
static int advance(struct elf_file *file, const struct elf_table *table, uint64_t *at,
                   uint64_t step, size_t size)
{
    if (step > table->end - *at || table->end - *at - step < size) {
        return elf_damaged(file, "version records past the end of their segment");
    }
    *at += step;
    return 0;
}

static int read_vernaux(struct elf_file *file, const struct elf_table *table, uint64_t at,
                        const char *library)
{
    for (;;) {
        struct vernaux aux;
        struct elf_need *grown, *need;
        size_t length;
        int status = elf_read(file, at, &aux, sizeof(aux));
        if (status < 0) {
            return status;
        }
        if (file->need_count == MAX_VERSIONS) {
            return elf_damaged(file, "more than %d needed versions", MAX_VERSIONS);
        }
        grown = grow(file->needs, file->need_count, sizeof(*grown));
        if (grown == NULL) {
            return elf_no_memory(file);
        }
        file->needs = grown;
        need = &grown[file->need_count++];
        need->hash = aux.hash;
        need->index = aux.other & 0x7fff;
        need->hidden = (aux.other & 0x8000) != 0;
        need->weak = (aux.flags & VER_FLG_WEAK) != 0;
        need->library = strdup(library);
        if (need->library == NULL) {
            return elf_no_memory(file);
        }
        file->copied += strlen(library);
        status = elf_string(file, aux.name, ELF_MAX_NAME, &need->version, &length);
        if (status == 0 && aux.next == 0) {
            return 0;
        }
        if (status == 0) {
            status = advance(file, table, &at, aux.next, sizeof(aux));
        }
        if (status < 0) {
            return status;
        }
    }
}

int elf_read_verneed(struct elf_file *file, const struct elf_table *table)
{
    uint64_t at = table->offset;
    int status = advance(file, table, &at, 0, sizeof(struct verneed));
    for (int records = 0; status == 0; records++) {
        struct verneed record;
        uint64_t aux = at;
        char *library = NULL;
        size_t length;
        status = elf_read(file, at, &record, sizeof(record));
        if (status < 0) {
            return status;
        }
        if (record.version != 1 || records == MAX_RECORDS) {
            return elf_damaged(file, "a bad DT_VERNEED");
        }
        status = advance(file, table, &aux, record.aux, sizeof(struct vernaux));
        if (status == 0) {
            status = elf_string(file, record.file, ELF_MAX_NAME, &library, &length);
        }
        if (status == 0) {
            status = read_vernaux(file, table, aux, library);
        }
        free(library);
        if (status < 0 || record.next == 0) {
            return status;
        }
        status = advance(file, table, &at, record.next, sizeof(record));
    }
    return status;
}

int elf_read_verdef(struct elf_file *file, const struct elf_table *table)
{
    uint64_t at = table->offset;
    int status = advance(file, table, &at, 0, sizeof(struct verdef));
    while (status == 0) {
        struct verdef record;
        struct verdaux aux;
        struct elf_version *grown, *version;
        uint64_t name_at = at;
        size_t length;
        status = elf_read(file, at, &record, sizeof(record));
        if (status < 0) {
            return status;
        }
        if (record.version != 1 || file->version_count == MAX_VERSIONS) {
            return elf_damaged(file, "a bad DT_VERDEF");
        }
        status = advance(file, table, &name_at, record.aux, sizeof(aux));
        if (status == 0) {
            status = elf_read(file, name_at, &aux, sizeof(aux));
        }
        if (status < 0) {
            return status;
        }
        grown = grow(file->versions, file->version_count, sizeof(*grown));
        if (grown == NULL) {
            return elf_no_memory(file);
        }
        file->versions = grown;
        version = &grown[file->version_count++];
        version->hash = record.hash;
        version->index = record.index & 0x7fff;
        version->base = (record.flags & VER_FLG_BASE) != 0;
        status = elf_string(file, aux.name, ELF_MAX_NAME, &version->name, &length);
        if (status < 0 || record.next == 0) {
            return status;
        }
        status = advance(file, table, &at, record.next, sizeof(record));
    }
    return status;
}
