/* Safetensors: what is written can be read, also by the reference implementation; a file that lies or is cut off
 * anywhere is refused with its name and the place; writing is all or nothing. */
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "support/files.h"
#include "support/where.h"
#include "core/alloc.h"

static kiln_params list(int n, kiln_tensor **tensors, const char **names)
{
    return (kiln_params){n, tensors, names};
}

/* Writes a file of this header (its length made up where 0) and `data` bytes of data. */
static const char *put_header(const char *header, size_t data)
{
    static char bytes[4096];
    const char *path = files_path("lie.safetensors");
    size_t n = strlen(header);
    assert_true(8 + n + data <= sizeof bytes);
    memset(bytes, 0, sizeof bytes);
    bytes[0] = (char)n;
    bytes[1] = (char)(n >> 8);
    memcpy(bytes + 8, header, n);
    files_put(path, bytes, 8 + n + data);
    return path;
}

static void refuse(const char *header, size_t data, const char *word, int line)
{
    const char *path = put_header(header, data);
    if (kiln_safetensors_open(path))
        fail_msg("line %d: accepted: %s", line, header);
    core_expect(KILN_E_FORMAT, "safetensors", word, __FILE__, line);
}

static void accept(const char *header, size_t data, int64_t count, int line)
{
    kiln_safetensors *f = kiln_safetensors_open(put_header(header, data));
    if (!f || kiln_safetensors_count(f) != count)
        fail_msg("line %d: refused: %s", line, kiln_last_error()->message);
    kiln_safetensors_close(f);
}
#define refuse(header, data, word)  refuse(header, data, word, __LINE__)
#define accept(header, data, count) accept(header, data, count, __LINE__)

/* ---- Round trips ---- */

static void test_every_dtype(void **state)
{
    (void)state;
    const char *path = files_path("all.safetensors");
    const char *names[KILN_DTYPES + 2];
    kiln_tensor *tensors[KILN_DTYPES + 2];
    kiln_scope {
        for (int d = 0; d < KILN_DTYPES; d++) {
            names[d] = kiln_dtype_name((kiln_dtype)d);
            tensors[d] = kiln_cast(kiln_of_f32(((float[]){0, 1, 3, 2, 5, 7}), 2, 3), (kiln_dtype)d);
        }
        names[KILN_DTYPES] = "empty";
        tensors[KILN_DTYPES] = kiln_zeros(KILN_SHAPE(3, 0, 2), KILN_F32);
        names[KILN_DTYPES + 1] = "a \"name\" with \xc3\xa4 and \\";
        tensors[KILN_DTYPES + 1] = kiln_scalar(-2.5, KILN_F64);
        kiln_meta meta[] = {{"format", "pt"}, {"note", "two\nlines"}};
        assert_true(kiln_safetensors_save(path, list(KILN_DTYPES + 2, tensors, names), 2, meta));
        kiln_safetensors *f = kiln_safetensors_open(path);
        assert_non_null(f);
        assert_int_equal(kiln_safetensors_count(f), KILN_DTYPES + 2);
        assert_string_equal(kiln_safetensors_meta(f, "note"), "two\nlines");
        assert_null(kiln_safetensors_meta(f, "other"));
        assert_int_equal(kiln_safetensors_metas(f), 2);
        assert_string_equal(kiln_safetensors_meta_at(f, 0).key, "format");
        uint64_t at = kiln_safetensors_at(f, 0)->offset;
        assert_int_equal(at % 8, 0);
        for (int i = 0; i < KILN_DTYPES + 2; i++) {
            const kiln_safetensor *t = kiln_safetensors_at(f, i);
            assert_int_equal(t->offset, at);
            at += t->bytes;
            assert_int_equal(kiln_safetensors_find(f, t->name), i);
            int64_t from = -1;
            for (int k = 0; k < KILN_DTYPES + 2; k++)
                from = strcmp(names[k], t->name) ? from : k;
            assert_true(from >= 0);
            kiln_tensor *got = kiln_safetensors_load(f, i, kiln_default_device()), *want = tensors[from];
            assert_non_null(got);
            assert_int_equal(kiln_dtype_of(got), kiln_dtype_of(want));
            assert_int_equal(kiln_ndim(got), kiln_ndim(want));
            uint8_t a[64] = {0}, b[64] = {0};
            assert_true(kiln_read(got, a, t->bytes) && kiln_read(want, b, t->bytes));
            assert_memory_equal(a, b, sizeof a);
        }
        assert_int_equal(kiln_safetensors_find(f, "nobody"), -1);
        assert_null(kiln_safetensors_at(f, KILN_DTYPES + 2));
        expect_error(KILN_E_INDEX, "safetensors", "no number");
        kiln_safetensors_close(f);
    }
}

/* The reference's own output for two tensors: the same bytes come out here. */
static void test_layout_is_the_references(void **state)
{
    (void)state;
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                                 "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                                 "\"a\":{\"dtype\":\"BF16\",\"shape\":[1,1],\"data_offsets\":[8,10]}}  ";
    const char *path = files_path("layout.safetensors");
    size_t bytes;
    kiln_scope {
        kiln_tensor *tensors[] = {kiln_cast(kiln_of_f32(((float[]){1}), 1, 1), KILN_BF16),
                                  kiln_of_f32(((float[]){1, 2}), 2)};
        assert_true(
            kiln_safetensors_save(path, list(2, tensors, (const char *[]){"a", "b"}), 1, &(kiln_meta){"format", "pt"}));
    }
    char *got = files_get(path, &bytes);
    assert_int_equal(bytes, 8 + sizeof header - 1 + 10);
    assert_int_equal((unsigned char)got[0], sizeof header - 1);
    assert_int_equal((sizeof header - 1) % 8, 0);
    assert_memory_equal(got + 8, header, sizeof header - 1);
    assert_memory_equal(got + 8 + sizeof header - 1, ((uint8_t[]){0, 0, 0x80, 0x3f, 0, 0, 0, 0x40, 0x80, 0x3f}), 10);
    free(got);
}

static void test_load_into(void **state)
{
    (void)state;
    const char *path = files_path("into.safetensors");
    kiln_scope {
        kiln_tensor *tensors[] = {kiln_cast(kiln_of_f32(((float[]){1, 2, 3.5f, 4}), 2, 2), KILN_F16),
                                  kiln_of_i64(((int64_t[]){7, 8}), 2)};
        assert_true(kiln_safetensors_save(path, list(2, tensors, (const char *[]){"f", "i"}), 0, NULL));
        kiln_safetensors *f = kiln_safetensors_open(path);
        assert_non_null(f);
        int64_t half = kiln_safetensors_find(f, "f"), whole = kiln_safetensors_find(f, "i");
        kiln_tensor *x = kiln_requires_grad(kiln_zeros(KILN_SHAPE(2, 2), KILN_F32), true);
        assert_true(kiln_safetensors_load_into(f, half, x));
        assert_f32(x, 1, 2, 3.5f, 4);
        assert_true(kiln_needs_grad(x));
        assert_false(kiln_safetensors_load_into(f, half, kiln_zeros(KILN_SHAPE(4), KILN_F32)));
        expect_error(KILN_E_SHAPE, "safetensors", "'f' is [2, 2], but the tensor it is to be loaded into is [4]");
        assert_false(kiln_safetensors_load_into(f, whole, kiln_zeros(KILN_SHAPE(2), KILN_F32)));
        expect_error(KILN_E_DTYPE, "safetensors", "'i' holds I64");
        kiln_safetensors_close(f);
    }
}

/* ---- Files that lie ---- */

#define ENTRY(dtype, shape, offsets) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void test_good_headers(void **state)
{
    (void)state;
    accept("{}", 0, 0);
    accept("{}      ", 0, 0);
    accept("{\"__metadata__\":{}}", 0, 0);
    accept("{ \"a\" : " ENTRY("F32", "[ 2 ]", "[0, 8]") " , \"b\":" ENTRY("I8", "[3]", "[8,11]") "}", 11, 2);
    accept("{\"a\":" ENTRY("F32", "[]", "[0,4]") ",\"__metadata__\":{\"k\":\"v\"}}", 4, 1);
    accept("{\"e\":" ENTRY("F32", "[0,99]", "[4,4]") ",\"a\":" ENTRY("F32", "[1]", "[0,4]") "}", 4, 2);
    accept("{\"x\":" ENTRY("F8_E4M3", "[3]", "[0,3]") ",\"y\":" ENTRY("X99", "[7]", "[3,4]") "}", 4, 2);
}

static void test_lies(void **state)
{
    (void)state;
    refuse("", 0, "'{' expected");
    refuse(" {}", 0, "'{' expected");
    refuse("[]", 0, "'{' expected");
    refuse("{", 0, "name expected");
    refuse("{}x", 0, "only spaces");
    refuse("{\"a\":1}", 0, "'a' is not an object");
    refuse("{\"a\"}", 0, "':' expected");
    refuse("{\"a\":" ENTRY("F32", "[1]", "[0,4]") ",}", 4, "name expected");
    refuse("{\"a\":" ENTRY("F32", "[1]", "[0,4]") " \"b\":{}}", 4, "',' or '}' expected");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 0, "must have");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"more\":1}}", 4, "must have");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "uplicate");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]", 4, "no end");
    refuse("{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "not the name of a type");
    refuse("{\"a\":" ENTRY("F32", "1", "[0,4]") "}", 4, "not a list");
    refuse("{\"a\":" ENTRY("F32", "[-1]", "[0,4]") "}", 4, "whole numbers");
    refuse("{\"a\":" ENTRY("F32", "[1.0]", "[0,4]") "}", 4, "whole numbers");
    refuse("{\"a\":" ENTRY("F32", "[1e0]", "[0,4]") "}", 4, "whole numbers");
    refuse("{\"a\":" ENTRY("F32", "[99999999999999999999]", "[0,4]") "}", 4, "byte ");
    refuse("{\"a\":" ENTRY("F32", "[4611686018427387904,4]", "[0,0]") "}", 0, "none that a tensor can have");
    refuse("{\"a\":" ENTRY("F32", "[2305843009213693952]", "[0,0]") "}", 0, "does not take");
    refuse("{\"a\":" ENTRY("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, "9 dimensions");
    refuse("{\"a\":" ENTRY("F32", "[1]", "[0,4,8]") "}", 4, "two whole numbers");
    refuse("{\"a\":" ENTRY("F32", "[1]", "[4,0]") "}", 4, "4 … 0");
    refuse("{\"a\":" ENTRY("F32", "[1]", "[0,8]") "}", 4, "which has 4 bytes");
    refuse("{\"a\":" ENTRY("F32", "[1]", "[-4,0]") "}", 4, "two whole numbers");
    refuse("{\"a\":" ENTRY("F32", "[2]", "[0,4]") "}", 4, "does not take the 4 bytes");
    refuse("{\"a\":" ENTRY("I8", "[2]", "[0,4]") "}", 4, "does not take the 4 bytes");
    refuse("{\"a\":" ENTRY("F4", "[3]", "[0,2]") "}", 2, "does not take the 2 bytes");
    refuse("{\"a\":" ENTRY("F32", "[1]", "[0,4]") "}", 5, "at the end belong to no tensor");
    refuse("{\"a\":" ENTRY("F32", "[1]", "[4,8]") "}", 8, "belong to no tensor");
    refuse("{\"a\":" ENTRY("F32", "[1]", "[0,4]") ",\"b\":" ENTRY("F32", "[1]", "[8,12]") "}", 12, "before 'b'");
    refuse("{\"a\":" ENTRY("F32", "[2]", "[0,8]") ",\"b\":" ENTRY("F32", "[2]", "[4,12]") "}", 12, "overlap at byte");
    refuse("{\"a\":" ENTRY("F32", "[1]", "[0,4]") ",\"b\":" ENTRY("F32", "[1]", "[0,4]") "}", 4, "overlap");
    refuse("{\"a\":" ENTRY("F32", "[1]", "[0,4]") ",\"a\":" ENTRY("F32", "[1]", "[4,8]") "}", 8, "'a' is there twice");
    refuse("{\"a\":" ENTRY("F32", "[1]", "[0,4]") ",\"\\u0061\":" ENTRY("F32", "[1]", "[4,8]") "}", 8, "twice");
    refuse("{\"a\\u0000b\":" ENTRY("F32", "[1]", "[0,4]") "}", 4, "byte ");
    refuse("{\"\xff\":" ENTRY("F32", "[1]", "[0,4]") "}", 4, "byte ");
    refuse("{\"__metadata__\":[]}", 0, "not an object");
    refuse("{\"__metadata__\":{\"a\":1}}", 0, "string");
    refuse("{\"__metadata__\":{\"a\":{\"b\":\"c\"}}}", 0, "string");
    refuse("{\"__metadata__\":{\"a\":\"b\" \"c\":\"d\"}}", 0, "',' or '}' expected");
    refuse("{\"__metadata__\":{\"a\":\"b\",\"a\":\"c\"}}", 0, "'a' is there twice");
    refuse("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "twice");
    refuse("{\"a\":[[[[[[[[]]]]]]]]}", 0, "not an object");
}

/* The byte where the header goes wrong is told. */
static void test_position(void **state)
{
    (void)state;
    refuse("{\"ab\":{\"dtype\":?}}", 0, "header, byte 23:");
}

static void test_announced_length(void **state)
{
    (void)state;
    const char *path = files_path("length.safetensors");
    uint64_t lies[] = {3, 100000001, UINT64_MAX, UINT64_MAX - 7, INT64_MAX};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        char bytes[10] = "12345678{}";
        for (int k = 0; k < 8; k++)
            bytes[k] = (char)(lies[i] >> 8 * k);
        files_put(path, bytes, sizeof bytes);
        assert_null(kiln_safetensors_open(path));
        expect_error(KILN_E_FORMAT, "safetensors", "announced");
    }
}

static void test_cut_off_anywhere(void **state)
{
    (void)state;
    const char *path = files_path("cut.safetensors");
    size_t bytes;
    kiln_scope {
        kiln_tensor *tensors[] = {kiln_zeros(KILN_SHAPE(3), KILN_F32), kiln_zeros(KILN_SHAPE(2, 2), KILN_I64)};
        assert_true(
            kiln_safetensors_save(path, list(2, tensors, (const char *[]){"a", "b"}), 1, &(kiln_meta){"key", "value"}));
    }
    char *whole = files_get(path, &bytes);
    for (size_t n = 0; n < bytes; n++) {
        files_put(path, whole, n);
        assert_null(kiln_safetensors_open(path));
        expect_error(KILN_E_FORMAT, "safetensors", "cut.safetensors");
    }
    whole = realloc(whole, bytes + 1);
    whole[bytes] = 0;
    files_put(path, whole, bytes + 1);
    assert_null(kiln_safetensors_open(path));
    expect_error(KILN_E_FORMAT, "safetensors", "at the end");
    free(whole);
}

/* What Kiln has no type for is listed, and refused when it is asked for; a bool that is none is found. */
static void test_other_types(void **state)
{
    (void)state;
    kiln_safetensors *f = kiln_safetensors_open(put_header("{\"a\":" ENTRY("I8", "[4]", "[0,4]") "}", 4));
    assert_non_null(f);
    assert_string_equal(kiln_safetensors_at(f, 0)->dtype_name, "I8");
    assert_int_equal(kiln_safetensors_at(f, 0)->dtype, KILN_DTYPES);
    assert_int_equal(kiln_safetensors_at(f, 0)->bytes, 4);
    assert_null(kiln_safetensors_load(f, 0, kiln_default_device()));
    expect_error(KILN_E_DTYPE, "safetensors", "'a' holds I8");
    kiln_safetensors_close(f);

    const char *path = put_header("{\"a\":" ENTRY("BOOL", "[4]", "[0,4]") "}", 4);
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, "\2", 1, lseek(fd, 0, SEEK_END) - 1), 1);
    close(fd);
    f = kiln_safetensors_open(path);
    assert_null(kiln_safetensors_load(f, 0, kiln_default_device()));
    expect_error(KILN_E_FORMAT, "safetensors", "in 'a': 2 is neither");
    kiln_safetensors_close(f);
}

static void test_file_that_shrinks(void **state)
{
    (void)state;
    const char *path = put_header("{\"a\":" ENTRY("F32", "[4]", "[0,16]") "}", 16);
    kiln_safetensors *f = kiln_safetensors_open(path);
    assert_non_null(f);
    assert_int_equal(truncate(path, 70), 0);
    assert_null(kiln_safetensors_load(f, 0, kiln_default_device()));
    expect_error(KILN_E_FORMAT, "safetensors", "ends at byte 70");
    kiln_safetensors_close(f);
}

static void test_files_that_are_none(void **state)
{
    (void)state;
    assert_null(kiln_safetensors_open(files_path("nothing")));
    expect_error(KILN_E_MISSING, "safetensors", "nothing");
    assert_null(kiln_safetensors_open(files_folder));
    expect_error(KILN_E_FORMAT, "safetensors", "is a folder");
    assert_null(kiln_safetensors_open("/dev/null"));
    expect_error(KILN_E_FORMAT, "safetensors", "not a regular file");
    assert_null(kiln_safetensors_open(NULL));
    expect_error(KILN_E_ARGUMENT, "safetensors", "no file");
    assert_int_equal(mkfifo(files_path("pipe"), 0600), 0);
    assert_null(kiln_safetensors_open(files_path("pipe")));
    expect_error(KILN_E_FORMAT, "safetensors", "not a regular file");
    assert_int_equal(kiln_safetensors_count(NULL), 0);
    expect_error(KILN_E_ARGUMENT, "safetensors", "NULL");
    kiln_safetensors_close(NULL);
}

/* ---- Writing ---- */

static void test_bad_names(void **state)
{
    (void)state;
    const char *path = files_path("names.safetensors");
    kiln_scope {
        kiln_tensor *x = kiln_ones(KILN_SHAPE(1), KILN_F32), *two[] = {x, x}, *gap[] = {x, NULL};
        assert_false(kiln_safetensors_save(path, list(2, two, (const char *[]){"a", "a"}), 0, NULL));
        expect_error(KILN_E_ARGUMENT, "safetensors", "'a' is given twice");
        assert_false(kiln_safetensors_save(path, list(1, two, (const char *[]){"__metadata__"}), 0, NULL));
        expect_error(KILN_E_ARGUMENT, "safetensors", "reserved");
        assert_false(kiln_safetensors_save(path, list(1, two, (const char *[]){"\xff"}), 0, NULL));
        expect_error(KILN_E_ARGUMENT, "safetensors", "UTF-8");
        assert_false(kiln_safetensors_save(path, list(2, gap, (const char *[]){"a", "b"}), 0, NULL));
        expect_error(KILN_E_ARGUMENT, "safetensors", "tensor 1, b is NULL");
        assert_false(kiln_safetensors_save(NULL, list(1, two, (const char *[]){"a"}), 0, NULL));
        expect_error(KILN_E_ARGUMENT, "safetensors", "no file");
    }
    assert_int_equal(files_count(files_folder), 0);
}

static bool save_one(const char *path, float value)
{
    bool ok = false;
    kiln_scope {
        kiln_tensor *x = kiln_full(KILN_SHAPE(600), value, KILN_F32);
        ok = kiln_safetensors_save(path, list(1, &x, (const char *[]){"x"}), 0, NULL);
    }
    return ok;
}

static float load_one(const char *path)
{
    float value = NAN;
    kiln_safetensors *f = kiln_safetensors_open(path);
    assert_non_null(f);
    kiln_scope
        value = core_f32(kiln_safetensors_load(f, 0, kiln_default_device()))[599];
    kiln_safetensors_close(f);
    return value;
}

static void test_places_that_cannot_be_written(void **state)
{
    (void)state;
    assert_false(save_one(files_path("no/such/folder.safetensors"), 1));
    expect_error(KILN_E_IO, "safetensors", "No such file");
    assert_false(save_one(files_folder, 1));
    expect_error(KILN_E_IO, "safetensors", "is a folder");
    assert_false(save_one("/dev/full", 1));
    expect_error(KILN_E_IO, "safetensors", "not a regular file");
    const char *path = files_path("kept.safetensors");
    assert_true(save_one(path, 1));
    assert_int_equal(chmod(files_folder, 0500), 0);
    if (geteuid() != 0) { /* root may write everywhere */
        assert_false(save_one(path, 2));
        expect_error(KILN_E_IO, "safetensors", "Permission denied");
    }
    assert_int_equal(chmod(files_folder, 0700), 0);
    assert_true(load_one(path) == 1);
    assert_int_equal(files_count(files_folder), 1);
}

/* A link stays one: what it points to is replaced. */
static void test_link(void **state)
{
    (void)state;
    assert_true(save_one(files_path("real"), 1));
    assert_int_equal(symlink("real", files_path("link")), 0);
    assert_true(save_one(files_path("link"), 2));
    assert_true(load_one(files_path("real")) == 2);
    struct stat st;
    assert_int_equal(lstat(files_path("link"), &st), 0);
    assert_true(S_ISLNK(st.st_mode));
}

/* A disk that is full in the middle: the file that was there stays, nothing else is left. */
static void test_full_disk(void **state)
{
    (void)state;
    const char *path = files_path("full.safetensors");
    if (kiln_default_device() != KILN_CPU)
        skip_because("a device with threads of its own does not survive fork");
    assert_true(save_one(path, 1));
    pid_t child = fork();
    if (child == 0) {
        signal(SIGXFSZ, SIG_IGN);
        struct rlimit limit = {1000, 1000};
        setrlimit(RLIMIT_FSIZE, &limit);
        bool saved = save_one(path, 2);
        const kiln_error *e = kiln_last_error();
        _exit(saved                                                                        ? 1
              : e->code != KILN_E_IO || !strstr(e->message, "writing failed at byte 1000") ? 2
              : !strstr(e->hint, "unchanged")                                              ? 3
                                                                                           : 0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(load_one(path) == 1);
    assert_int_equal(files_count(files_folder), 1);
}

/* Temporaries of writers that died are removed by the next one; those of living ones are not. */
static void test_leftovers(void **state)
{
    (void)state;
    const char *path = files_path("x.safetensors"), *dead = files_path(".x.safetensors.tmp-1-0"),
               *living = files_path(".x.safetensors.tmp-1-1"), *other = files_path(".y.safetensors.tmp-1-0");
    files_put(dead, "half", 4);
    files_put(living, "half", 4);
    files_put(other, "half", 4);
    int fd = open(living, O_RDONLY);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_true(save_one(path, 1));
    assert_int_equal(access(dead, F_OK), -1);
    assert_int_equal(access(living, F_OK), 0);
    assert_int_equal(access(other, F_OK), 0);
    close(fd);
}

/* Every allocation fails once: an error, no leak, and the old file stays or the new one is whole. */
static void test_memory_runs_out(void **state)
{
    (void)state;
    const char *path = files_path("memory.safetensors");
    assert_true(save_one(path, 1));
    for (int64_t n = 0, done = 0; !done; n++) {
        kiln_alloc_fail_after(n);
        bool saved = save_one(path, 2);
        kiln_alloc_fail_after(-1);
        if (!saved)
            expect_error(KILN_E_MEMORY, NULL, NULL);
        done = saved;
        assert_true(load_one(path) == (saved ? 2 : 1));
        assert_true(n < 200);
    }
    for (int64_t n = 0, done = 0; !done; n++) {
        kiln_alloc_fail_after(n);
        kiln_safetensors *f = kiln_safetensors_open(path);
        kiln_tensor *x = f ? kiln_safetensors_load(f, 0, kiln_default_device()) : NULL;
        kiln_alloc_fail_after(-1);
        if (!x)
            expect_error(KILN_E_MEMORY, NULL, NULL);
        done = x != NULL;
        kiln_release(x);
        kiln_safetensors_close(f);
        assert_true(n < 200);
    }
    assert_int_equal(files_count(files_folder), 1);
}

/* ---- Modules ---- */

static void test_module_round_trip(void **state)
{
    (void)state;
    const char *path = files_path("module.safetensors");
    kiln_manual_seed(1);
    kiln_module *a = kiln_nn_sequential(kiln_nn_linear(3, 4), kiln_nn_batch_norm(4), kiln_nn_linear(4, 2)),
                *b = kiln_nn_sequential(kiln_nn_linear(3, 4), kiln_nn_batch_norm(4), kiln_nn_linear(4, 2));
    assert_non_null(a);
    assert_non_null(b);
    assert_true(kiln_module_save(a, path));
    assert_true(memcmp(core_f32(kiln_module_tensor(a, "0.weight")), core_f32(kiln_module_tensor(b, "0.weight")), 48));
    assert_true(kiln_module_load(b, path, false));
    kiln_params x = kiln_state(a), y = kiln_state(b);
    assert_int_equal(x.count, y.count);
    for (int64_t i = 0; i < x.count; i++) {
        uint8_t p[64] = {0}, q[64] = {0};
        size_t bytes = (size_t)kiln_numel(x.tensors[i]) * kiln_dtype_size(kiln_dtype_of(x.tensors[i]));
        assert_true(kiln_read(x.tensors[i], p, bytes) && kiln_read(y.tensors[i], q, bytes));
        assert_memory_equal(p, q, sizeof p);
    }
    kiln_module_free(a);
    kiln_module_free(b);
}

static void test_module_that_does_not_fit(void **state)
{
    (void)state;
    const char *path = files_path("module.safetensors");
    kiln_module *a = kiln_nn_sequential(kiln_nn_linear(3, 4), kiln_nn_relu(), kiln_nn_linear(4, 2)),
                *b = kiln_nn_sequential(kiln_nn_linear(3, 4), kiln_nn_linear(4, 2, .no_bias = true)),
                *c = kiln_nn_sequential(kiln_nn_linear(3, 5));
    assert_true(a && b && c);
    assert_true(kiln_module_save(a, path));
    float before[12], after[12];
    assert_true(kiln_read(kiln_module_tensor(b, "0.weight"), before, sizeof before));
    assert_false(kiln_module_load(b, path, false));
    assert_non_null(strstr(kiln_last_error()->message, "missing 1.weight [2, 4]"));
    assert_non_null(strstr(kiln_last_error()->message, "unexpected 2.weight [2, 4]"));
    expect_error(KILN_E_FORMAT, "module_load", "3 of 5 tensors do not fit");
    assert_true(kiln_read(kiln_module_tensor(b, "0.weight"), after, sizeof after));
    assert_memory_equal(before, after, sizeof before);

    assert_true(kiln_module_load(b, path, true)); /* the first layer alone has names in common */
    assert_true(kiln_read(kiln_module_tensor(b, "0.weight"), after, sizeof after));
    assert_memory_equal(core_f32(kiln_module_tensor(a, "0.weight")), after, sizeof after);
    assert_false(kiln_module_load(c, path, true));
    expect_error(KILN_E_FORMAT, "module_load", "0.weight is [4, 3] in the file, [5, 3] in the module");
    kiln_module_free(a);
    kiln_module_free(b);
    kiln_module_free(c);
}

/* Reading fails after everything fitted: the module is as before. */
static void test_module_stays_when_reading_fails(void **state)
{
    (void)state;
    const char *path = files_path("module.safetensors");
    kiln_module *a = kiln_nn_linear(3, 4), *b = kiln_nn_linear(3, 4);
    float before[12], after[12];
    assert_true(kiln_module_save(a, path));
    assert_true(kiln_read(kiln_module_tensor(b, "weight"), before, sizeof before));
    assert_non_null(kiln_state(b).tensors);
    for (int64_t n = 0, done = 0; !done; n++) {
        kiln_alloc_fail_after(n);
        done = kiln_module_load(b, path, false);
        kiln_alloc_fail_after(-1);
        if (!done)
            expect_error(KILN_E_MEMORY, NULL, NULL);
        assert_true(kiln_read(kiln_module_tensor(b, "weight"), after, sizeof after));
        if (!core_eager())
            assert_memory_equal(after, done ? core_f32(kiln_module_tensor(a, "weight")) : before, sizeof before);
        assert_true(n < 1000);
    }
    kiln_module_free(a);
    kiln_module_free(b);
}

/* ---- Other types ---- */

/* The bytes of a tensor of a file, in a buffer of the caller's. */
static size_t bytes_of(const char *path, const char *name, char *to, size_t room)
{
    kiln_safetensors *f = kiln_safetensors_open(path);
    assert_non_null(f);
    size_t bytes = 0;
    kiln_scope {
        kiln_tensor *t = kiln_safetensors_load(f, kiln_safetensors_find(f, name), KILN_CPU);
        assert_non_null(t);
        bytes = (size_t)kiln_numel(t) * kiln_dtype_size(kiln_dtype_of(t));
        assert_true(bytes <= room && kiln_read(t, to, bytes));
    }
    kiln_safetensors_close(f);
    return bytes;
}

/* PyTorch's own file (golden/make_halves.py) has the same numbers in four types: each is loaded as f32 and f64, saved
 * as the others, and must then hold PyTorch's bytes. */
static void test_save_as(void **state)
{
    (void)state;
    static const kiln_dtype floats[] = {KILN_F64, KILN_F32, KILN_BF16, KILN_F16};
    const char *golden = test_file("golden/halves.safetensors"), *path = files_path("as.safetensors");
    for (int from = 0; from < 2; from++)
        for (int to = 0; to < 4; to++)
            kiln_scope {
                kiln_safetensors *f = kiln_safetensors_open(golden);
                assert_non_null(f);
                kiln_tensor *t[2] = {
                    kiln_safetensors_load(f, kiln_safetensors_find(f, kiln_dtype_name(floats[from])),
                                          kiln_default_device()),
                    kiln_safetensors_load(f, kiln_safetensors_find(f, "count"), kiln_default_device())};
                const char *names[] = {"x", "count"};
                assert_true(kiln_safetensors_save_as(path, list(2, t, names), 0, NULL, floats[to]));
                kiln_safetensors_close(f);
                char got[1024], want[1024];
                size_t n = bytes_of(path, "x", got, sizeof got);
                assert_int_equal(bytes_of(golden, kiln_dtype_name(floats[to]), want, sizeof want), n);
                size_t nan = 15 * kiln_dtype_size(floats[to]); /* PyTorch's NaNs have other bits by way of a vector */
                memset(want + nan, 0, kiln_dtype_size(floats[to]));
                memset(got + nan, 0, kiln_dtype_size(floats[to]));
                if (memcmp(got, want, n))
                    fail_msg("%s as %s", kiln_dtype_name(floats[from]), kiln_dtype_name(floats[to]));
                assert_int_equal(bytes_of(path, "count", got, sizeof got), 2 * sizeof(int64_t));
            }
}

/* 16-bit files go into f32 models, f32 files into 16-bit ones, as by kiln_cast. */
static void test_load_as(void **state)
{
    (void)state;
    static const kiln_dtype floats[] = {KILN_F64, KILN_F32, KILN_BF16, KILN_F16};
    kiln_safetensors *f = kiln_safetensors_open(test_file("golden/halves.safetensors"));
    assert_non_null(f);
    for (int from = 0; from < 4; from++)
        for (int to = 0; to < 4; to++)
            kiln_scope {
                int64_t at = kiln_safetensors_find(f, kiln_dtype_name(floats[from]));
                int64_t n = kiln_safetensors_at(f, at)->shape[0];
                kiln_tensor *into = kiln_zeros(KILN_SHAPE(n), floats[to]);
                assert_true(kiln_eval() && kiln_safetensors_load_into(f, at, into));
                kiln_tensor *cast = kiln_cast(kiln_safetensors_load(f, at, kiln_default_device()), floats[to]);
                const float *got = core_f32(kiln_cast(into, KILN_F32)), *want = core_f32(kiln_cast(cast, KILN_F32));
                for (int64_t i = 0; i < n; i++)
                    assert_true(got[i] == want[i] || (isnan(got[i]) && isnan(want[i])));
                /* beside the f32 numbers: the type's own precision */
                const float *x = core_f32(kiln_cast(
                    kiln_safetensors_load(f, kiln_safetensors_find(f, "f32"), kiln_default_device()), KILN_F32));
                for (int64_t i = 16; i < 56; i++)
                    assert_true(fabsf(got[i] - x[i]) <= fabsf(x[i]) / 256);
            }
    kiln_safetensors_close(f);
    kiln_module *wide = kiln_nn_linear(3, 2), *narrow = kiln_nn_linear(3, 2);
    const char *path = files_path("model.safetensors");
    assert_true(kiln_module_cast(narrow, KILN_F16));
    assert_true(kiln_module_save_as(wide, path, KILN_BF16) && kiln_module_load(narrow, path, false));
    assert_true(kiln_module_save(narrow, path) && kiln_module_load(wide, path, false));
    assert_int_equal(kiln_dtype_of(kiln_module_tensor(wide, "weight")), KILN_F32);
    kiln_module_free(wide);
    kiln_module_free(narrow);
}

/* What the type cannot hold is told with the tensor's name, and the file that was there stays. */
static void test_overflow(void **state)
{
    (void)state;
    const char *path = files_path("over.safetensors"), *names[] = {"small", "large"};
    kiln_scope {
        kiln_tensor *t[] = {kiln_of_f32(((float[]){1, 2}), 2), kiln_of_f32(((float[]){1, 65519, -65520}), 3)};
        assert_true(kiln_safetensors_save(path, list(1, t, names), 0, NULL));
        assert_false(kiln_safetensors_save_as(path, list(2, t, names), 0, NULL, KILN_F16));
        assert_non_null(strstr(kiln_last_error()->message, "-65520"));
        expect_error(KILN_E_ARGUMENT, "safetensors", "element 2 of 'large'");
        assert_int_equal(files_count(files_folder), 1);
        char bytes[16];
        assert_int_equal(bytes_of(path, "small", bytes, sizeof bytes), 8);
        assert_true(kiln_safetensors_save_as(path, list(2, t, names), 0, NULL, KILN_BF16));
        assert_false(kiln_safetensors_save_as(path, list(2, t, names), 0, NULL, KILN_I32));
        expect_error(KILN_E_DTYPE, "safetensors", "i32");
        assert_false(kiln_safetensors_save_as(path, list(2, t, names), 0, NULL, (kiln_dtype)99));
        expect_error(KILN_E_DTYPE, "safetensors", "no dtype");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        files_test(test_every_dtype),
        files_test(test_layout_is_the_references),
        files_test(test_load_into),
        files_test(test_good_headers),
        files_test(test_lies),
        files_test(test_position),
        files_test(test_announced_length),
        files_test(test_cut_off_anywhere),
        files_test(test_other_types),
        files_test(test_file_that_shrinks),
        files_test(test_files_that_are_none),
        files_test(test_bad_names),
        files_test(test_places_that_cannot_be_written),
        files_test(test_link),
        files_test(test_full_disk),
        files_test(test_leftovers),
        files_test(test_memory_runs_out),
        files_test(test_module_round_trip),
        files_test(test_module_that_does_not_fit),
        files_test(test_save_as),
        files_test(test_load_as),
        files_test(test_overflow),
        files_test(test_module_stays_when_reading_fails),
    };
    return CORE_MAIN(tests);
}
