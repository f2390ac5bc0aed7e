/* naive.h - products, convolutions and fully connected layers as their definitions say, in double precision. What the
   library's kernels have to equal; shares no code with it. Layouts: NCHW, OIHW. */
#ifndef NAIVE_H
#define NAIVE_H

#include <stddef.h>

typedef struct naive_conv {
    int n, c, h, w, f, kh, kw, sh, sw, ph, pw, dh, dw,
        g; /* batch, input, filters, kernel, stride, pad, dilation, groups */
} naive_conv;

static int naive_conv_out_h(const naive_conv *s) { return (s->h + 2 * s->ph - s->dh * (s->kh - 1) - 1) / s->sh + 1; }
static int naive_conv_out_w(const naive_conv *s) { return (s->w + 2 * s->pw - s->dw * (s->kw - 1) - 1) / s->sw + 1; }

/* Calls take(x, y, w) with the indices of every product that the convolution sums. */
typedef void (*naive_conv_fn)(void *arg, size_t x, size_t y, size_t w);
static void naive_conv_each(const naive_conv *s, naive_conv_fn take, void *arg)
{
    const int oh = naive_conv_out_h(s), ow = naive_conv_out_w(s), cg = s->c / s->g, fg = s->f / s->g;
    int n, f, c, i, j, k, l;
    for (n = 0; n < s->n; n++)
        for (f = 0; f < s->f; f++)
            for (c = 0; c < cg; c++)
                for (k = 0; k < s->kh; k++)
                    for (l = 0; l < s->kw; l++)
                        for (i = 0; i < oh; i++)
                            for (j = 0; j < ow; j++) {
                                const int r = i * s->sh - s->ph + k * s->dh, q = j * s->sw - s->pw + l * s->dw;
                                if (r < 0 || q < 0 || r >= s->h || q >= s->w) continue;
                                take(arg,
                                     ((size_t)(n * s->c + f / fg * cg + c) * (size_t)s->h + (size_t)r) * (size_t)s->w
                                         + (size_t)q,
                                     ((size_t)(n * s->f + f) * (size_t)oh + (size_t)i) * (size_t)ow + (size_t)j,
                                     ((size_t)(f * cg + c) * (size_t)s->kh + (size_t)k) * (size_t)s->kw + (size_t)l);
                            }
}

typedef struct naive_operands { const float *x, *w, *gy; double *y, *gx, *gw; } naive_operands;

static void naive_take_forward(void *arg, size_t x, size_t y, size_t w)
{
    naive_operands *o = (naive_operands *)arg;
    o->y[y] += (double)o->x[x] * (double)o->w[w];
}
static void naive_take_data(void *arg, size_t x, size_t y, size_t w)
{
    naive_operands *o = (naive_operands *)arg;
    o->gx[x] += (double)o->gy[y] * (double)o->w[w];
}
static void naive_take_weight(void *arg, size_t x, size_t y, size_t w)
{
    naive_operands *o = (naive_operands *)arg;
    o->gw[w] += (double)o->gy[y] * (double)o->x[x];
}
/* y, gx, gw and gb are added to: set them to zero, or to the bias, first. */
static void naive_conv_forward(const naive_conv *s, const float *x, const float *w, double *y)
{
    naive_operands o = { NULL, NULL, NULL, NULL, NULL, NULL };
    o.x = x; o.w = w; o.y = y;
    naive_conv_each(s, naive_take_forward, &o);
}
static void naive_conv_data(const naive_conv *s, const float *gy, const float *w, double *gx)
{
    naive_operands o = { NULL, NULL, NULL, NULL, NULL, NULL };
    o.gy = gy; o.w = w; o.gx = gx;
    naive_conv_each(s, naive_take_data, &o);
}
static void naive_conv_weight(const naive_conv *s, const float *x, const float *gy, double *gw, double *gb)
{
    const size_t plane = (size_t)naive_conv_out_h(s) * (size_t)naive_conv_out_w(s);
    naive_operands o = { NULL, NULL, NULL, NULL, NULL, NULL };
    size_t i;
    o.x = x; o.gy = gy; o.gw = gw;
    naive_conv_each(s, naive_take_weight, &o);
    for (i = 0; i < (size_t)s->n * (size_t)s->f * plane; i++) gb[i / plane % (size_t)s->f] += gy[i];
}

/* c[i][j] += sum_l a(i, l) b(l, j); a(i, l) at a[i ar + l ac], b(l, j) at b[l br + j bc], c dense. */
static void naive_gemm(int m, int n, int k, const float *a, size_t ar, size_t ac, const float *b, size_t br, size_t bc,
                       double *c)
{
    int i, j, l;
    for (i = 0; i < m; i++)
        for (l = 0; l < k; l++) {
            const double v = a[(size_t)i * ar + (size_t)l * ac];
            for (j = 0; j < n; j++)
                c[(size_t)i * (size_t)n + (size_t)j] += v * (double)b[(size_t)l * br + (size_t)j * bc];
        }
}
/* y[n][out] += x[n][in] w[out][in]; gx += gy w; gw += gy^T x; gb += sum over n of gy. */
static void naive_linear_forward(int n, int in, int out, const float *x, const float *w, double *y)
{
    naive_gemm(n, out, in, x, (size_t)in, 1, w, 1, (size_t)in, y);
}
static void naive_linear_data(int n, int in, int out, const float *gy, const float *w, double *gx)
{
    naive_gemm(n, in, out, gy, (size_t)out, 1, w, (size_t)in, 1, gx);
}
static void naive_linear_weight(int n, int in, int out, const float *x, const float *gy, double *gw, double *gb)
{
    int i;
    naive_gemm(out, in, n, gy, 1, (size_t)out, x, (size_t)in, 1, gw);
    for (i = 0; i < n * out; i++) gb[i % out] += gy[i];
}

#endif
