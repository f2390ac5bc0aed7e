/* slow_loader.c - random noise on pictures, once in the loader, pixel by pixel, once as a node that runs with the net.
   What it shows: the experiment of finding out what a training's time goes on. Noise that is computed for each pixel while
   pictures are read takes time that the net waits for; as nnt_noise it runs on the net's device, vectorised. The profile
   tells the share of each stage in both forms, and whether the loader or the net holds things up.
   Build: cc -O2 -I. examples/slow_loader.c -o slow_loader -lm -pthread
   Data:  none; pictures of 3 x 64 x 64 bytes are made here.
   Run:   ./slow_loader [--epochs 2] [--batch 32] [--threads 0] [--device cpu] [--workers 0]
          workers 0: batches are made in the thread that trains, so that all shares add up to 100 %
   Prints the shares of both forms; on a Xeon with AVX-512, --threads 1: in the loader 0.57 s, 61 % of it on noise, verdict
   "waiting for data"; as a node 0.20 s, 6 % waiting, verdict "computing". */
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include <time.h>

static double seconds(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum { SIZE = 64, SAMPLE = 3 * SIZE * SIZE, CLASSES = 4, SAMPLES = 256 };

typedef struct options { int epochs, batch, threads, workers; const char *device; } options;

/* What the reader knows: the pictures, whether it adds noise, and (workers 0) how long that took. */
typedef struct source { uint8_t *pictures; int noisy; double noise_seconds; } source;

/* Numbers that belong to a sample, however often and in whichever thread it is read: xorshift from its index. */
static double uniform(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return ((double)*state + 0.5) / 4294967296.0;
}
/* The slow way: a logarithm, a root and a cosine for each pixel. */
static void add_noise(float *x, int64_t index)
{
    uint32_t state = (uint32_t)index * 2654435761u + 1;
    int i;
    for (i = 0; i < SAMPLE; i++)
        x[i] += 0.1f * (float)(sqrt(-2 * log(uniform(&state))) * cos(6.283185307179586 * uniform(&state)));
}
static nnt_result read_sample(void *user, int64_t index, float *x, int32_t *label, float *target, char *why, size_t cap)
{
    source *s = (source *)user;
    const uint8_t *from = s->pictures + index * SAMPLE;
    int i;
    (void)target; (void)why; (void)cap;
    for (i = 0; i < SAMPLE; i++) x[i] = (float)from[i] / 255.0f;
    *label = (int32_t)(index % CLASSES);
    if (s->noisy) {
        double start = seconds();
        add_noise(x, index);
        s->noise_seconds += seconds() - start;     /* of one thread only when there are no workers */
    }
    return NNT_OK;
}
/* A bright square in the quarter that is the class, on a dim pattern. */
static void draw(uint8_t *to)
{
    int i, c, y, x;
    for (i = 0; i < SAMPLES; i++) for (c = 0; c < 3; c++) for (y = 0; y < SIZE; y++) for (x = 0; x < SIZE; x++) {
        int quarter = 2 * (y >= SIZE / 2) + (x >= SIZE / 2);
        *to++ = (uint8_t)((quarter == i % CLASSES ? 150 : 40) + (x * 7 + y * 3 + c * 5 + i) % 60);
    }
}

static int fail(const char *where, const char *why)
{
    fprintf(stderr, "slow_loader: %s: %s\n", where, why);
    return 1;
}
/* Seconds of the profile's rows for the thread that trains, those of `part` and `phase` only when they are given. */
static double seconds_of(nnt_net *net, const char *part, const char *phase)
{
    static nnt_profile_row rows[1024];
    int i, n = nnt_profile_rows(net, rows, 1024);
    double sum = 0;
    for (i = 0; i < n && i < 1024; i++)
        if (!strcmp(rows[i].thread, "net") && (!part || !strcmp(rows[i].part, part)) && (!phase || !strcmp(rows[i].phase, phase)))
            sum += rows[i].seconds;
    return sum;
}

static int train(source *s, int noise_in_loader, options o)
{
    nnt_net *net = nnt_new(NULL);
    nnt_reader_desc r = {0};
    nnt_loader_desc order = {0};
    nnt_compile_desc build = {0};
    nnt_fit_desc fit = {0};
    nnt_dataset *data;
    nnt_loader *loader;
    nnt_node x = nnt_input(net, 3, SIZE, SIZE);
    char verdict[1000];
    double all, waiting;
    int failed = 0;

    s->noisy = noise_in_loader;
    s->noise_seconds = 0;
    r.count = SAMPLES;
    r.channels = 3;
    r.height = r.width = SIZE;
    r.classes = CLASSES;
    r.read_fn = read_sample;
    r.user = s;
    data = nnt_dataset_reader(r, NULL);
    order.batch = build.batch = o.batch;
    order.shuffle = 1;
    order.workers = o.workers ? o.workers : NNT_NO_WORKERS;
    loader = nnt_loader_new(data, order, NULL);

    if (!noise_in_loader) x = nnt_noise(x, 0.1f);
    x = nnt_maxpool(nnt_relu(nnt_conv2d(x, 16, 5, 2, 2)), 2, 2, 0);
    x = nnt_maxpool(nnt_relu(nnt_conv2d(x, 32, 3, 1, 1)), 2, 2, 0);
    x = nnt_linear(nnt_relu(nnt_linear(x, 64)), CLASSES);
    build.threads = o.threads;
    build.device = o.device;
    build.optimizer = nnt_adam(1e-3f);
    fit.epochs = o.epochs;
    if (nnt_compile(net, nnt_cross_entropy(x), build) || nnt_profile_start(net) || nnt_fit(net, loader, fit)) {
        failed = fail("fit", nnt_error(net));
    } else {
        nnt_profile_stop(net);
        all = seconds_of(net, NULL, NULL);
        waiting = seconds_of(net, "wait for data", NULL);
        printf("noise %s: %.2f s\n", noise_in_loader ? "in the loader, pixel by pixel" : "as a node of the net", all);
        printf("    waiting for data %5.2f %%", 100 * waiting / all);
        if (noise_in_loader && !o.workers) printf(" (of all time on noise: %.2f %%)", 100 * s->noise_seconds / all);
        printf("\n    forward          %5.2f %%\n    backward         %5.2f %%\n    update           %5.2f %%\n",
               100 * seconds_of(net, NULL, "forward") / all, 100 * seconds_of(net, NULL, "backward") / all,
               100 * seconds_of(net, NULL, "update") / all);
        nnt_profile_verdict(net, verdict, sizeof verdict);
        printf("    verdict: %s\n", verdict);
    }
    nnt_free(net);
    nnt_loader_free(loader);
    nnt_dataset_free(data);
    return failed;
}

int main(int argc, char **argv)
{
    options o = { 2, 32, 0, 0, "cpu" };
    source s = { NULL, 0, 0 };
    int i, failed;
    for (i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--epochs")) o.epochs = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--batch")) o.batch = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--threads")) o.threads = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--workers")) o.workers = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--device")) o.device = argv[i + 1];
        else break;
    }
    if (i < argc || o.epochs < 1 || o.workers < 0) {
        fprintf(stderr, "usage: %s [--epochs N] [--batch N] [--threads N] [--device NAME] [--workers N]\n", argv[0]);
        return 2;
    }
    s.pictures = (uint8_t *)malloc((size_t)SAMPLES * SAMPLE);
    if (!s.pictures) return fail("start", "out of memory");
    draw(s.pictures);
    failed = train(&s, 1, o) || train(&s, 0, o);
    free(s.pictures);
    return failed;
}
