/* diagnose.c - one training, looked at from inside and made faster by what its profile says: the way of docs/diagnose.md.
   What it shows: nnt_profile_..., nnt_health, nnt_memory_report, nnt_memory_info; where noise costs least; what a limit does.
   Build: cc -O2 -I. -I/usr/include/stb examples/diagnose.c -o diagnose -lm -pthread      (stb_image.h, stb_image_write.h)
   Data:  none; 300 JPEGs of 480x480 pixels (a disc, a ring or a cross in noise) are drawn into FOLDER the first time.
   Run:   ./diagnose FOLDER [--workers 1] [--cache MiB] [--noise loader|net] [--batch 32] [--limit MiB] [--epochs 2] [--out NAME]
   Prints the verdict, the profile, the layers' health and the memory; with --out also writes NAME.svg (flame graph),
   NAME.json (for ui.perfetto.dev) and NAME.folded. */
#define STB_IMAGE_IMPLEMENTATION
#include "stb_image.h"
#define STB_IMAGE_WRITE_IMPLEMENTATION
#include "stb_image_write.h"
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"

enum { SIDE = 480, PICTURES = 100, CLASSES = 3, INPUT = 96 };
static const char *const class_names[CLASSES] = { "disc", "ring", "cross" };

typedef struct options { const char *folder, *out; int workers, cache, noise_in_net, batch, limit, epochs; } options;

/* ---- pictures */

static double uniform(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (double)(*state >> 8) / 16777216.0;
}
static void draw(unsigned char *pixels, int kind, uint32_t *state)
{
    double cx = 150 + 180 * uniform(state), cy = 150 + 180 * uniform(state), size = 60 + 60 * uniform(state);
    int row, col, c;
    for (row = 0; row < SIDE; row++)
        for (col = 0; col < SIDE; col++) {
            double dx = fabs(col - cx), dy = fabs(row - cy), r = dx * dx + dy * dy;
            int inside = kind == 0 ? r < size * size : kind == 1 ? r < size * size && r > 0.4 * size * size
                       : (dx < 25 && dy < size) || (dy < 25 && dx < size);
            for (c = 0; c < 3; c++) *pixels++ = (unsigned char)((inside ? 150 : 60) + 25 * c + 40 * uniform(state));
        }
}
static int folder_make(const char *path)
{
#ifdef _WIN32
    return CreateDirectoryA(path, NULL) || GetLastError() == ERROR_ALREADY_EXISTS;
#else
    return mkdir(path, 0777) == 0 || errno == EEXIST;
#endif
}
/* Draws what is not there yet. */
static int pictures_make(const char *folder)
{
    static unsigned char pixels[SIDE * SIDE * 3];
    char path[1024];
    uint32_t state = 1;
    int kind, i;
    if (!folder_make(folder)) return 0;
    for (kind = 0; kind < CLASSES; kind++) {
        snprintf(path, sizeof path, "%s/%s", folder, class_names[kind]);
        if (!folder_make(path)) return 0;
        for (i = 0; i < PICTURES; i++) {
            FILE *there;
            snprintf(path, sizeof path, "%s/%s/%03d.jpg", folder, class_names[kind], i);
            there = fopen(path, "rb");
            if (there) { fclose(there); continue; }
            draw(pixels, kind, &state);
            if (!stbi_write_jpg(path, SIDE, SIDE, 3, pixels, 90)) return 0;
        }
    }
    return 1;
}

/* ---- the net, trained and looked at */

static nnt_node layers(nnt_net *net, const options *o)
{
    nnt_node x = nnt_input(net, 3, INPUT, INPUT);
    if (o->noise_in_net) x = nnt_name(nnt_noise(x, 0.5f), "noise");
    x = nnt_maxpool(nnt_relu(nnt_name(nnt_conv2d(x, 32, 5, 2, 2), "conv1")), 2, 2, 0);
    x = nnt_relu(nnt_name(nnt_conv2d(x, 64, 3, 1, 1), "conv2"));
    x = nnt_maxpool(nnt_relu(nnt_name(nnt_conv2d(x, 64, 3, 1, 1), "conv3")), 2, 2, 0);
    x = nnt_maxpool(nnt_relu(nnt_name(nnt_conv2d(x, 128, 3, 1, 1), "conv4")), 2, 2, 0);
    x = nnt_dropout(nnt_relu(nnt_name(nnt_linear(x, 128), "fc1")), 0.5f);
    return nnt_name(nnt_linear(x, CLASSES), "fc2");
}
static void print_memory(const nnt_net *net)
{
    static char text[8000];
    char why[200];
    nnt_memory_usage m;
    nnt_memory_report(net, text, sizeof text);
    printf("\n%s", text);
    if (nnt_memory_info("cpu", &m, why, sizeof why)) printf("%s\n", why);
    else printf("this process: %.0f MiB of %.0f MiB, %.0f MiB are available\n", (double)m.process / 1048576, (double)m.total / 1048576, (double)m.available / 1048576);
}
static nnt_result look(nnt_net *net, nnt_loader *loader, const options *o)
{
    static char text[20000];
    char path[1024];
    nnt_layer_health rows[32];
    nnt_batch batch;
    nnt_result r = NNT_OK;
    int count = 0;
    nnt_profile_text(net, text, sizeof text);
    printf("%s\n", text);
    if (nnt_loader_next(loader, &batch) == NNT_OK) r = nnt_health(net, &batch, rows, 32, &count);
    nnt_health_text(rows, count < 32 ? count : 32, text, sizeof text);
    printf("%s", text);
    if (!o->out || r) return r;
    snprintf(path, sizeof path, "%s.svg", o->out);
    r = nnt_profile_flame_svg(net, path);
    snprintf(path, sizeof path, "%s.json", o->out);
    if (!r) r = nnt_profile_trace(net, path);
    snprintf(path, sizeof path, "%s.folded", o->out);
    return r ? r : nnt_profile_folded(net, path);
}

static int options_read(options *o, int argc, char **argv)
{
    int i;
    memset(o, 0, sizeof *o);
    o->workers = 1;
    o->batch = 32;
    o->epochs = 2;
    if (argc < 2 || argv[1][0] == '-') return 0;
    o->folder = argv[1];
    for (i = 2; i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];
        if (!strcmp(argv[i], "--workers")) o->workers = atoi(value);
        else if (!strcmp(argv[i], "--cache")) o->cache = atoi(value);
        else if (!strcmp(argv[i], "--noise")) o->noise_in_net = !strcmp(value, "net");
        else if (!strcmp(argv[i], "--batch")) o->batch = atoi(value);
        else if (!strcmp(argv[i], "--limit")) o->limit = atoi(value);
        else if (!strcmp(argv[i], "--epochs")) o->epochs = atoi(value);
        else if (!strcmp(argv[i], "--out")) o->out = value;
        else return 0;
    }
    return i == argc;
}

int main(int argc, char **argv)
{
    options o;
    nnt_folder_desc folder = {0};
    nnt_transforms_desc transforms = {0};
    const float mean = 0.4f, deviation = 0.2f;
    nnt_transform list[3];
    nnt_loader_desc order = {0};
    nnt_compile_desc build = {0};
    nnt_fit_desc fit = {0};
    nnt_dataset *pictures, *samples;
    nnt_loader *loader;
    nnt_net *net;
    nnt_result r;

    if (!options_read(&o, argc, argv)) {
        fprintf(stderr, "usage: %s FOLDER [--workers N] [--cache MiB] [--noise loader|net] [--batch N] [--limit MiB] [--epochs N] [--out NAME]\n", argv[0]);
        return 2;
    }
    if (!pictures_make(o.folder)) { fprintf(stderr, "%s: no pictures could be written there\n", o.folder); return 1; }
    list[0] = nnt_resize(INPUT, INPUT);
    list[1] = nnt_normalize(&mean, &deviation, 1);
    list[2] = nnt_pixel_noise(0.5f);
    transforms.list = list;
    transforms.count = o.noise_in_net ? 2 : 3;
    transforms.cache_bytes = (size_t)o.cache << 20;
    pictures = nnt_dataset_folder(o.folder, folder, NULL);
    samples = nnt_dataset_transform(pictures, transforms, NULL);
    order.batch = o.batch;
    order.shuffle = 1;
    order.workers = o.workers;
    loader = nnt_loader_new(samples, order, NULL);

    net = nnt_new(NULL);
    build.batch = o.batch;
    build.memory_limit = (size_t)o.limit << 20;
    build.optimizer = nnt_adam(1e-3f);
    fit.epochs = o.epochs;
    fit.callback = nnt_progress;
    r = nnt_compile(net, nnt_cross_entropy(layers(net, &o)), build);
    if (!r) r = nnt_profile_start(net);
    if (!r) r = nnt_fit(net, loader, fit);
    if (!r) r = nnt_profile_stop(net);
    if (!r) r = look(net, loader, &o);
    if (r) fprintf(stderr, "%s\n", nnt_error(net));
    else print_memory(net);
    nnt_free(net);
    nnt_loader_free(loader);
    nnt_dataset_free(samples);
    nnt_dataset_free(pictures);
    return r != NNT_OK;
}
