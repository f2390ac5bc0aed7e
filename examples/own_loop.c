/* own_loop.c - a training loop of one's own instead of nnt_fit: batches are fetched, stepped and looked at one by one.
   What it shows: nnt_loader_next and nnt_step, the norm of a gradient now and then, evaluation on other pictures after
   each epoch, a learning rate that is halved when that gets no better, and keeping the best weights in a file.
   Build: cc -O2 -I. examples/own_loop.c -o own_loop -lm -pthread
   Data:  none; the pictures (16x16, a disc, a ring or a cross in noise) are drawn here.
   Run:   ./own_loop [--epochs 6] [--batch 32] [--lr 0.003] [--threads 0] [--seed 1] [--out own_loop.safetensors]
   Ends with: held-out loss 0.1186, accuracy 95.83 % (6 epochs, 1.2 seconds of one core, Xeon with AVX-512). */
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"

enum { SIZE = 16, PIXELS = SIZE * SIZE, CLASSES = 3, TRAIN = 3000, HELD_OUT = 600 };

typedef struct options { int epochs, batch, threads; unsigned seed; float lr; const char *out; } options;

typedef struct pictures { float x[(TRAIN + HELD_OUT) * PIXELS]; int32_t label[TRAIN + HELD_OUT]; } pictures;

/* A plain generator for the pictures; what the net draws at random comes from nntrain's own. */
static float uniform(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / 16777216.0f;
}

static void draw(pictures *p, unsigned seed)
{
    uint32_t state = seed;
    int i, row, col;
    for (i = 0; i < TRAIN + HELD_OUT; i++) {
        float cx = 5 + 6 * uniform(&state), cy = 5 + 6 * uniform(&state), size = 3 + 2 * uniform(&state);
        int kind = i % CLASSES;
        p->label[i] = kind;
        for (row = 0; row < SIZE; row++)
            for (col = 0; col < SIZE; col++) {
                float dx = (float)col - cx, dy = (float)row - cy, ax = dx < 0 ? -dx : dx, ay = dy < 0 ? -dy : dy;
                int inside = kind == 0 ? dx * dx + dy * dy < size * size
                           : kind == 1 ? dx * dx + dy * dy < size * size && dx * dx + dy * dy > 0.3f * size * size
                           : (ax < 1 && ay < size) || (ay < 1 && ax < size);
                p->x[i * PIXELS + row * SIZE + col] = (inside ? 0.7f : 0.3f) + 0.6f * (uniform(&state) - 0.5f);
            }
    }
}

static nnt_dataset *dataset(const pictures *p, int first, int count)
{
    nnt_arrays_desc d = {0};
    d.count = count;
    d.channels = 1;
    d.height = d.width = SIZE;
    d.x = p->x + first * PIXELS;
    d.labels = p->label + first;
    d.classes = CLASSES;
    return nnt_dataset_arrays(d, NULL);
}

static double norm(nnt_tensor *t)
{
    const float *v = nnt_tensor_data(t);                /* the CPU's memory can be read as it is */
    int64_t n = nnt_tensor_size(t, -1), i;
    double sum = 0;
    for (i = 0; i < n; i++) sum += (double)v[i] * v[i];
    return sqrt(sum);
}

static int failed(const char *why)
{
    fprintf(stderr, "own_loop: %s\n", why);
    return 0;
}

/* One epoch: the loader says by a batch of no samples that it is over. */
static int train_epoch(nnt_net *net, nnt_loader *loader, nnt_tensor *gradient)
{
    nnt_batch batch;
    double sum = 0;
    int64_t seen = 0;
    for (;;) {
        float loss;
        if (nnt_loader_next(loader, &batch)) return failed(nnt_loader_error(loader));
        if (batch.count == 0) break;
        if (nnt_step(net, &batch, &loss)) return failed(nnt_error(net));
        sum += (double)loss * batch.count;
        seen += batch.count;
        if (nnt_steps(net) % 100 == 0)
            printf("  step %4ld  loss %.4f  gradient of conv1.weight %.4f\n", (long)nnt_steps(net), (double)loss,
                   norm(gradient));
    }
    printf("epoch %ld: training loss %.4f", (long)nnt_loader_epoch(loader), sum / (double)seen);
    return 1;
}

static int run(const options *o, nnt_net *net, nnt_loader *train, nnt_loader *held_out)
{
    nnt_node x = nnt_input(net, 1, SIZE, SIZE);
    nnt_compile_desc build = {0};
    nnt_metrics m = {0};
    nnt_tensor *gradient;
    float lr = o->lr;
    double best = 0;
    int epoch;

    x = nnt_maxpool(nnt_relu(nnt_name(nnt_conv2d(x, 8, 3, 1, 1), "conv1")), 2, 2, 0);
    x = nnt_maxpool(nnt_relu(nnt_name(nnt_conv2d(x, 16, 3, 1, 1), "conv2")), 2, 2, 0);
    x = nnt_relu(nnt_name(nnt_linear(x, 32), "fc1"));
    x = nnt_name(nnt_linear(x, CLASSES), "fc2");

    build.batch = o->batch;
    build.threads = o->threads;
    build.seed = o->seed;
    build.optimizer = nnt_adam(lr);
    if (nnt_compile(net, nnt_cross_entropy(x), build)) return failed(nnt_error(net));
    gradient = nnt_grad(net, "conv1.weight");           /* a view: shows each step's */
    if (!gradient) return failed(nnt_error(net));

    for (epoch = 0; epoch < o->epochs; epoch++) {
        if (!train_epoch(net, train, gradient)) return 0;
        if (nnt_evaluate(net, held_out, &m)) return failed(nnt_error(net));
        printf(", held-out loss %.4f, accuracy %.2f %%", m.loss, 100 * m.accuracy);
        if (epoch == 0 || m.loss < best) {
            best = m.loss;
            if (nnt_save(net, o->out)) return failed(nnt_error(net));
            printf(", saved\n");
        } else {
            lr *= 0.5f;
            if (nnt_set_learning_rate(net, lr)) return failed(nnt_error(net));
            printf(", no better: learning rate now %g\n", (double)lr);
        }
    }
    if (nnt_load(net, o->out) || nnt_evaluate(net, held_out, &m)) return failed(nnt_error(net));
    printf("best weights, from %s: held-out loss %.4f, accuracy %.2f %%\n", o->out, m.loss, 100 * m.accuracy);
    return 1;
}

static int parse(int argc, char **argv, options *o)
{
    int i;
    for (i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--epochs")) o->epochs = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--batch")) o->batch = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--lr")) o->lr = (float)atof(argv[i + 1]);
        else if (!strcmp(argv[i], "--threads")) o->threads = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--seed")) o->seed = (unsigned)atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--out")) o->out = argv[i + 1];
        else break;
    }
    return i == argc && o->epochs > 0 && o->batch > 0;
}

int main(int argc, char **argv)
{
    static pictures p;
    options o = { 6, 32, 0, 1, 3e-3f, "own_loop.safetensors" };
    nnt_loader_desc order = {0};
    nnt_dataset *train_set, *held_out_set;
    nnt_loader *train, *held_out;
    nnt_net *net;
    int ok;

    if (!parse(argc, argv, &o)) {
        fprintf(stderr, "usage: own_loop [--epochs N] [--batch N] [--lr X] [--threads N] [--seed N] [--out FILE]\n");
        return 2;
    }
    draw(&p, o.seed);
    order.batch = o.batch;
    order.seed = o.seed;
    train_set = dataset(&p, 0, TRAIN);
    held_out_set = dataset(&p, TRAIN, HELD_OUT);
    held_out = nnt_loader_new(held_out_set, order, NULL);
    order.shuffle = 1;
    train = nnt_loader_new(train_set, order, NULL);
    net = nnt_new(NULL);

    ok = run(&o, net, train, held_out);

    nnt_free(net);
    nnt_loader_free(train);
    nnt_loader_free(held_out);
    nnt_dataset_free(train_set);
    nnt_dataset_free(held_out_set);
    return ok ? 0 : 1;
}
