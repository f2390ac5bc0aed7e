/* fuzz_snapshot.c - whatever bytes a snapshot has, resuming from it is refused in words with net and loader as they were,
   or gives a run that can go on; never more memory than the file justifies. How to run it: fuzz.h. */
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include "fuzz.h"

enum { SAMPLES = 7, BATCH = 2, FUZZ_SEEDS = 8 };
typedef struct run { nnt_dataset *data; nnt_loader *loader; nnt_net *net; } run;

static run run_make(const nnt_allocator *a, uint32_t number)
{
    static float x[SAMPLES * 4];
    static const int32_t labels[SAMPLES] = { 0, 1, 0, 1, 0, 1, 0 };
    nnt_arrays_desc d;
    nnt_loader_desc l;
    nnt_compile_desc c;
    run r;
    int i;
    memset(&d, 0, sizeof d);
    memset(&l, 0, sizeof l);
    memset(&c, 0, sizeof c);
    for (i = 0; i < SAMPLES * 4; i++) x[i] = (float)(i % 5) * 0.25f;
    d.count = SAMPLES;
    d.channels = 4;
    d.height = d.width = 1;
    d.x = x;
    d.labels = labels;
    l.batch = BATCH;
    l.shuffle = 1;
    l.workers = NNT_NO_WORKERS;
    c.batch = BATCH;
    c.threads = 1;
    c.optimizer = number % 2 ? nnt_sgd(0.1f) : nnt_adam(0.01f);
    c.optimizer.momentum = 0.9f;
    c.optimizer.accumulate = number % 4 < 2 ? 1 : 3;
    r.data = nnt_dataset_arrays(d, a);
    r.loader = nnt_loader_new(r.data, l, a);
    r.net = nnt_new(a);
    RULE(nnt_compile(r.net, nnt_cross_entropy(nnt_name(nnt_linear(nnt_input(r.net, 4, 1, 1), 2), "fc")), c) == NNT_OK);
    return r;
}
static void run_free(run *r)
{
    nnt_free(r->net);
    nnt_loader_free(r->loader);
    nnt_dataset_free(r->data);
}

static int try_input(const uint8_t *data, size_t size)
{
    counted m;
    nnt_allocator a = counted_allocator(&m);
    fuzz_image f;
    nnti_source s = fuzz_source(&f, data, size);
    nnti_st st;
    run r = run_make(&a, size ? data[size - 1] : 0);
    nnti_error *e = &r.net->error;
    size_t before = m.live;
    nnt_result got;
    nnti_clear_error(e);
    m.peak = m.live;
    got = nnti_st_open(&st, &a, &s, "resume", "input", e);
    if (!got) got = nnti_resume_from(r.net, r.loader, &st);
    nnti_st_close(&st);
    RULE(m.peak - before < 200000 + 20 * size);         /* the header, a record for each tensor, history and values */
    if (got) {
        RULE(e->code == (int)got && strncmp(e->text, "resume 'input': ", 16) == 0 && e->text[16] && nnti_utf8_valid(e->text, strlen(e->text)));
        RULE(nnt_steps(r.net) == 0 && nnt_loader_epoch(r.loader) == 0 && nnt_loader_batch(r.loader) == 0 && !r.net->fit.resumed);
    } else {
        nnt_batch b;
        int i;
        for (i = 0; i < 3 && nnt_loader_next(r.loader, &b) == NNT_OK; i++)
            if (b.count) (void)nnt_step(r.net, &b, NULL);           /* weights may be any numbers, also such that it diverges */
    }
    run_free(&r);
    RULE(m.live == 0);
    return got == NNT_OK;
}

static const char *const fuzz_words[] = {
    "\"nntrain.counts\":", "\"nntrain.values\":", "\"nntrain.history\":", "\"nntrain.exp_avg.fc.weight\":", "\"fc.weight\":",
    "\"F64\"", "\"I64\"", "\"F32\"", "\"BF16\"", "[0,18]", "[1,18]", "[18]", "[2,4]", "[]", "{", "}", "[", "]", ",", ":", "\"", "\\u0000",
    "\"__metadata__\":{\"a\":\"b\"},", "0", "9223372036854775807", "\xff\xff\xff\xff\xff\xff\xff\x7f", "\xff\xff\xff\xff\xff\xff\xff\xff"
};
/* Snapshots of runs in every state: each optimizer, with and without gradients that wait, made by the writer itself. */
static size_t fuzz_seed(uint8_t *to, uint32_t number)
{
    static uint8_t kept[FUZZ_SEEDS][FUZZ_MAX];
    static size_t length[FUZZ_SEEDS];
    if (!length[number]) {
        char path[300];
        run r = run_make(NULL, number);
        nnt_batch b;
        FILE *f;
        uint32_t i;
        for (i = 0; i <= number; i++) RULE(nnt_loader_next(r.loader, &b) == NNT_OK && (!b.count || nnt_step(r.net, &b, NULL) == NNT_OK));
        if (number > 4) RULE(nnt_set_metadata(r.net, "class.0", "cat") == NNT_OK);
        sprintf(path, "%s/snapshot", fuzz_folder());
        RULE(nnt_snapshot(r.net, r.loader, path) == NNT_OK);
        f = fopen(path, "rb");
        RULE(f != NULL);
        length[number] = fread(kept[number], 1, FUZZ_MAX - 1, f);
        fclose(f);
        remove(path);
        kept[number][length[number]] = 0;
        run_free(&r);
    }
    memcpy(to, kept[number], length[number]);
    return length[number];
}
static size_t make_input(uint8_t *to, fuzz_dice *d)
{
    return fuzz_mutate(to, fuzz_seed(to, d->number % FUZZ_SEEDS), d, fuzz_words, sizeof fuzz_words / sizeof *fuzz_words);
}
