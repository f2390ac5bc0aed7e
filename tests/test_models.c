/* test_models.c - the nets of examples/models.h are torchvision's: their parameters have its names, shapes and counts, and
   give its logits. What torchvision computes is recorded in golden/models.txt by golden/make_models.py; weights and
   pictures come from a formula that both have. Where NNT_TEST_PYTHON (an environment variable) has torchvision, its own
   weight files are loaded too. */
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include "examples/models.h"
#include "test.h"

#ifndef NNT_TEST_TMP
#  define NNT_TEST_TMP "."
#endif

enum { SIZE = 64, SAMPLES = 2, CLASSES = 1000, RECORDED = 100, INPUT = SAMPLES * 3 * SIZE * SIZE };
static float input[INPUT];

/* make_models.py's unit() and value(). */
static float unit(const char *name, uint32_t index)
{
    uint32_t h = 2166136261u, x;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 16777619u;
    x = index * 2654435761u + h;
    x ^= x >> 16;
    x *= 0x85EBCA6Bu;
    x ^= x >> 13;
    x *= 0xC2B2AE35u;
    x ^= x >> 16;
    return (float)(x >> 8) / 8388608.0f - 1.0f;
}
static int ends_in(const char *s, const char *end) { return strlen(s) >= strlen(end) && strcmp(s + strlen(s) - strlen(end), end) == 0; }
static void fill(const char *name, int rank, const int64_t *size, float *to)
{
    int64_t count = 1, inputs = 1, i;
    float scale;
    int k;
    for (k = 0; k < rank; k++) {
        count *= size[k];
        if (k) inputs *= size[k];
    }
    scale = (float)sqrt(6.0 / (double)inputs);
    for (i = 0; i < count; i++) {
        float u = unit(name, (uint32_t)i);
        to[i] = rank > 1 ? u * scale : ends_in(name, "running_var") ? 1.0f + 0.5f * u : ends_in(name, "weight") ? 0.75f + 0.25f * u : 0.125f * u;
    }
}
static void fill_net(nnt_net *net)
{
    int i, k;
    for (i = 0; i < nnt_param_count(net); i++) {
        nnt_tensor *t = nnt_param(net, nnt_param_name(net, i));
        int64_t size[4];
        for (k = 0; k < nnt_tensor_rank(t); k++) size[k] = nnt_tensor_size(t, k);
        fill(nnt_param_name(net, i), nnt_tensor_rank(t), size, nnt_tensor_data(t));
        nnt_tensor_free(t);
    }
}

typedef nnt_node (*builder)(nnt_net *net, int channels, int height, int width, int classes);
typedef struct model { const char *name; builder build; int64_t params; } model;
static const model models[] = {             /* the counts are those of torchvision's documentation */
    { "alexnet", alexnet, 61100840 }, { "vgg16", vgg16, 138357544 }, { "resnet18", resnet18, 11689512 }, { "resnet50", resnet50, 25557032 }
};
enum { MODELS = sizeof models / sizeof models[0] };

static nnt_net *net_of(const model *m, int size)
{
    nnt_net *net = nnt_new(NULL);
    nnt_compile_desc c;
    nnt_node x = m->build(net, 3, size, size, CLASSES);
    memset(&c, 0, sizeof c);
    c.batch = SAMPLES;
    CHECKF(nnt_compile(net, x, c) == NNT_OK, "%s: %s", m->name, nnt_error(net));
    return net;
}
static void counts_are_the_published_ones(void)
{
    int i, k;
    for (i = 0; i < MODELS; i++) {
        nnt_net *net = nnt_new(NULL);
        nnt_compile_desc c;
        nnt_memory memory;
        int64_t count = 0;
        nnt_node x = models[i].build(net, 3, 224, 224, CLASSES);
        memset(&c, 0, sizeof c);
        c.batch = 1;
        CHECKF(nnt_plan(net, x, c, &memory) == NNT_OK, "%s: %s", models[i].name, nnt_error(net));    /* makes names, takes no memory */
        for (k = 0; k < net->param_count; k++)
            if (net->params[k].kind == NNTI_PARAM_TRAINED) count += net->params[k].count;
        CHECKF(count == models[i].params, "%s: %ld parameters, published are %ld", models[i].name, (long)count, (long)models[i].params);
        nnt_free(net);
    }
}
/* Relative to the largest logit of the row: 1e-5, some 15 times what PyTorch's own float32 is off by (see models.txt). */
static void compare(const char *name, const float *got, const double *want, int count)
{
    double largest = 0, off = 0;
    int i;
    for (i = 0; i < count; i++) {
        if (fabs(want[i]) > largest) largest = fabs(want[i]);
        if (fabs((double)got[i] - want[i]) > off) off = fabs((double)got[i] - want[i]);
    }
    CHECKF(largest > 0.1 && off < 1e-5 * largest, "%s: off by %g of %g", name, off, largest);
    printf("%s: off by %.1e of the largest logit\n", name, off / largest);
}
/* A line of the recording, comments left out. */
static int next_line(FILE *f, char *line, int cap)
{
    while (f && fgets(line, cap, f)) if (line[0] != '#') return 1;
    return 0;
}
static void logits_are_torchvisions(void)
{
    FILE *f = fopen("tests/golden/models.txt", "r");
    static float logits[SAMPLES * CLASSES];
    static char line[4000];
    int i, s, k;
    CHECK(f != NULL);
    for (i = 0; i < MODELS; i++) {
        nnt_net *net = net_of(&models[i], SIZE);
        char want_line[64];
        fill_net(net);
        CHECK(nnt_predict(net, input, SAMPLES, logits) == NNT_OK);
        nnt_free(net);
        sprintf(want_line, "model %s %ld\n", models[i].name, (long)models[i].params);
        CHECK(next_line(f, line, sizeof line));
        CHECK_TEXT(line, want_line);
        for (s = 0; s < SAMPLES; s++) {
            double want[RECORDED];
            char *at = line;
            CHECK(next_line(f, line, sizeof line));
            for (k = 0; k < RECORDED; k++) want[k] = strtod(at, &at);
            compare(models[i].name, logits + s * CLASSES, want, RECORDED);
        }
    }
    if (f) fclose(f);
}
static void weight_files_of_torchvision_load(void)
{
    const char *python = getenv("NNT_TEST_PYTHON");
    static float logits[SAMPLES * CLASSES], exact[SAMPLES * CLASSES];
    static double want[CLASSES];
    static char report[100000];
    char command[1000], path[300];
    int i, s, k;
    if (!python || strlen(python) > 300) SKIP("no Python with torchvision (NNT_TEST_PYTHON)");
    sprintf(command, "\"%s\" -c \"import torchvision, safetensors\" > %s/test_models.log 2>&1", python, NNT_TEST_TMP);
    if (system(command) != 0) SKIP("no Python with torchvision (NNT_TEST_PYTHON)");
    sprintf(command, "\"%s\" tests/golden/make_models.py --save %s > %s/test_models.log 2>&1", python, NNT_TEST_TMP, NNT_TEST_TMP);
    CHECK(system(command) == 0);
    for (i = 0; i < MODELS; i++) {
        nnt_net *net = net_of(&models[i], SIZE);
        nnt_tensor *t;
        nnt_load_desc d;
        memset(&d, 0, sizeof d);
        d.strict = 1;
        d.report = report;
        d.report_cap = sizeof report;
        sprintf(path, "%s/%s.safetensors", NNT_TEST_TMP, models[i].name);
        CHECKF(nnt_load_ex(net, path, d) == NNT_OK, "%s", nnt_error(net));
        remove(path);
        if (i >= 2) CHECK(strstr(report, "passed over: 'bn1.num_batches_tracked' (I64 scalar)") != NULL);
        CHECK_TEXT(nnt_metadata(net, "made by"), "torchvision");
        CHECK(nnt_predict(net, input, SAMPLES, logits) == NNT_OK);
        sprintf(path, "%s/%s.npy", NNT_TEST_TMP, models[i].name);
        t = nnt_tensor_load_npy(net, NULL, path);
        CHECKF(t && nnt_tensor_size(t, -1) == SAMPLES * CLASSES && nnt_tensor_read(t, exact) == NNT_OK, "%s", nnt_error(net));
        remove(path);
        for (s = 0; s < SAMPLES; s++) {
            for (k = 0; k < CLASSES; k++) want[k] = (double)exact[s * CLASSES + k];
            compare(models[i].name, logits + s * CLASSES, want, CLASSES);
        }
        nnt_free(net);
    }
}

int main(int argc, char **argv)
{
    static const int64_t size[4] = { SAMPLES, 3, SIZE, SIZE };
    TEST_BEGIN(argc, argv);
    fill("input", 4, size, input);
    TEST(counts_are_the_published_ones);
    TEST(logits_are_torchvisions);
    TEST(weight_files_of_torchvision_load);
    return TEST_END();
}
