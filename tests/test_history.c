/* test_history.c - what is written about a run: records of steps, CSV, TensorBoard events, the page, the progress line.

   TensorBoard's files are read back by the Python package where NNT_TEST_PYTHON (an environment variable) has it, the page
   by Python's own parsers. Files are made in the folder NNT_TEST_TMP and removed. */
#ifdef __linux__
#  define _GNU_SOURCE           /* posix_openpt */
#endif
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include "test.h"

#ifndef NNT_TEST_TMP
#  define NNT_TEST_TMP "."
#endif
#define FILE_CSV  NNT_TEST_TMP "/test_history.csv"
#define FILE_HTML NNT_TEST_TMP "/test_history.html"
#define FILE_SNAPSHOT NNT_TEST_TMP "/test_history.snapshot"

enum { SIDE = 8, SAMPLES = 40, CLASSES = 3, BATCH = 8, BATCHES = 5, MANY = 6000 };

static float   data_x[SAMPLES * SIDE * SIDE];
static int32_t data_labels[SAMPLES];
typedef struct run { nnt_dataset *data; nnt_loader *loader, *validation; nnt_net *net; double loss[MANY]; int steps; } run;

static int note_loss(void *user, nnt_net *net, const nnt_progress_info *info)
{
    run *r = (run *)user;
    (void)net;
    if (info->event == NNT_EVENT_STEP) {
        if (r->steps < MANY) r->loss[r->steps] = info->loss;
        r->steps++;
    }
    return 0;
}
static void run_build(run *r)
{
    static const char *const names[] = { "a<b", "gr\xc3\xb6\xc3\x9f\"er", "c&d" };
    nnt_arrays_desc d;
    nnt_loader_desc l;
    nnt_compile_desc c;
    nnti_random_key key;
    nnt_node x;
    int i;
    memset(r, 0, sizeof *r);
    memset(&d, 0, sizeof d);
    memset(&l, 0, sizeof l);
    memset(&c, 0, sizeof c);
    memset(&key, 0, sizeof key);
    nnti_random_fill(NNTI_ISA_C, NNTI_DRAW_NORMAL, data_x, 0, SAMPLES * SIDE * SIDE, &key);
    for (i = 0; i < SAMPLES; i++) data_labels[i] = i % CLASSES;
    d.count = SAMPLES;
    d.channels = 1;
    d.height = d.width = SIDE;
    d.x = data_x;
    d.labels = data_labels;
    l.batch = c.batch = BATCH;
    l.workers = NNT_NO_WORKERS;
    c.threads = 1;
    c.optimizer = nnt_adam(1e-3f);
    r->data = nnt_dataset_arrays(d, NULL);
    r->loader = nnt_loader_new(r->data, l, NULL);
    r->net = nnt_new(NULL);
    x = nnt_relu(nnt_name(nnt_conv2d(nnt_input(r->net, 1, SIDE, SIDE), 2, 3, 2, 0), "a<\"b\">&"));
    CHECK(nnt_compile(r->net, nnt_cross_entropy(nnt_linear(x, CLASSES)), c) == NNT_OK);
    for (i = 0; i < CLASSES; i++) {
        char name[32];
        sprintf(name, "class.%d", i);
        CHECK(nnt_set_metadata(r->net, name, names[i]) == NNT_OK);
    }
    r->validation = nnt_loader_new(r->data, l, NULL);
}
static void run_make(run *r, int epochs, int profile)
{
    nnt_fit_desc f;
    run_build(r);
    memset(&f, 0, sizeof f);
    f.epochs = epochs;
    f.validation = r->validation;
    f.callback = note_loss;
    f.user = r;
    if (profile) CHECK(nnt_profile_start(r->net) == NNT_OK);
    CHECK(nnt_fit(r->net, r->loader, f) == NNT_OK);
}
static void run_free(run *r)
{
    nnt_free(r->net);
    nnt_loader_free(r->loader);
    nnt_loader_free(r->validation);
    nnt_dataset_free(r->data);
}
static char *text_of(const char *path, size_t *length)
{
    static char text[4 << 20];
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    if (length) *length = n;
    return text;
}

static void steps_are_recorded_and_put_together(void)
{
    static run r;
    int epochs, count, i, k, at = 0;
    const nnt_step_record *s;
    for (epochs = 7; epochs <= 1100; epochs += 1093) {
        run_make(&r, epochs, 0);
        s = nnt_step_history(r.net, &count);
        CHECK(count <= NNT_HISTORY_STEPS && count > (epochs == 7 ? 34 : NNT_HISTORY_STEPS / 2 - 1));
        for (i = 0, at = 0; i < count; i++) {
            double sum = 0;
            for (k = 0; k < s[i].steps; k++) sum += r.loss[at + k];
            CHECKF(fabs(sum / (double)s[i].steps - (double)s[i].loss) < 1e-5, "record %d: %g and %g", i, sum / (double)s[i].steps, (double)s[i].loss);   /* floats of about 1 */
            at += (int)s[i].steps;
            CHECK(s[i].step == at && s[i].steps == s[0].steps && s[i].samples_per_second > 0 && s[i].wait_share >= 0 && s[i].wait_share <= 1.01f);
            CHECK(i == 0 || s[i].seconds >= s[i - 1].seconds);
        }
        CHECK(r.steps - at < s[0].steps && r.steps == epochs * BATCHES);
        run_free(&r);
    }
    CHECK(nnt_step_history(NULL, &count) == NULL && count == 0);
}
static void the_table_has_all_figures(void)
{
    static run r;
    const nnt_step_record *s;
    const nnt_progress_info *h;
    nnt_memory memory;
    int epochs, count, steps = 0, lines = 0;
    char *line;
    run_make(&r, 4, 0);
    s = nnt_step_history(r.net, &count);
    h = nnt_history(r.net, &epochs);
    memory = r.net->plan.memory;
#ifdef __linux__
    CHECKF(h[0].process_bytes > 1e5 && h[0].process_bytes < 1e9, "%g", h[0].process_bytes);
#endif
    CHECK(nnt_history_csv(r.net, FILE_CSV) == NNT_OK);
    for (line = strtok(text_of(FILE_CSV, NULL), "\n"); line; line = strtok(NULL, "\n")) {
        double v[9];
        int n;
        if (lines++ == 0) {
            CHECK_TEXT(line, "kind,epoch,step,seconds,loss,accuracy,validation_loss,validation_accuracy,learning_rate,samples_per_second,wait_share,process_bytes,device_bytes");
        } else if (sscanf(line, "step,,%lf,%lf,%lf,%lf,,,%lf,%lf,%lf,%lf,", v, v + 1, v + 2, v + 3, v + 4, v + 5, v + 6, v + 7) == 8) {
            CHECK((int64_t)v[0] == s[steps].step && fabs(v[2] - (double)s[steps].loss) < 1e-5 && fabs(v[4] - 1e-3) < 1e-8);
            steps++;
        } else {
            CHECKF(sscanf(line, "epoch,%d,%lf,%lf,%lf,%lf,%lf,%lf,%lf,%*f,%*f,%lf,%lf", &n, v, v + 1, v + 2, v + 3, v + 4, v + 5, v + 6, v + 7, v + 8) == 10, "%s", line);
            CHECK(fabs(v[7] - h[n - 1].process_bytes) <= 1e-5 * v[7] && fabs(v[8] - (double)memory.total) <= 1e-5 * v[8] && v[8] == h[n - 1].device_bytes);
            CHECK(n == lines - 1 - count && (int64_t)v[0] == h[n - 1].step && fabs(v[2] - h[n - 1].loss) < 1e-5 && fabs(v[4] - h[n - 1].validation.loss) < 1e-5);
        }
    }
    CHECK(steps == count && lines == 1 + count + epochs);
    remove(FILE_CSV);
    run_free(&r);
}
static void events_are_records_with_the_right_sums(void)
{
    static run r;
    const char *python = getenv("NNT_TEST_PYTHON");
    char path[300], command[900];
    size_t length, at = 0;
    int records = 0, count, epochs;
    char *file;
    CHECK(nnti_record_crc("123456789", 9) == ((0xE3069283u >> 15 | 0xE3069283u << 17) + 0xa282ead8u));      /* the usual check value of CRC-32C */
    run_make(&r, 4, 0);
    nnt_step_history(r.net, &count);
    nnt_history(r.net, &epochs);
    CHECKF(nnt_history_tensorboard(r.net, NNT_TEST_TMP) == NNT_OK, "%s", nnt_error(r.net));
    sprintf(path, "%s/events.out.tfevents.%ld.nntrain", NNT_TEST_TMP, (long)((double)time(NULL) - (nnti_seconds() - r.net->fit.start)));
    file = text_of(path, &length);
    if (!length) { path[strlen(path) - 9]--; file = text_of(path, &length); }           /* the second changed meanwhile */
    while (at + 12 <= length) {
        uint64_t n = nnti_get_le64((unsigned char *)file + at);
        CHECK(nnti_get_le32((unsigned char *)file + at + 8) == nnti_record_crc(file + at, 8));
        CHECK(n < 200 && at + 16 + n <= length && nnti_get_le32((unsigned char *)file + at + 12 + n) == nnti_record_crc(file + at + 12, (size_t)n));
        at += 16 + (size_t)n;
        records++;
    }
    CHECK(at == length && records == 1 + 6 * count + 8 * epochs);
    if (python && strlen(python) < 300) {
        static const char script[] = NNT_TEST_TMP "/test_history.py";
        FILE *f = fopen(script, "wb");
        fprintf(f, "import sys\nfrom tensorboard.backend.event_processing.event_file_loader import EventFileLoader\n"
                   "e = [x for x in EventFileLoader(sys.argv[1]).Load()]\nassert e[0].file_version == 'brain.Event:2'\n"
                   "v = lambda x: x.simple_value if x.WhichOneof('value') == 'simple_value' else x.tensor.float_val[0]\n"
                   "s = [(x.step, v(y)) for x in e[1:] for y in x.summary.value if y.tag == 'train/loss']\nassert len(s) == %d, len(s)\n", count);
        for (at = 0; (int)at < count; at++)
            fprintf(f, "assert s[%d][0] == %d and abs(s[%d][1] - %.9g) < 1e-7\n", (int)at, (int)r.net->trace.at[at].step, (int)at, (double)r.net->trace.at[at].loss);
        fclose(f);
        sprintf(command, "\"%s\" -c \"import tensorboard\" 2>/dev/null", python);
        if (system(command) == 0) {
            sprintf(command, "\"%s\" %s %s", python, script, path);
            CHECK(system(command) == 0);
        }
        remove(script);
    }
    remove(path);
    CHECK(nnt_history_tensorboard(r.net, NNT_TEST_TMP "/none") == NNT_ERR_FILE);
    run_free(&r);
}
/* Every element is closed, in the order of opening: what a browser has to guess is wrong. */
static int well_formed(const char *s)
{
    static char open[64][16];
    int depth = 0;
    for (s = strchr(s, '<'); s; s = strchr(s + 1, '<')) {
        char name[16];
        size_t n = strcspn(s + 1, " />\n");
        const char *end = strchr(s, '>');
        if (s[1] == '!' || !end) continue;
        if (strncmp(s, "<script>", 8) == 0) { s = strstr(s, "</script>"); continue; }
        if (strncmp(s, "<style>", 7) == 0) { s = strstr(s, "</style>"); continue; }
        if (n > 15) return 0;
        memcpy(name, s + 1, n);
        name[n] = 0;
        if (s[1] == '/') {
            n = strcspn(s + 2, ">");
            if (depth-- == 0 || strncmp(open[depth], s + 2, n) || open[depth][n]) return 0;
        } else if (end[-1] != '/' && strcmp(name, "meta") != 0) {
            if (depth == 64) return 0;
            strcpy(open[depth++], name);
        }
    }
    return depth == 0;
}
static void the_page_needs_nothing_from_elsewhere(void)
{
    static run r;
    nnt_report_desc d;
    size_t length;
    char *page, *at;
    int profile;
    memset(&d, 0, sizeof d);
    for (profile = 0; profile < 2; profile++) {
        run_make(&r, 15, profile);
        d.data = r.loader;
        d.title = "a < b";
        CHECKF(nnt_report_html(r.net, FILE_HTML, d) == NNT_OK, "%s", nnt_error(r.net));
        page = text_of(FILE_HTML, &length);
        CHECKF(length > 5000 && length < 500000, "%d bytes", (int)length);
        CHECK(well_formed(page));
        CHECK(strstr(page, "<title>a &lt; b</title>") && strstr(page, "gr\xc3\xb6\xc3\x9f&quot;er") && strstr(page, "Answered wrongly") && strstr(page, "Filters of the first layer"));
        CHECK(strstr(page, ">planned on the device</text>") && strstr(page, "<th>validation loss</th>"));
        CHECK((strstr(page, "<h2>Profile</h2>") != NULL) == (profile == 1));
        for (at = page; (at = strstr(at, "http")) != NULL; at++) CHECKF(strncmp(at - 7, "xmlns=\"http://www.w3.org/", 24) == 0, "%.60s", at);
        for (at = page; (at = strstr(at, "src=")) != NULL; at++) CHECK(strncmp(at, "src=\"data:image/png;base64,", 27) == 0);
        for (at = page; (at = strstr(at, "href")) != NULL; at++) CHECK(0);
        CHECK(!strstr(page, "nan") && !strstr(page, "inf\"") && !strstr(page, "a<\"b\">"));
        remove(FILE_HTML);
        run_free(&r);
    }
    {
        nnt_net *net = nnt_new(NULL);
        CHECK(nnt_report_html(net, FILE_HTML, d) == NNT_ERR_STATE && nnt_history_csv(net, FILE_CSV) == NNT_ERR_STATE && nnt_history_csv(NULL, FILE_CSV) == NNT_ERR_ARGUMENT);
        CHECK_TEXT(nnt_error(net), "nnt_history_csv: there is no history; call nnt_fit first");
        nnt_free(net);
    }
}
#ifdef NNT_TEST_STB
#define STBI_ONLY_PNG
#define STB_IMAGE_STATIC
#define STB_IMAGE_IMPLEMENTATION
#if defined(__GNUC__)
#  pragma GCC diagnostic ignored "-Wunused-function"
#endif
#include "stb_image.h"
static void pictures_of_the_page_are_pngs(void)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned char pixels[7 * 5 * 3], png[2000];
    char text[3000];
    int channels, width, height, got, i;
    for (i = 0; i < (int)sizeof pixels; i++) pixels[i] = (unsigned char)(37 * i);
    for (channels = 1; channels <= 3; channels += 2)
        for (height = 1; height <= 5; height++) {
            nnti_text t = nnti_text_begin(text, sizeof text);
            const char *c;
            uint32_t bits = 0;
            int n = 0, k = 0;
            unsigned char *back;
            nnti_put_inline_png(&t, pixels, 7, height, channels);
            nnti_text_end(&t);
            for (c = strchr(text, ',') + 1; strchr(digits, *c); c++) {
                bits = bits << 6 | (uint32_t)(strchr(digits, *c) - digits);
                if (++k % 4) png[n++] = (unsigned char)(bits >> (6 - 2 * (k % 4 - 1)) & 255u);
                if (k % 4 == 1) n--;
                else if (k % 4 == 0) png[n++] = (unsigned char)(bits & 255u);
            }
            back = stbi_load_from_memory(png, n, &width, &i, &got, 0);
            CHECKF(back && width == 7 && i == height && got == channels && memcmp(back, pixels, (size_t)(7 * height * channels)) == 0, "%dx7x%d: %s", height, channels, back ? "" : stbi_failure_reason());
            stbi_image_free(back);
        }
}
#endif
/* What is seen of a line: no control characters. */
static int seen(const char *s)
{
    int n = 0;
    for (; *s; s++) {
        if (*s == '\033') { while (*s && *s != 'm' && *s != 'K') s++; continue; }
        if (*s != '\r') n++;
    }
    return n;
}
static void the_bar_fits_any_terminal(void)
{
    nnt_progress_info p;
    int width;
    memset(&p, 0, sizeof p);
    p.epoch = 2;
    p.epochs = 15;
    p.batch = 500;
    p.batches = 938;
    p.loss_mean = 0.12345;
    p.seconds_left = 3725;
    p.samples_per_second = 1234;
    for (width = 20; width < 200; width++) {
        char line[320];
        nnti_text t = nnti_text_begin(line, sizeof line);
        nnti_put_bar(&t, &p, width, width % 2);
        nnti_text_end(&t);
        CHECKF(seen(line) < width, "%d columns: %d used", width, seen(line));
        CHECK((strstr(line, "\033[32m") != NULL) == width % 2);
        if (width == 80) CHECK_TEXT(line, "\r  3/15  [==============             ]  loss 0.1235  left 1:02:05  1234 images/s\033[K");
        p.epochs = 12345;
        t = nnti_text_begin(line, sizeof line);
        nnti_put_bar(&t, &p, width, 0);
        nnti_text_end(&t);
        CHECKF(seen(line) < width, "%d columns: %d used", width, seen(line));
        p.epochs = 15;
    }
}
static const char *epoch_line(const nnt_progress_info *p, int width)
{
    static char line[400];
    nnti_text t = nnti_text_begin(line, sizeof line);
    nnti_put_epoch_line(&t, p, width);
    nnti_text_end(&t);
    return line;
}
static void the_line_of_an_epoch_fits_any_terminal(void)
{
    nnt_progress_info p;
    int width;
    memset(&p, 0, sizeof p);
    p.epoch = 2;
    p.epochs = 15;
    p.loss = 0.12345;
    p.accuracy = 0.9612;
    p.validation.loss = 0.23456;
    p.validation.accuracy = 0.9512;
    p.samples_per_second = 1234;
    p.seconds = 3725;
    for (p.has_validation = 0; p.has_validation < 2; p.has_validation++)
        for (width = 20; width < 200; width++) {
            const char *line = epoch_line(&p, width);
            CHECKF(seen(line) - 1 < width && strchr(line, '\n') == line + strlen(line) - 1, "%d columns: %s", width, line);
        }
    p.has_validation = 1;
    CHECK_TEXT(epoch_line(&p, 0),
               "  3/15  loss 0.1235  accuracy 96.12 %  validation loss 0.2346  accuracy 95.12 %  1234 images/s  1:02:05\n");
    CHECK_TEXT(epoch_line(&p, 105), epoch_line(&p, 0));
    CHECK_TEXT(epoch_line(&p, 100),
               "  3/15  loss 0.1235  accuracy 96.12 %  validation loss 0.2346  accuracy 95.12 %  1:02:05\n");
    CHECK_TEXT(epoch_line(&p, 80), "  3/15  loss 0.1235  accuracy 96.12 %  validation loss 0.2346  accuracy 95.12 %\n");
    CHECK_TEXT(epoch_line(&p, 60), "  3/15  validation loss 0.2346  accuracy 95.12 %  1:02:05\n");
    CHECK_TEXT(epoch_line(&p, 40), "  3/15  loss 0.1235  accuracy 96.12 %\n");
    p.has_validation = 0;
    CHECK_TEXT(epoch_line(&p, 80), "  3/15  loss 0.1235  accuracy 96.12 %  1234 images/s  1:02:05\n");
    CHECK_TEXT(epoch_line(&p, 60), "  3/15  loss 0.1235  accuracy 96.12 %  1:02:05\n");
    CHECK_TEXT(epoch_line(&p, 40), "  3/15  loss 0.1235  accuracy 96.12 %\n");
    CHECK_TEXT(epoch_line(&p, 20), "  3/15  loss 0.1235\n");
    p.loss = 1e30;
    CHECK_TEXT(epoch_line(&p, 20), "  3/15  loss 1e30\n");
}

#ifdef __linux__
/* ---- what a person sees: a run whose stderr is a pseudo-terminal, or a file */

enum { ROWS = 12, COLUMNS = 72 };
typedef struct screen { char row[ROWS][COLUMNS + 1]; int y, x; } screen;

/* What a terminal makes of the bytes; one that writes past the last column loses it. */
static void screen_show(screen *s, const char *bytes)
{
    for (; *bytes; bytes++) {
        if (*bytes == '\r') s->x = 0;
        else if (*bytes == '\n') { s->x = 0; s->y = nnti_min(s->y + 1, ROWS - 1); }
        else if (*bytes == '\033') {
            bytes += strcspn(bytes, "Km");
            if (*bytes == 'K') memset(s->row[s->y] + s->x, 0, (size_t)(COLUMNS - s->x));
        } else if (s->x < COLUMNS) s->row[s->y][s->x++] = *bytes;
    }
}
static int terminal_open(int *slave)
{
    struct winsize size = { ROWS, COLUMNS, 0, 0 };
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    *slave = -1;
    if (master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0) *slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    if (*slave >= 0 && ioctl(*slave, TIOCSWINSZ, &size) == 0) return master;
    if (*slave >= 0) close(*slave);
    if (master >= 0) close(master);
    return -1;
}
/* What f prints on stderr while that is a terminal, or a file; NULL where it can't be had. */
static const char *printed(int on_terminal, void (*f)(int), int argument)
{
    static char text[8192];
    FILE *file = on_terminal ? NULL : tmpfile();
    int to = file ? fileno(file) : -1, from = to, keep;
    size_t length = 0;
    ssize_t n;
    if (on_terminal) from = terminal_open(&to);
    if (from < 0) return NULL;
    fflush(stderr);
    keep = dup(2);
    dup2(to, 2);
    f(argument);
    fputs("next\n", stderr);
    fflush(stderr);
    dup2(keep, 2);
    close(keep);
    if (file) rewind(file);
    do {                                        /* all of it is less than a terminal keeps for its reader */
        n = read(from, text + length, sizeof text - 1 - length);
        if (n > 0) length += (size_t)n;
        text[length] = 0;
    } while (n > 0 && !strstr(text, "next"));
    if (file) fclose(file);
    else { close(to); close(from); }
    return text;
}
/* How a run of two epochs ends. */
enum { AT_THE_END, BY_CALLBACK, BY_CALLBACK_AFTER_THE_EPOCH, BY_NAN, BY_SAMPLE, BY_VALIDATION, BY_RESUMING_WHAT_IS_OVER, WAYS };
static int progress_and_stop(void *user, nnt_net *net, const nnt_progress_info *info)
{
    const int way = *(const int *)user, stop = nnt_progress(NULL, net, info);
    if (way == BY_NAN) CHECK(nnt_set_learning_rate(net, 1e38f) == NNT_OK);
    if (way == BY_CALLBACK) return stop || info->step == BATCHES + 3;
    return stop || (way == BY_CALLBACK_AFTER_THE_EPOCH && info->event == NNT_EVENT_EPOCH);
}
static nnt_result read_some(void *user, int64_t index, float *x, int32_t *label, float *target, char *why, size_t cap)
{
    (void)user; (void)target;
    memcpy(x, data_x + index * SIDE * SIDE, SIDE * SIDE * sizeof *x);
    *label = data_labels[index];
    nnti_format(why, cap, "can't be read");
    return index == BATCH + 1 ? NNT_ERR_DATA : NNT_OK;
}
static void fit_until(int way)
{
    static const nnt_result want[WAYS] = {
        NNT_OK, NNT_ERR_STOPPED, NNT_ERR_STOPPED, NNT_ERR_NOT_FINITE, NNT_ERR_DATA, NNT_ERR_DATA, NNT_OK
    };
    static run r;
    nnt_reader_desc d;
    nnt_loader_desc l;
    nnt_fit_desc f;
    nnt_dataset *some;
    nnt_loader *failing;
    nnt_result got;
    memset(&d, 0, sizeof d);
    memset(&l, 0, sizeof l);
    memset(&f, 0, sizeof f);
    d.count = SAMPLES;
    d.channels = 1;
    d.height = d.width = SIDE;
    d.classes = CLASSES;
    d.read_fn = read_some;
    l.batch = BATCH;
    l.workers = NNT_NO_WORKERS;
    some = nnt_dataset_reader(d, NULL);
    failing = nnt_loader_new(some, l, NULL);
    run_build(&r);
    f.epochs = 2;
    f.callback = progress_and_stop;
    f.user = &way;
    f.validation = way == BY_VALIDATION ? failing : NULL;
    f.checkpoint.path = way == BY_RESUMING_WHAT_IS_OVER || way == AT_THE_END ? FILE_SNAPSHOT : NULL;
    f.checkpoint.resume = way == BY_RESUMING_WHAT_IS_OVER;
    got = nnt_fit(r.net, way == BY_SAMPLE ? failing : r.loader, f);
    CHECKF(got == want[way], "%d: %d, %s", way, (int)got, nnt_error(r.net));
    nnt_loader_free(failing);
    nnt_dataset_free(some);
    run_free(&r);
}
static void what_is_printed_next_has_a_line_of_its_own(void)
{
    static const char *const rows[WAYS] = { "EE", "EB", "E", "B", "B", "B", "" };       /* an epoch's line, a bar */
    static screen s;
    int way, i;
    for (way = 0; way < WAYS; way++) {
        const char *text = printed(1, fit_until, way);
        int count = (int)strlen(rows[way]), epochs = 0;
        if (!text) SKIP("no pseudo-terminal");
        memset(&s, 0, sizeof s);
        screen_show(&s, text);
        CHECKF(s.y == count + 1 && s.x == 0 && !strcmp(s.row[count], "next"), "%d: row %d: %s", way, s.y, s.row[count]);
        for (i = 0; i < count; i++) {
            const char *row = s.row[i];
            CHECKF(!strncmp(row, i ? "  2/2" : "  1/2", 5) && strstr(row, "  loss "), "%d: %s", way, row);
            CHECKF((strchr(row, '[') != NULL) == (rows[way][i] == 'B') && !row[COLUMNS - 1], "%d: %s", way, row);
            epochs += rows[way][i] == 'E';
        }
        text = printed(0, fit_until, way);
        for (i = 0; text && *text; i++, text = strchr(text, '\n') + 1) {
            const char *want = i == epochs ? "next\n" : i ? "  2/2  loss " : "  1/2  loss ";
            CHECKF(!strncmp(text, want, strlen(want)), "%d: %s", way, text);
        }
        CHECK(i == epochs + 1);
    }
    remove(FILE_SNAPSHOT);
}
#endif


static void axes_have_round_numbers(void)
{
    static const double least[] = { 1, 1.1, 2.1, 5.1, 0.3, 0.02, 469, 1e-30, 2e29 }, step[] = { 1, 2, 5, 10, 0.5, 0.02, 500, 1e-30, 2e29 };
    static const float values[][2] = { { 0.0f, 0.0f }, { 5.0f, 5.0f }, { -1.0f, 1.0f }, { 0.0671f, 1.59f }, { 3.0f, 3.0000002f }, { -3e37f, 9e29f }, { 1e-38f, 2e-38f } };
    static const nnti_series loss = { "step", 0, NNTI_OF_LOSS, 1 }, speed = { "speed", 0, NNTI_OF_SPEED, 1 };
    nnt_step_record two[2];
    nnt_net net;
    size_t i;
    for (i = 0; i < sizeof least / sizeof *least; i++)
        CHECKF(fabs(nnti_round_step(least[i]) / step[i] - 1) < 1e-12, "%g: %g", least[i], nnti_round_step(least[i]));      /* pow() rounds */
    memset(&net, 0, sizeof net);
    net.trace.at = two;
    net.trace.count = 2;
    for (i = 0; i < sizeof values / sizeof *values; i++) {
        nnti_axes a;
        double lines;
        memset(two, 0, sizeof two);
        two[0].loss = two[0].samples_per_second = values[i][0];
        two[1].loss = two[1].samples_per_second = values[i][1];
        two[1].step = 1876;
        CHECK(nnti_chart_range(&net, &loss, 1, &a));
        lines = (a.y1 - a.y0) / a.y_step;
        CHECKF(lines > 0.99 && lines < 7.01 && a.y1 > a.y0 && a.x_step == 500 && a.x1 == 1876, "%d: %g to %g by %g", (int)i, a.y0, a.y1, a.y_step);
        CHECK(a.y0 <= (double)values[i][1] && a.y1 >= (double)values[i][1]);
        CHECK(nnti_chart_range(&net, &speed, 1, &a) && a.y0 <= 0);
    }
    two[0].loss = two[1].loss = (float)HUGE_VAL;
    CHECK(!nnti_series_shown(&net, &loss));
}

int main(int argc, char **argv)
{
    TEST_BEGIN(argc, argv);
    TEST(steps_are_recorded_and_put_together);
    TEST(the_table_has_all_figures);
    TEST(events_are_records_with_the_right_sums);
    TEST(the_page_needs_nothing_from_elsewhere);
#ifdef NNT_TEST_STB
    TEST(pictures_of_the_page_are_pngs);
#endif
    TEST(axes_have_round_numbers);
    TEST(the_bar_fits_any_terminal);
    TEST(the_line_of_an_epoch_fits_any_terminal);
#ifdef __linux__
    TEST(what_is_printed_next_has_a_line_of_its_own);
#endif
    return TEST_END();
}
