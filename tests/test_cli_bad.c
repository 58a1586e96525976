/* The kiln command and all that can be wrong: files that lie, streams that are closed, folders that are used by
 * another run, options that do not fit each other. Nothing may crash, hang, or destroy what was there. */
#include "support/command.h"
#include <sys/file.h>

/* ---- Making bad files ---- */

/* A safetensors file with one tensor "a" of one float, and metadata as given. */
static void put_weights(const char *path, const char *metadata, float value)
{
    char header[1024], file[1200] = {0};
    int n =
        snprintf(header, sizeof header,
                 "{\"__metadata__\":{%s},\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", metadata);
    assert_true(n > 0 && n < (int)sizeof header);
    file[0] = (char)(n & 0xff);
    file[1] = (char)(n >> 8);
    memcpy(file + 8, header, (size_t)n);
    memcpy(file + 8 + n, &value, sizeof value);
    put(path, file, 8 + (size_t)n + sizeof value);
}

/* Replaces a text in a file by another of the same length. */
static void change(const char *path, const char *old, const char *new)
{
    size_t bytes, n = strlen(old);
    char *file = slurp(path, &bytes), *at = memmem(file, bytes, old, n);
    assert_int_equal(strlen(new), n);
    assert_non_null(at);
    memcpy(at, new, n);
    put(path, file, bytes);
    free(file);
}

/* ---- Tests ---- */

static void test_options(void **state)
{
    (void)state;
    expect(64, "of at most 1000000000", "$K train --batch 99999999999999999999");
    expect(64, "a number above 0", "$K train --lr 0x10");
    expect(64, "a size in bytes", "$K train --mem-limit 0");
    expect(64, "a size in bytes", "$K train --mem-limit 0x10");
    expect(64, "--data needs a value", "$K train --data ''");
    expect(64, "at most 16 numbers", "$K bench --batch 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17");
    expect(64, "--momentum: adam has none; sgd, rmsprop and muon do", "$K train --data digits:20 --momentum 0.5");
    expect(64, "a whole number", "$K train --schedule step:every=1.5");
    expect(64, "--crop -1: expected a whole number", "$K train --crop -1");
    expect(64, "images of digits are only 28 x 28 pixels", "$K train --data digits:20 --crop 28");
    expect(64, "--flip takes no value", "$K train --flip=yes");
    put_text("prose.txt", "It was the best of times, it was the worst of times, it was the age of wisdom");
    expect(64, "--flip is for images; ", "$K train --data prose.txt --length 4 --flip");
    expect(64, "is a text", "$K train --data prose.txt --length 4 --crop 2");
    expect(64, "--dropout: lenet has none", "$K train --data digits:20 --model lenet --dropout 0.1");
    expect(64, "it has: channels", "$K train --data digits:20 --model mlp:layers=3");
    expect(64, "did you mean 'resnet18'?", "$K train --model resnet");
    expect(64, "multiple", "$K train --data digits:20 --model vit-tiny:embed=7,heads=3");
    expect(64, "too small", "$K train --data digits:20 --model lenet:height=4");
    expect(64, "too large", "$K plan --model gpt2:layers=100000000,heads=1,embed=1");
    expect(64, "too large", "$K plan --model mlp:channels=1000000000,height=1000000000,width=1000000000");
    expect(66, "--data takes digits", "$K train --data $(printf 'x%.0s' $(seq 200))"); /* no "did you mean digits" */
    assert_false(there("kiln-run"));
}

static void test_model_files(void **state)
{
    (void)state;
    put("nul.yaml", "input: [1, 28, 28]\nlayers:\n  - flatten\0\n  - linear: 10\n", 56);
    expect(65, "nul.yaml: byte 38 is zero", "$K train --model nul.yaml");
    put_text("tab.yaml", "input: [1, 28, 28]\nlayers:\n\t- flatten\n");
    expect(65, "indented with blanks", "$K train --model tab.yaml");
}

/* A file that stands where a standard stream was would have the words for people in it. */
static void test_closed_streams(void **state)
{
    (void)state;
    expect(0, NULL, "$K train --data digits:40 --epochs 2 --save closed >&- 2>&- <&-");
    expect(0, NULL, "$K plot closed");
    expect(0, "accuracy", "$K eval closed");
    char *log = slurp("closed/log.jsonl", NULL);
    assert_int_equal(count_lines(log), 3);
    free(log);
    expect(0, NULL, "$K eval closed >&-");
    expect(74, "No space left", "$K eval closed >/dev/full");
}

static void test_file_size_limit(void **state)
{
    (void)state;
    expect(74, "writing failed at byte", "ulimit -f 100; $K train -q --data digits:40 --epochs 1 --save limited");
    assert_false(there("limited/best.safetensors"));
    expect(1, NULL, "ls -A limited | grep tmp");
}

/* What a run says about itself is written by anyone. */
static void test_lying_runs(void **state)
{
    (void)state;
    expect(0, NULL, "$K train -q --data digits:40 --epochs 2 --limit 1 --batch 20 --save lies");
    const struct {
        const char *old, *new, *says;
    } cases[] = {{"\\\"batch\\\":20", "\\\"batch\\\":00", "kiln.train is not a JSON object"},
                 {"\\\"batch\\\":20", "\\\"batch\\\": 0", "the run says batch = 0"},
                 {"\\\"accumulate\\\":1", "\\\"accumulate\\\":0", "the run says accumulate = 0"},
                 {"\\\"epochs\\\":2", "\\\"epochs\\\":0", "the run says epochs = 0"},
                 {"\\\"split\\\":0.9", "\\\"split\\\":9.0", "the run says split = 9"},
                 {"digits:40", "/nowhere/", "that is what the run was trained on"},
                 {"mlp:", "pml:", "no model 'pml'"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect(0, NULL, "rm -rf lie; cp -r lies lie");
        change("lie/step-00000001/model.safetensors", cases[i].old, cases[i].new);
        int code = shell("$K train --resume --save lie");
        if ((code != 65 && code != 66) || !strstr(err, cases[i].says))
            fail_msg("%s: ended with %d and said: %s", cases[i].says, code, err);
    }
    put_weights("named.safetensors", "\"kiln.model\":\"/etc/passwd\"", 0);
    expect(65, "no model '/etc/passwd'", "$K eval named.safetensors"); /* a path is none of its business */
    put_weights("coloured.safetensors", "\"k\":\"\\u001b[31m\\u009b\"", 0);
    expect(0, "k            \\x1b[31m\\xc2\\x9b", "$K inspect coloured.safetensors");
    assert_null(strchr(out, '\033'));
}

static void test_weights_that_are_no_numbers(void **state)
{
    (void)state;
    expect(0, NULL, "$K train -q --data digits:40 --epochs 1 --save sound");
    size_t bytes;
    char *file = slurp("sound/best.safetensors", &bytes);
    const float nan = __builtin_nanf("");
    memcpy(file + bytes - sizeof nan, &nan, sizeof nan);
    put("nan.safetensors", file, bytes);
    free(file);
    expect(65, "1 values of 5.weight are not finite", "$K eval nan.safetensors");
    expect(65, "1 values of 5.weight are not finite", "$K predict nan.safetensors");
    expect(65, "1 values of 5.weight are not finite", "$K train --init nan.safetensors --save x");
    assert_false(there("x"));
    expect(0, NULL, "$K train -q --data digits:40 --epochs 1 --init sound --save second"); /* a run's best weights */
}

/* The loss that became NaN is told in words of the command; where no checkpoint is none is spoken of. */
static void test_divergence(void **state)
{
    (void)state;
    expect(65, "the loss became", "$K train --data digits:400 --optim sgd --lr 1e6 --epochs 1 --save diverged");
    assert_null(strstr(err, "clip_norm"));
    assert_null(strstr(err, "last checkpoint"));
}

/* Two at once in one folder. */
static void test_folder_in_use(void **state)
{
    (void)state;
    expect(0, NULL, "$K train -q --data digits:40 --epochs 1 --save used");
    int fd = open("used", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    expect(74, "another kiln train is at work", "$K train --data digits:40 --epochs 1 --save used");
    expect(74, "another run is at work", "$K train --resume --epochs 3 --save used");
    assert_false(there("used.1"));
    close(fd);
    expect(0, NULL, "$K train -q --resume --epochs 2 --save used");
}

/* A run is moved aside for the next one; when that cannot begin it comes back. */
static void test_moved_back(void **state)
{
    (void)state;
    expect(0, NULL, "$K train -q --data digits:40 --epochs 1 --save kept");
    expect(64, "is back in kept", "$K train --data digits:40 --batch 41 --save kept");
    expect(71, "is back in kept", "$K train --data digits:40 --device cpu --mem-limit 3M --save kept");
    expect(66, "there is no folder no/such", "$K train --data digits:40 --log no/such/log.jsonl --save kept");
    assert_true(there("kept/best.safetensors"));
    assert_false(there("kept.1"));
    expect(74, "is a file; a run needs a folder", "touch plain; $K train --data digits:40 --save plain");
    expect(64, "goes on with it", "$K train --resume --save kept --seed 5");
    expect(65, "without the average", "$K train --resume --save kept --epochs 2 --ema 0.9");
}

static void test_labels(void **state)
{
    (void)state;
    unsigned char images[16 + 20 * 4] = {0, 0, 8, 3, 0, 0, 0, 20, 0, 0, 0, 2, 0, 0, 0, 2};
    unsigned char labels[8 + 20] = {0, 0, 8, 1, 0, 0, 0, 20};
    expect(0, NULL, "mkdir -p half whole none");
    put("none/train-images-idx3-ubyte", images, sizeof images);
    expect(65, "has no labels", "$K train --data none --save x");
    put("half/train-images-idx3-ubyte", images, sizeof images);
    put("half/train-labels-idx1-ubyte", labels, sizeof labels);
    expect(0, "1 classes", "gzip half/train-images-idx3-ubyte; $K train --data half --limit 1 --save gzipped");
    labels[8] = 11;
    put("whole/t10k-images-idx3-ubyte", images, sizeof images);
    put("whole/t10k-labels-idx1-ubyte", labels, sizeof labels);
    expect(0, "12 classes", "cp half/* whole; $K train --data whole --limit 1 --save both"); /* the test set's, too */
    expect(65, "has 12 classes, the model mlp gives only 1", "$K eval gzipped --data whole");
    expect(65, "not in UTF-8", "d=$(printf 'a\\377'); cp -r half $d; $K train --data $d --save x");
    if (geteuid() != 0)
        expect(66, "cannot be read", "chmod 0 none; $K train --data none --save x");
    assert_false(there("x"));
}

static void test_pictures(void **state)
{
    (void)state;
    expect(0, NULL, "$K train -q --data digits:40 --epochs 1 --save drawn; $K plot drawn -o 'a,b.png'");
    expect(0, NULL, "$K predict drawn a,b.png -o p.csv");
    expect(0, "\"a,b.png\",", "cat p.csv");
    expect(64, "the run comes before it", "$K predict a,b.png");
    expect(64, "--limit is for data sets", "$K predict drawn a,b.png --limit 3");
    expect(66, "no pictures in this folder", "$K predict drawn drawn");
    expect(65, "by byte 100", "head -c 100 a,b.png >cut.png; $K predict drawn cut.png");
    expect(0, NULL, "$K plot drawn -o bytes.svg --title \"$(printf 'a\\377\\001<\\303\\251')\"");
    char *svg = slurp("bytes.svg", NULL);
    assert_non_null(strstr(svg, ">a\xef\xbf\xbd\xef\xbf\xbd&lt;\xc3\xa9<"));
    free(svg);
    put_text("huge.jsonl", "{\"epoch\":1,\"loss\":1e308}\n{\"epoch\":2,\"loss\":-1e308}\n{\"epoch\":3,\"loss\":1}\n");
    expect(1, NULL, "$K plot huge.jsonl -o huge.svg >/dev/null && grep nan huge.svg");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options),        cmocka_unit_test(test_model_files),
        cmocka_unit_test(test_closed_streams), cmocka_unit_test(test_file_size_limit),
        cmocka_unit_test(test_lying_runs),     cmocka_unit_test(test_weights_that_are_no_numbers),
        cmocka_unit_test(test_divergence),     cmocka_unit_test(test_folder_in_use),
        cmocka_unit_test(test_moved_back),     cmocka_unit_test(test_labels),
        cmocka_unit_test(test_pictures),
    };
    return cmocka_run_group_tests(tests, command_before, command_after);
}
