/* The hash tables: the symbols that a file defines. See elf.h. */
#include "private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* NOTYPE, OBJECT, FUNC, COMMON, TLS, GNU_IFUNC: the types that a lookup may return */
static const unsigned DEFINING_TYPES = 1u << 0 | 1u << 1 | 1u << 2 | 1u << 5 | 1u << 6 | 1u << 10;

uint32_t elf_gnu_hash(const char *name, size_t length)
{
    const unsigned char *at = (const unsigned char *)name;
    uint32_t hash = 5381;
    /* hash = hash * 33 + byte, for four bytes at once: names of C++ are long. */
    for (; length >= 4; at += 4, length -= 4) {
        hash = hash * (33 * 33 * 33 * 33) + at[0] * (33 * 33 * 33u) + at[1] * (33 * 33u) +
               at[2] * 33u + at[3];
    }
    for (; length > 0; at++, length--) {
        hash = hash * 33 + *at;
    }
    return hash;
}

uint32_t elf_sysv_hash(const char *name, size_t length)
{
    uint32_t hash = 0;
    for (size_t i = 0; i < length; i++) {
        hash = (hash << 4) + (unsigned char)name[i];
        hash ^= hash >> 24 & 0xf0;
        hash &= 0x0fffffff;
    }
    return hash;
}

/* ---- preparation ---- */

static int read_gnu_header(struct elf_file *file)
{
    uint32_t header[4];
    uint64_t size;
    int status;
    if (file->gnu_hash.end - file->gnu_hash.offset < sizeof(header)) {
        return elf_damaged(file, "the GNU hash table is cut off");
    }
    status = elf_read(file, file->gnu_hash.offset, header, sizeof(header));
    if (status < 0) {
        return status;
    }
    size = sizeof(header) + 8 * (uint64_t)header[2] + 4 * (uint64_t)header[0];
    if (size > file->gnu_hash.end - file->gnu_hash.offset) {
        return elf_damaged(file, "the GNU hash table is larger than its segment");
    }
    if (header[2] == 0 || (header[2] & (header[2] - 1)) != 0 || header[3] > 31) {
        return elf_damaged(file, "a bad filter in the GNU hash table");
    }
    file->bucket_count = header[0];
    file->first_hashed = header[1];
    file->bloom_words = header[2];
    file->bloom_shift = header[3];
    file->bloom = file->gnu_hash.offset + sizeof(header);
    file->buckets = file->bloom + 8 * (uint64_t)header[2];
    file->chains = file->buckets + 4 * (uint64_t)header[0];
    return 0;
}

static int read_sysv_header(struct elf_file *file)
{
    uint32_t header[2];
    uint64_t size;
    int status;
    if (file->sysv_hash.end - file->sysv_hash.offset < sizeof(header)) {
        return elf_damaged(file, "the hash table is cut off");
    }
    status = elf_read(file, file->sysv_hash.offset, header, sizeof(header));
    if (status < 0) {
        return status;
    }
    size = sizeof(header) + 4 * ((uint64_t)header[0] + header[1]);
    if (size > file->sysv_hash.end - file->sysv_hash.offset) {
        return elf_damaged(file, "the hash table is larger than its segment");
    }
    file->bucket_count = header[0];
    file->buckets = file->sysv_hash.offset + sizeof(header);
    file->chains = file->buckets + 4 * (uint64_t)header[0];
    file->sysv_hash.end = file->chains + 4 * (uint64_t)header[1];
    return 0;
}

/* Indexes the versions by number; definitions and needs share the numbers. */
static int number_versions(struct elf_file *file)
{
    size_t count = 2;
    for (size_t i = 0; i < file->need_count; i++) {
        count = file->needs[i].index >= count ? file->needs[i].index + 1u : count;
    }
    for (size_t i = 0; i < file->version_count; i++) {
        count = file->versions[i].index >= count ? file->versions[i].index + 1u : count;
    }
    file->meanings = calloc(count, sizeof(*file->meanings));
    if (file->meanings == NULL) {
        return elf_no_memory(file);
    }
    file->meaning_count = count;
    for (size_t i = 0; i < file->need_count; i++) {
        const struct elf_need *need = &file->needs[i];
        file->meanings[need->index] =
            (struct elf_meaning){need->version, need->library, need->hash, need->hidden};
    }
    for (size_t i = 0; i < file->version_count; i++) {
        const struct elf_version *version = &file->versions[i];
        if (!version->base) {
            file->meanings[version->index] =
                (struct elf_meaning){version->name, NULL, version->hash, false};
        }
    }
    return 0;
}

int elf_prepare(struct elf_file *file)
{
    int status = 0;
    if (file->fault.text[0] != '\0') {
        return -EBADMSG;
    }
    if (file->prepared) {
        return 0;
    }
    if (file->gnu_hash.present) {
        status = read_gnu_header(file);
    } else if (file->sysv_hash.present) {
        status = read_sysv_header(file);
    }
    if (status == 0) {
        status = number_versions(file);
    }
    file->prepared = status == 0;
    return status;
}

/* ---- entries ---- */

int elf_read_symbol(struct elf_file *file, uint64_t index, struct elf_symbol *symbol)
{
    if (!file->symbols.present ||
        index >= (file->symbols.end - file->symbols.offset) / sizeof(*symbol)) {
        return elf_damaged(file, "symbol %llu is outside the symbol table",
                           (unsigned long long)index);
    }
    return elf_read(file, file->symbols.offset + index * sizeof(*symbol), symbol, sizeof(*symbol));
}

int elf_read_version(struct elf_file *file, uint64_t index, uint16_t *number,
                     const struct elf_meaning **meaning)
{
    int status;
    *number = 1;
    *meaning = NULL;
    if (!file->versym.present) {
        return 0;
    }
    if (index >= (file->versym.end - file->versym.offset) / sizeof(*number)) {
        return elf_damaged(file, "symbol %llu is outside the version table",
                           (unsigned long long)index);
    }
    status = elf_read(file, file->versym.offset + index * sizeof(*number), number, sizeof(*number));
    if (status < 0) {
        return status;
    }
    if ((*number & 0x7fffu) >= file->meaning_count) {
        return elf_damaged(file, "version number %d of %zu", *number & 0x7fff, file->meaning_count);
    }
    if (file->meanings[*number & 0x7fff].hash != 0) {
        *meaning = &file->meanings[*number & 0x7fff];
    }
    return 0;
}

int elf_make_room(void **items, size_t *room, size_t count, size_t item)
{
    if (count == *room) {
        size_t bigger = *room == 0 ? 64 : 2 * *room;
        void *grown = realloc(*items, bigger * item);
        if (grown == NULL) {
            return -ENOMEM;
        }
        *items = grown;
        *room = bigger;
    }
    return 0;
}

/* Whether this entry is a definition, of a type that a lookup may return. */
static bool is_definition(const struct elf_symbol *symbol)
{
    unsigned type = symbol->info & 15u;
    if (symbol->value == 0 && symbol->section != SHN_ABS && type != STT_TLS) {
        return false;
    }
    return symbol->section != SHN_UNDEF && (DEFINING_TYPES >> type & 1u) != 0;
}

/* Whether other objects may bind to the symbol. */
static bool is_visible(const struct elf_symbol *symbol)
{
    unsigned visibility = symbol->other & 3u;
    unsigned binding = symbol->info >> 4;
    return visibility != STV_INTERNAL && visibility != STV_HIDDEN &&
           (binding == STB_GLOBAL || binding == STB_WEAK || binding == STB_GNU_UNIQUE);
}

/* ---- lookup ---- */

/* What one lookup in one file has found so far. */
struct candidates {
    int versioned; /* default versions seen while no version is wanted */
    bool versioned_visible;
};

/*
 * Compares one symbol with the wanted one. 1: it matches and others may bind to it. 2: it matches
 * but is hidden, which ends the search in this file. 0: go on. -errno: a fault.
 */
static int compare(struct elf_file *file, uint64_t index, const struct elf_wanted *wanted,
                   struct candidates *candidates)
{
    struct elf_symbol symbol;
    const struct elf_meaning *has;
    uint16_t number;
    int status = elf_read_symbol(file, index, &symbol);
    if (status < 0 || !is_definition(&symbol)) {
        return status;
    }
    status = elf_string_equals(file, symbol.name, wanted->name, wanted->length);
    if (status <= 0) {
        return status;
    }
    if (!file->versym.present && wanted->version != NULL && file->soname != NULL &&
        wanted->version->library != NULL && strcmp(file->soname, wanted->version->library) == 0) {
        return 0; /* this library should have the version but has none: ld.so fails here */
    }
    if (file->versym.present) {
        status = elf_read_version(file, index, &number, &has);
        if (status < 0) {
            return status;
        }
        if (wanted->version != NULL) {
            bool same = has != NULL && has->hash == wanted->version->hash &&
                        strcmp(has->version, wanted->version->version) == 0;
            if (!same && (wanted->version->hidden || has != NULL || (number & 0x8000) != 0)) {
                return 0;
            }
        } else if ((number & 0x7fff) >= 3) {
            /* No version is wanted: the base or the oldest one matches, else a single default. */
            if ((number & 0x8000) == 0 && candidates->versioned++ == 0) {
                candidates->versioned_visible = is_visible(&symbol);
            }
            return 0;
        }
    }
    return is_visible(&symbol) ? 1 : 2;
}

static int count_step(struct elf_file *file, uint64_t *steps)
{
    if (*steps == 0) {
        return elf_damaged(file, "its hash chains take too long to follow");
    }
    --*steps;
    return 0;
}

/* Reads entry `index` of the GNU chains. */
static int read_chain(struct elf_file *file, uint64_t index, uint32_t *entry)
{
    uint64_t offset = file->chains + 4 * (index - file->first_hashed);
    if (index < file->first_hashed || offset > file->gnu_hash.end - 4) {
        return elf_damaged(file, "a chain of the GNU hash table leaves its segment");
    }
    return elf_read(file, offset, entry, sizeof(*entry));
}

static int gnu_lookup(struct elf_file *file, const struct elf_wanted *wanted,
                      struct candidates *candidates, uint64_t *steps)
{
    uint32_t hash = wanted->gnu_hash;
    uint64_t word;
    uint32_t index;
    int status = elf_read(file, file->bloom + 8 * (uint64_t)(hash / 64 & (file->bloom_words - 1)),
                          &word, sizeof(word));
    if (status < 0) {
        return status;
    }
    if ((word >> (hash & 63) & word >> (hash >> file->bloom_shift & 63) & 1) == 0) {
        return 0;
    }
    status = elf_read(file, file->buckets + 4 * (uint64_t)(hash % file->bucket_count), &index,
                      sizeof(index));
    if (status < 0 || index == 0) {
        return status;
    }
    for (uint64_t at = index;; at++) {
        uint32_t entry;
        status = count_step(file, steps);
        if (status == 0) {
            status = read_chain(file, at, &entry);
        }
        if (status == 0 && ((entry ^ hash) >> 1) == 0) {
            status = compare(file, at, wanted, candidates);
        }
        if (status != 0 || (entry & 1) != 0) {
            return status;
        }
    }
}

static int sysv_lookup(struct elf_file *file, const struct elf_wanted *wanted,
                       struct candidates *candidates, uint64_t *steps)
{
    uint64_t count = (file->sysv_hash.end - file->chains) / 4;
    uint32_t index;
    int status =
        elf_read(file, file->buckets + 4 * (uint64_t)(wanted->sysv_hash % file->bucket_count),
                 &index, sizeof(index));
    for (uint64_t seen = 0; status == 0 && index != 0; seen++) {
        status = count_step(file, steps);
        if (status == 0 && (index >= count || seen >= count)) {
            status = elf_damaged(file, "a chain of the hash table leaves it or runs in a circle");
        }
        if (status == 0) {
            status = compare(file, index, wanted, candidates);
        }
        if (status == 0) {
            status = elf_read(file, file->chains + 4 * (uint64_t)index, &index, sizeof(index));
        }
    }
    return status;
}

int elf_defines(struct elf_file *file, const struct elf_wanted *wanted, uint64_t *steps)
{
    struct candidates candidates = {0};
    int status = file->prepared ? 0 : elf_prepare(file);
    if (status < 0 || file->bucket_count == 0) {
        return status;
    }
    status = file->gnu_hash.present ? gnu_lookup(file, wanted, &candidates, steps)
                                    : sysv_lookup(file, wanted, &candidates, steps);
    if (status == 0 && candidates.versioned == 1) {
        return candidates.versioned_visible;
    }
    return status == 2 ? 0 : status;
}

/* ---- exports ---- */

/* Adds the symbol if it is a visible definition and, unless `name` is NULL, has that name. */
static int add_export(struct elf_file *file, uint64_t number, const char *name,
                      struct elf_exports *out)
{
    struct elf_symbol symbol;
    struct elf_export *item;
    const struct elf_meaning *version;
    uint16_t version_number;
    size_t length;
    int status = elf_read_symbol(file, number, &symbol);
    if (status < 0 || !is_definition(&symbol) || !is_visible(&symbol)) {
        return status;
    }
    if (name != NULL) {
        status = elf_string_equals(file, symbol.name, name, strlen(name));
        if (status <= 0) {
            return status;
        }
    }
    status = elf_read_version(file, number, &version_number, &version);
    if (status < 0) {
        return status;
    }
    if (elf_make_room((void **)&out->items, &out->room, out->count, sizeof(*out->items)) < 0) {
        return elf_no_memory(file);
    }
    item = &out->items[out->count];
    *item = (struct elf_export){.version = version != NULL ? version->version : NULL,
                                .address = symbol.value,
                                .size = symbol.size,
                                .hidden = (version_number & 0x8000) != 0,
                                .weak = symbol.info >> 4 == STB_WEAK};
    status = elf_string(file, symbol.name, ELF_MAX_SYMBOL_NAME, &item->name, &length);
    if (status < 0) {
        return status;
    }
    out->count++;
    out->bytes += length;
    if (out->bytes > ELF_MAX_NAME_BYTES) {
        return elf_damaged(file, "its symbol names take too much room");
    }
    return 0;
}

static int gnu_bucket_exports(struct elf_file *file, uint32_t bucket, const char *name,
                              uint64_t *steps, struct elf_exports *out)
{
    uint32_t index;
    int status = elf_read(file, file->buckets + 4 * (uint64_t)bucket, &index, sizeof(index));
    if (status < 0 || index == 0) {
        return status;
    }
    for (uint64_t at = index;; at++) {
        uint32_t entry;
        status = count_step(file, steps);
        if (status == 0) {
            status = read_chain(file, at, &entry);
        }
        if (status == 0) {
            status = add_export(file, at, name, out);
        }
        if (status < 0 || (entry & 1) != 0) {
            return status;
        }
    }
}

static int sysv_bucket_exports(struct elf_file *file, uint32_t bucket, const char *name,
                               uint64_t *steps, struct elf_exports *out)
{
    uint64_t count = (file->sysv_hash.end - file->chains) / 4;
    uint32_t index;
    int status = elf_read(file, file->buckets + 4 * (uint64_t)bucket, &index, sizeof(index));
    for (uint64_t seen = 0; status == 0 && index != 0; seen++) {
        status = count_step(file, steps);
        if (status == 0 && (index >= count || seen >= count)) {
            status = elf_damaged(file, "a chain of the hash table leaves it or runs in a circle");
        }
        if (status == 0) {
            status = add_export(file, index, name, out);
        }
        if (status == 0) {
            status = elf_read(file, file->chains + 4 * (uint64_t)index, &index, sizeof(index));
        }
    }
    return status;
}

int elf_list_exports(struct elf_file *file, const char *name, struct elf_exports *out)
{
    uint64_t steps = ELF_MAX_STEPS;
    uint32_t first = 0, end;
    int status = elf_prepare(file);
    if (status < 0 || file->bucket_count == 0) {
        return status;
    }
    end = file->bucket_count;
    if (name != NULL) {
        uint32_t hash = file->gnu_hash.present ? elf_gnu_hash(name, strlen(name))
                                               : elf_sysv_hash(name, strlen(name));
        first = hash % file->bucket_count;
        end = first + 1;
    }
    for (uint32_t bucket = first; status == 0 && bucket < end; bucket++) {
        status = file->gnu_hash.present ? gnu_bucket_exports(file, bucket, name, &steps, out)
                                        : sysv_bucket_exports(file, bucket, name, &steps, out);
    }
    return status;
}

void elf_exports_free(struct elf_exports *list)
{
    for (size_t i = 0; i < list->count; i++) {
        free(list->items[i].name);
    }
    free(list->items);
    *list = (struct elf_exports){0};
}
