/* test_train.c - whole training runs through the public functions: same bits, partial batches, accumulation, states,
   running out of memory at every allocation. */
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include "test.h"

enum { SAMPLES = 103, CHANNELS = 2, SIDE = 12, CLASSES = 7, VALUES = CHANNELS * SIDE * SIDE };

static float    data_x[SAMPLES * VALUES];
static int32_t  data_labels[SAMPLES];

static uint32_t test_state = 12345;
static float test_value(void)
{
    test_state = test_state * 1664525u + 1013904223u;
    return (float)(test_state >> 8) / 8388608.0f - 1.0f;
}
/* Pictures whose class shows: a bright row, plus noise. */
static void make_data(void)
{
    int n, i;
    test_state = 12345;
    for (n = 0; n < SAMPLES; n++) {
        data_labels[n] = n * 5 % CLASSES;
        for (i = 0; i < VALUES; i++) data_x[n * VALUES + i] = 0.3f * test_value() + (i / SIDE % SIDE == data_labels[n] + 2 ? 1.0f : 0.0f);
    }
}
static nnt_dataset *dataset_of(int count, const nnt_allocator *a)
{
    nnt_arrays_desc d;
    memset(&d, 0, sizeof d);
    d.count = count;
    d.channels = CHANNELS;
    d.height = d.width = SIDE;
    d.x = data_x;
    d.labels = data_labels;
    d.classes = CLASSES;
    return nnt_dataset_arrays(d, a);
}
static nnt_loader *loader_of(nnt_dataset *d, int batch, int shuffle, int drop_last, const nnt_allocator *a)
{
    nnt_loader_desc l;
    memset(&l, 0, sizeof l);
    l.batch = batch;
    l.shuffle = shuffle;
    l.drop_last = drop_last;
    l.seed = 9;
    return nnt_loader_new(d, l, a);
}
enum { WITH_BATCHNORM = 1, WITH_CHANCE = 2, WITH_RESIDUAL = 4 };
static nnt_node logits_of(nnt_net *net, int features)
{
    nnt_node x = nnt_input(net, CHANNELS, SIDE, SIDE);
    if (features & WITH_CHANCE) x = nnt_noise(x, 0.1f);
    x = nnt_name(nnt_conv2d(x, 8, 3, 1, 1), "conv1");
    if (features & WITH_BATCHNORM) x = nnt_name(nnt_batchnorm(x), "bn1");
    x = nnt_maxpool(nnt_relu(x), 2, 2, 0);
    if (features & WITH_RESIDUAL) x = nnt_relu(nnt_add(x, nnt_conv2d(nnt_relu(nnt_conv2d(x, 8, 3, 1, 1)), 8, 3, 1, 1)));
    x = nnt_relu(nnt_name(nnt_linear(x, 32), "fc1"));
    if (features & WITH_CHANCE) x = nnt_dropout(x, 0.4f);
    return nnt_name(nnt_linear(x, CLASSES), "fc2");
}
static nnt_compile_desc usual(int batch, int threads)
{
    nnt_compile_desc d;
    memset(&d, 0, sizeof d);
    d.batch = batch;
    d.threads = threads;
    d.seed = 42;
    d.optimizer = nnt_adam(3e-3f);
    return d;
}
static nnt_net *net_of(int features, nnt_compile_desc d)
{
    nnt_net *net = nnt_new(NULL);
    nnt_result r = nnt_compile(net, nnt_cross_entropy(logits_of(net, features)), d);
    CHECKF(r == NNT_OK, "%s", nnt_error(net));
    return net;
}
static nnt_batch batch_at(int first, int count)
{
    nnt_batch b;
    memset(&b, 0, sizeof b);
    b.x = data_x + first * VALUES;
    b.labels = data_labels + first;
    b.count = count;
    return b;
}
/* Weights, running statistics, gradients and moments. */
static int same_state(const nnt_net *a, const nnt_net *b)
{
    return a->plan.memory.fixed == b->plan.memory.fixed && memcmp(a->memory, b->memory, a->plan.memory.fixed) == 0;
}
static double weights_difference(const nnt_net *a, const nnt_net *b)
{
    double d = 0, n = 0;
    size_t i;
    for (i = 0; i < a->plan.trained_floats; i++) {
        d += ((double)a->memory[i] - b->memory[i]) * ((double)a->memory[i] - b->memory[i]);
        n += (double)b->memory[i] * b->memory[i];
    }
    return sqrt(d / n);
}

static void any_number_of_threads_gives_the_same_bits(void)
{
    static const int counts[] = { 1, 2, 3, 8 };
    nnt_optimizer optimizers[3];
    nnt_net *nets[4];
    int o, t, step;
    optimizers[0] = nnt_sgd(0.05f);
    optimizers[0].momentum = 0.9f;
    optimizers[0].clip_norm = 0.5f;
    optimizers[1] = nnt_adam(1e-3f);
    optimizers[2] = nnt_adamw(1e-3f);
    for (o = 0; o < 3; o++) {
        for (t = 0; t < 4; t++) {
            nnt_compile_desc d = usual(32, counts[t]);
            d.optimizer = optimizers[o];
            nets[t] = net_of(WITH_BATCHNORM | WITH_CHANCE | WITH_RESIDUAL, d);
        }
        for (step = 0; step < 20; step++) {
            float first = 0, loss = 0;
            for (t = 0; t < 4; t++) {
                nnt_batch b = batch_at(step % 3 * 32, step % 4 == 3 ? 13 : 32);
                CHECKF(nnt_step(nets[t], &b, &loss) == NNT_OK, "%s", nnt_error(nets[t]));
                if (t == 0) first = loss;
                CHECKF(memcmp(&first, &loss, sizeof loss) == 0, "optimizer %d, %d threads, step %d", o, counts[t], step);
            }
        }
        for (t = 1; t < 4; t++) CHECKF(same_state(nets[0], nets[t]), "optimizer %d, %d threads", o, counts[t]);
        for (t = 0; t < 4; t++) nnt_free(nets[t]);
    }
}
static void the_same_program_gives_the_same_bits_again(void)
{
    nnt_net *first = NULL;
    int run, step;
    for (run = 0; run < 10; run++) {
        nnt_net *net = net_of(WITH_BATCHNORM | WITH_CHANCE, usual(16, 2));
        for (step = 0; step < 6; step++) {
            nnt_batch b = batch_at(step * 16, 16);
            CHECK(nnt_step(net, &b, NULL) == NNT_OK);
        }
        if (!first) { first = net; continue; }
        CHECKF(same_state(first, net), "run %d", run);
        nnt_free(net);
    }
    nnt_free(first);
}
static void another_seed_gives_other_weights_and_masks(void)
{
    nnt_compile_desc d = usual(16, 1);
    nnt_net *a = net_of(WITH_CHANCE, d), *b;
    d.seed = 43;
    b = net_of(WITH_CHANCE, d);
    CHECK(!same_state(a, b));
    nnt_free(a);
    nnt_free(b);
}

/* A07: 1000 samples, batch 64: the last step sees 40 samples, and only them. */
static void last_partial_batch_trains_on_its_samples_only(void)
{
    nnt_compile_desc d = usual(64, 1);
    nnt_net *big = net_of(WITH_BATCHNORM, d), *exact;
    nnt_batch b = batch_at(0, 40);
    float la = 0, lb = 0;
    d.batch = 40;
    exact = net_of(WITH_BATCHNORM, d);
    { nnt_batch full = batch_at(20, 64); CHECK(nnt_backward(big, &full, NULL) == NNT_OK); }    /* leaves other values behind */
    CHECK(nnt_backward(big, &b, &la) == NNT_OK && nnt_backward(exact, &b, &lb) == NNT_OK);
    CHECK(memcmp(&la, &lb, sizeof la) == 0);
    {
        const float *ga = big->memory + big->plan.memory.params / 4, *gb = exact->memory + exact->plan.memory.params / 4;
        double diff = 0, norm = 0;
        size_t i;
        for (i = 0; i < big->plan.trained_floats; i++) { diff += ((double)ga[i] - gb[i]) * ((double)ga[i] - gb[i]); norm += (double)gb[i] * gb[i]; }
        CHECKF(diff <= 1e-12 * norm, "%g", sqrt(diff / norm));     /* 1e-6: kernels may split sums by the compiled batch */
    }
    nnt_free(big);
    nnt_free(exact);
}
static int count_steps(void *user, nnt_net *net, const nnt_progress_info *p)
{
    int *steps = (int *)user;
    (void)net;
    if (p->event == NNT_EVENT_STEP) (*steps)++;
    return 0;
}
static void an_epoch_has_as_many_steps_as_batches(void)
{
    int drop;
    for (drop = 0; drop < 2; drop++) {
        nnt_dataset *d = dataset_of(100, NULL);
        nnt_loader *l = loader_of(d, 16, 1, drop, NULL);
        nnt_net *net = net_of(0, usual(16, 1));
        nnt_fit_desc f;
        int steps = 0;
        memset(&f, 0, sizeof f);
        f.callback = count_steps;
        f.user = &steps;
        f.epochs = 2;
        CHECKF(nnt_fit(net, l, f) == NNT_OK, "%s", nnt_error(net));
        CHECKF(steps == (drop ? 12 : 14), "%d", steps);
        CHECK(nnt_steps(net) == steps);
        nnt_free(net);
        nnt_loader_free(l);
        nnt_dataset_free(d);
    }
}

/* A06 */
static void evaluation_does_not_depend_on_the_batch(void)
{
    static const int sizes[] = { 1, 7, 50, 103, 200 };
    nnt_dataset *d = dataset_of(SAMPLES, NULL);
    nnt_net *net = net_of(WITH_BATCHNORM | WITH_CHANCE, usual(50, 1));
    nnt_metrics first, m;
    int i, step;
    for (step = 0; step < 4; step++) { nnt_batch b = batch_at(step * 20, 20); CHECK(nnt_step(net, &b, NULL) == NNT_OK); }
    memset(&first, 0, sizeof first);
    for (i = 0; i < 5; i++) {
        nnt_loader *l = loader_of(d, sizes[i], 0, 0, NULL);
        int64_t confusion[CLASSES * CLASSES], sum = 0, diagonal = 0;
        int k;
        memset(&m, 0, sizeof m);
        m.confusion = confusion;
        m.confusion_classes = CLASSES;
        CHECKF(nnt_evaluate(net, l, &m) == NNT_OK, "%s", nnt_error(net));
        if (i == 0) first = m;
        CHECKF(fabs(m.loss - first.loss) < 1e-6 * first.loss, "batch %d: %.9g and %.9g", sizes[i], m.loss, first.loss);
        CHECK(m.accuracy == first.accuracy && m.top5 == first.top5 && m.samples == SAMPLES && m.top5 >= m.accuracy);
        for (k = 0; k < CLASSES * CLASSES; k++) sum += confusion[k];
        for (k = 0; k < CLASSES; k++) diagonal += confusion[k * CLASSES + k];
        CHECK(sum == SAMPLES && (double)diagonal / SAMPLES == m.accuracy);
        nnt_loader_free(l);
    }
    nnt_free(net);
    nnt_dataset_free(d);
}

/* A40 */
static void evaluating_in_between_changes_nothing(void)
{
    nnt_dataset *d = dataset_of(SAMPLES, NULL);
    nnt_loader *l = loader_of(d, 20, 0, 0, NULL);
    nnt_net *a = net_of(WITH_BATCHNORM | WITH_CHANCE, usual(20, 1)), *b = net_of(WITH_BATCHNORM | WITH_CHANCE, usual(20, 1));
    nnt_metrics m1, m2;
    float y[20 * CLASSES];
    int step;
    memset(&m1, 0, sizeof m1);
    memset(&m2, 0, sizeof m2);
    for (step = 0; step < 5; step++) {
        nnt_batch batch = batch_at(step * 20, 20);
        CHECK(nnt_step(a, &batch, NULL) == NNT_OK && nnt_step(b, &batch, NULL) == NNT_OK);
        CHECK(nnt_evaluate(b, l, &m1) == NNT_OK && nnt_evaluate(b, l, &m2) == NNT_OK);
        CHECK(m1.loss == m2.loss && m1.accuracy == m2.accuracy);
        CHECK(nnt_predict(b, data_x, 20, y) == NNT_OK);
    }
    CHECK(same_state(a, b));
    nnt_free(a);
    nnt_free(b);
    nnt_loader_free(l);
    nnt_dataset_free(d);
}
static void looking_at_gradients_changes_nothing_but_them(void)
{
    nnt_net *a = net_of(WITH_BATCHNORM | WITH_CHANCE, usual(20, 1)), *b = net_of(WITH_BATCHNORM | WITH_CHANCE, usual(20, 1));
    int step;
    for (step = 0; step < 3; step++) {
        nnt_batch batch = batch_at(step * 20, 20);
        CHECK(nnt_backward(b, &batch, NULL) == NNT_OK && nnt_backward(b, &batch, NULL) == NNT_OK);
        CHECK(nnt_step(a, &batch, NULL) == NNT_OK && nnt_step(b, &batch, NULL) == NNT_OK);
    }
    CHECK(same_state(a, b));
    nnt_free(a);
    nnt_free(b);
}

/* Four batches of different size accumulated are one batch of all their samples (no batch norm, no chance). */
static void accumulated_batches_are_one_large_batch(void)
{
    static const int sizes[4] = { 20, 20, 7, 1 };
    nnt_compile_desc d = usual(48, 1);
    nnt_net *whole, *parts;
    int clip, step, i;
    for (clip = 0; clip < 2; clip++) {
        d = usual(48, 1);
        d.optimizer = nnt_sgd(0.1f);
        d.optimizer.momentum = 0.9f;
        d.optimizer.clip_norm = clip ? 0.3f : 0.0f;
        whole = net_of(WITH_RESIDUAL, d);
        d.batch = 20;
        d.optimizer.accumulate = 4;
        parts = net_of(WITH_RESIDUAL, d);
        for (step = 0; step < 4; step++) {
            int at = step * 10;
            nnt_batch b = batch_at(at, 48);
            CHECK(nnt_step(whole, &b, NULL) == NNT_OK);
            for (i = 0; i < 4; i++) {
                b = batch_at(at, sizes[i]);
                CHECK(nnt_step(parts, &b, NULL) == NNT_OK);
                at += sizes[i];
            }
            /* float sums in another order: a few 1e-7 a step */
            CHECKF(weights_difference(parts, whole) < 5e-6, "clip %d step %d: %g", clip, step, weights_difference(parts, whole));
        }
        CHECK(parts->updates == 4 && parts->steps == 16);
        nnt_free(whole);
        nnt_free(parts);
    }
}
static void what_accumulate_leaves_over_is_applied_at_the_epochs_end(void)
{
    nnt_compile_desc d = usual(10, 1);
    nnt_dataset *data = dataset_of(70, NULL);
    nnt_loader *l = loader_of(data, 10, 0, 0, NULL);
    nnt_net *net;
    nnt_fit_desc f;
    memset(&f, 0, sizeof f);
    d.optimizer.accumulate = 4;
    net = net_of(0, d);
    CHECK(nnt_fit(net, l, f) == NNT_OK);
    CHECK(net->updates == 2 && net->pending == 0 && net->steps == 7);
    nnt_free(net);
    nnt_loader_free(l);
    nnt_dataset_free(data);
}

/* A03: 33 samples in batches of 16 leave one; batch norm on 1x1 features can't train on it. */
static void batchnorm_refuses_a_single_value(void)
{
    nnt_dataset *d = dataset_of(33, NULL);
    nnt_loader *l = loader_of(d, 16, 0, 0, NULL);
    nnt_net *net = nnt_new(NULL);
    nnt_node x = nnt_name(nnt_batchnorm(nnt_linear(nnt_input(net, CHANNELS, SIDE, SIDE), 8)), "norm");
    nnt_fit_desc f;
    nnt_batch one = batch_at(0, 1);
    memset(&f, 0, sizeof f);
    CHECK(nnt_compile(net, nnt_cross_entropy(nnt_linear(x, CLASSES)), usual(16, 1)) == NNT_OK);
    CHECK(nnt_fit(net, l, f) == NNT_ERR_SHAPE);
    CHECK_TEXT(nnt_error(net), "fit: the epoch's last batch: batchnorm 'norm' would train on a batch of 1 with 1 value a channel, whose variance is 0; use larger batches, or drop_last in the loader");
    CHECK(nnt_steps(net) == 0);
    CHECK(nnt_step(net, &one, NULL) == NNT_ERR_SHAPE && nnt_steps(net) == 0);
    nnt_loader_free(l);
    l = loader_of(d, 16, 0, 1, NULL);
    CHECKF(nnt_fit(net, l, f) == NNT_OK, "%s", nnt_error(net));
    CHECK(nnt_steps(net) == 2);
    nnt_free(net);
    net = net_of(WITH_BATCHNORM, usual(16, 1));     /* 12x12 features: 144 values of the one sample */
    nnt_loader_free(l);
    l = loader_of(d, 16, 0, 0, NULL);
    CHECKF(nnt_fit(net, l, f) == NNT_OK, "%s", nnt_error(net));
    nnt_free(net);
    nnt_loader_free(l);
    nnt_dataset_free(d);
}

/* A45 */
static void a_loss_that_is_not_finite_stops_before_the_update(void)
{
    nnt_dataset *d = dataset_of(96, NULL);
    nnt_loader *l = loader_of(d, 16, 0, 0, NULL);
    nnt_compile_desc c = usual(16, 1);
    nnt_net *net;
    nnt_fit_desc f;
    nnt_tensor *mean;
    size_t i;
    int finite = 1;
    memset(&f, 0, sizeof f);
    f.epochs = 3;
    c.optimizer = nnt_sgd(1e30f);
    net = net_of(WITH_BATCHNORM, c);
    CHECK(nnt_fit(net, l, f) == NNT_ERR_NOT_FINITE);
    CHECKF(strncmp(nnt_error(net), "fit: epoch 0, batch 1: step: the loss of step 1 is ", 51) == 0, "%s", nnt_error(net));
    CHECKF(strstr(nnt_error(net), "nothing was updated; a smaller learning rate (now 1e30) or clip_norm may help") != NULL, "%s", nnt_error(net));
    CHECK(nnt_steps(net) == 1);
    mean = nnt_param(net, "bn1.running_var");
    for (i = 0; i < 8; i++) if (!nnti_finite(nnt_tensor_data(mean)[i])) finite = 0;
    CHECK(finite);
    nnt_free(net);
    nnt_loader_free(l);
    nnt_dataset_free(d);
}
static void a_callback_can_stop_a_fit(void)
{
    nnt_dataset *d = dataset_of(96, NULL);
    nnt_loader *l = loader_of(d, 16, 0, 0, NULL);
    nnt_net *net = net_of(0, usual(16, 1));
    nnt_fit_desc f;
    nnt_batch b = batch_at(0, 16);
    int steps = 0;
    memset(&f, 0, sizeof f);
    f.user = &steps;
    f.callback = count_steps;
    CHECK(nnt_fit(net, l, f) == NNT_OK && steps == 6);
    CHECK(nnt_step(net, &b, NULL) == NNT_OK);
    nnt_free(net);
    nnt_loader_free(l);
    nnt_dataset_free(d);
}

static void training_learns(void)
{
    nnt_dataset *d = dataset_of(SAMPLES, NULL);
    nnt_loader *train = loader_of(d, 16, 1, 0, NULL), *test = loader_of(d, 64, 0, 0, NULL);
    nnt_net *net = net_of(WITH_BATCHNORM | WITH_CHANCE | WITH_RESIDUAL, usual(16, 0));
    nnt_fit_desc f;
    const nnt_progress_info *h;
    int epochs = 0;
    memset(&f, 0, sizeof f);
    f.epochs = 12;
    f.validation = test;
    CHECKF(nnt_fit(net, train, f) == NNT_OK, "%s", nnt_error(net));
    h = nnt_history(net, &epochs);
    CHECK(epochs == 12);
    CHECKF(h[11].validation.accuracy > 0.95 && h[11].loss < 0.5 * h[0].loss, "accuracy %g, loss %g after %g", h[11].validation.accuracy, h[11].loss, h[0].loss);
    CHECK(h[11].epoch == 11 && h[11].step == 12 * 7 && h[11].has_validation);
    nnt_free(net);
    nnt_loader_free(train);
    nnt_loader_free(test);
    nnt_dataset_free(d);
}

#ifndef NNT_NO_STDIO
static void saved_weights_give_the_same_predictions(void)
{
    const char *path = "test_train.safetensors";
    nnt_compile_desc d = usual(16, 1);
    nnt_net *a = net_of(WITH_BATCHNORM | WITH_RESIDUAL, d), *b;
    float ya[40 * CLASSES], yb[40 * CLASSES];
    int step;
    d.seed = 1;
    b = net_of(WITH_BATCHNORM | WITH_RESIDUAL, d);
    for (step = 0; step < 3; step++) { nnt_batch batch = batch_at(step * 16, 16); CHECK(nnt_step(a, &batch, NULL) == NNT_OK); }
    CHECK(nnt_predict(a, data_x, 40, ya) == NNT_OK && nnt_predict(b, data_x, 40, yb) == NNT_OK);
    CHECK(memcmp(ya, yb, sizeof ya) != 0);
    CHECKF(nnt_save(a, path) == NNT_OK, "%s", nnt_error(a));
    CHECKF(nnt_load(b, path) == NNT_OK, "%s", nnt_error(b));
    CHECK(nnt_predict(b, data_x, 40, yb) == NNT_OK);
    CHECK(memcmp(ya, yb, sizeof ya) == 0);
    nnt_free(b);
    b = net_of(0, d);                       /* fewer parameters than the file: what it does not know is passed over */
    CHECKF(nnt_load(b, path) == NNT_OK, "%s", nnt_error(b));
    CHECK(nnt_save(b, path) == NNT_OK);
    nnt_free(b);
    b = net_of(WITH_BATCHNORM, d);          /* more than the file: all or nothing */
    memcpy(yb, b->memory, sizeof yb);
    CHECKF(nnt_load(b, path) == NNT_ERR_SHAPE, "%s", nnt_error(b));
    CHECK(strstr(nnt_error(b), "'bn1.weight'") != NULL);
    CHECK(memcmp(yb, b->memory, sizeof yb) == 0);
    remove(path);
    nnt_free(a);
    nnt_free(b);
}
#endif

static void the_kernel_path_decides_only_roundings(void)
{
    nnt_net *best = net_of(WITH_BATCHNORM | WITH_CHANCE | WITH_RESIDUAL, usual(32, 1)), *plain = net_of(WITH_BATCHNORM | WITH_CHANCE | WITH_RESIDUAL, usual(32, 1));
    int step;
    ((nnti_cpu *)plain->on->device)->e.isa = NNTI_ISA_C;
    for (step = 0; step < 5; step++) {
        nnt_batch b = batch_at(step * 16, 32);
        float la, lb;
        CHECK(nnt_step(best, &b, &la) == NNT_OK && nnt_step(plain, &b, &lb) == NNT_OK);
        CHECKF(fabs((double)la - lb) < 1e-4 * fabs((double)lb), "step %d: %g and %g", step, (double)la, (double)lb);   /* Adam's first steps magnify roundings of tiny gradients */
    }
    nnt_free(best);
    nnt_free(plain);
}

/* ---- tensors */

static void tensors_are_made_filled_added_scaled_and_copied(void)
{
    nnt_net *net = nnt_new(NULL);
    int64_t size[4];
    float data[24], back[24], sum = 0;
    nnt_tensor *a, *b, *c;
    int i;
    size[0] = 2; size[1] = 3; size[2] = 4; size[3] = 1;
    for (i = 0; i < 24; i++) data[i] = (float)i - 7.5f;
    a = nnt_tensor_from(net, "cpu", 3, size, data);
    b = nnt_tensor_new(net, NULL, 4, size);
    c = nnt_tensor_new(net, "null", 3, size);
    CHECK(a && b && c && nnt_tensor_rank(a) == 3 && nnt_tensor_size(a, -1) == 24 && nnt_tensor_size(a, 1) == 3 && nnt_tensor_size(a, 3) == 0);
    CHECK(nnt_tensor_data(a) != NULL && nnt_tensor_data(c) == NULL);
    for (i = 0; i < 24; i++) CHECK(nnt_tensor_data(b)[i] == 0);
    CHECK(nnt_tensor_fill(b, 2.5f) == NNT_OK && nnt_tensor_add(b, a, b) == NNT_OK && nnt_tensor_scale(b, -2) == NNT_OK && nnt_tensor_read(b, back) == NNT_OK);
    for (i = 0; i < 24; i++) CHECK(back[i] == -2 * (data[i] + 2.5f));
    CHECK(nnt_tensor_copy(b, a) == NNT_OK && nnt_tensor_read(b, back) == NNT_OK && memcmp(back, data, sizeof data) == 0);
    CHECK(nnt_tensor_copy(c, a) == NNT_OK && nnt_tensor_copy(b, c) == NNT_OK);     /* the null device gives zeros back */
    CHECK(nnt_tensor_add(b, a, c) == NNT_ERR_DEVICE);
    CHECK_TEXT(nnt_error(net), "nnt_tensor_add: operands are on 'cpu' and 'null'; copy one with nnt_tensor_copy first");
    CHECK(nnt_tensor_uniform(a, 3, 5, 1) == NNT_OK && nnt_tensor_read(a, back) == NNT_OK);
    for (i = 0; i < 24; i++) CHECK(back[i] >= 3 && back[i] < 5);
    CHECK(nnt_tensor_randn(a, 1) == NNT_OK && nnt_tensor_fill(b, 1) == NNT_OK && nnt_tensor_add_noise(b, 0.5f, 1) == NNT_OK);
    for (i = 0; i < 24; i++) { CHECKF(fabs(nnt_tensor_data(b)[i] - (1 + 0.5 * nnt_tensor_data(a)[i])) < 1e-6, "%d", i); sum += nnt_tensor_data(a)[i]; }
    CHECK(fabs(sum) < 24);
    nnt_tensor_free(b);
    nnt_free(net);                          /* gives the others back */
}
static void parameters_are_views(void)
{
    nnt_net *net = net_of(WITH_BATCHNORM, usual(8, 1));
    nnt_tensor *w = nnt_param(net, "conv1.weight"), *g = nnt_grad(net, "fc2.bias"), *again;
    float y[CLASSES], first;
    int i;
    CHECK(nnt_param_count(net) == 2 + 4 + 2 + 2);
    CHECK_TEXT(nnt_param_name(net, 2), "bn1.weight");
    CHECK_TEXT(nnt_param_name(net, 5), "bn1.running_var");
    CHECK_TEXT(nnt_param_name(net, 10), "");
    CHECK(w && g && nnt_tensor_rank(w) == 4 && nnt_tensor_size(w, 0) == 8 && nnt_tensor_size(w, 1) == CHANNELS && nnt_tensor_size(w, 2) == 3);
    CHECK(nnt_predict(net, data_x, 1, y) == NNT_OK);
    first = y[0];
    CHECK(nnt_tensor_scale(w, 2) == NNT_OK);
    again = nnt_param(net, "conv1.weight");
    CHECK(nnt_tensor_data(again) == nnt_tensor_data(w));
    CHECK(nnt_predict(net, data_x, 1, y) == NNT_OK && y[0] != first);
    CHECK(nnt_grad(net, "bn1.running_mean") == NULL && nnt_error_code(net) == NNT_ERR_STATE);
    CHECK_TEXT(nnt_error(net), "nnt_grad: 'bn1.running_mean' is not trained and has no gradient");
    for (i = 0; i < 8; i++) CHECK(nnt_tensor_data(nnt_param(net, "bn1.running_var"))[i] == 1 && nnt_tensor_data(nnt_param(net, "bn1.weight"))[i] == 1);
    nnt_free(net);
}
static void initial_weights_have_the_stated_spread(void)
{
    static const int kinds[] = { NNT_INIT_DEFAULT, NNT_INIT_KAIMING_UNIFORM, NNT_INIT_KAIMING_NORMAL, NNT_INIT_XAVIER_UNIFORM, NNT_INIT_XAVIER_NORMAL, NNT_INIT_ZERO };
    int k;
    for (k = 0; k < 6; k++) {
        nnt_net *net = nnt_new(NULL);
        nnt_conv_desc c;
        nnt_linear_desc l;
        nnt_compile_desc d = usual(1, 1);
        /* fan_in and fan_out of conv 32 -> 64, 3x3, and of linear 1024 -> 100 */
        const double in[2] = { 32 * 9, 1024 }, out[2] = { 64 * 9, 100 };
        int which;
        memset(&c, 0, sizeof c);
        memset(&l, 0, sizeof l);
        c.filters = 64; c.kernel = 3; c.init = kinds[k];
        l.features = 100; l.init = kinds[k];
        memset(&d.optimizer, 0, sizeof d.optimizer);
        CHECK(nnt_compile(net, nnt_linear_ex(nnt_reshape(nnt_global_avgpool(nnt_conv2d_ex(nnt_reshape(nnt_linear(nnt_input(net, 1, 1, 1), 32 * 256), 32, 16, 16), c)), 64, 1, 1), l), d) == NNT_OK);
        nnt_free(net);
        net = nnt_new(NULL);
        CHECK(nnt_compile(net, nnt_linear_ex(nnt_reshape(nnt_name(nnt_conv2d_ex(nnt_input(net, 32, 6, 6), c), "c"), 1024, 1, 1), l), d) == NNT_OK);
        for (which = 0; which < 2; which++) {
            nnt_tensor *w = nnt_param(net, which ? "linear1.weight" : "c.weight"), *b = nnt_param(net, which ? "linear1.bias" : "c.bias");
            const float *v = nnt_tensor_data(w), *bias = nnt_tensor_data(b);
            int64_t n = nnt_tensor_size(w, -1), i;
            double sum = 0, squares = 0, top = 0, top_bias = 0, deviation, bound = 0;
            for (i = 0; i < n; i++) { sum += v[i]; squares += (double)v[i] * v[i]; if (fabs(v[i]) > top) top = fabs(v[i]); }
            for (i = 0; i < nnt_tensor_size(b, -1); i++) if (fabs(bias[i]) > top_bias) top_bias = fabs(bias[i]);
            deviation = sqrt(squares / (double)n);
            switch (kinds[k]) {
            case NNT_INIT_DEFAULT:         bound = 1 / sqrt(in[which]); break;
            case NNT_INIT_KAIMING_UNIFORM: bound = sqrt(6 / in[which]); break;
            case NNT_INIT_XAVIER_UNIFORM:  bound = sqrt(6 / (in[which] + out[which])); break;
            case NNT_INIT_KAIMING_NORMAL:  CHECK(fabs(deviation / sqrt(2 / in[which]) - 1) < 0.02 && top > 3 * deviation); break;
            case NNT_INIT_XAVIER_NORMAL:   CHECK(fabs(deviation / sqrt(2 / (in[which] + out[which])) - 1) < 0.02 && top > 3 * deviation); break;
            default:                       CHECK(squares == 0); break;
            }
            /* deviation of a uniform is bound / sqrt 3; over 18432 values or more its error is below 1 % with a margin of 3 sigma */
            if (bound > 0) CHECKF(top <= bound && top > 0.999 * bound && fabs(deviation * sqrt(3.0) / bound - 1) < 0.02, "init %d: %g %g of %g", kinds[k], top, deviation, bound);
            CHECK(fabs(sum / (double)n) <= 4 * deviation / sqrt((double)n));
            CHECK(kinds[k] == NNT_INIT_DEFAULT ? top_bias > 0 && top_bias <= bound : top_bias == 0);
        }
        nnt_free(net);
    }
}

/* ---- out of memory at every allocation */

static int allocations_left, live_blocks;
static nnti_mutex alloc_lock;
static void *failing_alloc(void *user, size_t bytes, size_t align)
{
    void *p = NULL;
    (void)user;
    nnti_lock(&alloc_lock);
    if (allocations_left > 0) {
        allocations_left--;
        p = nnti_default_alloc(NULL, bytes, align);
        if (p) live_blocks++;
    }
    nnti_unlock(&alloc_lock);
    return p;
}
static void failing_free(void *user, void *p, size_t bytes)
{
    (void)user;
    nnti_lock(&alloc_lock);
    live_blocks--;
    nnti_unlock(&alloc_lock);
    nnti_default_free(NULL, p, bytes);
}
static nnt_result build_train_and_free(const nnt_allocator *a)
{
    nnt_net *net = nnt_new(a);
    nnt_dataset *d = dataset_of(40, a);
    nnt_loader *l = loader_of(d, 16, 1, 0, a), *v = loader_of(d, 16, 0, 0, a);
    nnt_result r = net ? NNT_OK : NNT_ERR_MEMORY;
    nnt_fit_desc f;
    nnt_compile_desc c = usual(16, 2);
    nnt_metrics m;
    int64_t confusion[CLASSES * CLASSES];
    memset(&f, 0, sizeof f);
    f.epochs = 2;
    f.validation = v;
    c.optimizer.clip_norm = 1;
    memset(&m, 0, sizeof m);
    m.confusion = confusion;
    m.confusion_classes = CLASSES;
    if (!r) r = nnt_compile(net, nnt_cross_entropy(logits_of(net, WITH_BATCHNORM | WITH_RESIDUAL | WITH_CHANCE)), c);
    if (!r) r = nnt_fit(net, l, f);
    if (!r) r = nnt_evaluate(net, v, &m);
    if (!r && !nnt_param(net, "fc1.weight")) r = nnt_error_code(net);
#ifndef NNT_NO_STDIO
    if (!r) r = nnt_save(net, "test_train_memory.safetensors");
    if (!r) r = nnt_load(net, "test_train_memory.safetensors");
    remove("test_train_memory.safetensors");
#endif
    if (r) CHECKF(r == NNT_ERR_MEMORY && strstr(nnt_error(net), "emory") != NULL, "%s: %s", nnt_result_name(r), nnt_error(net));
    nnt_free(net);
    nnt_loader_free(l);
    nnt_loader_free(v);
    nnt_dataset_free(d);
    return r;
}
static void running_out_of_memory_anywhere_is_an_error_and_no_leak(void)
{
    nnt_allocator a;
    int n;
    nnt_result r = NNT_ERR_MEMORY;
    a.alloc_fn = failing_alloc;
    a.free_fn = failing_free;
    a.user = NULL;
    nnti_mutex_init(&alloc_lock);
    for (n = 0; r && n < 2000; n++) {
        allocations_left = n;
        r = build_train_and_free(&a);
        CHECKF(live_blocks == 0, "allocation %d: %d blocks left", n, live_blocks);
        if (test_case_failed) break;
    }
    printf("allocations of build, compile, fit, evaluate, save, load: %d\n", n - 1);
    CHECK(r == NNT_OK && n > 40);
    nnti_mutex_destroy(&alloc_lock);
}

int main(int argc, char **argv)
{
    TEST_BEGIN(argc, argv);
    make_data();
    TEST(any_number_of_threads_gives_the_same_bits);
    TEST(the_same_program_gives_the_same_bits_again);
    TEST(another_seed_gives_other_weights_and_masks);
    TEST(last_partial_batch_trains_on_its_samples_only);
    TEST(an_epoch_has_as_many_steps_as_batches);
    TEST(evaluation_does_not_depend_on_the_batch);
    TEST(evaluating_in_between_changes_nothing);
    TEST(looking_at_gradients_changes_nothing_but_them);
    TEST(accumulated_batches_are_one_large_batch);
    TEST(what_accumulate_leaves_over_is_applied_at_the_epochs_end);
    TEST(batchnorm_refuses_a_single_value);
    TEST(a_loss_that_is_not_finite_stops_before_the_update);
    TEST(a_callback_can_stop_a_fit);
    TEST(training_learns);
#ifndef NNT_NO_STDIO
    TEST(saved_weights_give_the_same_predictions);
#endif
    TEST(the_kernel_path_decides_only_roundings);
    TEST(tensors_are_made_filled_added_scaled_and_copied);
    TEST(parameters_are_views);
    TEST(initial_weights_have_the_stated_spread);
    TEST(running_out_of_memory_anywhere_is_an_error_and_no_leak);
    return TEST_END();
}
