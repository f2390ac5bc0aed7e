/* Macros that operating systems, windowing libraries and leak checkers leave behind. Included before nntrain.h. */
#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>
#if (defined(__x86_64__) || defined(__i386__)) && !defined(NNT_NO_SIMD)
#  include <immintrin.h>
#endif

/* windows.h and its relatives */
#define near
#define far
#define small char
#define min(a, b) (((a) < (b)) ? (a) : (b))
#define max(a, b) (((a) > (b)) ? (a) : (b))
#define ERROR 0
#define IN
#define OUT
#define OPTIONAL
#define CONST const
#define interface struct
#define DELETE 0x00010000L
#define NO_ERROR 0L
#define PI 3
/* X11 */
#define Bool int
#define True 1
#define False 0
#define None 0L
#define Status int
#define Success 0
#define Always 2
/* complex.h, curses, old unix */
#define I 7
#define ERR (-1)
#define OK (-2)
#define linux 1
#define unix 1
#define major(d) ((int)(d) >> 8)
#define minor(d) ((int)(d) & 255)
/* frameworks for tests and logs */
#define CHECK(x) syntax error
#define ASSERT(x) syntax error
#define LOG(x) syntax error
#define TEST(x) syntax error
#define EXPECT(x) syntax error
/* what a leak checker does: members with these names would not survive it */
static void *hostile_malloc(size_t bytes, int line) { (void)line; return malloc(bytes); }
static void hostile_free(void *p, int line) { (void)line; free(p); }
#define malloc(n) hostile_malloc(n, __LINE__)
#define free(p) hostile_free(p, __LINE__)
