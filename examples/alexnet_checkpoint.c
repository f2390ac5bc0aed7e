/* alexnet_checkpoint.c - the article's CheckpointedAlexNet, and what a planner makes of the same memory.

   Shows gradient checkpointing three ways: by hand (nnt_checkpoint_sequential over the features, as the article's
   checkpoint_sequential(self.features, chunks, x)), by a share of extra work, and by a memory limit, for which the library
   finds the cheapest schedule itself. Prints memory, extra work, the time of a step, and the largest batch that fits a
   budget; writes the arena of the last plan as a picture.

       cc -O2 -I.. alexnet_checkpoint.c -o alexnet_checkpoint -lm -pthread
       ./alexnet_checkpoint                          batch 32, AlexNet; about half a minute on two cores
       ./alexnet_checkpoint --net resnet50 --batch 8 --budget 1024
       ./alexnet_checkpoint --plan-only              figures without steps: any batch, no memory taken

   Random pictures: only memory and time are looked at. docs/memory.md has a table of what it prints. */
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include "models.h"
#include <time.h>

typedef nnt_node (*model)(nnt_net *, int, int, int, int);

typedef struct options { model build; const char *name; int batch, steps, threads, plan_only; size_t budget; } options;

/* Two steps, the second timed; seconds, or a negative number after an error. */
static double time_step(nnt_net *net, const options *o)
{
    const size_t values = (size_t)o->batch * 3 * 224 * 224;
    float *x = (float *)malloc(values * sizeof *x);
    int32_t *labels = (int32_t *)calloc((size_t)o->batch, sizeof *labels);
    double start, seconds = -1;
    nnt_batch b;
    size_t i;
    int s;
    memset(&b, 0, sizeof b);
    if (x && labels) {
        for (i = 0; i < values; i++) x[i] = (float)(i * 2654435761u % 1000u) / 1000.0f - 0.5f;
        for (s = 0; s < o->batch; s++) labels[s] = s % 10;
        b.x = x;
        b.labels = labels;
        b.count = o->batch;
        for (s = 0; s < o->steps; s++) {
            start = (double)clock();
            if (nnt_step(net, &b, NULL)) { fprintf(stderr, "%s\n", nnt_error(net)); seconds = -1; break; }
            seconds = ((double)clock() - start) / CLOCKS_PER_SEC;
        }
    }
    free(x);
    free(labels);
    return seconds;
}

/* One row of the table. chunks above 0: by hand; else as d says. 0 after an error. */
static int row(const options *o, const char *title, int chunks, nnt_compile_desc d)
{
    nnt_net *net = nnt_new(NULL);
    nnt_node logits = o->build(net, 3, 224, 224, 1000), loss, last;
    nnt_memory m;
    double seconds = 0;
    int ok;
    if (chunks > 0) {                       /* the features: everything before the first linear layer */
        nnt_node first;
        first.net = last.net = net;
        first.id = 2;
        for (last.id = first.id; last.id + 1 < logits.id; last.id++) {
            nnt_node next = last;
            int shape[3];
            next.id++;
            if (nnt_shape(next, shape) || (shape[1] == 1 && shape[2] == 1)) break;
        }
        nnt_checkpoint_sequential(first, last, chunks);
    }
    loss = nnt_cross_entropy(logits);
    ok = nnt_plan(net, loss, d, &m) == NNT_OK;
    if (ok && !o->plan_only) {
        ok = nnt_compile(net, loss, d) == NNT_OK;
        if (ok) seconds = time_step(net, o);
        if (seconds < 0) ok = 0;
    }
    if (!ok) printf("%-28s %s\n", title, nnt_error(net));
    else {
        printf("%-28s %9.1f MiB %9.1f MiB %7.1f %%", title, (double)m.arena / 1048576, (double)m.total / 1048576, 100 * m.extra_work);
        if (seconds > 0) printf(" %9.2f s of processor time a step", seconds);
        printf("\n");
        if (!o->plan_only && chunks == 0 && d.extra_work > 0 && nnt_plan_write(net, "plan.svg") == NNT_OK) printf("%-28s plan.svg shows its arena\n", "");
    }
    nnt_free(net);
    return ok;
}
/* The largest batch in the budget. */
static int fits(const options *o, nnt_compile_desc d, int recompute)
{
    nnt_net *net = nnt_new(NULL);
    nnt_node loss = nnt_cross_entropy(o->build(net, 3, 224, 224, 1000));
    int batch;
    d.memory_limit = o->budget;
    d.recompute = recompute;
    d.extra_work = 0;
    batch = nnt_max_batch(net, loss, d);
    if (!batch && *nnt_error(net)) printf("%s\n", nnt_error(net));
    nnt_free(net);
    return batch;
}

int main(int argc, char **argv)
{
    static const struct { const char *name; model build; } models[] = { { "alexnet", alexnet }, { "vgg16", vgg16 }, { "resnet18", resnet18 }, { "resnet50", resnet50 } };
    options o;
    nnt_compile_desc d;
    int i, k, ok = 1;
    memset(&o, 0, sizeof o);
    memset(&d, 0, sizeof d);
    o.build = alexnet;
    o.name = "alexnet";
    o.batch = 32;
    o.steps = 2;
    o.budget = (size_t)2048 << 20;
    for (i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--plan-only")) o.plan_only = 1;
        else if (i + 1 < argc && !strcmp(argv[i], "--batch")) o.batch = atoi(argv[++i]);
        else if (i + 1 < argc && !strcmp(argv[i], "--threads")) o.threads = atoi(argv[++i]);
        else if (i + 1 < argc && !strcmp(argv[i], "--budget")) o.budget = (size_t)atoi(argv[++i]) << 20;
        else if (i + 1 < argc && !strcmp(argv[i], "--net")) {
            i++;
            for (k = 0; k < 4 && strcmp(argv[i], models[k].name); k++) { }
            if (k == 4) { fprintf(stderr, "nets: alexnet, vgg16, resnet18, resnet50\n"); return 2; }
            o.build = models[k].build;
            o.name = models[k].name;
        } else { fprintf(stderr, "options: --net NAME --batch N --threads N --budget MIB --plan-only\n"); return 2; }
    }
    d.batch = o.batch;
    d.threads = o.threads;
    d.optimizer = nnt_adam(1e-3f);
    printf("%s, batch %d\n%-28s %13s %13s %9s\n", o.name, o.batch, "", "values", "in all", "more work");
    ok &= row(&o, "keeping all", 0, d);
    for (k = 2; k <= 4; k++) {
        char title[32];
        snprintf(title, sizeof title, "features in %d chunks", k);
        ok &= row(&o, title, k, d);
    }
    for (k = 1; k <= 3; k++) {
        char title[40];
        d.extra_work = 0.1f * (float)k;
        snprintf(title, sizeof title, "planned, at most +%d %%", 10 * k);
        ok &= row(&o, title, 0, d);
    }
    d.extra_work = 0;
    printf("largest batch within %.0f MiB: %d keeping all, %d recomputing\n", (double)o.budget / 1048576, fits(&o, d, NNT_RECOMPUTE_OFF), fits(&o, d, NNT_RECOMPUTE_AUTO));
    return ok ? 0 : 1;
}
