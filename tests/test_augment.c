/* Augmenting: images that are flipped and cropped, the same bits whoever makes the batch; what is drawn, and how often;
 * and what cannot be augmented. */
#include "support/files.h"
#include "support/train.h"
#include "core/image.h"
#include "data/dataset.h"
#include "tensor/tensor.h"

/* ctest: name=eager env=KILN_EAGER=1 */

#define HERE kiln_default_device()

enum { SAMPLES = 103, PLANES = 2, HEIGHT = 4, WIDTH = 6, PIXELS = PLANES * HEIGHT * WIDTH };

static const kiln_augment both = {.flip = true, .crop = 2};

/* ---- Sets whose pixels are all different, and none is 0 ---- */

static kiln_dataset *tensor_set(kiln_dtype dtype)
{
    kiln_dataset *d = NULL;
    kiln_scope
        kiln_on_device (KILN_CPU) {
            kiln_tensor *x = kiln_add_scalar(kiln_arange(0, SAMPLES * PIXELS, 1, KILN_I64), 1);
            kiln_tensor *images = kiln_reshape(x, KILN_SHAPE(SAMPLES, PLANES, HEIGHT, WIDTH));
            d = kiln_data_tensors(kiln_cast(images, dtype), kiln_arange(0, SAMPLES, 1, KILN_I64));
        }
    assert_non_null(d);
    return d;
}

/* Without a plane: [height, width]. */
static kiln_dataset *flat_set(void)
{
    kiln_dataset *d = NULL;
    kiln_scope
        kiln_on_device (KILN_CPU)
            d = kiln_data_tensors(kiln_reshape(kiln_arange(0, SAMPLES * 15, 1, KILN_F32), KILN_SHAPE(SAMPLES, 5, 3)),
                                  NULL);
    assert_non_null(d);
    return d;
}

static kiln_dataset *idx_set(uint8_t width)
{
    enum { WIDEST = 8 };
    static uint8_t images[16 + SAMPLES * 5 * WIDEST] = {0, 0, 8, 3, 0, 0, 0, SAMPLES, 0, 0, 0, 5};
    images[15] = width;
    for (int i = 0; i < SAMPLES * 5 * width; i++)
        images[16 + i] = (uint8_t)(i % 251 + 1);
    files_put(files_path("images"), images, (size_t)16 + SAMPLES * 5 * width);
    kiln_dataset *d = kiln_data_idx(files_path("images"), NULL, .mean = 0.3, .std = 0.2);
    assert_non_null(d);
    return d;
}

static bool read_made(void *context, int64_t index, void *x, void *y)
{
    (void)context;
    (void)y;
    for (int i = 0; i < PIXELS; i++)
        ((double *)x)[i] = (double)(index * PIXELS + i + 1);
    return true;
}

static kiln_dataset *made_set(bool repeatable)
{
    return kiln_data_generator((kiln_data_info){.name = "made",
                                                .count = SAMPLES,
                                                .x = {.dtype = KILN_F64, .ndim = 3, .shape = {PLANES, HEIGHT, WIDTH}},
                                                .y.dtype = KILN_DTYPES,
                                                .repeatable = repeatable},
                               read_made, NULL);
}

/* ---- One image by hand ---- */

/* Pixels 1 2 3 / 4 5 6 / 7 8 9, and 0 around them. */
static void test_one_image(void **state)
{
    (void)state;
    static const struct {
        kiln_pose pose;
        uint8_t result[9];
    } cases[] = {{{0, 0, 0}, {1, 2, 3, 4, 5, 6, 7, 8, 9}},  {{0, 0, 1}, {3, 2, 1, 6, 5, 4, 9, 8, 7}},
                 {{1, 0, 0}, {4, 5, 6, 7, 8, 9, 0, 0, 0}},  {{-1, 0, 0}, {0, 0, 0, 1, 2, 3, 4, 5, 6}},
                 {{0, 1, 0}, {2, 3, 0, 5, 6, 0, 8, 9, 0}},  {{0, -1, 0}, {0, 1, 2, 0, 4, 5, 0, 7, 8}},
                 {{0, 1, 1}, {0, 3, 2, 0, 6, 5, 0, 9, 8}},  {{2, -2, 0}, {0, 0, 7, 0, 0, 0, 0, 0, 0}},
                 {{-2, 2, 1}, {0, 0, 0, 0, 0, 0, 0, 0, 3}}, {{-1, -1, 1}, {0, 0, 0, 2, 1, 0, 5, 4, 0}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t element = 1; element <= 8; element *= 2) {
            uint8_t pixels[2][9 * 8] = {{0}};
            for (size_t k = 0; k < 9; k++) {
                pixels[0][k * element] = (uint8_t)(k + 1);
                pixels[1][k * element] = cases[i].result[k] ? cases[i].result[k] : 77;
            }
            kiln_image image = kiln_image_of(2, (int64_t[]){3, 3}, element, 77);
            kiln_image_turn(&image, pixels[0], &cases[i].pose);
            assert_memory_equal(pixels[0], pixels[1], sizeof pixels[0]);
        }
}

/* ---- What is drawn ---- */

/* These numbers stay what they are: a run that is resumed with a later version goes on as it began. */
static void test_drawn_numbers(void **state)
{
    (void)state;
    static const struct {
        uint64_t seed, epoch;
        int64_t sample;
        kiln_pose pose;
    } cases[] = {{0, 0, 0, {-53, 15, 1}},
                 {1, 0, 0, {32, 5, 0}},
                 {0, 1, 0, {-54, 69, 0}},
                 {0, 0, 1, {6, -27, 1}},
                 {0xFEDCBA9876543210u, 1000000000000, INT64_C(1) << 40, {-80, -24, 0}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kiln_pose p = kiln_pose_draw(cases[i].seed, cases[i].epoch, cases[i].sample, true, 100);
        assert_memory_equal(&p, &cases[i].pose, sizeof p);
        kiln_pose flipped = kiln_pose_draw(cases[i].seed, cases[i].epoch, cases[i].sample, true, 0);
        kiln_pose cropped = kiln_pose_draw(cases[i].seed, cases[i].epoch, cases[i].sample, false, 100);
        assert_true(flipped.mirrored == p.mirrored && !flipped.down && !flipped.right);
        assert_true(cropped.down == p.down && cropped.right == p.right && !cropped.mirrored);
    }
}

/* Each of the 50 ways equally often: over samples, over epochs, over seeds; and one epoch says nothing of the next. */
static void test_drawn_evenly(void **state)
{
    (void)state;
    enum { CROP = 2, SHIFTS = 2 * CROP + 1, WAYS = 2 * SHIFTS * SHIFTS, TIMES = 40000 };
    for (int kind = 0; kind < 3; kind++) {
        int counts[WAYS] = {0}, same = 0, before = 0;
        for (int t = 0; t < TIMES; t++) {
            kiln_pose p = kiln_pose_draw(kind == 2 ? (uint64_t)t << (t % 40) : 7, kind == 1 ? (uint64_t)t : 3,
                                         kind == 0 ? t : 5, true, CROP);
            int way = (p.mirrored * SHIFTS + p.down + CROP) * SHIFTS + p.right + CROP;
            assert_in_range(way, 0, WAYS - 1);
            counts[way]++;
            same += t && way == before;
            before = way;
        }
        double expected = (double)TIMES / WAYS, chi = 0;
        for (int i = 0; i < WAYS; i++)
            chi += (counts[i] - expected) * (counts[i] - expected) / expected;
        assert_true(fabs(chi - (WAYS - 1)) < 4 * sqrt(2.0 * (WAYS - 1)));
        assert_true(fabs(same - expected) < 5 * sqrt(expected));
    }
}

/* ---- Batches ---- */

static size_t bytes_of(kiln_tensor *t)
{
    return (size_t)kiln_numel(t) * kiln_dtype_size(kiln_dtype_of(t));
}

/* All samples of an epoch, as the CPU's loader without workers has them, and all targets. To be freed. */
static char *whole_epoch(kiln_dataset *d, kiln_augment augment, uint64_t seed, int64_t epoch, int64_t *targets)
{
    kiln_loader *l = kiln_loader_new(d, .batch = kiln_data_count(d), .seed = seed, .augment = augment);
    kiln_batch b;
    assert_true(l && kiln_loader_seek(l, epoch, 0) && kiln_loader_next(l, &b));
    char *all = malloc(bytes_of(b.x));
    assert_true(all && kiln_read(b.x, all, bytes_of(b.x)));
    assert_true(!targets || !b.y || kiln_read(b.y, targets, bytes_of(b.y)));
    kiln_loader_free(l);
    return all;
}

/* The batches of a loader hold these samples, whatever their order. */
static void same_samples(kiln_loader *l, const char *all, const int64_t *targets, int64_t batch, int64_t epoch)
{
    kiln_batch b;
    int64_t y[SAMPLES];
    while (kiln_loader_next(l, &b)) {
        size_t bytes = bytes_of(b.x), one = bytes / (size_t)b.size;
        char *x = malloc(bytes);
        assert_true(x && kiln_read(b.x, x, bytes) && (!b.y || kiln_read(b.y, y, bytes_of(b.y))));
        for (int64_t i = 0; i < b.size; i++) {
            int64_t sample = kiln_loader_sample(l, epoch, b.index * batch + i);
            assert_memory_equal(x + (size_t)i * one, all + (size_t)sample * one, one);
            assert_true(!b.y || y[i] == targets[sample]);
        }
        free(x);
    }
    assert_true(kiln_ok());
}

/* Workers, batches, orders, and whether the set lies on the device: none of it matters. */
static void same_everywhere(kiln_dataset *d, kiln_augment augment)
{
    static const int64_t epochs[] = {2, 3, 1000000000000};
    static const int workers[] = {0, 1, 3};
    for (int i = 0; i < 3; i++) {
        uint64_t seed = i == 2 ? 0xFEDCBA9876543210u : 9;
        int64_t targets[SAMPLES];
        char *all = whole_epoch(d, augment, seed, epochs[i], targets);
        for (int kind = 0; kind < 4; kind++) {
            int64_t batch = kind % 2 ? 30 : 7;
            kiln_loader *l = kiln_loader_new(d, .batch = batch, .shuffle = kind != 1, .seed = seed, .device = HERE,
                                             .workers = kind < 3 ? workers[kind] : 0, .resident = kind < 3 ? -1 : 1,
                                             .augment = augment);
            assert_true(l && kiln_loader_seek(l, epochs[i], 0));
            same_samples(l, all, targets, batch, epochs[i]);
            assert_true(kiln_loader_seek(l, epochs[i], 2)); /* in the middle */
            same_samples(l, all, targets, batch, epochs[i]);
            kiln_loader_free(l);
        }
        free(all);
    }
}

static void same_and_free(kiln_dataset *d)
{
    static const kiln_augment kinds[] = {{.flip = true}, {.crop = 1}, {.flip = true, .crop = 2}};
    kiln_dataset *part = kiln_data_range(d, 11, 70);
    for (int i = 0; i < 3; i++) {
        same_everywhere(d, kinds[i]);
        same_everywhere(part, kinds[i]);
    }
    assert_null(kiln_next_notice());
    kiln_data_free(part);
    kiln_data_free(d);
}

static void test_tensors(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < KILN_DTYPES; dtype++)
        same_and_free(tensor_set((kiln_dtype)dtype));
    same_and_free(flat_set());
}

static void test_idx(void **state)
{
    (void)state;
    same_and_free(idx_set(7));
    same_and_free(idx_set(8)); /* whose pixels can be made four at a time */
}

static void test_made(void **state)
{
    (void)state;
    same_and_free(kiln_data_digits(.count = 90));
    same_and_free(made_set(true));
    same_and_free(made_set(false));
}

/* Other versions each epoch, the same when it comes again. */
static void test_epochs_differ(void **state)
{
    (void)state;
    kiln_dataset *d = tensor_set(KILN_F32);
    char *first = whole_epoch(d, both, 1, 0, NULL), *again = whole_epoch(d, both, 1, 0, NULL);
    char *next = whole_epoch(d, both, 1, 1, NULL), *other = whole_epoch(d, both, 2, 0, NULL);
    int by_epoch = 0, by_seed = 0;
    for (int i = 0; i < SAMPLES; i++) {
        size_t one = PIXELS * sizeof(float), at = (size_t)i * one;
        by_epoch += memcmp(first + at, next + at, one) != 0;
        by_seed += memcmp(first + at, other + at, one) != 0;
    }
    assert_memory_equal(first, again, SAMPLES * PIXELS * sizeof(float));
    assert_true(by_epoch > SAMPLES * 9 / 10 && by_seed > SAMPLES * 9 / 10);
    free(first);
    free(again);
    free(next);
    free(other);
    kiln_data_free(d);
}

/* ---- Where pixels come from ---- */

/* Pixel (plane, y, x) of a sample of tensor_set that stands in that way; 0 outside. */
static float expected_pixel(int64_t sample, int plane, int y, int x, const kiln_pose *p)
{
    int row = y + p->down, column = (p->mirrored ? WIDTH - 1 - x : x) + p->right;
    if (row < 0 || row >= HEIGHT || column < 0 || column >= WIDTH)
        return 0;
    return (float)(sample * PIXELS + (plane * HEIGHT + row) * WIDTH + column + 1);
}

static bool stands(const float *image, int64_t sample, kiln_pose p)
{
    for (int i = 0; i < PIXELS; i++)
        if (image[i] != expected_pixel(sample, i / (HEIGHT * WIDTH), i / WIDTH % HEIGHT, i % WIDTH, &p))
            return false;
    return true;
}

/* Every image stands in exactly one of the ways there are, and in the one that was drawn for it. */
static void test_all_ways(void **state)
{
    (void)state;
    kiln_dataset *d = tensor_set(KILN_F32);
    kiln_loader *l = kiln_loader_new(d, .batch = 20, .shuffle = true, .seed = 4, .device = HERE, .augment = both);
    int counts[2][5][5] = {{{0}}}, missing = 0;
    kiln_batch b;
    for (int epoch = 0; epoch < 6; epoch++)
        while (kiln_loader_next(l, &b)) {
            if (HERE != KILN_CPU)
                assert_non_null(b.x->storage->thunk); /* it is the device that augments */
            const float *x = core_f32(b.x);
            for (int64_t i = 0; i < b.size; i++) {
                int64_t sample = kiln_loader_sample(l, epoch, b.index * 20 + i);
                kiln_pose drawn = kiln_pose_draw(4, (uint64_t)epoch, sample, true, 2);
                assert_true(stands(x + i * PIXELS, sample, drawn));
                counts[drawn.mirrored][drawn.down + 2][drawn.right + 2]++;
            }
        }
    for (int i = 0; i < 50; i++)
        missing += counts[i / 25][i / 5 % 5][i % 5] == 0;
    assert_int_equal(missing, 0);
    kiln_loader_free(l);
    kiln_data_free(d);
}

/* What comes in at the edges: black. */
static void check_edges(kiln_dataset *d, float black)
{
    kiln_data_info info = kiln_data_describe(d);
    int64_t height = info.x.shape[1], width = info.x.shape[2];
    kiln_loader *l = kiln_loader_new(d, .batch = 1, .seed = 3, .device = HERE, .augment = {.crop = 2});
    kiln_batch b;
    for (int64_t i = 0; kiln_loader_next(l, &b); i++) {
        kiln_pose p = kiln_pose_draw(3, 0, i, false, 2);
        const float *x = core_f32(b.x);
        for (int64_t y = 0; y < height; y++)
            for (int64_t k = 0; k < width; k++)
                if (y + p.down < 0 || y + p.down >= height || k + p.right < 0 || k + p.right >= width)
                    assert_true(x[y * width + k] == black);
    }
    assert_true(kiln_ok());
    kiln_loader_free(l);
    kiln_data_free(d);
}

static void test_edges(void **state)
{
    (void)state;
    kiln_dataset *digits = kiln_data_digits(.count = 40);
    float paper = 0, image[28 * 28];
    int64_t label;
    assert_true(kiln_dataset_read(digits, 0, image, &label));
    for (int i = 0; i < 28 * 28; i++)
        paper = image[i] < paper ? image[i] : paper; /* no ink is the least there is */
    check_edges(digits, paper);
    float scale = (float)(1 / (255 * 0.2)), shift = (float)(-0.3 / 0.2);
    check_edges(idx_set(8), 0 * scale + shift);
    check_edges(tensor_set(KILN_F32), 0);
}

/* ---- What cannot be ---- */

static void refuse(kiln_dataset *d, kiln_augment augment, kiln_code code, const char *word)
{
    assert_null(kiln_loader_new(d, .device = HERE, .augment = augment));
    expect_error(code, "loader_new", word);
}

static void test_refused(void **state)
{
    (void)state;
    kiln_dataset *d = tensor_set(KILN_F32), *vectors = NULL, *films = NULL;
    files_put(files_path("text"), "To be, or not to be, that is the question", 40);
    kiln_dataset *text = kiln_data_text(files_path("text"), .length = 8);
    kiln_scope
        kiln_on_device (KILN_CPU) {
            vectors = kiln_data_tensors(core_data(1, KILN_SHAPE(5, 6)), NULL);
            films = kiln_data_tensors(core_data(1, KILN_SHAPE(5, 2, 3, 4, 4)), NULL);
        }
    refuse(d, (kiln_augment){.crop = -1}, KILN_E_ARGUMENT, "4×6 pixels cannot be cropped by -1");
    refuse(d, (kiln_augment){.crop = HEIGHT}, KILN_E_ARGUMENT, "cannot be cropped by 4");
    refuse(vectors, (kiln_augment){.flip = true}, KILN_E_SHAPE, "only images can be flipped and cropped");
    refuse(films, (kiln_augment){.flip = true}, KILN_E_SHAPE, "samples of tensors are of shape [2, 3, 4, 4]");
    refuse(text, (kiln_augment){.crop = 1}, KILN_E_SHAPE, "are text, [8]: only images");
    kiln_loader *l = kiln_loader_new(d, .device = HERE, .augment = {.crop = HEIGHT - 1});
    assert_non_null(l);
    kiln_loader_free(l);
    kiln_data_free(d);
    kiln_data_free(vectors);
    kiln_data_free(films);
    kiln_data_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        core_test(test_one_image), core_test(test_drawn_numbers), core_test(test_drawn_evenly),
        core_test(test_tensors),   files_test(test_idx),          core_test(test_made),
        core_test(test_all_ways),  core_test(test_epochs_differ), files_test(test_edges),
        files_test(test_refused),
    };
    return CORE_MAIN(tests);
}
