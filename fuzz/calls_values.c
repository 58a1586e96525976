/* Numbers, words, tensors, lists and out-parameters out of the input's bytes. */
#include "calls_draw.h"
#include <limits.h>
#include <math.h>

/* ---- Bytes ---- */

static struct {
    const uint8_t *at;
    size_t left;
} stream;

unsigned byte(void)
{
    if (!stream.left)
        return 0;
    stream.left--;
    return *stream.at++;
}

void stream_begin(const uint8_t *data, size_t size)
{
    stream.at = data;
    stream.left = size;
}

bool stream_is_empty(void)
{
    return stream.left == 0;
}

/* ---- Numbers and words ---- */

int64_t any_size(void)
{
    static const int64_t sizes[] = {0,
                                    1,
                                    2,
                                    3,
                                    4,
                                    5,
                                    6,
                                    8,
                                    -1,
                                    1,
                                    2,
                                    3,
                                    2,
                                    1,
                                    -2,
                                    16,
                                    100,
                                    1 << 20,
                                    INT32_MAX,
                                    INT32_MIN,
                                    INT64_MAX,
                                    INT64_MIN,
                                    -7,
                                    33,
                                    2,
                                    3,
                                    1,
                                    4,
                                    (int64_t)1 << 31,
                                    (int64_t)1 << 40};
    return PICK(sizes);
}

int64_t a_few(void)
{
    static const int64_t sizes[] = {1, 2,  3, 4,  1,  2,         3,         5,         6,
                                    8, 12, 0, -1, 16, INT32_MAX, INT64_MAX, INT64_MIN, 1 << 20};
    return PICK(sizes);
}

double any_number(void)
{
    static const double numbers[] = {0,        1,    -1,     0.5,   2, -0.5, 1e-5,      0.1,  NAN, 3,      -2,
                                     INFINITY, 1e30, -1e300, 1e300, 4, 255,  -INFINITY, 0.25, 1e9, 1e-300, -3};
    return PICK(numbers);
}

int any_dim(void)
{
    static const int dims[] = {0, 1, -1, 2, -2, 0, 1, -1, 3, 7, 8, -9, KILN_FLAT, INT_MAX};
    return PICK(dims);
}

int any_int(void)
{
    static const int numbers[] = {0, 1, 2, -1, 3, 4, 100, INT_MAX, INT_MIN};
    return PICK(numbers);
}

kiln_dtype any_dtype(void)
{
    static const int dtypes[] = {KILN_BOOL, KILN_U8,  KILN_I32,    KILN_I64, KILN_F16, KILN_BF16, KILN_F32,
                                 KILN_F64,  KILN_F32, KILN_DTYPES, KILN_F32, -1,       77};
    return (kiln_dtype)PICK(dtypes);
}

kiln_device any_device(void)
{
    static kiln_device sim = KILN_NO_DEVICE;
    static bool looked;
    if (!looked) {
        looked = true;
        if (kiln_device_count("sim", NULL, 0) > 0)
            sim = kiln_device_parse("sim:0");
        kiln_error_clear();
    }
    const kiln_device devices[] = {KILN_CPU, KILN_CPU, KILN_CPU, KILN_NO_DEVICE, sim, 77, -5};
    return PICK(devices);
}

const char *any_text(void)
{
    static const char *const texts[] = {
        NULL,       "",
        "weight",   "0",
        "0.weight", "bias",
        "body",     "no such",
        "*",        ".",
        "a.b",      "[",
        "cpu",      "sim:0",
        "cuda:99",  "auto",
        "sim:x",    "F32",
        "tanh",     "%s%n",
        "\xff\xfe", "a name that is longer than any that somebody would write by hand, or read again"};
    return PICK(texts);
}

const char *any_equation(void)
{
    static const char *const texts[] = {
        "ij,jk->ik", "ij->i",      "ii",       "i,j->ij",
        "...",       "...i,i",     "->",       "",
        NULL,        "ij,jk->iz",  "ij->ii",   ",",
        "i.j",       "ij,",        "ijk",      "ij ,jk",
        "i->",       "abcdefghij", "ij->ji->", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
    return PICK(texts);
}

static char folder[] = "/tmp/kiln-calls-XXXXXX";

static void remove_folder(void)
{
    char line[64];
    snprintf(line, sizeof line, "rm -rf %s", folder);
    if (system(line) != 0)
        fprintf(stderr, "%s stays behind\n", folder);
}

/* A path: none, one that cannot be, a file of a few bytes out of the input, or one in a folder of the process's own. */
const char *any_path(void)
{
    static char inside[2][64];
    static bool made;
    if (!made) {
        made = true;
        must(mkdtemp(folder) && atexit(remove_folder) == 0);
        for (int i = 0; i < 2; i++)
            snprintf(inside[i], sizeof inside[i], "%s/%c", folder, 'a' + i);
    }
    switch (byte() % 8) {
    case 0: return NULL;
    case 1: return "";
    case 2: return "/dev/null/no/such/folder";
    case 3: return "/dev/null";
    case 4: return folder;
    case 5: return fuzz_file(0, stream.at, stream.left < 64 ? stream.left : 64);
    default: return inside[byte() % 2];
    }
}

FILE *any_stream(void)
{
    static FILE *nowhere;
    if (!nowhere)
        nowhere = fopen("/dev/null", "w");
    return byte() % 4 ? nowhere : NULL;
}

/* ---- Tensors ---- */

call_pool pool;
bool stale_given;

static kiln_tensor *fresh_tensor(unsigned kind)
{
    static const int64_t shapes[][4] = {{2, 3, 4, 1}, {3, 2, 2, 2}, {1, 1, 1, 1}, {4, 4, 3, 3}, {0, 3, 2, 1}};
    static const double filling[] = {0, 1, 2, 0.5};
    const int64_t *shape = shapes[kind % 5];
    int ndim = (int)(kind / 5 % 5);
    kiln_dtype dtype = (kiln_dtype)(kind / 25 % KILN_DTYPES);
    kiln_tensor *t = kiln_full(ndim, shape, filling[kind % 4], dtype);
    if (t && kind % 7 == 0 && ndim > 1)
        t = kiln_transpose(t, 0, 1);
    if (t && kind % 3 == 0 && kiln_dtype_is_float(dtype))
        kiln_requires_grad(t, true);
    if (t && kind % 11 == 0)
        t = kiln_expand(kiln_unsqueeze(t, 0), ndim + 1, (int64_t[]){2, shape[0], shape[1], shape[2], shape[3]});
    kiln_error_clear();
    return t;
}

static kiln_tensor *huge_tensor(void)
{
    static const int64_t huge[][2] = {
        {(int64_t)1 << 40, 1}, {1 << 20, 1 << 20}, {0, INT64_MAX}, {INT32_MAX, 3}, {1, 1 << 30}};
    kiln_tensor *t = kiln_zeros(2, PICK(huge), byte() % 2 ? KILN_F32 : KILN_I64);
    kiln_error_clear();
    return t;
}

void add_tensor(kiln_tensor *t)
{
    pool.tensors[pool.ntensors++ % TENSORS_KEPT] = t;
}

/* What everybody does first: use what a step has made after its end. */
static kiln_tensor *stale_tensor(void)
{
    kiln_tensor *t = NULL;
    kiln_scope
        t = fresh_tensor(byte() | byte() << 8);
    stale_given |= t != NULL;
    return t;
}

kiln_tensor *any_tensor(void)
{
    unsigned kind = byte();
    int there = pool.ntensors < TENSORS_KEPT ? pool.ntensors : TENSORS_KEPT;
    if (kind % 16 == 0)
        return NULL;
    if (kind % 16 == 1)
        return huge_tensor();
    if (kind % 16 == 2)
        return stale_tensor();
    if (kind % 16 < 8 && there)
        return pool.tensors[byte() % (unsigned)there];
    return fresh_tensor(byte() | byte() << 8);
}

static bool is_small(const kiln_tensor *t)
{
    int64_t n = kiln_numel(t);
    for (int d = 0; d < kiln_ndim(t); d++)
        if (kiln_shape(t)[d] > BYTES)
            return false;
    return n <= BYTES;
}

kiln_tensor *small_tensor(void)
{
    bool before = stale_given;
    stale_given = false;
    kiln_tensor *t = any_tensor();
    bool fits = t && (stale_given || is_small(t));
    stale_given |= before;
    return fits ? t : NULL;
}

/* Not NULL, and nobody's but the caller's. */
kiln_tensor *own_tensor(void)
{
    kiln_tensor *t = fresh_tensor(byte() | byte() << 8);
    return t ? t : kiln_scalar(1, KILN_F32);
}

void check_tensor(const kiln_tensor *t)
{
    must(kiln_ndim(t) >= 0 && kiln_ndim(t) <= KILN_MAX_DIMS);
    must(kiln_numel(t) >= 0 && kiln_dtype_size(kiln_dtype_of(t)) > 0);
    for (int d = 0; d < kiln_ndim(t); d++)
        must(kiln_shape(t)[d] >= 0);
}

/* ---- Out-parameters ---- */

static kiln_tensor *outs[4];
static char memory[BYTES];
static int nouts;

kiln_tensor **out_tensor(void)
{
    if (byte() % 4 == 0)
        return NULL;
    outs[nouts] = GARBAGE;
    return &outs[nouts++];
}

/* Results that came through out-parameters: all there, or none. */
void check_outs(bool worked)
{
    for (int i = 0; i < nouts; i++) {
        must(worked ? outs[i] != NULL && outs[i] != GARBAGE : outs[i] == NULL);
        if (worked) {
            check_tensor(outs[i]);
            add_tensor(outs[i]);
        }
    }
    nouts = 0;
}

void *filled_memory(bool may_be_null)
{
    memset(memory, 0x5a, sizeof memory);
    return may_be_null && byte() % 4 == 0 ? NULL : memory;
}

/* ---- Lists ---- */

drawn_list list, few;
drawn_tensors tensors, parts;

static void draw_numbers(void)
{
    static const int counts[] = {0, 1, 2, 3, 4, 2, 2, 3, 1, 8, -1, 9, INT_MAX, INT_MIN};
    list.n = few.n = PICK(counts);
    for (int i = 0; i < 2 * LISTED; i++) {
        unsigned b = byte();
        list.numbers[i] = b % 8 == 7 ? any_size() : (int64_t)(b % 5) - (b % 16 == 14);
        few.numbers[i] = (int64_t)(b % 6);
    }
    list.at = byte() % 16 ? list.numbers : NULL;
    few.at = few.numbers;
}

static void draw_lists_of_tensors(void)
{
    static const int counts[] = {1, 2, 3, 2, 0, -1, 8};
    tensors.n = PICK(counts);
    stale_given = false;
    for (int i = 0; i < LISTED; i++)
        tensors.tensors[i] = i < tensors.n ? any_tensor() : GARBAGE;
    tensors.stale = stale_given;
    tensors.at = byte() % 16 ? tensors.tensors : NULL;
    static const int room[] = {8, 4, 1, 0, -1, 8};
    parts.n = PICK(room);
    for (int i = 0; i < LISTED; i++)
        parts.tensors[i] = GARBAGE;
    parts.at = byte() % 16 ? parts.tensors : NULL;
}

void check_parts(int count)
{
    for (int i = 0; parts.at && i < parts.n; i++) {
        must(i < count ? parts.at[i] && parts.at[i] != GARBAGE : parts.at[i] == NULL);
        if (i < count) {
            check_tensor(parts.at[i]);
            add_tensor(parts.at[i]);
        }
    }
}

void draw_lists(void)
{
    draw_numbers();
    draw_lists_of_tensors();
    draw_params();
}
