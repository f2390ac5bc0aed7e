/* test_snapshot.c - runs that are stopped, killed or cut off by a full disk go on with the same bits; what snapshots
   refuse; weights with prefixes, metadata, strict and loose loading.

   The reference is always a run of the same program that nothing interrupted. Files are made in the folder NNT_TEST_TMP
   and removed. */
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include "test.h"

#ifndef _WIN32
#  include <signal.h>
#  include <sys/resource.h>
#  include <sys/wait.h>
#  ifdef __linux__
#    include <sys/mount.h>
#    include <sys/syscall.h>
#  endif
#endif

#ifndef NNT_TEST_TMP
#  define NNT_TEST_TMP "."
#endif
#define PATH_A NNT_TEST_TMP "/test_snapshot.safetensors"

/* ---- a small run ---- */

enum { SIDE = 6, VALUES = SIDE * SIDE, SAMPLES = 26, CLASSES = 3, BATCH = 4, STEPS = 7, EPOCHS = 3 };      /* the last batch has 2 */

static float   data_x[SAMPLES * VALUES];
static int32_t data_labels[SAMPLES];
static void make_data(void)
{
    nnti_random_key key;
    int i;
    memset(&key, 0, sizeof key);
    key.seed = 5;
    nnti_random_fill(NNTI_ISA_C, NNTI_DRAW_NORMAL, data_x, 0, SAMPLES * VALUES, &key);
    for (i = 0; i < SAMPLES; i++) {
        data_labels[i] = i % CLASSES;
        data_x[i * VALUES + 7 * data_labels[i]] += 3.0f;
    }
}

/* Flushing is what takes the time, and a killed process needs none: most tests go without. */
static int flushes;
static int no_flush(void *user, nnti_handle h) { (void)user; (void)h; flushes++; return 0; }
static nnti_file_calls quick;

/* Everything that a process has of a run. */
typedef struct run {
    nnt_dataset *data;
    nnt_loader  *train, *validation;
    nnt_net     *net;
    nnt_fit_desc fit;
    int          stop_at;                   /* the callback stops after so many steps of the net; 0: never */
    int          together;                  /* steps that a record of nnt_step_history covers from the second on; 0: 1 */
} run;

static nnt_optimizer optimizer_of(int kind)
{
    nnt_optimizer o = kind < 3 ? nnt_sgd(0.05f) : kind == 3 ? nnt_adam(0.01f) : nnt_adamw(0.01f);
    if (kind == 1 || kind == 2) o.momentum = 0.9f;
    o.nesterov = kind == 2;
    o.schedule = NNT_SCHEDULE_COSINE;
    o.schedule_steps = EPOCHS * STEPS;
    o.clip_norm = kind == 4 ? 1.0f : 0.0f;
    return o;
}
static nnt_loader *loader_of(nnt_dataset *d, int shuffle, uint64_t seed, int workers, const nnt_allocator *a)
{
    nnt_loader_desc l;
    memset(&l, 0, sizeof l);
    l.batch = BATCH;
    l.shuffle = shuffle;
    l.seed = seed;
    l.workers = workers;
    return nnt_loader_new(d, l, a);
}
static int stop_when_asked(void *user, nnt_net *net, const nnt_progress_info *info)
{
    const run *r = (const run *)user;
    if (info->step == 1 && r->together) net->trace.stride = r->together;       /* as after thousands of steps */
    return info->event == NNT_EVENT_STEP && r->stop_at && info->step >= r->stop_at;
}
static void run_free(run *r)
{
    nnt_free(r->net);
    nnt_loader_free(r->train);
    nnt_loader_free(r->validation);
    nnt_dataset_free(r->data);
}
/* Noise, batch norm and dropout: whatever a future may depend on. seed: of a process that knows nothing of the other's. */
static nnt_result run_make(run *r, nnt_optimizer o, uint64_t seed, int workers, const nnt_allocator *a)
{
    nnt_arrays_desc d;
    nnt_compile_desc c;
    nnt_node x;
    memset(r, 0, sizeof *r);
    memset(&d, 0, sizeof d);
    memset(&c, 0, sizeof c);
    d.count = SAMPLES;
    d.channels = 1;
    d.height = d.width = SIDE;
    d.x = data_x;
    d.labels = data_labels;
    r->data = nnt_dataset_arrays(d, a);
    r->train = loader_of(r->data, 1, seed, workers, a);
    r->validation = loader_of(r->data, 1, seed + 1, workers, a);
    r->net = nnt_new(a);
    r->net->file_calls = &quick;
    x = nnt_noise(nnt_input(r->net, 1, SIDE, SIDE), 0.1f);
    x = nnt_relu(nnt_name(nnt_batchnorm(nnt_name(nnt_conv2d(x, 3, 3, 2, 0), "conv1")), "bn1"));
    x = nnt_name(nnt_linear(nnt_dropout(x, 0.3f), CLASSES), "fc");
    c.batch = BATCH;
    c.threads = 1;
    c.seed = seed;
    c.optimizer = o;
    r->fit.epochs = EPOCHS;
    r->fit.validation = r->validation;
    r->fit.callback = stop_when_asked;
    r->fit.user = r;
    return nnt_compile(r->net, nnt_cross_entropy(x), c);
}
static nnt_result run_fit(run *r) { return nnt_fit(r->net, r->train, r->fit); }

enum { FLOATS = 4096 };
/* The net's weights and running statistics, one after the other; returns how many. */
static int weights_of(nnt_net *net, float *to)
{
    int i, n = 0;
    memset(to, 0, FLOATS * sizeof *to);
    for (i = 0; i < nnt_param_count(net); i++) {
        nnt_tensor *t = nnt_param(net, nnt_param_name(net, i));
        CHECK(n + nnt_tensor_size(t, -1) <= FLOATS && nnt_tensor_read(t, to + n) == NNT_OK);
        n += (int)nnt_tensor_size(t, -1);
        nnt_tensor_free(t);
    }
    return n;
}
static uint64_t hash_of(nnt_net *net)
{
    static float w[FLOATS];
    const unsigned char *p = (const unsigned char *)w;
    uint64_t h = 1469598103934665603ull;
    size_t i, n = (size_t)weights_of(net, w) * sizeof *w;
    for (i = 0; i < n; i++) h = (h ^ p[i]) * 1099511628211ull;
    return h;
}
static int same_history(const run *a, const run *b)
{
    int n, m, i;
    const nnt_progress_info *x = nnt_history(a->net, &n), *y = nnt_history(b->net, &m);
    for (i = 0; i < n && n == m; i++)
        if (x[i].epoch != y[i].epoch || x[i].step != y[i].step || x[i].loss != y[i].loss || x[i].accuracy != y[i].accuracy
            || x[i].lr != y[i].lr || x[i].validation.loss != y[i].validation.loss || x[i].validation.samples != y[i].validation.samples) return 0;
    return n == m;
}
/* Records of steps, but for what the clock says. */
static int same_steps(const run *a, const run *b)
{
    int n, m, i;
    const nnt_step_record *x = nnt_step_history(a->net, &n), *y = nnt_step_history(b->net, &m);
    for (i = 0; i < n && n == m; i++)
        if (x[i].step != y[i].step || x[i].steps != y[i].steps || x[i].loss != y[i].loss || x[i].accuracy != y[i].accuracy || x[i].lr != y[i].lr
            || !(y[i].samples_per_second > 0) || (i > 0 && y[i].seconds < y[i - 1].seconds)) return 0;
    return n == m && n > 0;
}
static int file_exists(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (f) fclose(f);
    return f != NULL;
}
static void remove_all(void)
{
    static const char *const tail[] = { "", ".1", ".2", ".3", ".best", ".link", ".tmp-0", ".tmp-1", ".1.tmp-0", ".best.tmp-0" };
    char name[300];
    size_t i;
    for (i = 0; i < sizeof tail / sizeof *tail; i++) {
        sprintf(name, PATH_A "%s", tail[i]);
        remove(name);
    }
}

/* ---- stopping and going on ---- */

static void a_run_stopped_anywhere_goes_on_with_the_same_bits(void)
{
    int kind, stop, accumulate, count = 0;
    for (kind = 0; kind < 5; kind++) for (accumulate = 1; accumulate < 4; accumulate += 2) {
        nnt_optimizer o = optimizer_of(kind);
        run whole;
        uint64_t want;
        o.accumulate = accumulate;
        CHECK(run_make(&whole, o, 1, NNT_NO_WORKERS, NULL) == NNT_OK);
        whole.together = kind;
        CHECK(run_fit(&whole) == NNT_OK);
        want = hash_of(whole.net);
        for (stop = 1; stop <= EPOCHS * STEPS; stop += kind < 3 ? 3 : 1) {
            run first, second;
            int i;
            remove_all();
            CHECK(run_make(&first, o, 1, NNT_NO_WORKERS, NULL) == NNT_OK);
            first.fit.checkpoint.path = PATH_A;
            first.stop_at = stop;
            first.together = kind;
            CHECK(run_fit(&first) == NNT_ERR_STOPPED && nnt_steps(first.net) == stop);
            run_free(&first);
            /* a process with other seeds: those that count are in the snapshot */
            CHECK(run_make(&second, o, 100, stop % 3 ? NNT_NO_WORKERS : 2, NULL) == NNT_OK);
            for (i = 0; i < stop % 4; i++) { nnt_batch b; CHECK(nnt_loader_next(second.train, &b) == NNT_OK); }
            if (stop % 2) CHECKF(nnt_resume(second.net, second.train, PATH_A) == NNT_OK, "%s", nnt_error(second.net));
            else { second.fit.checkpoint.path = PATH_A; second.fit.checkpoint.resume = 1; }
            CHECKF(run_fit(&second) == NNT_OK, "%s", nnt_error(second.net));
            CHECKF(hash_of(second.net) == want && same_history(&whole, &second) && same_steps(&whole, &second), "optimizer %d accumulate %d stop %d", kind, accumulate, stop);
            count++;
            run_free(&second);
        }
        run_free(&whole);
    }
    printf("stopped and resumed: %d times\n", count);
    remove_all();
}
static void a_finished_run_is_not_run_again_but_can_be_made_longer(void)
{
    nnt_optimizer o = optimizer_of(3);
    run whole, r;
    uint64_t third, fifth;
    int epochs;
    remove_all();
    CHECK(run_make(&whole, o, 1, NNT_NO_WORKERS, NULL) == NNT_OK);
    whole.fit.epochs = 5;
    CHECK(run_fit(&whole) == NNT_OK);
    fifth = hash_of(whole.net);
    run_free(&whole);
    CHECK(run_make(&r, o, 1, NNT_NO_WORKERS, NULL) == NNT_OK);
    r.fit.checkpoint.path = PATH_A;
    r.fit.checkpoint.resume = 1;
    CHECK(run_fit(&r) == NNT_OK);           /* nothing there yet: it begins */
    third = hash_of(r.net);
    CHECK(run_fit(&r) == NNT_OK && nnt_steps(r.net) == 3 * STEPS && hash_of(r.net) == third);
    run_free(&r);
    CHECK(run_make(&r, o, 1, NNT_NO_WORKERS, NULL) == NNT_OK);
    r.fit.checkpoint.path = PATH_A;
    r.fit.checkpoint.resume = 1;
    r.fit.epochs = 5;
    CHECK(run_fit(&r) == NNT_OK && nnt_steps(r.net) == 5 * STEPS && hash_of(r.net) == fifth);
    CHECK(nnt_history(r.net, &epochs) && epochs == 5);
    run_free(&r);
    remove_all();
}
static void a_loop_of_ones_own_goes_on_with_the_same_bits(void)
{
    nnt_optimizer o = optimizer_of(4);
    float losses[20];
    run a, b;
    nnt_batch batch;
    int i;
    remove_all();
    o.accumulate = 3;                       /* 10 is in the middle of an update */
    CHECK(run_make(&a, o, 1, NNT_NO_WORKERS, NULL) == NNT_OK && run_make(&b, o, 2, NNT_NO_WORKERS, NULL) == NNT_OK);
    for (i = 0; i < 20; ) {
        CHECK(nnt_loader_next(a.train, &batch) == NNT_OK);
        if (!batch.count) continue;
        if (i == 4) CHECK(nnt_set_learning_rate(a.net, 0.005f) == NNT_OK);
        CHECK(nnt_step(a.net, &batch, &losses[i]) == NNT_OK);
        if (i++ == 9) CHECKF(nnt_snapshot(a.net, a.train, PATH_A) == NNT_OK, "%s", nnt_error(a.net));
    }
    CHECKF(nnt_resume(b.net, b.train, PATH_A) == NNT_OK, "%s", nnt_error(b.net));
    CHECK(nnt_steps(b.net) == 10 && b.net->pending == 1);
    for (i = 10; i < 20; ) {
        float loss;
        CHECK(nnt_loader_next(b.train, &batch) == NNT_OK);
        if (!batch.count) continue;
        CHECK(nnt_step(b.net, &batch, &loss) == NNT_OK);
        CHECKF(loss == losses[i], "step %d: %.9g and %.9g", i, (double)loss, (double)losses[i]);
        i++;
    }
    CHECK(hash_of(a.net) == hash_of(b.net));
    run_free(&a);
    run_free(&b);
    remove_all();
}
/* What the program says now wins over what it said then; what it said then and changed on the way is restored. */
static void the_learning_rate_is_that_of_then_unless_compiled_with_another(void)
{
    nnt_optimizer o = nnt_adam(0.01f);
    run a, b;
    remove_all();
    CHECK(run_make(&a, o, 1, NNT_NO_WORKERS, NULL) == NNT_OK);
    CHECK(nnt_set_learning_rate(a.net, 0.002f) == NNT_OK && nnt_snapshot(a.net, NULL, PATH_A) == NNT_OK);
    CHECK(run_make(&b, o, 1, NNT_NO_WORKERS, NULL) == NNT_OK && nnt_resume(b.net, NULL, PATH_A) == NNT_OK);
    CHECK(b.net->desc.optimizer.lr == 0.002f);
    run_free(&b);
    o.lr = 0.003f;
    CHECK(run_make(&b, o, 1, NNT_NO_WORKERS, NULL) == NNT_OK && nnt_resume(b.net, NULL, PATH_A) == NNT_OK);
    CHECK(b.net->desc.optimizer.lr == 0.003f);
    run_free(&b);
    run_free(&a);
    remove_all();
}

/* ---- which files are there ---- */

static int64_t steps_in(const char *path)
{
    run r;
    int64_t steps = -1;
    CHECK(run_make(&r, optimizer_of(3), 1, NNT_NO_WORKERS, NULL) == NNT_OK);
    if (file_exists(path)) {
        nnt_result got = nnt_resume(r.net, r.train, path);
        CHECKF(got == NNT_OK, "%s", nnt_error(r.net));
        steps = nnt_steps(r.net);
    }
    run_free(&r);
    return steps;
}
static void the_newest_ones_are_kept(void)
{
    run r;
    remove_all();
    flushes = 0;
    CHECK(run_make(&r, optimizer_of(3), 1, NNT_NO_WORKERS, NULL) == NNT_OK);
    r.fit.checkpoint.path = PATH_A;
    r.fit.checkpoint.every_steps = 5;
    r.fit.checkpoint.keep = 3;
    r.stop_at = 18;
    CHECK(run_fit(&r) == NNT_ERR_STOPPED);  /* 5, 7 (end of an epoch), 10, 14, 15, 18 */
    run_free(&r);
    CHECK(steps_in(PATH_A) == 18 && steps_in(PATH_A ".1") == 15 && steps_in(PATH_A ".2") == 14 && steps_in(PATH_A ".3") == -1);
    CHECK(!file_exists(PATH_A ".best") && !file_exists(PATH_A ".tmp-0"));
    CHECKF(flushes == 2 * 6, "%d", flushes);            /* of each file and of its folder */
    CHECK(remove(PATH_A) == 0);             /* as after a kill between two renames: the one before is taken */
    CHECK(run_make(&r, optimizer_of(3), 1, NNT_NO_WORKERS, NULL) == NNT_OK);
    CHECK(nnt_resume(r.net, r.train, PATH_A) == NNT_OK && nnt_steps(r.net) == 15);
    run_free(&r);
    remove_all();
}
/* Figures of validation that a test sets: the history's. */
static const double figures[] = { 3.0, 2.0, 2.5, 2.0, 2.2, 1.0 };
static int count_epochs(void *user, nnt_net *net, const nnt_progress_info *info)
{
    (void)net;
    if (info->event == NNT_EVENT_EPOCH) ++*(int *)user;
    return 0;
}
static void the_best_epoch_is_kept_and_patience_ends(void)
{
    nnt_fit_desc d;
    nnti_fit_state fit;
    nnt_progress_info p;
    run r;
    int i, best = -1, epochs = 0, n;
    const nnt_progress_info *h;
    memset(&d, 0, sizeof d);
    memset(&fit, 0, sizeof fit);
    memset(&p, 0, sizeof p);
    fit.best_epoch = -1;
    d.patience = 3;
    p.has_validation = 1;
    for (i = 0; i < 6 && !nnti_fit_is_over(&fit, &d, 100); i++) {
        p.validation.loss = figures[i];
        if (nnti_fit_improved(&fit, &d, &p)) best = i;
        fit.epoch++;
    }
    CHECK(best == 1 && i == 5);             /* epochs 2, 3, 4 were not better than epoch 1; an equal one isn't */
    d.monitor = NNT_MONITOR_ACCURACY;
    fit.best_epoch = -1;
    p.validation.accuracy = 0.5;
    CHECK(nnti_fit_improved(&fit, &d, &p) && fit.best == -0.5);
    p.validation.accuracy = 0.4;
    CHECK(!nnti_fit_improved(&fit, &d, &p));

    remove_all();
    CHECK(run_make(&r, optimizer_of(3), 1, NNT_NO_WORKERS, NULL) == NNT_OK);
    r.fit.epochs = 12;
    r.fit.checkpoint.path = PATH_A;
    r.fit.checkpoint.best = 1;
    r.fit.patience = 2;
    r.fit.callback = count_epochs;
    r.fit.user = &epochs;
    CHECK(run_fit(&r) == NNT_OK);
    h = nnt_history(r.net, &n);
    CHECK(n == epochs && n >= 1);
    for (i = 0, best = 0; i < n; i++) if (h[i].validation.loss < h[best].validation.loss) best = i;
    CHECK(n == 12 || n == best + 3);
    CHECK(steps_in(PATH_A ".best") == (int64_t)STEPS * (best + 1));
    run_free(&r);
    if (n < 12) {                           /* resuming a run that patience ended does not train */
        CHECK(run_make(&r, optimizer_of(3), 1, NNT_NO_WORKERS, NULL) == NNT_OK);
        r.fit.epochs = 12;
        r.fit.checkpoint.path = PATH_A;
        r.fit.checkpoint.resume = 1;
        r.fit.patience = 2;
        CHECK(run_fit(&r) == NNT_OK && nnt_steps(r.net) == (int64_t)STEPS * n);
        run_free(&r);
    }
    remove_all();
}
static void a_link_stays_a_link(void)
{
#ifdef _WIN32
    SKIP("needs symbolic links");
#else
    char where[300];
    run r;
    ssize_t n;
    remove_all();
    CHECK(symlink("test_snapshot.safetensors", PATH_A ".link") == 0);       /* to a file that is not there yet */
    CHECK(run_make(&r, optimizer_of(0), 1, NNT_NO_WORKERS, NULL) == NNT_OK);
    CHECK(nnt_save(r.net, PATH_A ".link") == NNT_OK && file_exists(PATH_A));
    CHECK(nnt_save(r.net, PATH_A ".link") == NNT_OK && nnt_load(r.net, PATH_A) == NNT_OK);
    n = readlink(PATH_A ".link", where, sizeof where);
    CHECK(n == (ssize_t)strlen("test_snapshot.safetensors"));
    CHECK(!file_exists(PATH_A ".tmp-0") && !file_exists(PATH_A ".link.tmp-0"));
    run_free(&r);
    remove_all();
    CHECK(symlink(PATH_A ".link", PATH_A ".link") == 0);                    /* to itself */
    CHECK(run_make(&r, optimizer_of(0), 1, NNT_NO_WORKERS, NULL) == NNT_OK);
    (void)nnt_save(r.net, PATH_A ".link");                                  /* an error or a file, no hang */
    run_free(&r);
    remove_all();
#endif
}

/* ---- kills and faults ---- */

/* Hashes of the weights after each step of a run that nothing interrupts. */
static uint64_t want_at[EPOCHS * STEPS + 1];
static int note_hash(void *user, nnt_net *net, const nnt_progress_info *info)
{
    (void)user;
    if (info->event == NNT_EVENT_STEP) want_at[info->step] = hash_of(net);
    return 0;
}
static void make_reference(void)
{
    run r;
    CHECK(run_make(&r, optimizer_of(3), 1, NNT_NO_WORKERS, NULL) == NNT_OK);
    r.fit.callback = note_hash;
    want_at[0] = hash_of(r.net);
    CHECK(run_fit(&r) == NNT_OK);
    run_free(&r);
}
/* A run that goes on from the files that are there and writes one after every step. */
static nnt_result go_on(const struct nnti_file_calls *calls, int keep)
{
    run r;
    nnt_result got = run_make(&r, optimizer_of(3), 1, NNT_NO_WORKERS, NULL);
    r.net->file_calls = calls;              /* NULL: the system's, flushes too */
    r.fit.checkpoint.path = PATH_A;
    r.fit.checkpoint.every_steps = 1;
    r.fit.checkpoint.keep = keep;
    r.fit.checkpoint.best = 1;
    r.fit.checkpoint.resume = 1;
    if (!got) got = run_fit(&r);
    if (!got && hash_of(r.net) != want_at[EPOCHS * STEPS]) got = NNT_ERR_DATA;
    run_free(&r);
    return got;
}
/* The steps of the whole snapshot that is there; its weights have to be those of that step. -1: none. */
static int64_t whole_snapshot(const char *what, int number)
{
    run r;
    int64_t steps = -1;
    nnt_result got;
    if (run_make(&r, optimizer_of(3), 1, NNT_NO_WORKERS, NULL)) return -2;
    got = nnt_resume(r.net, r.train, PATH_A);
    CHECKF(got == NNT_OK || (got == NNT_ERR_FILE && !file_exists(PATH_A)), "%s %d: %s", what, number, nnt_error(r.net));
    if (!got) {
        steps = nnt_steps(r.net);
        CHECKF(hash_of(r.net) == want_at[steps], "%s %d: other weights at step %d", what, number, (int)steps);
    }
    run_free(&r);
    return steps;
}

#ifndef _WIN32
static double clock_now(void) { return nnti_seconds(); }
static void wait_for(double seconds)
{
    double end = clock_now() + seconds;
    if (seconds > 0.002) { struct timespec t = { 0, 0 }; t.tv_nsec = (long)((seconds - 0.001) * 1e9); nanosleep(&t, NULL); }
    while (clock_now() < end) { }
}
static void a_run_killed_at_random_instants_ends_with_the_same_bits(void)
{
    enum { KILLS = 200 };
    nnti_random_key key;
    float u[8];
    double length;
    int kills = 0, finished = 0, tries, saving = 0;
    memset(&key, 0, sizeof key);
    key.seed = 77;
    make_reference();
    remove_all();
    length = clock_now();
    CHECK(go_on(&quick, 2) == NNT_OK);        /* also: writing files changes nothing */
    length = clock_now() - length;
    remove_all();
    for (tries = 0; kills < KILLS && tries < 3 * KILLS && !test_case_failed; tries++) {
        int64_t before = whole_snapshot("before kill", tries), after;
        int status = 0;
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) _exit((int)go_on(tries % 10 ? &quick : NULL, 1 + tries % 3));
        nnti_random_fill(NNTI_ISA_C, NNTI_DRAW_UNIT, u, 8 * (int64_t)tries, 8, &key);
        wait_for((double)u[0] * length * 0.5);
        kill(child, SIGKILL);
        CHECK(waitpid(child, &status, 0) == child);
        saving += file_exists(PATH_A ".tmp-0") || file_exists(PATH_A ".best.tmp-0");
        after = whole_snapshot("after kill", tries);
        CHECKF(after >= before, "kill %d: back from step %d to %d", tries, (int)before, (int)after);
        CHECKF(!file_exists(PATH_A ".tmp-1"), "kill %d: litter", tries);
        if (WIFSIGNALED(status)) kills++;
        else {
            CHECKF(WIFEXITED(status) && WEXITSTATUS(status) == NNT_OK, "kill %d: the run ended with %d", tries, WEXITSTATUS(status));
            finished++;
            remove_all();
        }
    }
    CHECK(go_on(&quick, 1) == NNT_OK);
    printf("killed %d times, %d of them inside of a save; ran to the end %d times\n", kills, saving, finished + 1);
    CHECK(kills == KILLS && saving > 0);
    remove_all();
}

/* In a child whose disk is full after `room` bytes of a file: the run fails, and goes on when there is room again. */
static void a_full_disk_leaves_a_whole_snapshot(void)
{
    int child_result, room;
    make_reference();
    remove_all();
    for (room = 0; room < 12000; room += 700) {
        int status = 0;
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            struct rlimit l;
            nnt_result got;
            signal(SIGXFSZ, SIG_IGN);
            l.rlim_cur = l.rlim_max = (rlim_t)room;
            got = setrlimit(RLIMIT_FSIZE, &l) ? NNT_ERR_DEVICE : go_on(&quick, 2);
            _exit(got == NNT_OK || got == NNT_ERR_FILE ? (int)got : 99);
        }
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
        child_result = WEXITSTATUS(status);
        CHECKF(child_result == NNT_ERR_FILE || (child_result == NNT_OK && room > 2000), "room %d: %d", room, child_result);
        whole_snapshot("room", room);
        CHECK(!file_exists(PATH_A ".tmp-0"));
        if (child_result == NNT_OK) break;
    }
    CHECK(room < 12000 && go_on(&quick, 2) == NNT_OK);
    remove_all();
}
#  ifdef __linux__
/* A file system of its own that has room for one to four snapshots of six, in a name space that goes with the child. */
static void a_full_file_system_leaves_a_whole_snapshot(void)
{
    int status = 0, kib;
    pid_t child;
    make_reference();
    for (kib = 4; kib <= 16; kib += 4) {
        fflush(stdout);
        child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            char options[32];
            nnt_result got;
            sprintf(options, "size=%dk", kib);
            if (syscall(SYS_unshare, 0x00020000L) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)
                || mount("tmpfs", NNT_TEST_TMP, "tmpfs", 0, options)) _exit(77);
            got = go_on(&quick, 3);
            if (got != NNT_OK && got != NNT_ERR_FILE) _exit(1);
            test_case_failed = 0;
            whole_snapshot("KiB", kib);
            if (test_case_failed || file_exists(PATH_A ".tmp-0")) _exit(2);
            if (got == NNT_OK) _exit(3);
            if (mount("tmpfs", NNT_TEST_TMP, "tmpfs", MS_REMOUNT, "size=1m")) _exit(4);
            _exit(go_on(&quick, 3) == NNT_OK ? 0 : 5);                        /* now there is room: the same bits at the end */
        }
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
        if (WEXITSTATUS(status) == 77) SKIP("no right to mount a tmpfs");
        CHECKF(WEXITSTATUS(status) == 0, "%d KiB: %d", kib, WEXITSTATUS(status));
    }
}
#  endif
#endif

/* System calls of which the n-th fails. */
typedef struct faulty { int kind, left, failed; } faulty;
static int fault_here(faulty *f, int kind)
{
    if (f->kind != kind || f->left < 0 || f->left-- > 0) return 0;
    f->failed++;
    return 1;
}
static int64_t faulty_write(void *user, nnti_handle h, const void *p, size_t n)
{
    if (fault_here((faulty *)user, 0)) return -ENOSPC;
    return nnti_file_write(NULL, h, p, n > 1500 ? 1500 : n);                /* several writes a file */
}
static int faulty_flush(void *user, nnti_handle h) { (void)h; return fault_here((faulty *)user, 1) ? EIO : 0; }
static int faulty_rename(void *user, const char *from, const char *to) { return fault_here((faulty *)user, 2) ? EACCES : nnti_file_rename(NULL, from, to); }
static int faulty_close(void *user, nnti_handle h)
{
    int r = nnti_file_close(NULL, h);
    return fault_here((faulty *)user, 3) ? EIO : r;
}
static void every_failing_call_leaves_a_whole_snapshot(void)
{
    static const char *const kinds[] = { "write", "flush", "rename", "close" };
    nnti_file_calls c;
    faulty f;
    int kind, n, all = 0;
    c.write_fn = faulty_write;
    c.flush_fn = faulty_flush;
    c.rename_fn = faulty_rename;
    c.close_fn = faulty_close;
    c.user = &f;
    make_reference();
    for (kind = 0; kind < 4 && !test_case_failed; kind++)
        for (n = 0; !test_case_failed; n++) {
            nnt_result got;
            remove_all();
            f.kind = kind;
            f.left = n;
            f.failed = 0;
            got = go_on(&c, 2);
            CHECKF(got == (f.failed && kind != 3 ? NNT_ERR_FILE : got), "%s %d: %d", kinds[kind], n, (int)got);
            whole_snapshot(kinds[kind], n);
            CHECK(!file_exists(PATH_A ".tmp-0") && !file_exists(PATH_A ".best.tmp-0"));
            if (!f.failed) { CHECK(got == NNT_OK); break; }
            CHECKF(go_on(&quick, 2) == NNT_OK, "%s %d", kinds[kind], n);
            all++;
            if (n > 12) n += 6;             /* the later ones are like the first */
        }
    printf("calls that failed: %d\n", all);
    CHECK(all > 40);
    remove_all();
}

/* ---- memory, hostile files, refusals ---- */

typedef struct memory { size_t live; int64_t left; } memory;        /* left: allocations that succeed; -1: all */
static void *memory_take(void *user, size_t bytes, size_t align)
{
    memory *m = (memory *)user;
    void *p;
    if (m->left == 0) return NULL;
    if (m->left > 0) m->left--;
    p = nnti_default_alloc(NULL, bytes, align);
    if (p) m->live += bytes;
    return p;
}
static void memory_give(void *user, void *p, size_t bytes)
{
    ((memory *)user)->live -= bytes;
    nnti_default_free(NULL, p, bytes);
}
static void running_out_of_memory_anywhere_changes_nothing(void)
{
    nnt_allocator a;
    memory m;
    run r;
    uint64_t before;
    int n, saves, loads;
    nnt_result got = NNT_ERR_MEMORY;
    a.alloc_fn = memory_take;
    a.free_fn = memory_give;
    a.user = &m;
    m.live = 0;
    m.left = -1;
    remove_all();
    CHECK(run_make(&r, optimizer_of(3), 1, NNT_NO_WORKERS, &a) == NNT_OK);
    r.stop_at = 9;
    r.fit.checkpoint.path = PATH_A;
    r.fit.checkpoint.best = 1;
    CHECK(nnt_set_metadata(r.net, "a", "b") == NNT_OK && run_fit(&r) == NNT_ERR_STOPPED);
    before = hash_of(r.net);
    for (saves = 0; got && saves < 100; saves++) {
        size_t live = m.live;
        m.left = saves;
        got = nnt_snapshot(r.net, r.train, PATH_A ".best");
        m.left = -1;
        CHECKF(m.live == live && (got == NNT_OK || got == NNT_ERR_MEMORY), "allocation %d: %s", saves, nnt_error(r.net));
    }
    run_free(&r);
    for (n = 0, got = NNT_ERR_MEMORY, loads = 0; got && n < 100; n++, loads++) {
        size_t live;
        CHECK(run_make(&r, optimizer_of(3), 5, NNT_NO_WORKERS, &a) == NNT_OK);
        live = m.live;
        m.left = n;
        got = nnt_resume(r.net, r.train, PATH_A);
        m.left = -1;
        if (got) CHECKF(got == NNT_ERR_MEMORY && nnt_steps(r.net) == 0 && hash_of(r.net) != before && !r.net->fit.resumed, "allocation %d: %s", n, nnt_error(r.net));
        if (got && !nnt_metadata(r.net, "a")) CHECKF(m.live - live < 2000, "allocation %d", n);
        if (!got) CHECK(hash_of(r.net) == before && nnt_steps(r.net) == 9 && strcmp(nnt_metadata(r.net, "a"), "b") == 0);
        run_free(&r);
        CHECKF(m.live == 0, "allocation %d: %d bytes", n, (int)m.live);
    }
    CHECK(got == NNT_OK && saves > 5 && loads > 5);
    remove_all();
}

static unsigned char image[20000];
static size_t image_length;
static int image_read(void *user, int64_t at, void *to, size_t n)
{
    size_t length = *(const size_t *)user;
    CHECK(at >= 0 && (uint64_t)at <= length && n <= length - (size_t)at);
    memcpy(to, image + at, n);
    return 0;
}
/* nnt_resume from the first `length` bytes of the image. */
static nnt_result resume_image(run *r, size_t length)
{
    nnti_source source;
    nnti_st f;
    nnt_result got;
    source.read_fn = image_read;
    source.user = &length;
    source.length = (int64_t)length;
    nnti_clear_error(&r->net->error);
    got = nnti_st_open(&f, &r->net->a, &source, "resume", "image", &r->net->error);
    if (!got) got = nnti_resume_from(r->net, r->train, &f);
    nnti_st_close(&f);
    return got;
}
static void image_make(void)
{
    run r;
    FILE *f;
    remove_all();
    CHECK(run_make(&r, optimizer_of(3), 1, NNT_NO_WORKERS, NULL) == NNT_OK);
    r.stop_at = 9;
    r.fit.checkpoint.path = PATH_A;
    CHECK(run_fit(&r) == NNT_ERR_STOPPED);
    run_free(&r);
    f = fopen(PATH_A, "rb");
    image_length = f ? fread(image, 1, sizeof image, f) : 0;
    if (f) fclose(f);
    CHECK(image_length > 3000 && image_length < sizeof image);
}
static void a_snapshot_cut_anywhere_is_refused(void)
{
    run r;
    size_t n;
    uint64_t before;
    image_make();
    CHECK(run_make(&r, optimizer_of(3), 5, NNT_NO_WORKERS, NULL) == NNT_OK);
    before = hash_of(r.net);
    for (n = 0; n < image_length; n++) {
        nnt_result got;
        got = resume_image(&r, n);
        CHECKF(got == NNT_ERR_FORMAT, "%d bytes: %s", (int)n, nnt_error(r.net));
    }
    CHECK(hash_of(r.net) == before && nnt_steps(r.net) == 0 && nnt_loader_epoch(r.train) == 0);
    run_free(&r);
    remove_all();
}
/* Any flipped bit: refused in words, or a run that can go on. Of the values, which may be any numbers, only some bits where
   a sanitizer makes everything ten times slower. */
#if defined(__SANITIZE_ADDRESS__)
enum { VALUE_STEP = 97 };
#else
enum { VALUE_STEP = 1 };
#endif
static void a_flipped_bit_is_refused_or_trains_on(void)
{
    size_t header, at, bit;
    int refused = 0, taken = 0;
    image_make();
    header = 8 + (size_t)nnti_get_le64(image);
    for (at = 0; at < image_length; at += at < header + 600 ? 1 : VALUE_STEP)
        for (bit = 0; bit < 8; bit++) {
            run r;
            nnt_result got;
            CHECK(run_make(&r, optimizer_of(3), 5, NNT_NO_WORKERS, NULL) == NNT_OK);
            image[at] ^= (unsigned char)(1 << bit);
            got = resume_image(&r, image_length);
            image[at] ^= (unsigned char)(1 << bit);
            if (got) {
                refused++;
                CHECKF(nnt_error(r.net)[0] && nnt_steps(r.net) == 0, "byte %d bit %d", (int)at, (int)bit);
            } else {
                nnt_batch b;
                taken++;
                got = nnt_loader_next(r.train, &b);
                if (!got && b.count) (void)nnt_step(r.net, &b, NULL);
            }
            run_free(&r);
        }
    printf("flipped bits: %d refused, %d taken\n", refused, taken);
    CHECK(refused > 1000 && taken > 1000);
    remove_all();
}

/* The row of the one epoch taken for two rows of half the columns. */
static void columns_that_an_older_file_lacks_are_zero(void)
{
    run r, old;
    char *at;
    const nnt_progress_info *h, *x;
    int n, m;
    image_make();
    CHECK(run_make(&r, optimizer_of(3), 5, NNT_NO_WORKERS, NULL) == NNT_OK && run_make(&old, optimizer_of(3), 5, NNT_NO_WORKERS, NULL) == NNT_OK);
    CHECK(resume_image(&r, image_length) == NNT_OK);
    image[8 + nnti_get_le64(image) - 1] = 0;                       /* a space that pads the header */
    at = strstr((char *)image + 8, "[1,20]");
    image[8 + nnti_get_le64(image) - 1] = ' ';
    CHECK(at != NULL);
    if (at) memcpy(at, "[2,10]", 6);
    CHECKF(resume_image(&old, image_length) == NNT_OK, "%s", nnt_error(old.net));
    h = nnt_history(r.net, &n);
    x = nnt_history(old.net, &m);
    CHECK(n == 1 && m == 2);
    if (n == 1 && m == 2) {
        CHECK(h->loss > 0 && h->validation.loss > 0 && h->device_bytes > 0);
        CHECK(x[0].loss == h->loss && x[0].accuracy == h->accuracy && x[0].has_validation && x[0].validation.loss == 0 && x[0].device_bytes == 0);
        CHECK(x[1].accuracy == h->device_bytes && x[1].has_validation == (h->process_bytes > 0) && x[1].samples_per_second == 0);
    }
    run_free(&r);
    run_free(&old);
    remove_all();
}

static int resume_inside(void *user, nnt_net *net, const nnt_progress_info *info)
{
    run *r = (run *)user;
    (void)info;
    CHECK(nnt_resume(net, r->train, PATH_A) == NNT_ERR_STATE);
    CHECK_TEXT(nnt_error(net), "resume: called from a callback of an nnt_fit of the same net");
    return 1;
}
static void what_does_not_fit_is_refused_in_words(void)
{
    run r, other;
    nnt_compile_desc c;
    nnt_net *plain;
    nnt_loader_desc l;
    nnt_loader *larger;
    image_make();                           /* at batch 2 of epoch 1 */
    CHECK(run_make(&r, optimizer_of(1), 1, NNT_NO_WORKERS, NULL) == NNT_OK);
    CHECK(nnt_resume(r.net, r.train, PATH_A) == NNT_ERR_STATE);
    CHECK_TEXT(nnt_error(r.net), "resume '" PATH_A "': its optimizer has 2 values for each weight, as adam, and this net's has 1; "
               "compile with the same optimizer, or take the weights only (nnt_load)");
    CHECK(nnt_load(r.net, PATH_A) == NNT_OK);
    CHECK(nnt_resume(r.net, r.train, NULL) == NNT_ERR_ARGUMENT && nnt_snapshot(r.net, r.train, NULL) == NNT_ERR_ARGUMENT);
    CHECK(nnt_resume(NULL, NULL, PATH_A) == NNT_ERR_ARGUMENT && nnt_snapshot(NULL, NULL, PATH_A) == NNT_ERR_ARGUMENT);
    CHECK(nnt_resume(r.net, r.train, NNT_TEST_TMP "/none") == NNT_ERR_FILE);
    CHECK_TEXT(nnt_error(r.net), "resume '" NNT_TEST_TMP "/none': can't be opened: no such file or folder");
    r.fit.callback = resume_inside;
    CHECK(run_fit(&r) == NNT_ERR_STOPPED);
    run_free(&r);

    CHECK(run_make(&r, optimizer_of(3), 1, NNT_NO_WORKERS, NULL) == NNT_OK);
    memset(&l, 0, sizeof l);
    l.batch = 3;
    larger = nnt_loader_new(r.data, l, NULL);
    CHECK(nnt_resume(r.net, larger, PATH_A) == NNT_ERR_STATE);
    CHECK_TEXT(nnt_error(r.net), "resume '" PATH_A "': it stands at batch 2 of 7 batches of 4 samples; this loader has 9 of 3; "
               "give it the same data and batch");
    CHECK(nnt_steps(r.net) == 0);
    CHECK(nnt_resume(r.net, NULL, PATH_A) == NNT_OK);
    nnt_loader_free(larger);
    CHECK(nnt_save(r.net, PATH_A) == NNT_OK && nnt_resume(r.net, r.train, PATH_A) == NNT_ERR_FORMAT);
    CHECK_TEXT(nnt_error(r.net), "resume '" PATH_A "': it has no state of a run; it is a file of weights (nnt_load)");
    r.fit.checkpoint.keep = 2;
    CHECK(run_fit(&r) == NNT_ERR_ARGUMENT);
    CHECK_TEXT(nnt_error(r.net), "fit: checkpoint has no path; give it a file's name");
    r.fit.checkpoint.path = PATH_A;
    r.fit.checkpoint.every_steps = -1;
    CHECK(run_fit(&r) == NNT_ERR_ARGUMENT);
    r.fit.checkpoint.every_steps = 0;
    r.fit.patience = -1;
    CHECK(run_fit(&r) == NNT_ERR_ARGUMENT);
    r.fit.patience = 0;
    r.fit.monitor = 2;
    CHECK(run_fit(&r) == NNT_ERR_ARGUMENT);
    run_free(&r);

    CHECK(run_make(&other, nnt_sgd(0.1f), 1, NNT_NO_WORKERS, NULL) == NNT_OK);
    plain = nnt_new(NULL);
    CHECK(nnt_resume(plain, NULL, PATH_A) == NNT_ERR_STATE && nnt_snapshot(plain, NULL, PATH_A) == NNT_ERR_STATE);
    memset(&c, 0, sizeof c);
    c.batch = 1;
    CHECK(nnt_compile(plain, nnt_linear(nnt_input(plain, 1, 1, 1), 1), c) == NNT_OK);
    CHECK(nnt_resume(plain, NULL, PATH_A) == NNT_ERR_STATE);        /* for prediction only */
    nnt_free(plain);
    run_free(&other);
    remove_all();
}
/* A loss that is not finite ends the run; the snapshot is from before. */
static void a_diverging_run_leaves_the_last_good_snapshot(void)
{
    nnt_optimizer o = nnt_sgd(1e30f);
    run r;
    remove_all();
    CHECK(run_make(&r, o, 1, NNT_NO_WORKERS, NULL) == NNT_OK);
    r.fit.checkpoint.path = PATH_A;
    r.fit.checkpoint.every_steps = 1;
    CHECK(run_fit(&r) == NNT_ERR_NOT_FINITE);
    CHECK(nnt_resume(r.net, r.train, PATH_A) == NNT_OK && nnt_steps(r.net) >= 1);
    run_free(&r);
    remove_all();
}

/* ---- weights of elsewhere ---- */

/* Two linear layers, "a" and "b", behind a prefix. */
static nnt_net *pair_of(const char *prefix, int classes, uint64_t seed)
{
    nnt_net *net = nnt_new(NULL);
    nnt_compile_desc c;
    nnt_node x = nnt_input(net, 4, 1, 1);
    char name[64];
    memset(&c, 0, sizeof c);
    c.batch = 1;
    c.threads = 1;
    c.seed = seed;
    sprintf(name, "%sa", prefix);
    x = nnt_name(nnt_linear(x, 5), name);
    sprintf(name, "%sb", prefix);
    x = nnt_name(nnt_linear(x, classes), name);
    CHECK(nnt_compile(net, x, c) == NNT_OK);
    return net;
}
static int same_param(nnt_net *x, const char *a, nnt_net *y, const char *b)
{
    float u[64], v[64];
    nnt_tensor *s = nnt_param(x, a), *t = nnt_param(y, b);
    CHECK(s && t && nnt_tensor_size(s, -1) <= 64 && nnt_tensor_read(s, u) == NNT_OK && nnt_tensor_read(t, v) == NNT_OK);
    return memcmp(u, v, (size_t)nnt_tensor_size(s, -1) * sizeof *u) == 0;
}
static void prefixes_map_names(void)
{
    nnt_net *from = pair_of("", 3, 1), *to = pair_of("backbone.", 3, 2), *back = pair_of("", 3, 3);
    nnt_load_desc d;
    memset(&d, 0, sizeof d);
    remove_all();
    CHECK(nnt_save(from, PATH_A) == NNT_OK);
    CHECK(nnt_load(to, PATH_A) == NNT_ERR_SHAPE);
    CHECK_TEXT(nnt_error(to), "load '" PATH_A "': 'backbone.a.weight' (5x4 here) is not in the file; layers need the names that they were saved under");
    d.prefix = "backbone.";
    CHECKF(nnt_load_ex(to, PATH_A, d) == NNT_OK, "%s", nnt_error(to));
    CHECK(same_param(from, "a.weight", to, "backbone.a.weight") && same_param(from, "b.bias", to, "backbone.b.bias"));
    d.prefix = "backbone.a";
    d.file_prefix = "a";
    CHECK(nnt_load_ex(to, PATH_A, d) == NNT_OK);
    CHECK(nnt_save(to, PATH_A) == NNT_OK);
    d.prefix = NULL;
    d.file_prefix = "backbone.";
    CHECKF(nnt_load_ex(back, PATH_A, d) == NNT_OK, "%s", nnt_error(back));
    CHECK(same_param(from, "a.weight", back, "a.weight") && same_param(from, "b.weight", back, "b.weight"));
    d.prefix = "none.";
    CHECK(nnt_load_ex(back, PATH_A, d) == NNT_ERR_ARGUMENT);
    CHECK_TEXT(nnt_error(back), "load '" PATH_A "': no parameter is left to load; prefix is 'none.', exclude ''");
    nnt_free(from);
    nnt_free(to);
    nnt_free(back);
    remove_all();
}
static void what_is_missing_or_extra_is_told_or_refused(void)
{
    nnt_net *three = pair_of("", 3, 1), *four = pair_of("", 4, 2), *other = pair_of("x.", 3, 3), *same = pair_of("", 3, 4);
    char report[500];
    nnt_load_desc d;
    memset(&d, 0, sizeof d);
    remove_all();
    d.report = report;
    d.report_cap = sizeof report;
    CHECK(nnt_save(three, PATH_A) == NNT_OK);
    d.exclude = "b.";
    CHECKF(nnt_load_ex(four, PATH_A, d) == NNT_OK, "%s", nnt_error(four));
    CHECK(same_param(three, "a.weight", four, "a.weight"));
    CHECK_TEXT(report, "passed over: 'b.bias' (F32 3)\npassed over: 'b.weight' (F32 3x5)\n2 of 2 parameters loaded\n");
    d.strict = 1;                           /* what was excluded is no extra */
    CHECK(nnt_load_ex(four, PATH_A, d) == NNT_OK);
    d.exclude = NULL;
    CHECK(nnt_load_ex(four, PATH_A, d) == NNT_ERR_SHAPE);
    CHECK_TEXT(nnt_error(four), "load '" PATH_A "': 'b.weight' is 3x5 in the file and 4x5 here; the net probably differs");
    d.allow_missing = 1;                    /* forgives what is not there, not what does not fit */
    CHECK(nnt_load_ex(four, PATH_A, d) == NNT_ERR_SHAPE);
    CHECK(nnt_load_ex(other, PATH_A, d) == NNT_ERR_SHAPE);
    CHECK_TEXT(nnt_error(other), "load '" PATH_A "': it has none of the 4 parameters, not even 'x.a.weight'; names or prefixes differ");
    {   /* a file of a net with less: the rest keeps its values */
        nnt_net *less = nnt_new(NULL);
        nnt_compile_desc c;
        memset(&c, 0, sizeof c);
        c.batch = 1;
        CHECK(nnt_compile(less, nnt_name(nnt_linear(nnt_input(less, 4, 1, 1), 5), "a"), c) == NNT_OK);
        CHECK(nnt_save(less, PATH_A) == NNT_OK);
        CHECK(nnt_load_ex(same, PATH_A, d) == NNT_OK);
        CHECK_TEXT(report, "not in the file: 'b.weight'\nnot in the file: 'b.bias'\n2 of 4 parameters loaded\n");
        CHECK(same_param(less, "a.weight", same, "a.weight") && !same_param(three, "b.weight", same, "b.weight"));
        CHECK(nnt_save(three, PATH_A) == NNT_OK && nnt_load_ex(less, PATH_A, d) == NNT_ERR_SHAPE);      /* strict */
        CHECK_TEXT(nnt_error(less), "load '" PATH_A "': 'b.bias' (3) is in the file and not in the net, and strict was asked for");
        d.strict = 0;
        CHECK(nnt_load_ex(less, PATH_A, d) == NNT_OK);
        nnt_free(less);
    }
    nnt_free(three);
    nnt_free(four);
    nnt_free(other);
    nnt_free(same);
    remove_all();
}
static void snapshots_load_strictly_as_weights(void)
{
    run r, other;
    nnt_load_desc d;
    memset(&d, 0, sizeof d);
    image_make();
    CHECK(run_make(&r, nnt_sgd(0.1f), 5, NNT_NO_WORKERS, NULL) == NNT_OK);
    CHECK(run_make(&other, optimizer_of(3), 6, NNT_NO_WORKERS, NULL) == NNT_OK && nnt_resume(other.net, NULL, PATH_A) == NNT_OK);
    d.strict = 1;
    CHECKF(nnt_load_ex(r.net, PATH_A, d) == NNT_OK, "%s", nnt_error(r.net));
    CHECK(hash_of(r.net) == hash_of(other.net));
    run_free(&r);
    run_free(&other);
    remove_all();
}
static void metadata_go_with_the_weights(void)
{
    nnt_net *a = pair_of("", 3, 1), *b = pair_of("", 3, 2);
    int i, n = 0;
    remove_all();
    CHECK(nnt_set_metadata(a, "class.0", "cat") == NNT_OK && nnt_set_metadata(a, "class.1", "gr\xc3\xb6\xc3\x9f\"er\n") == NNT_OK);
    CHECK(nnt_set_metadata(a, "note", "old") == NNT_OK && nnt_set_metadata(a, "note", "new") == NNT_OK);
    CHECK(nnt_set_metadata(a, "gone", "x") == NNT_OK && nnt_set_metadata(a, "gone", NULL) == NNT_OK && nnt_set_metadata(a, "never", NULL) == NNT_OK);
    CHECK_TEXT(nnt_metadata(a, "note"), "new");
    CHECK(!nnt_metadata(a, "gone") && !nnt_metadata(NULL, "x") && !nnt_metadata(a, NULL));
    CHECK(nnt_set_metadata(a, "format", "x") == NNT_ERR_ARGUMENT && nnt_set_metadata(a, "", "x") == NNT_ERR_ARGUMENT);
    CHECK(nnt_set_metadata(a, "nntrain.version", "x") == NNT_ERR_ARGUMENT);
    CHECK_TEXT(nnt_error(a), "nnt_set_metadata: 'nntrain.version' is one of the library's own keys; choose another");
    CHECK(nnt_save(a, PATH_A) == NNT_OK && nnt_set_metadata(b, "mine", "stays") == NNT_OK && nnt_load(b, PATH_A) == NNT_OK);
    CHECK_TEXT(nnt_metadata(b, "class.0"), "cat");
    CHECK_TEXT(nnt_metadata(b, "class.1"), "gr\xc3\xb6\xc3\x9f\"er\n");
    CHECK_TEXT(nnt_metadata(b, "note"), "new");
    CHECK_TEXT(nnt_metadata(b, "mine"), "stays");
    for (i = 0; nnt_metadata_key(b, i); i++) n++;
    CHECK(n == 4 && !nnt_metadata_key(b, -1) && !nnt_metadata_key(b, 4));
    CHECK(nnt_set_metadata(a, "bad", "\xff") == NNT_OK && nnt_save(a, PATH_A) == NNT_ERR_ARGUMENT);
    CHECK_TEXT(nnt_error(a), "save '" PATH_A "': metadata 'bad' is not UTF-8");
    nnt_free(a);
    nnt_free(b);
    remove_all();
}

int main(int argc, char **argv)
{
    TEST_BEGIN(argc, argv);
    make_data();
    quick = nnti_file_calls_default();
    quick.flush_fn = no_flush;
    TEST(a_run_stopped_anywhere_goes_on_with_the_same_bits);
    TEST(a_finished_run_is_not_run_again_but_can_be_made_longer);
    TEST(a_loop_of_ones_own_goes_on_with_the_same_bits);
    TEST(the_learning_rate_is_that_of_then_unless_compiled_with_another);
    TEST(the_newest_ones_are_kept);
    TEST(the_best_epoch_is_kept_and_patience_ends);
    TEST(a_link_stays_a_link);
#ifndef _WIN32
    TEST(a_run_killed_at_random_instants_ends_with_the_same_bits);
    TEST(a_full_disk_leaves_a_whole_snapshot);
#  ifdef __linux__
    TEST(a_full_file_system_leaves_a_whole_snapshot);
#  endif
#endif
    TEST(every_failing_call_leaves_a_whole_snapshot);
    TEST(running_out_of_memory_anywhere_changes_nothing);
    TEST(a_snapshot_cut_anywhere_is_refused);
    TEST(a_flipped_bit_is_refused_or_trains_on);
    TEST(columns_that_an_older_file_lacks_are_zero);
    TEST(what_does_not_fit_is_refused_in_words);
    TEST(a_diverging_run_leaves_the_last_good_snapshot);
    TEST(prefixes_map_names);
    TEST(what_is_missing_or_extra_is_told_or_refused);
    TEST(snapshots_load_strictly_as_weights);
    TEST(metadata_go_with_the_weights);
    return TEST_END();
}
