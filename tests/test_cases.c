/* test_cases.c - numbers that other libraries got wrong in public, worked out by hand or with PyTorch in double.

   Each case says what went wrong elsewhere. Public functions only. */
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include "test.h"

/* ---- a layer with a chosen input, whose gradients can be seen ---- */

enum { MAX_OUTPUT = 64 };

/* A net whose input is the number 1 and whose first layer, "in", is linear, so that the next layer gets exactly that
   layer's weights, and the weights' gradient is the gradient of what it gets. */
static nnt_node begin(int channels, int height, int width)
{
    nnt_linear_desc d;
    memset(&d, 0, sizeof d);
    d.features = channels * height * width;
    d.no_bias = 1;
    return nnt_reshape(nnt_name(nnt_linear_ex(nnt_input(nnt_new(NULL), 1, 1, 1), d), "in"), channels, height, width);
}

static int compile(nnt_node loss, int batch, nnt_optimizer optimizer)
{
    nnt_compile_desc d;
    nnt_result r;
    memset(&d, 0, sizeof d);
    d.batch = batch;
    d.threads = 1;
    d.optimizer = optimizer;
    r = nnt_compile(loss.net, loss, d);
    CHECKF(r == NNT_OK, "%s", nnt_error(loss.net));
    return r == NNT_OK;
}

static void set(nnt_net *net, const char *name, const float *values)
{
    nnt_tensor *t = nnt_param(net, name);
    CHECKF(t && nnt_tensor_write(t, values) == NNT_OK, "%s: %s", name, nnt_error(net));
}
static float weight(nnt_net *net, const char *name)
{
    float v = 0;
    nnt_tensor *t = nnt_param(net, name);
    CHECKF(t && nnt_tensor_size(t, -1) == 1 && nnt_tensor_read(t, &v) == NNT_OK, "%s: %s", name, nnt_error(net));
    return v;
}

/* Within 1e-4 of the larger of |want| and 1. */
static void expect(const char *what, const float *got, const float *want, int count)
{
    int i;
    for (i = 0; i < count; i++) {
        double w = (double)want[i], allowed = 1e-4 * (fabs(w) > 1 ? fabs(w) : 1);
        CHECKF(fabs((double)got[i] - w) <= allowed, "%s[%d] is %.9g, not %.9g", what, i, (double)got[i], w);
    }
}
static void expect_gradient(nnt_net *net, const char *name, const float *want, int count)
{
    nnt_tensor *t = nnt_grad(net, name);
    float *got = (float *)malloc((size_t)count * sizeof *got);
    int good = t && got && nnt_tensor_size(t, -1) == count && nnt_tensor_read(t, got) == NNT_OK;
    CHECKF(good, "%s: %s", name, nnt_error(net));
    if (good) expect(name, got, want, count);
    free(got);
}

/* Runs a compiled net whose loss is mse: checks the output, and makes grad_out (NULL: ones) the gradient of it. */
static void run(nnt_net *net, const float *y, int count, const float *grad_out)
{
    float one = 1, got[MAX_OUTPUT], target[MAX_OUTPUT];
    nnt_batch b;
    int i;
    CHECKF(nnt_predict(net, &one, 1, got) == NNT_OK, "%s", nnt_error(net));
    expect("output", got, y, count);
    for (i = 0; i < count; i++)             /* the gradient is 2 (y - target) / count */
        target[i] = y[i] - 0.5f * (float)count * (grad_out ? grad_out[i] : 1);
    memset(&b, 0, sizeof b);
    b.x = &one;
    b.targets = target;
    b.count = 1;
    CHECKF(nnt_backward(net, &b, NULL) == NNT_OK, "%s", nnt_error(net));
}

static void expect_shape(nnt_node x, int channels, int height, int width)
{
    int shape[3] = { 0, 0, 0 };
    nnt_shape(x, shape);
    CHECKF(shape[0] == channels && shape[1] == height && shape[2] == width, "%dx%dx%d", shape[0], shape[1], shape[2]);
}

/* ---- layers ---- */

/* (6 + 2 - 3) % 2 = 1: a row and a column of the padded input are never touched. */
static void conv_stride_leaves_a_column_untouched(void)
{
    static const float x[72] = {
        0, 0, 2, 3, -3, -2, 2, 3, -2, -1, 3, -1,
        -2, 2, -2, -1, 1, 0, -3, -3, 3, 2, 2, 0,
        2, -1, 0, 2, -3, -1, -3, 0, 3, -3, -1, -1,
        3, -2, 0, -2, -3, 2, -3, -2, 0, 0, -3, 3,
        2, 3, -3, 2, -1, 0, 3, -2, 2, -2, -1, 3,
        -1, 0, -1, -3, -1, 1, 0, 2, -1, 1, 2, 3
    };
    static const float w[54] = {
        2, -2, -3, -1, -1, 2, 0, -3, -1, 1, 2, 2, 3, -2, 3, -3, 0, -2,
        -2, 1, -1, 0, -2, -2, 2, 0, 1, 1, 3, -1, -2, 1, 3, 3, 3, 1,
        -1, -1, -3, -2, -1, -1, 1, 0, 1, 3, 3, 2, 3, -1, 3, 3, -2, 0
    };
    static const float grad_out[27] = {
        2, -3, -2, -2, -2, 2, 3, 1, -3, -3, -1, 0, 1, 0, -2, -2, 1, 2,
        -3, -3, 0, -1, 3, 0, -1, 0, 1
    };
    static const float y[27] = {
        -17, 5, -12, 4, 29, -3, 20, -36, -8, -11, -13, 8, 7, -12, -15, 10, 0, 11,
        0, -21, 6, -26, 2, 4, 17, -13, -17
    };
    static const float dx[72] = {
        7, 22, 8, 1, 2, -4, 0, -12, 10, 4, 0, -2,
        1, -9, -1, -9, 2, 8, -1, 1, 5, -14, 1, 0,
        2, 10, -3, 1, -2, -11, -9, -4, -3, 5, 9, 6,
        -4, -28, 8, -27, 4, -6, -7, -10, 8, 13, -2, 10,
        6, -3, 1, 13, -6, 0, 2, 28, -1, -5, -3, -12,
        -7, 1, -1, -4, 7, 0, -4, -8, 3, 17, 4, 8
    };
    static const float dw[54] = {
        -17, -6, -13, -19, 25, -5, 12, 5, 13, 8, 14, -7, 17, 11, -18, 5, -19, 2,
        3, 9, 13, 5, -16, 1, -13, -4, -16, -6, -3, 0, -8, -6, 10, 10, 17, 1,
        11, -3, -3, 8, -15, -14, -21, 14, 2, -8, -1, 7, 12, -20, 16, 1, 14, 3
    };
    static const float db[3] = { -4, -4, -4 };
    nnt_node node = begin(2, 6, 6);
    nnt_net *net = node.net;
    node = nnt_name(nnt_conv2d(node, 3, 3, 2, 1), "conv");
    expect_shape(node, 3, 3, 3);
    if (compile(nnt_mse(node), 1, nnt_sgd(0.1f))) {
        set(net, "in.weight", x);
        set(net, "conv.weight", w);
        nnt_tensor_fill(nnt_param(net, "conv.bias"), 0);
        run(net, y, 27, grad_out);
        expect_gradient(net, "in.weight", dx, 72);
        expect_gradient(net, "conv.weight", dw, 54);
        expect_gradient(net, "conv.bias", db, 3);
    }
    nnt_free(net);
}

/* One max pooling over a size x size plane, with ones as the gradient of its output. dx NULL: not looked at. */
static void check_maxpool(int size, nnt_pool_desc d, const float *x, int out, const float *y, const float *dx)
{
    nnt_node node = begin(1, size, size);
    nnt_net *net = node.net;
    node = nnt_maxpool_ex(node, d);
    expect_shape(node, 1, out, out);
    if (compile(nnt_mse(node), 1, nnt_sgd(0.1f))) {
        set(net, "in.weight", x);
        run(net, y, out * out, NULL);
        if (dx) expect_gradient(net, "in.weight", dx, size * size);
    }
    nnt_free(net);
}
static nnt_pool_desc pool(int kernel, int stride, int pad, int ceil_mode)
{
    nnt_pool_desc d;
    memset(&d, 0, sizeof d);
    d.kernel = kernel;
    d.stride = stride;
    d.pad = pad;
    d.ceil_mode = ceil_mode;
    return d;
}

/* Padding is minus infinity: no zero wins over negative inputs. */
static void maxpool_padding_never_wins(void)
{
    static const float x[16] = {
        -1, -1.1f, -1.2f, -1.3f, -1.4f, -1.5f, -1.6f, -1.7f,
        -1.8f, -1.9f, -2, -2.1f, -2.2f, -2.3f, -2.4f, -2.5f
    };
    static const float y[4] = {
        -1, -1.1f, -1.4f, -1.5f
    };
    static const float dx[16] = {
        1, 1, 0, 0, 1, 1, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0
    };
    check_maxpool(4, pool(3, 2, 1, 0), x, 2, y, dx);
}

/* The ceiling alone would give 4 windows a row, the last wholly in the padding. */
static void maxpool_ceil_has_no_window_in_the_padding(void)
{
    static const float y[9] = { 0, 2, 4, 10, 12, 14, 20, 22, 24 };
    float x[25];
    int i;
    for (i = 0; i < 25; i++) x[i] = (float)i;
    check_maxpool(5, pool(2, 2, 1, 0), x, 3, y, NULL);
    check_maxpool(5, pool(2, 2, 1, 1), x, 3, y, NULL);
}

/* Of equal values the first in row order gets all of the gradient. */
static void maxpool_tie_goes_to_the_first(void)
{
    static const float x[4] = { 1, 2, 2, 2 }, y[1] = { 2 }, dx[4] = { 0, 1, 0, 0 };
    check_maxpool(2, pool(2, 2, 0, 0), x, 1, y, dx);
}

/* Windows [0,4) [3,7) [6,10): ends rounded up, and each spreads its gradient by its own size. */
static void adaptive_avgpool_rounds_window_ends_up(void)
{
    static const float y[9] = {
        16.5f, 19.5f, 22.5f, 46.5f, 49.5f, 52.5f, 76.5f, 79.5f, 82.5f
    };
    static const float dx[100] = {
        0.0625f, 0.0625f, 0.0625f, 0.125f, 0.0625f, 0.0625f, 0.125f, 0.0625f, 0.0625f, 0.0625f,
        0.0625f, 0.0625f, 0.0625f, 0.125f, 0.0625f, 0.0625f, 0.125f, 0.0625f, 0.0625f, 0.0625f,
        0.0625f, 0.0625f, 0.0625f, 0.125f, 0.0625f, 0.0625f, 0.125f, 0.0625f, 0.0625f, 0.0625f,
        0.125f, 0.125f, 0.125f, 0.25f, 0.125f, 0.125f, 0.25f, 0.125f, 0.125f, 0.125f,
        0.0625f, 0.0625f, 0.0625f, 0.125f, 0.0625f, 0.0625f, 0.125f, 0.0625f, 0.0625f, 0.0625f,
        0.0625f, 0.0625f, 0.0625f, 0.125f, 0.0625f, 0.0625f, 0.125f, 0.0625f, 0.0625f, 0.0625f,
        0.125f, 0.125f, 0.125f, 0.25f, 0.125f, 0.125f, 0.25f, 0.125f, 0.125f, 0.125f,
        0.0625f, 0.0625f, 0.0625f, 0.125f, 0.0625f, 0.0625f, 0.125f, 0.0625f, 0.0625f, 0.0625f,
        0.0625f, 0.0625f, 0.0625f, 0.125f, 0.0625f, 0.0625f, 0.125f, 0.0625f, 0.0625f, 0.0625f,
        0.0625f, 0.0625f, 0.0625f, 0.125f, 0.0625f, 0.0625f, 0.125f, 0.0625f, 0.0625f, 0.0625f
    };
    float x[100];
    nnt_node node = begin(1, 10, 10);
    nnt_net *net = node.net;
    int i;
    for (i = 0; i < 100; i++) x[i] = (float)i;
    node = nnt_adaptive_avgpool(node, 3, 3);
    expect_shape(node, 1, 3, 3);
    if (compile(nnt_mse(node), 1, nnt_sgd(0.1f))) {
        set(net, "in.weight", x);
        run(net, y, 9, NULL);
        expect_gradient(net, "in.weight", dx, 100);
    }
    nnt_free(net);
}

/* ---- losses ---- */

/* Equal logits of 1e8 gave a loss of 0 elsewhere, or one that isn't finite. */
static void cross_entropy_of_huge_logits(void)
{
    static const float logits[2] = { 1e8f, 1e8f }, gradient[2] = { 0.5f, -0.5f };
    float one = 1, loss = 0;
    int32_t label = 1;
    nnt_batch b;
    nnt_node node = begin(2, 1, 1);
    memset(&b, 0, sizeof b);
    b.x = &one;
    b.labels = &label;
    b.count = 1;
    if (compile(nnt_cross_entropy(node), 1, nnt_sgd(0.1f))) {
        set(node.net, "in.weight", logits);
        CHECKF(nnt_backward(node.net, &b, &loss) == NNT_OK, "%s", nnt_error(node.net));
        CHECKF(fabs((double)loss - 0.693147) < 1e-6, "loss %.9g", (double)loss);
        expect_gradient(node.net, "in.weight", gradient, 2);
    }
    nnt_free(node.net);
}

/* Three classes, two samples with logits (2.5, 0, 0) and (0, 0, 2.5). */
static const float three_logits[6] = { 2.5f, 0, 0, 0, 0, 2.5f };     /* "fc.weight": [class][sample] */
static const float two_units[4] = { 1, 0, 0, 1 };

static nnt_net *three_classes(int use_ignore_index, int ignore_index)
{
    nnt_cross_entropy_desc c;
    nnt_linear_desc d;
    nnt_node node = nnt_input(nnt_new(NULL), 2, 1, 1);
    memset(&c, 0, sizeof c);
    memset(&d, 0, sizeof d);
    c.use_ignore_index = use_ignore_index;
    c.ignore_index = ignore_index;
    d.features = 3;
    d.no_bias = 1;
    node = nnt_name(nnt_linear_ex(node, d), "fc");
    if (compile(nnt_cross_entropy_ex(node, c), 2, nnt_sgd(0.1f))) set(node.net, "fc.weight", three_logits);
    return node.net;
}
static nnt_batch two_samples(const int32_t *labels)
{
    nnt_batch b;
    memset(&b, 0, sizeof b);
    b.x = two_units;
    b.labels = labels;
    b.count = 2;
    return b;
}

/* Elsewhere the CPU raised, and the GPU gave a loss as if nothing were. */
static void cross_entropy_label_out_of_range(void)
{
    static const int32_t wrong[2] = { 0, 1000 }, negative[2] = { -1, 0 }, right[2] = { 0, 2 };
    nnt_net *net = three_classes(0, 0);
    nnt_batch b = two_samples(wrong);
    float loss = 0, w[6];
    const char *sentence;
    CHECK(nnt_step(net, &b, &loss) == NNT_ERR_DATA);
    sentence = nnt_error(net);
    CHECKF(strstr(sentence, "1000") && strstr(sentence, "sample 1") && strstr(sentence, "3"), "\"%s\"", sentence);
    CHECK(nnt_tensor_read(nnt_param(net, "fc.weight"), w) == NNT_OK);
    CHECK(memcmp(w, three_logits, sizeof w) == 0);
    b = two_samples(negative);
    CHECK(nnt_step(net, &b, &loss) == NNT_ERR_DATA);
    b = two_samples(right);                 /* and trains on: -ln(e^2.5 / (e^2.5 + 2)) = 0.151949 */
    CHECKF(nnt_step(net, &b, &loss) == NNT_OK, "%s", nnt_error(net));
    CHECKF(fabs((double)loss - log(1 + 2 * exp(-2.5))) < 1e-6, "loss %.9g", (double)loss);
    nnt_free(net);
}

/* PyTorch gives NaN for 0 / 0 here; a batch that says nothing must not end a training. */
static void cross_entropy_of_ignored_samples_only_is_zero(void)
{
    static const int32_t ignored[2] = { 255, 255 };
    static const float zero[6] = { 0, 0, 0, 0, 0, 0 };
    nnt_net *net = three_classes(1, 255);
    nnt_batch b = two_samples(ignored);
    float loss = 1;
    CHECKF(nnt_backward(net, &b, &loss) == NNT_OK, "%s", nnt_error(net));
    CHECKF(!(loss > 0 || loss < 0), "loss %.9g", (double)loss);
    expect_gradient(net, "fc.weight", zero, 6);
    nnt_free(net);
}

/* ---- means over samples ---- */

static nnt_result evaluate(nnt_net *net, nnt_arrays_desc arrays, int batch, nnt_metrics *m)
{
    nnt_loader_desc d;
    nnt_dataset *data = nnt_dataset_arrays(arrays, NULL);
    nnt_loader *loader;
    nnt_result r;
    memset(&d, 0, sizeof d);
    memset(m, 0, sizeof *m);
    d.batch = batch;
    d.workers = NNT_NO_WORKERS;
    loader = nnt_loader_new(data, d, NULL);
    r = nnt_evaluate(net, loader, m);
    CHECKF(r == NNT_OK, "batch %d: %s", batch, nnt_error(net));
    nnt_loader_free(loader);
    nnt_dataset_free(data);
    return r;
}

/* Losses 1, 1, 1, 1, 6 in batches of two: the mean of the batches' means is 2.667, that of the samples 2. */
static void evaluation_is_a_mean_over_samples(void)
{
    static const float x[5] = { 0, 0, 0, 0, 0 }, target[5] = { 1, -1, 1, 1, 2.44948974f /* root of 6 */ };
    nnt_arrays_desc a;
    nnt_metrics m;
    nnt_node node = nnt_linear(nnt_input(nnt_new(NULL), 1, 1, 1), 1);
    memset(&a, 0, sizeof a);
    a.count = 5;
    a.channels = a.height = a.width = 1;
    a.x = x;
    a.targets = target;
    a.target_size = 1;
    if (compile(nnt_mse(nnt_name(node, "fc")), 2, nnt_sgd(0.1f))) {
        nnt_tensor_fill(nnt_param(node.net, "fc.bias"), 0);
        evaluate(node.net, a, 2, &m);
        CHECKF(fabs(m.loss - 2) < 1e-6 && m.samples == 5, "%.9g over %d", m.loss, (int)m.samples);
    }
    nnt_free(node.net);
}

/* 103 samples give the same loss and accuracy whatever the batch; a last batch of one counts as one. */
static void evaluation_does_not_depend_on_the_batch(void)
{
    enum { SAMPLES = 103, VALUES = 6, CLASSES = 4 };
    static const int batches[5] = { 1, 7, 50, 103, 200 };
    float x[SAMPLES * VALUES];
    int32_t labels[SAMPLES];
    nnt_arrays_desc a;
    nnt_metrics first, m;
    nnt_node node = nnt_linear(nnt_input(nnt_new(NULL), VALUES, 1, 1), CLASSES);
    uint32_t random = 1;
    int i;
    for (i = 0; i < SAMPLES * VALUES; i++) {
        random = random * 1664525u + 1013904223u;       /* Numerical Recipes' generator */
        x[i] = (float)(random >> 8) / 8388608.0f - 1;
    }
    for (i = 0; i < SAMPLES; i++) labels[i] = (i * 7 + 3) % 11 % CLASSES;
    memset(&a, 0, sizeof a);
    memset(&first, 0, sizeof first);
    a.count = SAMPLES;
    a.channels = VALUES;
    a.height = a.width = 1;
    a.x = x;
    a.labels = labels;
    a.classes = CLASSES;
    if (compile(nnt_cross_entropy(node), 200, nnt_sgd(0.1f)))
        for (i = 0; i < 5; i++) {
            evaluate(node.net, a, batches[i], &m);
            if (i == 0) first = m;
            CHECKF(m.samples == SAMPLES, "batch %d: %d samples", batches[i], (int)m.samples);
            CHECKF(fabs(m.loss - first.loss) <= 1e-6 * first.loss, "batch %d: loss %.9g", batches[i], m.loss);
            CHECKF(!(m.accuracy < first.accuracy || m.accuracy > first.accuracy), "batch %d: accuracy %.9g", batches[i],
                   m.accuracy);
        }
    nnt_free(node.net);
}

/* ---- optimizer ---- */

/* eps is added to the root of the corrected second moment: with an eps that isn't tiny other places give other numbers.
   One weight w from 1 on, and gradients 0.1, -0.02, 1e-8. */
static void adam_first_steps(void)
{
    static const double gradient[3] = { 0.1, -0.02, 1e-8 }, want[3] = { 0.90099, 0.850587, 0.811744 };
    static const float start = 1, x = 0.01f;
    nnt_optimizer o = nnt_adam(0.1f);
    nnt_node node = begin(1, 1, 1);
    int i;
    o.eps = 1e-3f;
    if (compile(nnt_mse(node), 1, o)) {
        set(node.net, "in.weight", &start);
        for (i = 0; i < 3; i++) {
            /* the loss is (w x - t)^2, its gradient 2 x (w x - t); a small x keeps t's rounding out of it */
            float t = (float)((double)weight(node.net, "in.weight") * (double)x - gradient[i] / (2 * (double)x));
            nnt_batch b;
            memset(&b, 0, sizeof b);
            b.x = &x;
            b.targets = &t;
            b.count = 1;
            CHECKF(nnt_step(node.net, &b, NULL) == NNT_OK, "%s", nnt_error(node.net));
            CHECKF(fabs((double)weight(node.net, "in.weight") - want[i]) <= 1e-6, "step %d: %.9g, not %.9g", i + 1,
                   (double)weight(node.net, "in.weight"), want[i]);
        }
    }
    nnt_free(node.net);
}

/* ---- plan ---- */

/* 514 x 2048 x 2048 = 2155872256 values pass 2^31: the plan tells exact bytes, and the counting device takes it. */
static void plan_of_more_than_2_to_the_31_values(void)
{
    const double input = 2155872256.0 * 4, output = 2048.0 * 2048 * 4, weights = (514 * 9 + 1) * 4;
    nnt_net *net = nnt_new(NULL);
    nnt_node node = nnt_conv2d(nnt_input(net, 514, 2048, 2048), 1, 3, 1, 1);
    nnt_compile_desc d;
    nnt_memory m;
    memset(&d, 0, sizeof d);
    memset(&m, 0, sizeof m);
    if (sizeof(size_t) < 8) { nnt_free(net); SKIP("size_t is too small for that"); }
    d.batch = 1;
    d.device = "null";
    expect_shape(node, 1, 2048, 2048);
    CHECKF(nnt_plan(net, node, d, &m) == NNT_OK, "%s", nnt_error(net));
    CHECKF((double)m.peak >= input + output && (double)m.peak < input + output + 65536, "peak %.0f", (double)m.peak);
    CHECKF((double)m.params >= weights && (double)m.params < weights + 4096, "params %.0f", (double)m.params);
    CHECKF(m.total == m.fixed + m.arena && m.arena >= m.peak, "total %.0f", (double)m.total);
    CHECKF(nnt_compile(net, node, d) == NNT_OK, "%s", nnt_error(net));
    nnt_free(net);
}

int main(int argc, char **argv)
{
    TEST_BEGIN(argc, argv);
    TEST(conv_stride_leaves_a_column_untouched);
    TEST(maxpool_padding_never_wins);
    TEST(maxpool_ceil_has_no_window_in_the_padding);
    TEST(maxpool_tie_goes_to_the_first);
    TEST(adaptive_avgpool_rounds_window_ends_up);
    TEST(cross_entropy_of_huge_logits);
    TEST(cross_entropy_label_out_of_range);
    TEST(cross_entropy_of_ignored_samples_only_is_zero);
    TEST(evaluation_is_a_mean_over_samples);
    TEST(evaluation_does_not_depend_on_the_batch);
    TEST(adam_first_steps);
    TEST(plan_of_more_than_2_to_the_31_values);
    return TEST_END();
}
