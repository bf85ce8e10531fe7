/* How much more memory the system can give this process: see private.h. Linux. */
#define _GNU_SOURCE
#include "private.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hostmem.h"

#define RESERVE ((size_t)16 << 20) /* for the rest of the process */
#define TABLES 512                 /* a page's entry in the page table is 8 of 4096 bytes */
#define TEXT 4096                  /* the longest file is memory.stat, of some 2 KiB */

/* Where a version of cgroups has its limits, what is used, and what of that the kernel can drop. */
struct version {
    const char *type;       /* of the file system */
    const char *controller; /* in /proc/self/cgroup */
    const char *limit_file, *limit_name;
    const char *usage_file;
    const char *droppable[4]; /* in memory.stat */
};

static const struct version versions[] = {
    /* The hierarchical limit is the least of the group's own and of all above it, seen or not. */
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

static size_t less(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* A small file's text behind a line's end, so that each line has one before it; "" without. */
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

/* The number after `name`, or `otherwise`. */
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

    if (limit > HOSTMEM_MOST) { /* version 1 has a huge number for no limit */
        return SIZE_MAX;
    }
    size_t used = number_after(file_text(folder, version->usage_file, text), "\n", 0);

    file_text(folder, "memory.stat", text);
    for (int i = 0; version->droppable[i] != NULL; i++) {
        used -= less(used, number_after(text, version->droppable[i], 0));
    }
    return limit - less(limit, used);
}

/* Whether `word` is one of the words between commas. */
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

/* The path of the process's group, from lines such as "4:memory:/a/b" and "0::/a/b"; or NULL. */
static char *own_group(char *text, const char *controller)
{
    char *rest = NULL;

    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        char *words = strchr(line, ':');
        char *path = words == NULL ? NULL : strchr(words + 1, ':');
        if (path != NULL) {
            *path = '\0';
            if (has_word(words + 1, controller)) {
                return path + 1;
            }
        }
    }
    return NULL;
}

/* The least that the process's group and those above it have left, as far as a mount shows them: it
 * shows the group `top` and those below at `point`. */
static size_t mount_left(const char *root, const struct version *version, const char *top,
                         const char *point)
{
    char text[TEXT], folder[PATH_MAX];
    size_t left = SIZE_MAX;
    size_t above = strcmp(top, "/") == 0 ? 0 : strlen(top);

    file_text(root, "proc/self/cgroup", text);
    const char *group = own_group(text, version->controller);
    if (group == NULL) {
        return SIZE_MAX;
    }
    bool shown =
        strncmp(group, top, above) == 0 && group[above] == '/' && strncmp(group, "/..", 3) != 0;
    int length = snprintf(folder, sizeof folder, "%s%s%s", root, point, shown ? group + above : "");
    size_t first = strlen(root) + strlen(point);
    for (size_t end = (size_t)length; length < PATH_MAX && end >= first; end--) {
        if (end == first || folder[end] == '/' || folder[end] == '\0') {
            folder[end] = '\0';
            left = less(left, group_left(folder, version));
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
            return mount_left(root, version, top, point);
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
        left = less(left, line_left(root, line));
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

    return left - less(left, RESERVE + left / TABLES);
}
