/* test.h - the little that the tests share: named cases, checks, the closing line.

   A test file lists its functions in main:
       int main(int argc, char **argv) { TEST_BEGIN(argc, argv); TEST(conv_stride_larger_than_kernel); return TEST_END(); }
   Arguments choose cases by a part of their name; without, all run. A case that calls SKIP counts as skipped.
   The last line is "N passed, N failed, N skipped"; the exit status is 1 when a case failed. */
#ifndef TEST_H
#define TEST_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int test_passed, test_failed, test_skipped, test_case_failed, test_case_skipped, test_argc;
static char **test_argv;
static const char *test_case_name = "";

static int test_wanted(const char *name)
{
    int i;
    if (test_argc < 2) return 1;
    for (i = 1; i < test_argc; i++) if (strstr(name, test_argv[i])) return 1;
    return 0;
}
static void test_done(void)
{
    if (test_case_failed) test_failed++;
    else if (test_case_skipped) test_skipped++;
    else test_passed++;
}
#define TEST_BEGIN(argc, argv) (test_argc = (argc), test_argv = (argv))
#define TEST(fn) do { if (test_wanted(#fn)) { test_case_name = #fn; test_case_failed = test_case_skipped = 0; fn(); test_done(); } } while (0)
#define TEST_END() (printf("%d passed, %d failed, %d skipped\n", test_passed, test_failed, test_skipped), test_failed ? 1 : 0)

#define FAIL_LINE (test_case_failed++ < 20)
#define CHECK(c) do { if (!(c)) { if (FAIL_LINE) printf("%s:%d: %s: failed: %s\n", __FILE__, __LINE__, test_case_name, #c); } } while (0)
/* A failed condition, and a line that tells how to repeat it: CHECKF(e < 1e-6, "conv n=%d c=%d: %g", n, c, e) */
#define CHECKF(c, ...) do { if (!(c)) { if (FAIL_LINE) { printf("%s:%d: %s: failed: %s: ", __FILE__, __LINE__, test_case_name, #c); printf(__VA_ARGS__); printf("\n"); } } } while (0)
#define CHECK_TEXT(got, want) do { const char *g_ = (got), *w_ = (want); if (strcmp(g_, w_)) { if (FAIL_LINE) printf("%s:%d: %s:\n  got  \"%s\"\n  want \"%s\"\n", __FILE__, __LINE__, test_case_name, g_, w_); } } while (0)
#define SKIP(why) do { printf("skipped %s: %s\n", test_case_name, why); test_case_skipped = 1; return; } while (0)

#endif
