/* How much more memory the system can give this process: see private.h. Linux. */
#define _GNU_SOURCE
#include "private.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hostmem.h"

#define RESERVE ((size_t)16 << 20) /* bytes for the rest of the process */
#define TABLES 512                 /* page tables take 8 bytes for each page of 4096 */
#define TEXT 4096                  /* bytes; the longest file is memory.stat, about 2 KiB */

/* Where a version of cgroups shows its limit, its usage, and which part of that the kernel can
 * drop. */
struct version {
    const char *type;       /* of the file system */
    const char *controller; /* in /proc/self/cgroup */
    const char *limit_file, *limit_name;
    const char *usage_file;
    const char *droppable[4]; /* in memory.stat */
};

static const struct version versions[] = {
    /* The hierarchical limit is the lowest of the group's own and all its parents', visible or
     * not. */
    {"cgroup",
     "memory",
     "memory.stat",
     "\nhierarchical_memory_limit ",
     "memory.usage_in_bytes",
     {"\ntotal_active_file ", "\ntotal_inactive_file "}},
    {"cgroup2",
     "",
     "memory.max", /* a number, or "max" */
     "\n",
     "memory.current",
     {"\nactive_file ", "\ninactive_file ", "\nslab_reclaimable "}},
};

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Reads a small file, with a '\n' in front so that every line has one before it. "" on failure. */
static const char *file_text(const char *folder, const char *name, char text[TEXT])
{
    size_t length = 0;

    bool fits = snprintf(text, TEXT, "%s/%s", folder, name) < TEXT;
    FILE *file = fits ? fopen(text, "re") : NULL;
    if (file != NULL) {
        text[length++] = '\n';
        length += fread(text + 1, 1, TEXT - 2, file);
        fclose(file);
    }
    text[length] = '\0';
    return text;
}

/* The number after `name` in `text`, or `otherwise`. */
static size_t number_after(const char *text, const char *name, size_t otherwise)
{
    const char *at = strstr(text, name);
    size_t number;

    return at != NULL && sscanf(at + strlen(name), "%zu", &number) == 1 ? number : otherwise;
}

static size_t group_left(const char *folder, const struct version *version)
{
    char text[TEXT];
    size_t limit =
        number_after(file_text(folder, version->limit_file, text), version->limit_name, SIZE_MAX);

    if (limit > HOSTMEM_MOST) { /* version 1 shows a huge number for no limit */
        return SIZE_MAX;
    }
    size_t used = number_after(file_text(folder, version->usage_file, text), "\n", 0);

    file_text(folder, "memory.stat", text);
    for (int i = 0; version->droppable[i] != NULL; i++) {
        used -= smaller(used, number_after(text, version->droppable[i], 0));
    }
    return limit - smaller(limit, used);
}

/* Whether `word` is one of the words of a comma-separated list. */
static bool has_word(const char *words, const char *word)
{
    size_t length = strlen(word);

    for (;;) {
        size_t next = strcspn(words, ",\n");
        if (next == length && strncmp(words, word, length) == 0) {
            return true;
        }
        if (words[next] != ',') {
            return false;
        }
        words += next + 1;
    }
}

/* The path of the process's group, from lines such as "4:memory:/a/b" and "0::/a/b"; NULL: none.
 * The caller frees it. */
static char *own_group(const char *root, const char *controller)
{
    char name[PATH_MAX], *line = NULL, *group = NULL;
    size_t room = 0;

    snprintf(name, sizeof name, "%s/proc/self/cgroup", root);
    FILE *file = fopen(name, "re");
    while (file != NULL && group == NULL && getline(&line, &room, file) > 0) {
        char *words = strchr(line, ':');
        char *path = words == NULL ? NULL : strchr(words + 1, ':');
        if (path != NULL) {
            *path = '\0';
            path[1 + strcspn(path + 1, "\n")] = '\0';
            group = has_word(words + 1, controller) ? strdup(path + 1) : NULL;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    free(line);
    return group;
}

/* The least that the process's group and its parents have left, as far as this mount shows them.
 * The mount shows group `top` at path `point`, with its children below. In a cgroup namespace the
 * process's own group may read "/", and one outside the namespace begins with "/..": then the mount
 * shows the process's group at `point`. */
static size_t mount_left(const char *root, const struct version *version, const char *group,
                         const char *top, const char *point)
{
    char folder[PATH_MAX];
    size_t left = SIZE_MAX;
    size_t above = strcmp(top, "/") == 0 ? 0 : strlen(top);
    bool beyond = strncmp(group, "/..", 3) == 0;
    bool below = strncmp(group, top, above) == 0 && group[above] == '/' && !beyond;

    if (!below && !beyond && strcmp(group, top) != 0 && strcmp(group, "/") != 0) {
        return SIZE_MAX; /* the mount shows another group */
    }
    int length = snprintf(folder, sizeof folder, "%s%s%s", root, point, below ? group + above : "");
    size_t first = strlen(root) + strlen(point);
    for (size_t end = (size_t)length; length < PATH_MAX && end >= first; end--) {
        if (end == first || folder[end] == '/' || folder[end] == '\0') {
            folder[end] = '\0';
            left = smaller(left, group_left(folder, version));
        }
    }
    return left;
}

/* A line of /proc/self/mountinfo: ID PARENT DEVICE TOP POINT OPTIONS ... - TYPE SOURCE OPTIONS. */
static size_t line_left(const char *root, const char *line)
{
    char top[PATH_MAX], point[PATH_MAX], type[16];
    const char *rest = strstr(line, " - ");
    int options = 0;

    if (rest == NULL || sscanf(rest, " - %15s %*s %n", type, &options) != 1 || options == 0 ||
        sscanf(line, "%*s %*s %*s %4095s %4095s", top, point) != 2) {
        return SIZE_MAX;
    }
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        const struct version *version = &versions[i];
        if (strcmp(type, version->type) == 0 &&
            (version->controller[0] == '\0' || has_word(rest + options, version->controller))) {
            char *group = own_group(root, version->controller);
            size_t left = group == NULL ? SIZE_MAX : mount_left(root, version, group, top, point);
            free(group);
            return left;
        }
    }
    return SIZE_MAX;
}

size_t hostmem_left(const char *root)
{
    char text[TEXT], *line = NULL;
    size_t room = 0;
    size_t left =
        number_after(file_text(root, "proc/meminfo", text), "\nMemAvailable:", SIZE_MAX >> 10)
        << 10;

    snprintf(text, sizeof text, "%s/proc/self/mountinfo", root);
    FILE *mounts = fopen(text, "re");
    while (mounts != NULL && getline(&line, &room, mounts) > 0) {
        left = smaller(left, line_left(root, line));
    }
    if (mounts != NULL) {
        fclose(mounts);
    }
    free(line);
    return left;
}

size_t cudriver_hostmem_left(void)
{
    size_t left = hostmem_left("");

    return left - smaller(left, RESERVE + left / TABLES);
}
