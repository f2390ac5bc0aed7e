/* fuzz_names.c - whatever files and folders a picture folder has in it, it gives samples whose paths can be opened, with
   labels in the order of the class names' bytes, or an error in words, and all memory back. The input is a list of paths
   parted by zero bytes; a last name that begins with '@' becomes a link to the folder above. How to run it: fuzz.h. */
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include "fuzz.h"

enum { MOST_ENTRIES = 64, PATH_BYTES = 600 };
static char made[MOST_ENTRIES][PATH_BYTES];         /* in the order in which they came to be */
static int made_count;

static int make_entry(const char *path, int last)
{
    const char *name = strrchr(path, '/') + 1;
    FILE *f = NULL;
    if (!last) { if (mkdir(path, 0700) != 0) return 0; }
    else if (*name == '@') { if (symlink("..", path) != 0) return 0; }
    else {
        f = fopen(path, "wbx");                     /* x: not there yet */
        if (!f) return 0;
        fclose(f);
    }
    strcpy(made[made_count++], path);
    return 1;
}
/* A path's folders and its file, as far as the system takes the names. */
static void make_path(const uint8_t *p, size_t n)
{
    char path[PATH_BYTES];
    size_t length = (size_t)sprintf(path, "%s", fuzz_folder()), i, name;
    for (i = 0; i < n; i++) {
        path[length++] = '/';
        for (name = length; i < n && p[i] != '/'; i++) if (length < PATH_BYTES - 2) path[length++] = (char)p[i];
        path[length] = 0;
        if (length == name || !strcmp(path + name, ".") || !strcmp(path + name, "..") || length >= PATH_BYTES - 2) return;
        if (made_count == MOST_ENTRIES) return;
        make_entry(path, i == n);
    }
}
static void check_names(const nnt_dataset *d)
{
    char got[4096];
    int64_t k;
    int c;
    RULE((nnt_dataset_error_code(d) == NNT_OK) == (nnt_dataset_count(d) > 0));
    RULE((nnt_dataset_error_code(d) == NNT_OK) == (nnt_dataset_error(d)[0] == 0));
    if (nnt_dataset_error_code(d)) return;
    RULE(nnt_dataset_count(d) + nnt_dataset_passed_over(d) <= made_count);
    for (c = 1; c < nnt_dataset_classes(d); c++) RULE(strcmp(nnt_dataset_class_name(d, c - 1), nnt_dataset_class_name(d, c)) < 0);
    for (k = 0; k < nnt_dataset_count(d); k++) {
        const int32_t label = nnt_dataset_label(d, k);
        const char *class_name = label >= 0 && label < nnt_dataset_classes(d) ? nnt_dataset_class_name(d, label) : "?";
        const size_t root = strlen(fuzz_folder());
        RULE(nnt_dataset_sample_name(d, k, got, sizeof got) < sizeof got && access(got, R_OK) == 0);
        RULE(got[root] == '/' && strncmp(got + root + 1, class_name, strlen(class_name)) == 0 && got[root + 1 + strlen(class_name)] == '/');
    }
}
static int try_input(const uint8_t *data, size_t size)
{
    nnt_folder_desc desc;
    counted c;
    nnt_allocator a = counted_allocator(&c);
    nnt_dataset *d;
    size_t i, first = 0;
    int good;
    made_count = 0;
    for (i = 0; i <= size; i++)
        if (i == size || data[i] == 0) { make_path(data + first, i - first); first = i + 1; }
    memset(&desc, 0, sizeof desc);
    d = nnt_dataset_folder(fuzz_folder(), desc, &a);
    check_names(d);
    good = nnt_dataset_error_code(d) == NNT_OK;
    nnt_dataset_free(d);
    RULE(c.live == 0);
    while (made_count) RULE(remove(made[--made_count]) == 0);
    return good;
}

static const char *const words[] = {
    "cat/", "dog/", "/", "@", "x/@up", ".hidden/", "a.png", "b.JPG", ".jpeg", "j.jpeg", ".", "..", " ", "\xC3\xA4", "\xFF", "\n", "%s", "\\", "'",
    "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn"
};
static size_t make_input(uint8_t *to, fuzz_dice *d)
{
    static const char paths[] = "cat/a.png\0cat/B.JPG\0dog/puppy/c.jpeg\0dog/.hidden.png\0cat/x.txt\0dog/@again\0note";
    memcpy(to, paths, sizeof paths - 1);
    return fuzz_mutate(to, sizeof paths - 1, d, words, sizeof words / sizeof *words);
}
