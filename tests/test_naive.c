/* test_naive.c - the references that kernels are compared with: their gradients are the differences of their forward. */
#include <math.h>
#include "test.h"
#include "naive.h"

static unsigned naive_state = 7;
static float naive_value(void)
{
    naive_state = naive_state * 1664525u + 1013904223u;
    return (float)(int)(naive_state >> 16) / 16384.0f - 2.0f;       /* multiples of 2^-14: x + 2^-6 is exact in a float */
}
/* The loss: sum over outputs of gy y, in double. */
static double conv_loss(const naive_conv *s, const float *x, const float *w, const float *gy, double *y, size_t outputs)
{
    double sum = 0;
    size_t i;
    for (i = 0; i < outputs; i++) y[i] = 0;
    naive_conv_forward(s, x, w, y);
    for (i = 0; i < outputs; i++) sum += (double)gy[i] * y[i];
    return sum;
}
/* The loss is linear in each operand, so central differences are its gradient but for roundings: 1e-10 relative. */
static void convolution_gradients_are_differences_of_the_loss(void)
{
    static const naive_conv cases[] = {
        /* n c  h  w  f kh kw sh sw ph pw dh dw g */
        { 2, 3, 5, 4, 2, 3, 3, 1, 1, 1, 1, 1, 1, 1 },
        { 1, 4, 7, 6, 4, 2, 3, 3, 2, 0, 1, 1, 1, 2 },       /* stride leaves a rest, groups */
        { 2, 2, 9, 9, 2, 3, 3, 2, 2, 2, 2, 2, 2, 2 },       /* dilation, depthwise */
        { 1, 1, 4, 4, 3, 4, 4, 1, 1, 0, 0, 1, 1, 1 } };     /* kernel as large as the input */
    const double h = 1.0 / 64;
    int k;
    for (k = 0; k < (int)(sizeof cases / sizeof *cases); k++) {
        const naive_conv *s = &cases[k];
        const size_t nx = (size_t)(s->n * s->c * s->h * s->w), nw = (size_t)(s->f * (s->c / s->g) * s->kh * s->kw);
        const size_t ny = (size_t)(s->n * s->f * naive_conv_out_h(s) * naive_conv_out_w(s));
        float x[512], w[512], gy[512];
        double y[512], gx[512] = { 0 }, gw[512] = { 0 }, gb[8] = { 0 };
        size_t i;
        if (nx > 512 || nw > 512 || ny > 512) { CHECK(0); continue; }
        for (i = 0; i < nx; i++) x[i] = naive_value();
        for (i = 0; i < nw; i++) w[i] = naive_value();
        for (i = 0; i < ny; i++) gy[i] = naive_value();
        naive_conv_data(s, gy, w, gx);
        naive_conv_weight(s, x, gy, gw, gb);
        for (i = 0; i < nx + nw; i++) {
            float *at = i < nx ? &x[i] : &w[i - nx], was = *at;
            const double want = i < nx ? gx[i] : gw[i - nx];
            double up, down;
            *at = was + (float)h;
            up = conv_loss(s, x, w, gy, y, ny);
            *at = was - (float)h;
            down = conv_loss(s, x, w, gy, y, ny);
            *at = was;
            CHECKF(fabs((up - down) / (2 * h) - want) < 1e-10 * (1 + fabs(want)), "case %d, %s %d: %g and %g", k, i < nx ? "x" : "w", (int)i, (up - down) / (2 * h), want);
        }
        for (i = 0; i < (size_t)s->f; i++) {                /* bias is added to every output of its filter */
            double sum = 0;
            size_t j, plane = (size_t)(naive_conv_out_h(s) * naive_conv_out_w(s));
            for (j = 0; j < ny; j++) if (j / plane % (size_t)s->f == i) sum += (double)gy[j];
            CHECKF(fabs(sum - gb[i]) < 1e-10, "case %d, bias %d", k, (int)i);
        }
    }
}
static void linear_gradients_are_differences_of_the_loss(void)
{
    enum { N = 3, IN = 5, OUT = 4 };
    float x[N * IN], w[OUT * IN], gy[N * OUT];
    double gx[N * IN] = { 0 }, gw[OUT * IN] = { 0 }, gb[OUT] = { 0 };
    const double h = 1.0 / 64;
    int i, o;
    for (i = 0; i < N * IN; i++) x[i] = naive_value();
    for (i = 0; i < OUT * IN; i++) w[i] = naive_value();
    for (i = 0; i < N * OUT; i++) gy[i] = naive_value();
    naive_linear_data(N, IN, OUT, gy, w, gx);
    naive_linear_weight(N, IN, OUT, x, gy, gw, gb);
    for (i = 0; i < N * IN + OUT * IN; i++) {
        float *at = i < N * IN ? &x[i] : &w[i - N * IN], was = *at;
        const double want = i < N * IN ? gx[i] : gw[i - N * IN];
        double loss[2] = { 0, 0 };
        int side;
        for (side = 0; side < 2; side++) {
            double y[N * OUT] = { 0 };
            *at = was + (float)(side ? h : -h);
            naive_linear_forward(N, IN, OUT, x, w, y);
            for (o = 0; o < N * OUT; o++) loss[side] += (double)gy[o] * y[o];
        }
        *at = was;
        CHECKF(fabs((loss[1] - loss[0]) / (2 * h) - want) < 1e-10 * (1 + fabs(want)), "%d", i);
    }
    for (o = 0; o < OUT; o++) CHECK(fabs(gb[o] - ((double)gy[o] + (double)gy[OUT + o] + (double)gy[2 * OUT + o])) < 1e-12);
}

int main(int argc, char **argv)
{
    TEST_BEGIN(argc, argv);
    TEST(convolution_gradients_are_differences_of_the_loss);
    TEST(linear_gradients_are_differences_of_the_loss);
    return TEST_END();
}
