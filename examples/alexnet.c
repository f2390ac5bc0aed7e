/* alexnet.c - AlexNet in torchvision's layout: what a net of 57 million weights needs in memory and time.
   What it shows: the memory plan before anything is taken, and what --limit makes of it: values are made again in
   backward instead of being kept, for the price that is printed. A dataset that is a function of one's own (read_fn),
   called from loader threads while the net trains, and the share of time spent waiting for it.
   Build: cc -O2 -I. examples/alexnet.c -o alexnet -lm -pthread
   Data:  none; each picture is stripes in noise, and the direction of the stripes is its class.
   Run:   ./alexnet [--steps 20] [--batch 16] [--classes 2] [--size 224] [--lr 0.0001] [--threads 0] [--workers 1]
          [--limit MIB] [--device cpu] [--snapshot FILE]
   On a GPU: nvcc -O3 -I. examples/alexnet.c nntrain_cuda.cu -lcublas -lcublasLt -o alexnet; then --device cuda
   With --snapshot, Ctrl-C finishes the step and writes FILE (684 MiB); the same command goes on from it.
   Prints for the default: together 897.2 MiB, of which 870.0 do not depend on the batch; mean loss 0.3329;
   8 images/s on two busy cores of a Xeon with AVX-512. */
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"

#include <signal.h>

typedef struct options { int steps, batch, classes, size, threads, workers, limit; float lr; const char *device, *snapshot; } options;

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    interrupted = 1;
    signal(number, SIG_DFL);                            /* the second one ends the program at once */
}
static int progress_until_interrupted(void *user, nnt_net *net, const nnt_progress_info *info)
{
    return nnt_progress(user, net, info) || interrupted;
}

/* One sample: called by several threads at once, so everything comes from `index` and nothing is kept. */
static nnt_result read_stripes(void *user, int64_t index, float *x, int32_t *label, float *target, char *why, size_t cap)
{
    const options *o = (const options *)user;
    uint32_t state = (uint32_t)index * 2654435761u + 1u;
    int kind = (int)(index % o->classes), channel, row, col;
    float angle = 3.14159265f * (float)kind / (float)o->classes;
    float along = cosf(angle) * 0.4f, across = sinf(angle) * 0.4f;
    (void)target; (void)why; (void)cap;
    for (channel = 0; channel < 3; channel++)
        for (row = 0; row < o->size; row++)
            for (col = 0; col < o->size; col++) {
                float stripe = sinf(along * (float)col + across * (float)row + (float)channel);
                state = state * 1664525u + 1013904223u;
                *x++ = stripe + (float)(state >> 8) / 8388608.0f - 1.0f;
            }
    *label = kind;
    return NNT_OK;
}

/* features.N and classifier.N are torchvision's names, so that weights saved here load there. */
static nnt_node alexnet(nnt_node x, int classes)
{
    x = nnt_relu(nnt_name(nnt_conv2d(x, 64, 11, 4, 2), "features.0"));
    x = nnt_maxpool(x, 3, 2, 0);
    x = nnt_relu(nnt_name(nnt_conv2d(x, 192, 5, 1, 2), "features.3"));
    x = nnt_maxpool(x, 3, 2, 0);
    x = nnt_relu(nnt_name(nnt_conv2d(x, 384, 3, 1, 1), "features.6"));
    x = nnt_relu(nnt_name(nnt_conv2d(x, 256, 3, 1, 1), "features.8"));
    x = nnt_relu(nnt_name(nnt_conv2d(x, 256, 3, 1, 1), "features.10"));
    x = nnt_maxpool(x, 3, 2, 0);
    x = nnt_dropout(nnt_adaptive_avgpool(x, 6, 6), 0.5f);
    x = nnt_relu(nnt_name(nnt_linear(x, 4096), "classifier.1"));
    x = nnt_dropout(x, 0.5f);
    x = nnt_relu(nnt_name(nnt_linear(x, 4096), "classifier.4"));
    return nnt_name(nnt_linear(x, classes), "classifier.6");
}

static void print_plan(const nnt_memory *m)
{
    const double mib = 1024.0 * 1024.0;
    printf("memory: parameters %.1f, gradients %.1f, optimizer %.1f, of each step at most %.1f, together %.1f MiB\n",
           (double)m->params / mib, (double)m->grads / mib, (double)m->optimizer / mib, (double)m->peak / mib,
           (double)m->total / mib);
    printf("%.1f %% of a step's arithmetic done twice; without any %.1f MiB, with as much as it takes %.1f MiB\n",
           100 * m->extra_work, (double)m->total_store_all / mib, (double)m->total_least / mib);
}

static int parse(int argc, char **argv, options *o)
{
    int i;
    for (i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--steps")) o->steps = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--batch")) o->batch = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--classes")) o->classes = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--size")) o->size = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--lr")) o->lr = (float)atof(argv[i + 1]);
        else if (!strcmp(argv[i], "--threads")) o->threads = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--workers")) o->workers = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--limit")) o->limit = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--device")) o->device = argv[i + 1];
        else if (!strcmp(argv[i], "--snapshot")) o->snapshot = argv[i + 1];
        else break;
    }
    return i == argc && o->steps > 0 && o->batch > 0 && o->classes > 0 && o->limit >= 0;
}

int main(int argc, char **argv)
{
    options o = { 20, 16, 2, 224, 0, 1, 0, 1e-4f, "cpu", NULL };
    nnt_reader_desc reader = {0};
    nnt_loader_desc order = {0};
    nnt_compile_desc build = {0};
    nnt_fit_desc fit = {0};
    nnt_memory memory;
    nnt_net *net;
    nnt_node loss;
    nnt_dataset *data;
    nnt_loader *loader;
    nnt_result r;
    static char summary[8192];

    if (!parse(argc, argv, &o)) {
        fprintf(stderr, "usage: alexnet [--steps N] [--batch N] [--classes N] [--size N] [--lr X] [--threads N] [--workers N]\n"
                "               [--limit MIB] [--device cpu|cuda] [--snapshot FILE]\n");
        return 2;
    }
    reader.count = (int64_t)o.steps * o.batch;
    reader.channels = 3;
    reader.height = reader.width = o.size;
    reader.classes = o.classes;
    reader.read_fn = read_stripes;
    reader.user = &o;
    order.batch = o.batch;
    order.workers = o.workers;
    order.shuffle = 1;
    build.batch = o.batch;
    build.threads = o.threads;
    build.device = o.device;
    build.memory_limit = (size_t)o.limit << 20;
    build.optimizer = nnt_adam(o.lr);
    fit.callback = progress_until_interrupted;
    fit.checkpoint.path = o.snapshot;
    fit.checkpoint.resume = o.snapshot != NULL;
    signal(SIGINT, on_interrupt);

    data = nnt_dataset_reader(reader, NULL);
    loader = nnt_loader_new(data, order, NULL);
    net = nnt_new(NULL);
    loss = nnt_cross_entropy(alexnet(nnt_input(net, 3, o.size, o.size), o.classes));

    r = nnt_plan(net, loss, build, &memory);
    if (!r) {
        print_plan(&memory);
        r = nnt_compile(net, loss, build);
    }
    if (!r) {
        nnt_summary(net, summary, sizeof summary);
        fputs(summary, stdout);
        r = nnt_fit(net, loader, fit);
    }
    if (!r) {
        int epochs;
        const nnt_progress_info *h = nnt_history(net, &epochs);
        if (epochs > 0)
            printf("%d steps of %d pictures: mean loss %.4f, %.1f images/s, %.1f %% of %.1f s waited for data\n", o.steps, o.batch,
                   h[0].loss, h[0].samples_per_second, 100 * h[0].wait_seconds / h[0].seconds, h[0].seconds);
    }
    if (r) fprintf(stderr, "alexnet: %s\n", nnt_error(net));
    nnt_free(net);
    nnt_loader_free(loader);
    nnt_dataset_free(data);
    return r != NNT_OK;
}
