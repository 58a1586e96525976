/* The progress line: its text for every width, plain lines where there is no terminal, a line that moves where there is
 * one, colour only where it is welcome. */
#include <pty.h>
#include <stdlib.h>
#include <unistd.h>
#include "support/core.h"
#include "train/progress.h"

static kiln_progress_line moving(void)
{
    kiln_progress_line l = {.epoch = 3,
                            .epochs = 10,
                            .done = 1250,
                            .total = 1875,
                            .seconds = 12.1,
                            .step = 0.0096,
                            .rate = NAN,
                            .wait = NAN,
                            .first = NAN};
    kiln_progress_value(&l, "loss", 0.12341);
    kiln_progress_value(&l, "accuracy", 0.96123);
    return l;
}

static kiln_progress_line finished(void)
{
    kiln_progress_line l = moving();
    l.finished = true;
    l.done = 1875;
    l.seconds = 67.2;
    l.rate = 104321.2;
    l.wait = 0.023;
    l.first = 0.0123;
    kiln_progress_value(&l, "val_loss", 1.5e-5);
    kiln_progress_value(&l, "val_accuracy", 1);
    return l;
}

static void assert_text(const kiln_progress_line *l, int width, bool bar, bool color, const char *want)
{
    char text[KILN_PROGRESS_TEXT];
    int used = kiln_progress_format(text, sizeof text, l, width, bar, color);
    assert_string_equal(text, want);
    if (!color)
        assert_int_equal(used, strlen(text));
}

static void test_texts(void **state)
{
    (void)state;
    kiln_progress_line l = moving();
    assert_text(
        &l, 200, true, false,
        "Epoch 3/10  1250/1875 [====================>.........] 66% - 12s - ETA 6s - 9.60 ms/step - loss: 0.1234 - "
        "accuracy: 0.9612");
    assert_text(&l, 84, true, false,
                "Epoch 3/10  1250/1875 [========>....] 66% - ETA 6s - loss: 0.1234 - accuracy: 0.9612");
    assert_text(&l, 79, true, false, "Epoch 3/10  1250/1875 [=====>..] 66% - ETA 6s - loss: 0.1234 - accuracy: 0.9612");
    assert_text(&l, 78, true, false, "Epoch 3/10  1250/1875 66% - 12s - ETA 6s - loss: 0.1234 - accuracy: 0.9612");
    assert_text(&l, 40, true, false, "Epoch 3/10 66% - ETA 6s - loss: 0.1234");
    assert_text(&l, 27, true, false, "Epoch 3/10 - loss: 0.1234");
    assert_text(&l, 12, true, false, "Epoch 3/10");
    assert_text(&l, 7, true, false, "Epoch 3");
    l = finished();
    assert_text(
        &l, 300, false, false,
        "Epoch 3/10  1875/1875 - 1m07s - 9.60 ms/step - loss: 0.1234 - accuracy: 0.9612 - val_loss: 1.500e-05 - "
        "val_accuracy: 1.0000 - 104321 samples/s - data wait 2% - first step 12.30 ms");
    assert_text(
        &l, 300, true, false,
        "Epoch 3/10  1875/1875 [==============================] - 1m07s - 9.60 ms/step - loss: 0.1234 - accuracy: "
        "0.9612 - val_loss: 1.500e-05 - val_accuracy: 1.0000 - 104321 samples/s - data wait 2% - first step 12.30 "
        "ms");
    assert_text(&l, 100, true, false,
                "Epoch 3/10 - 1m07s - loss: 0.1234 - accuracy: 0.9612 - val_loss: 1.500e-05 - val_accuracy: 1.0000");
    l = moving();
    l.done = 0;
    l.step = NAN;
    l.phase = NULL;
    l.values[0].value = NAN;
    assert_text(&l, 120, true, false,
                "Epoch 3/10  0/1875 [>.............................] 0% - 12s - loss: nan - accuracy: 0.9612");
    l.what = "Evaluating";
    l.phase = "validating 3/40";
    l.seconds = 7300;
    assert_text(&l, 120, false, false, "Evaluating  0/1875 - 2h01m - validating 3/40 - loss: nan - accuracy: 0.9612");
}

/* Whatever the width: no wider, no control characters, and the epoch is there. */
static void test_widths(void **state)
{
    (void)state;
    kiln_progress_line lines[] = {moving(), finished(), moving()};
    lines[2].done = lines[2].total = INT64_MAX;
    lines[2].step = 1e30;
    lines[2].seconds = 1e12;
    lines[2].values[1].value = -INFINITY;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        for (int width = 20; width <= 200; width++)
            for (int bar = 0; bar < 2; bar++) {
                char text[KILN_PROGRESS_TEXT], color[KILN_PROGRESS_TEXT], *out = color;
                int used = kiln_progress_format(text, sizeof text, &lines[i], width, bar, false);
                assert_true((int)strlen(text) == used && used <= width);
                assert_non_null(strstr(text, "Epoch 3/10"));
                for (const char *c = text; *c; c++)
                    assert_true(*c >= ' ' && *c <= '~');
                assert_int_equal(kiln_progress_format(color, sizeof color, &lines[i], width, bar, true), used);
                for (const char *in = color; *in; in++) /* without its colours it is the same text */
                    if (*in == '\033')
                        in = strchr(in, 'm');
                    else
                        *out++ = *in;
                *out = '\0';
                assert_string_equal(color, text);
            }
}

/* ---- In a run ---- */

static kiln_history run(FILE *progress)
{
    kiln_module *net = kiln_nn_linear(4, 3);
    kiln_dataset *d = NULL;
    int64_t labels[60];
    for (int i = 0; i < 60; i++)
        labels[i] = i % 3;
    kiln_scope
        d = kiln_data_tensors(core_data(1, KILN_SHAPE(60, 4)), kiln_of_i64(labels, 60));
    assert_true(kiln_module_to(net, kiln_default_device()));
    kiln_history h =
        kiln_fit(net, d, .epochs = 3, .batch = 8, .validate = d, .metrics = KILN_ACCURACY, .progress = progress);
    kiln_result r = kiln_evaluate(net, d, .progress = progress);
    assert_int_equal(r.samples, 60);
    kiln_data_free(d);
    kiln_module_free(net);
    return h;
}

static void test_plain_lines(void **state)
{
    (void)state;
    FILE *file = tmpfile();
    kiln_history h = run(file);
    char line[1024], want[256];
    rewind(file);
    for (int i = 0; i < 3; i++) {
        assert_non_null(fgets(line, sizeof line, file));
        for (const char *c = line; *c && *c != '\n'; c++)
            assert_true(*c >= ' ' && *c <= '~');
        snprintf(want, sizeof want, "Epoch %d/3  8/8 - ", i + 1);
        assert_int_equal(strncmp(line, want, strlen(want)), 0);
        snprintf(want, sizeof want, " - loss: %.4f - accuracy: %.4f - val_loss: %.4f - val_accuracy: %.4f - ",
                 h.epochs[i].train.loss, h.epochs[i].train.accuracy, h.epochs[i].test.loss, h.epochs[i].test.accuracy);
        assert_non_null(strstr(line, want));
        assert_non_null(strstr(line, "samples/s - data wait "));
        assert_true((strstr(line, "first step ") != NULL) == (i == 0));
    }
    assert_non_null(fgets(line, sizeof line, file));
    assert_int_equal(strncmp(line, "Evaluating  1/1 - ", 18), 0);
    assert_null(fgets(line, sizeof line, file));
    kiln_history_free(&h);
    fclose(file);
}

/* What a run writes to a terminal of this width. */
static void run_on_terminal(const char *term, unsigned short width, char *out, size_t size)
{
    int master, slave;
    struct winsize w = {.ws_row = 24, .ws_col = width};
    assert_int_equal(openpty(&master, &slave, NULL, NULL, &w), 0);
    setenv("TERM", term, 1);
    FILE *file = fdopen(slave, "w");
    kiln_history h = run(file);
    kiln_history_free(&h);
    fclose(file);
    size_t have = 0;
    for (ssize_t n; (n = read(master, out + have, size - 1 - have)) > 0;)
        have += (size_t)n;
    out[have] = '\0';
    close(master);
}

static void test_terminal(void **state)
{
    (void)state;
    static char out[1 << 16];
    const int widths[] = {30, 79, 150};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (int color = 0; color < 2; color++) {
            if (color)
                unsetenv("NO_COLOR");
            else
                setenv("NO_COLOR", "1", 1);
            run_on_terminal("xterm", (unsigned short)widths[i], out, sizeof out);
            assert_true((strstr(out, "\033[32m") != NULL || widths[i] < 79) == (color || widths[i] < 79));
            assert_true(color || !strstr(out, "\033[2m"));
            int lines = 0, column = 0;
            for (const char *c = out; *c; c++) {
                if (*c == '\033')
                    c += strcspn(c, "mK");
                else if (*c == '\r')
                    column = 0;
                else if (*c == '\n')
                    lines++;
                else
                    assert_true(++column < widths[i]);
            }
            assert_int_equal(lines, 4);
        }
    unsetenv("NO_COLOR");
    run_on_terminal("dumb", 80, out, sizeof out);
    assert_null(strchr(out, '\033'));
}

int main(void)
{
    const struct CMUnitTest tests[] = {core_test(test_texts), core_test(test_widths), core_test(test_plain_lines),
                                       core_test(test_terminal)};
    return CORE_MAIN(tests);
}
