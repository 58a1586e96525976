/* Data sets from files: IDX images and labels, gzipped and plain, and texts. Files are written by the test itself;
 * every way of damaging them must be an error that names the file, with memory bounded by what the file really has. */
#include <zlib.h>
#include "support/files.h"
#include "core/alloc.h"
#include "data/dataset.h"

/* ---- Writing IDX files ---- */

typedef struct bytes {
    uint8_t data[1 << 16];
    size_t size;
} bytes;

static void put_word(bytes *b, uint32_t w)
{
    for (int shift = 24; shift >= 0; shift -= 8)
        b->data[b->size++] = (uint8_t)(w >> shift);
}

static uint8_t pixel(int i)
{
    return (uint8_t)(i * 37 + i / 7);
}

static bytes idx_images(uint32_t n, uint32_t height, uint32_t width)
{
    bytes b = {.data = {0, 0, 8, 3}, .size = 4};
    put_word(&b, n);
    put_word(&b, height);
    put_word(&b, width);
    for (uint32_t i = 0; i < n * height * width; i++)
        b.data[b.size++] = pixel((int)i);
    return b;
}

static bytes idx_labels(uint32_t n)
{
    bytes b = {.data = {0, 0, 8, 1}, .size = 4};
    put_word(&b, n);
    for (uint32_t i = 0; i < n; i++)
        b.data[b.size++] = (uint8_t)(i * 3 % 8);
    return b;
}

static const char *put(const char *name, const bytes *b)
{
    const char *path = files_path(name);
    files_put(path, b->data, b->size);
    return path;
}

static bytes gzip(const bytes *b)
{
    bytes out = {.size = 0};
    z_stream z = {.next_in = (uint8_t *)(uintptr_t)b->data, .avail_in = (unsigned)b->size};
    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_out = out.data;
    z.avail_out = sizeof out.data;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    out.size = z.total_out;
    deflateEnd(&z);
    return out;
}

/* ---- Good files ---- */

/* Images of 5 × 7 pixels: not a multiple of what is converted at once. */
static void check_images(kiln_dataset *d, double mean, double std)
{
    float x[35];
    int64_t y;
    assert_non_null(d);
    kiln_data_info info = kiln_data_describe(d);
    assert_int_equal(info.count, 12);
    assert_int_equal(info.x.dtype, KILN_F32);
    assert_int_equal(info.x.ndim, 3);
    assert_int_equal(info.x.shape[0], 1);
    assert_int_equal(info.x.shape[1], 5);
    assert_int_equal(info.x.shape[2], 7);
    for (int64_t i = 11; i >= 0; i--) {
        y = -1;
        assert_true(kiln_dataset_read(d, i, x, &y));
        assert_int_equal(y, info.classes ? i * 3 % 8 : -1);
        for (int p = 0; p < 35; p++)
            assert_near(x[p], (pixel((int)i * 35 + p) / 255.0 - mean) / std, 3e-7);
    }
    kiln_data_free(d);
}

static void test_idx(void **state)
{
    (void)state;
    bytes x = idx_images(12, 5, 7), y = idx_labels(12), xz = gzip(&x), yz = gzip(&y);
    const char *images = put("train-images", &x), *labels = put("train-labels", &y);
    const char *packed = put("images.gz", &xz), *packed_labels = put("labels.gz", &yz);
    kiln_dataset *d = kiln_data_idx(images, labels);
    assert_int_equal(kiln_data_describe(d).classes, 8);
    assert_non_null(strstr(kiln_data_describe(d).name, "/train-images"));
    check_images(d, 0.1307, 0.3081);
    check_images(kiln_data_idx(packed, packed_labels), 0.1307, 0.3081);
    check_images(kiln_data_idx(packed, labels, .mean = 0.5, .std = 0.25), 0.5, 0.25);
    check_images(kiln_data_idx(images, NULL, .std = 1), 0, 1);
    d = kiln_data_idx(images, NULL);
    assert_int_equal(kiln_data_describe(d).y.dtype, KILN_DTYPES);
    assert_int_equal(kiln_data_describe(d).classes, 0);
    kiln_data_free(d);
}

/* gzip files may be absorbed: the whole is what they hold one after the other. */
static void test_gzip_members(void **state)
{
    (void)state;
    bytes x = idx_images(12, 5, 7), first = x, second = x, a, b;
    first.size = 100;
    memmove(second.data, second.data + 100, second.size -= 100);
    a = gzip(&first);
    b = gzip(&second);
    memcpy(a.data + a.size, b.data, b.size);
    a.size += b.size;
    check_images(kiln_data_idx(put("absorbed.gz", &a), NULL), 0.1307, 0.3081);
}

/* ---- Damaged files ---- */

/* Opening must fail with this code and message, which also names the file. */
static void refused(const char *images, const char *labels, const char *file, kiln_code code, const char *words)
{
    assert_null(kiln_data_idx(images, labels));
    if (!strstr(kiln_last_error()->message, file))
        fail_msg("%s is not named: %s", file, kiln_last_error()->message);
    expect_error(code, "data_idx", words);
}

static void test_every_truncation(void **state)
{
    (void)state;
    bytes x = idx_images(3, 4, 4), y = idx_labels(3), xz = gzip(&x);
    const char *images = put("images", &x);
    for (size_t size = 0; size < x.size; size++) {
        files_put(images, x.data, size);
        refused(images, NULL, images, KILN_E_FORMAT, size == 0 ? "is empty" : size < 16 ? "ends at byte" : "too short");
    }
    for (size_t size = 0; size < xz.size; size++) {
        files_put(images, xz.data, size);
        refused(images, NULL, images, KILN_E_FORMAT, size == 0 ? "is empty" : size < 2 ? "ends at byte" : "is cut off");
    }
    files_put(images, x.data, x.size);
    const char *labels = put("labels", &y);
    for (size_t size = 0; size < y.size; size++) {
        files_put(labels, y.data, size);
        refused(images, labels, labels, KILN_E_FORMAT, NULL);
    }
}

/* Whatever byte of a gzipped file is wrong: an error, or (in its name, its time) the same images. */
static void test_every_damaged_byte(void **state)
{
    (void)state;
    bytes x = idx_images(12, 5, 7), good = gzip(&x);
    const char *images = files_path("images.gz");
    int errors = 0;
    for (size_t i = 0; i < good.size; i++) {
        bytes bad = good;
        bad.data[i] ^= 0x55;
        files_put(images, bad.data, bad.size);
        kiln_dataset *d = kiln_data_idx(images, NULL);
        if (d)
            check_images(d, 0.1307, 0.3081);
        else {
            errors++;
            assert_int_equal(kiln_last_error()->code, KILN_E_FORMAT);
            expect_error(KILN_E_FORMAT, "data_idx", images);
        }
    }
    assert_true(errors >= (int)good.size - 10);
}

static void test_too_long(void **state)
{
    (void)state;
    bytes x = idx_images(2, 3, 3);
    x.data[x.size++] = 9;
    const char *images = put("images", &x);
    refused(images, NULL, images, KILN_E_FORMAT, "too long: its header declares 34 bytes, and it has 35");
    bytes z = gzip(&x);
    put("images", &z);
    refused(images, NULL, images, KILN_E_FORMAT, "too long: by its header it ends at byte 34");
    x.size--;
    z = gzip(&x);
    char text[80];
    snprintf(text, sizeof text, "goes on behind the end of its gzip data, at byte %zu", z.size);
    z.data[z.size++] = 0;
    put("images", &z);
    refused(images, NULL, images, KILN_E_FORMAT, text);
}

static void test_wrong_files(void **state)
{
    (void)state;
    bytes x = idx_images(2, 3, 3), y = idx_labels(2), more = idx_labels(3), other = x;
    const char *images = put("images", &x), *labels = put("labels", &y), *path = files_path("other");
    refused(labels, images, labels, KILN_E_FORMAT, "holds labels, but was given as a file of images");
    refused(images, images, images, KILN_E_FORMAT, "holds images, but was given as a file of labels");
    put("labels", &more);
    refused(images, labels, labels, KILN_E_FORMAT, "there are 2 images in");
    refused(images, labels, images, KILN_E_FORMAT, "but 3 labels in");

    for (int type = 0; type < 256; type++)
        if (type != 8) {
            other.data[2] = (uint8_t)type;
            put("other", &other);
            bool known = type == 0x09 || (type >= 0x0b && type <= 0x0e);
            refused(path, NULL, path, KILN_E_FORMAT, known ? "only unsigned bytes" : "is no IDX file");
        }
    other = x;
    other.data[3] = 4;
    put("other", &other);
    refused(path, NULL, path, KILN_E_FORMAT, "has 4 dimensions");
    files_put(path, "This is no IDX file.", 20);
    refused(path, NULL, path, KILN_E_FORMAT, "begins with the bytes 54 68 69 73");
    other = idx_images(0, 3, 3);
    put("other", &other);
    refused(path, NULL, path, KILN_E_FORMAT, "dimension 0, at byte 4, is 0");
}

static void test_no_files(void **state)
{
    (void)state;
    bytes x = idx_images(2, 3, 3);
    const char *images = put("images", &x), *missing = files_path("missing");
    refused(missing, NULL, missing, KILN_E_MISSING, "cannot open");
    refused(images, missing, missing, KILN_E_MISSING, "cannot open");
    refused(files_folder, NULL, files_folder, KILN_E_FORMAT, "is a folder");
    const char *pipe = files_path("pipe");
    assert_int_equal(mkfifo(pipe, 0600), 0);
    refused(pipe, NULL, pipe, KILN_E_FORMAT, "not a file with a size");
    assert_null(kiln_data_idx(NULL, images));
    expect_error(KILN_E_ARGUMENT, "data_idx", "images");
    assert_null(kiln_data_idx(images, NULL, .std = -1));
    expect_error(KILN_E_ARGUMENT, "data_idx", "std -1");
    assert_null(kiln_data_idx(images, NULL, .mean = 0.5));
    expect_error(KILN_E_ARGUMENT, "data_idx", "std 0");
    assert_null(kiln_data_idx(images, NULL, .mean = NAN, .std = 1));
    expect_error(KILN_E_ARGUMENT, "data_idx", "mean nan");
}

/* A header that declares much more than there is gets no memory for it: nothing large is asked for. */
static void test_lying_headers(void **state)
{
    (void)state;
    static const uint32_t sizes[][3] = {{UINT32_MAX, UINT32_MAX, UINT32_MAX},
                                        {UINT32_MAX, 1 << 16, 1 << 14},
                                        {1 << 30, 28, 28},
                                        {60000, 28, 28},
                                        {1000, 28, 28}};
    const char *path = files_path("lying");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        bytes b = idx_images(2, 28, 28);
        b.size = 4;
        for (int d = 0; d < 3; d++)
            put_word(&b, sizes[i][d]);
        b.size = 16 + 2 * 28 * 28;
        put("lying", &b);
        refused(path, NULL, path, KILN_E_FORMAT, i ? NULL : "more elements than a file can have");
        bytes z = gzip(&b);
        put("lying", &z);
        refused(path, NULL, path, KILN_E_FORMAT, NULL);
    }
}

/* A gzip file of two kilobytes that holds two megabytes of zeros, behind a header that declares less. */
static void test_bomb(void **state)
{
    (void)state;
    static uint8_t zeros[1 << 16];
    bytes b = idx_images(0, 28, 28), out = {.size = 0};
    b.data[7] = 1; /* one image */
    z_stream z = {.next_out = out.data, .avail_out = sizeof out.data, .next_in = b.data, .avail_in = (unsigned)b.size};
    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    assert_int_equal(deflate(&z, Z_NO_FLUSH), Z_OK);
    for (int i = 0; i < 32; i++) {
        z.next_in = zeros;
        z.avail_in = sizeof zeros;
        assert_int_equal(deflate(&z, Z_NO_FLUSH), Z_OK);
    }
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    out.size = z.total_out;
    deflateEnd(&z);
    assert_true(out.size < 4096);
    const char *path = put("bomb", &out);
    refused(path, NULL, path, KILN_E_FORMAT, "too long: by its header it ends at byte 800");
}

static void test_allocations_fail(void **state)
{
    (void)state;
    bytes x = idx_images(12, 5, 7), y = idx_labels(12), xz = gzip(&x);
    const char *images = put("images", &xz), *labels = put("labels", &y);
    for (int which = 0; which < 2; which++) {
        kiln_dataset *d = NULL;
        for (int64_t n = 0; !d; n++) {
            assert_true(n < 100);
            kiln_alloc_fail_after(n);
            d = which ? kiln_data_text(images, .length = 8) : kiln_data_idx(images, labels);
            kiln_alloc_fail_after(-1);
            if (!d)
                expect_error(KILN_E_MEMORY, NULL, NULL);
        }
        kiln_data_free(d);
    }
}

/* ---- Texts ---- */

static void check_window(kiln_dataset *d, int64_t index, const char *x_text, const char *y_text)
{
    int64_t x[64], y[64];
    size_t length = strlen(x_text);
    assert_int_equal(kiln_data_describe(d).x.shape[0], length);
    assert_true(kiln_dataset_read(d, index, x, y));
    for (size_t i = 0; i < length; i++) {
        assert_int_equal(x[i], (unsigned char)x_text[i]);
        assert_int_equal(y[i], (unsigned char)y_text[i]);
    }
}

static void test_text(void **state)
{
    (void)state;
    const char *path = files_path("text");
    files_put(path, "0123456789ab\xff", 13);
    kiln_dataset *d = kiln_data_text(path, .length = 4);
    kiln_data_info info = kiln_data_describe(d);
    assert_int_equal(info.count, 3);
    assert_int_equal(info.classes, 256);
    assert_true(info.text);
    assert_int_equal(info.x.dtype, KILN_I64);
    assert_int_equal(info.x.ndim, 1);
    check_window(d, 0, "0123", "1234");
    check_window(d, 2, "89ab", "9ab\xff");
    kiln_data_free(d);
    d = kiln_data_text(path, .length = 4, .stride = 3);
    assert_int_equal(kiln_data_count(d), 3);
    check_window(d, 2, "6789", "789a");
    kiln_data_free(d);
    d = kiln_data_text(path, .length = 12);
    assert_int_equal(kiln_data_count(d), 1);
    kiln_data_free(d);
}

/* What one part leaves the other takes, whatever the fraction. */
static void test_text_parts(void **state)
{
    (void)state;
    const char *path = files_path("text");
    char text[101];
    for (int i = 0; i < 101; i++)
        text[i] = (char)i;
    files_put(path, text, sizeof text);
    for (int percent = 5; percent <= 95; percent += 5) {
        kiln_dataset *train = kiln_data_text(path, .length = 1, .to = percent / 100.0);
        kiln_dataset *test = kiln_data_text(path, .length = 1, .from = percent / 100.0, .to = 1);
        int64_t x, y;
        assert_int_equal(kiln_data_count(train) + kiln_data_count(test), 101 - 2);
        assert_true(kiln_dataset_read(train, kiln_data_count(train) - 1, &x, &y));
        assert_true(kiln_dataset_read(test, 0, &x, &x));
        assert_int_equal(x, y + 2);
        kiln_data_free(train);
        kiln_data_free(test);
    }
}

static void test_text_refused(void **state)
{
    (void)state;
    const char *path = files_path("text");
    files_put(path, "0123456789", 10);
    assert_null(kiln_data_text(path));
    expect_error(KILN_E_FORMAT, "data_text", "samples of 128 bytes need 129, and it has 10");
    assert_null(kiln_data_text(path, .length = 10));
    expect_error(KILN_E_FORMAT, "data_text", path);
    assert_null(kiln_data_text(path, .length = 5, .from = 0.5, .to = 1));
    expect_error(KILN_E_FORMAT, "data_text", "need 6, and this part of it has 5");
    static const double parts[][2] = {{0.5, 0.5}, {0.6, 0.5}, {-0.1, 0.5}, {0, 1.1}, {NAN, 1}, {0.5, 0}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        assert_null(kiln_data_text(path, .length = 2, .from = parts[i][0], .to = parts[i][1]));
        expect_error(KILN_E_ARGUMENT, "data_text", "no part of a file");
    }
    assert_null(kiln_data_text(path, .length = -1));
    expect_error(KILN_E_ARGUMENT, "data_text", "-1");
    assert_null(kiln_data_text(path, .length = 2, .stride = -4));
    expect_error(KILN_E_ARGUMENT, "data_text", "-4");
    assert_null(kiln_data_text(path, .length = INT64_MAX));
    expect_error(KILN_E_ARGUMENT, "data_text", NULL);
    assert_null(kiln_data_text(NULL));
    expect_error(KILN_E_ARGUMENT, "data_text", NULL);
    assert_null(kiln_data_text(files_path("missing")));
    expect_error(KILN_E_MISSING, "data_text", "missing");
    files_put(path, "", 0);
    assert_null(kiln_data_text(path));
    expect_error(KILN_E_FORMAT, "data_text", "is empty");
}

/* Files that hold, or as gzip could hold, more than there is memory are refused before anything is read: the system
 * would give the memory out and end the program when it is used. */
static void test_larger_than_memory(void **state)
{
    (void)state;
    enum { SIDE = 1 << 14 };
    const off_t plain = (off_t)1 << 43;
    bytes b = {.data = {0, 0, 8, 3}, .size = 4};
    put_word(&b, (uint32_t)(plain / SIDE / SIDE));
    put_word(&b, SIDE);
    put_word(&b, SIDE);
    const char *images = put("images", &b), *text = files_path("text.txt");
    files_put(text, "x", 1);
    if (truncate(images, plain + 16) != 0 || truncate(text, plain) != 0)
        skip_because("the file system has no files of 8 TB");
    assert_null(kiln_data_idx(images, NULL));
    expect_error(KILN_E_MEMORY, "data_idx", "images: 8796.1 GB are needed");
    assert_null(kiln_data_text(text));
    expect_error(KILN_E_MEMORY, "data_text", "text.txt: 8796.1 GB are needed");
    b.size += 1000;
    bytes z = gzip(&b);
    const char *packed = put("images.gz", &z);
    assert_int_equal(truncate(packed, (off_t)1 << 34), 0); /* a bomb of that size could hold it */
    assert_null(kiln_data_idx(packed, NULL));
    expect_error(KILN_E_MEMORY, "data_idx", "images.gz: 8796.1 GB are needed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        files_test(test_idx),
        files_test(test_gzip_members),
        files_test(test_every_truncation),
        files_test(test_every_damaged_byte),
        files_test(test_too_long),
        files_test(test_wrong_files),
        files_test(test_no_files),
        files_test(test_lying_headers),
        files_test(test_bomb),
        files_test(test_allocations_fail),
        files_test(test_text),
        files_test(test_text_parts),
        files_test(test_text_refused),
        files_test(test_larger_than_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
