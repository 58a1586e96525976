/* The kiln command and files that are not its own: nothing that the user names is lost, hangs it or fills the memory,
 * and nothing that others wrote reaches a terminal as it is. */
#include "support/command.h"

/* Enough for what is asked below, and too little for what must not be tried. Sanitizers have use for terabytes. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LITTLE_MEMORY ""
#else
#define LITTLE_MEMORY "ulimit -v 4000000; "
#endif

static void assert_holds(const char *path, const char *text)
{
    char *got = slurp(path, NULL);
    assert_string_equal(got, text);
    free(got);
}

static void make_run(const char *name)
{
    char line[200];
    snprintf(line, sizeof line, "$K train -q --data digits:60 --epochs 1 --batch 20 --save %s", name);
    expect(0, NULL, line);
}

/* A safetensors file of 400 numbers that says it is of this model. */
static void put_weights(const char *path, const char *model)
{
    char header[1000], file[3000] = {0};
    int n = snprintf(header, sizeof header,
                     "{\"__metadata__\":{\"kiln.model\":\"%s\"},\"a\":{\"dtype\":\"F32\",\"shape\":[400],"
                     "\"data_offsets\":[0,1600]}}",
                     model);
    assert_true(n > 0 && n < (int)sizeof header);
    file[0] = (char)(n & 0xff);
    file[1] = (char)(n >> 8);
    memcpy(file + 8, header, (size_t)n);
    put(path, file, 8 + (size_t)n + 1600);
}

/* ---- Nothing is lost ---- */

/* Weights without a checkpoint cannot be gone on from, and nothing takes their place. */
static void test_resume_without_checkpoint(void **state)
{
    (void)state;
    make_run("left");
    expect(0, NULL, "rm -r left/step-*; cp left/best.safetensors best; cp left/log.jsonl log");
    expect(66, "has no checkpoint to go on from", "$K train --save left --resume");
    assert_same_files("left/best.safetensors", "best");
    assert_same_files("left/log.jsonl", "log");
    expect(0, "is now in left.1", "$K train --data digits:60 --epochs 1 --batch 20 --init left --save left");
    assert_same_files("left.1/best.safetensors", "best");
}

static void write_images(const char *folder)
{
    enum { COUNT = 30, SIDE = 8 };
    unsigned char images[16 + COUNT * SIDE * SIDE] = {0, 0, 8, 3, 0, 0, 0, COUNT, 0, 0, 0, SIDE, 0, 0, 0, SIDE};
    unsigned char labels[8 + COUNT] = {0, 0, 8, 1, 0, 0, 0, COUNT};
    char path[100];
    for (int i = 0; i < COUNT; i++)
        labels[8 + i] = (unsigned char)(i % 3);
    assert_int_equal(shell("mkdir -p %s", folder), 0);
    snprintf(path, sizeof path, "%s/train-images-idx3-ubyte", folder);
    put(path, images, sizeof images);
    snprintf(path, sizeof path, "%s/train-labels-idx1-ubyte", folder);
    put(path, labels, sizeof labels);
}

/* A run's folder is moved aside where one is there: never with data or models in it. */
static void test_inputs_are_not_moved(void **state)
{
    (void)state;
    write_images("mine");
    expect(64, "a run needs a folder of its own", "$K train --data mine --save mine --limit 1");
    expect(64, "a run needs a folder of its own", "ln -sf mine alias; $K train --data mine --save alias/ --limit 1");
    write_images("work/images");
    expect(0, NULL,
           "$K train -q --data work/images --batch 9 --limit 1 --save work"); /* beside the data: nothing moves */
    expect(64, "that is where --data work/images is", "$K train --data work/images --batch 9 --limit 1 --save work");
    put_text("work/net.yaml", "input: [1, 28, 28]\nlayers:\n  - flatten\n  - linear: 10\n");
    expect(64, "that is where --model work/net.yaml is", "$K train --data digits:60 --model work/net.yaml --save work");
    expect(64, "under the current folder", "cd work/images && $K train --data digits:60 --save ..");
    expect(64, "under the current folder", "cd work && $K train --data digits:60 --save .");
    assert_true(there("mine/train-images-idx3-ubyte") && there("work/images/train-images-idx3-ubyte"));
    assert_true(there("work/net.yaml") && there("work/best.safetensors"));
    assert_false(there("mine.1") || there("work.1") || there("alias.1"));
}

static void test_outputs_replace_their_own_kind(void **state)
{
    (void)state;
    make_run("run");
    expect(0, NULL, "cp run/best.safetensors best");
    expect(64, "is no table of predictions in CSV", "$K predict run -o run/best.safetensors");
    expect(64, "is no table of predictions in CSV", "$K predict run -o run/log.jsonl");
    assert_same_files("run/best.safetensors", "best");
    put_text("mine.csv", "name,age\n");
    expect(64, "is there already and is no table", "$K predict run -o mine.csv");
    assert_holds("mine.csv", "name,age\n");
    expect(0, "10 predictions written to own.csv", "$K predict run -o own.csv");
    expect(0, "10 predictions written to own.csv", "chmod 600 own.csv; $K predict run -o own.csv");
    struct stat s;
    assert_true(stat("own.csv", &s) == 0 && (s.st_mode & 0777) == 0600);
    expect(64, "in JSON", "$K predict run -o own.csv --format json");
    expect(0, NULL, "ln -s own.csv link.csv; $K predict run --limit 3 -o link.csv && test -L link.csv");
    char *csv = slurp("own.csv", NULL);
    assert_int_equal(count_lines(csv), 4);
    free(csv);

    put_text("mine.svg", "<?xml version=\"1.0\"?>\n<svg/>\n");
    expect(64, "is no drawing of curves", "$K plot run -o mine.svg");
    put_text("mine.png", "not a picture");
    expect(64, "is no PNG picture", "$K plot run -o mine.png");
    assert_holds("mine.png", "not a picture");
    expect(0, NULL,
           "$K plot run -o own.svg && $K plot run -o own.svg && $K plot run -o own.png && $K plot run -o own.png");
    expect(0, NULL, "! ls -A | grep tmp-"); /* nothing is left lying around */
    expect(74, NULL, "$K predict run -o /dev/full");
    expect(66, "No such file", "$K predict run -o nowhere/x.csv");
}

static void test_logs_of_others(void **state)
{
    (void)state;
    const char *train = "$K train --data digits:60 --epochs 1 --batch 20 --save logged --log";
    char line[300];
    put_text("notes.txt", "buy milk\n");
    snprintf(line, sizeof line, "%s notes.txt", train);
    expect(64, "notes.txt is there already and is no log of a run", line);
    assert_holds("notes.txt", "buy milk\n");
    assert_false(there("logged"));
    make_run("logged"); /* comes back when the next one cannot begin */
    expect(64, "The run is back in logged", line);
    assert_true(there("logged/best.safetensors"));

    /* one of its own is moved aside, as runs are, and comes back as they do */
    snprintf(line, sizeof line, "%s all.jsonl", train);
    expect(0, NULL, line);
    expect(0, "The log that was in all.jsonl is now in all.jsonl.1", line);
    expect(
        64, "The log is back in all.jsonl",
        "$K train --data digits:60 --batch 100 --save small --log all.jsonl >o 2>&1; r=$?; test -s all.jsonl && cat o; "
        "exit $r");
    assert_true(there("all.jsonl.1") && !there("all.jsonl.2"));

    /* a log that was replaced by a link is not cut */
    expect(0, NULL,
           "$K train -q --data digits:60 --epochs 1 --batch 20 --save linked; "
           "seq 5000 >precious.txt; cp precious.txt copy.txt; ln -sf ../precious.txt linked/log.jsonl");
    expect(64, "no log of a run", "$K train --save linked --resume --epochs 2");
    assert_same_files("precious.txt", "copy.txt");
    expect(65, "not the one that the checkpoint goes on with",
           "cp all.jsonl other.jsonl; cat all.jsonl.1 >>other.jsonl; cp other.jsonl copy.txt; "
           "ln -sf ../other.jsonl linked/log.jsonl; $K train --save linked --resume --epochs 2");
    assert_same_files("other.jsonl", "copy.txt");
}

/* ---- Nothing hangs ---- */

static void test_pipes_and_devices(void **state)
{
    (void)state;
    if (shell("command -v timeout && mkfifo pipe pipe.yaml pipe.png pipe.jsonl pipe.safetensors") != 0)
        skip_because("there is no timeout, or no mkfifo");
    make_run("plain");
    static const char *const lines[] = {"train --data pipe",
                                        "train --data /dev/zero",
                                        "train --model pipe.yaml",
                                        "train --model /dev/zero",
                                        "train --init pipe",
                                        "train --init /dev/zero",
                                        "predict plain pipe.png",
                                        "predict plain /dev/zero",
                                        "plot pipe.jsonl",
                                        "plot /dev/zero",
                                        "inspect pipe.safetensors",
                                        "inspect /dev/zero",
                                        "eval pipe.safetensors",
                                        "eval /dev/zero",
                                        "generate pipe",
                                        "eval plain --data pipe",
                                        "eval plain --data /dev/zero",
                                        "plan --model pipe.yaml",
                                        "predict plain --data pipe",
                                        "bench --model pipe.yaml"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        int code = shell(LITTLE_MEMORY "timeout 60 $K %s", lines[i]);
        bool clear = strstr(err, "pipe") && (strstr(err, "device") || strstr(err, "regular file"));
        if ((code != 65 && code != 66) || (!clear && !strstr(err, "regular file") && !strstr(err, "a device")))
            fail_msg("kiln %s: ended with %d and said: %s", lines[i], code, err);
    }
    assert_false(there("kiln-run"));
}

/* What a small file says it is of is held against the file before memory is taken for a model of that size. */
static void test_huge_models(void **state)
{
    (void)state;
    static const char *const models[] = {
        "gpt2:vocabulary=256,context=128,layers=100,heads=1,embed=8192",
        "gpt2:vocabulary=256,context=128,layers=1000,heads=1,embed=1000000",
        "char-lstm:vocabulary=256,context=128,hidden=20000,layers=100",
        "input: tokens\\nlayers:\\n  - embedding: 500000\\n  - linear: 256\\n",
    };
    put_text("prose.txt", "It was the best of times, it was the worst of times, it was the age of wisdom, it was");
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        put_weights("huge.safetensors", models[i]);
        expect(65, "more than the 400 values it holds",
               LITTLE_MEMORY "$K eval huge.safetensors --data prose.txt --length 8 --split 0 --threads 1");
        expect(65, "more than the 400 values it holds", LITTLE_MEMORY "$K generate huge.safetensors --threads 1");
        expect(0, "400 elements", LITTLE_MEMORY "$K inspect --stats huge.safetensors");
    }
    put_weights("huge.safetensors", "mlp:channels=1,height=10000,width=10000,classes=10");
    expect(65, "more than the 400 values it holds", LITTLE_MEMORY "$K predict huge.safetensors own.png");
    put_weights("small.safetensors",
                "input: [1, 28, 28]\\nlayers:\\n  - avg_pool2d: 28\\n  - flatten\\n  - linear: 10\\n");
    expect(65, "do not fit", "$K predict small.safetensors own.png");
}

/* A checkpoint that says so, too: before training goes on. */
static void test_huge_checkpoint(void **state)
{
    (void)state;
    make_run("grown");
    put_weights("huge.safetensors", "mlp:channels=1,height=10000,width=10000,classes=10");
    expect(
        0, NULL,
        "for f in grown/step-*; do cp huge.safetensors $f/model.safetensors; sed -i \"s/\\(model.safetensors[^0-9]*\\)"
        "[0-9]*/\\1$(stat -c %s huge.safetensors)/\" $f/state.json; done");
    expect(65, "more than the 400 values it holds", LITTLE_MEMORY "$K train --save grown --resume --threads 1");
}

/* Planning needs shapes alone: a model of 175 billion weights, and a batch that no machine could hold. */
static void test_huge_plan(void **state)
{
    (void)state;
    expect(0, "174,604,259,328 parameters",
           LITTLE_MEMORY "$K plan --model gpt2:layers=96,embed=12288,heads=96,context=2048 --threads 1");
    assert_non_null(strstr(out, "more than the"));
    expect(0, "not even a batch of 1 fits 2.0 GiB",
           LITTLE_MEMORY "$K plan --model gpt2:layers=96,embed=12288,heads=96 --mem-limit 2G --summary --threads 1");
    expect(0, "over 9.223e+09 GFLOP", LITTLE_MEMORY "$K plan --model gpt2 --batch 1000000000 --threads 1");
}

static void test_pytorch_files(void **state)
{
    (void)state;
    put("model.pt", "PK\3\4\0\0\10\10\0\0\0\0\0\0archive/data.pkl", 30);
    put("old.pt", "\x80\2\x8a\nl\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15);
    expect(65, "is a zip file, as torch.save writes it", "$K eval model.pt");
    assert_non_null(strstr(err, "safetensors.torch"));
    assert_non_null(strstr(err, "save_file"));
    expect(65, "is a Python pickle", "$K train --init old.pt");
    assert_non_null(strstr(err, "weights_only=True"));
}

/* ---- What a terminal is shown ---- */

/* Runs it on a terminal; its words are in `out`. */
static void on_terminal(const char *line)
{
    put_text("line.sh", line);
    assert_int_equal(shell("TERM=xterm NO_COLOR=1 script -qec 'sh line.sh' /dev/null"), 0);
}

static void test_terminal(void **state)
{
    (void)state;
    if (shell("command -v script") != 0)
        skip_because("script is not installed");
    put_text("evil.yaml",
             "name: \"a\\e]0;title\\a\\e[2J\"\ninput: [1, 28, 28]\nlayers:\n  - flatten\n  - linear: 10\n");
    on_terminal("$K plan --model evil.yaml");
    assert_non_null(strstr(out, "a\\x1b]0;title\\x07\\x1b[2J"));
    assert_null(strchr(out, '\033'));
    on_terminal("$K bench --model evil.yaml --batch 4 --seconds 0.01 --kernels");
    assert_null(strchr(out, '\033'));
    on_terminal(
        "mkdir -p \"$(printf 'x\\033[31m')\"; "
        "$K train --model evil.yaml --data digits:40 --epochs 1 --save \"$(printf 'x\\033[31m/run')\" >o; cat o");
    assert_null(strchr(out, '\033'));
    on_terminal("$K inspect \"$(printf 'x\\033[31m/run')\"; $K plot \"$(printf 'x\\033[31m/run')\"; "
                "$K eval \"$(printf 'x\\033[31m/run')\" -q");
    assert_null(strstr(out, "\033[31m"));
    assert_non_null(strstr(out, "x\\x1b[31m/run"));

    /* a text: what is no terminal gets its bytes as they are */
    expect(0, NULL,
           "for i in $(seq 200); do echo 'the quick brown fox'; done >fox.txt; "
           "$K train -q --data fox.txt --model char-lstm:hidden=8,embed=4 --length 16 --limit 2 --save text");
    expect(0, "\033[2J\xc3\xa9\xff", "$K generate text --length 0 --prompt \"$(printf '\\033[2J\\303\\251\\377')\"");
    on_terminal("$K generate text --length 0 --prompt \"$(printf '\\033[2J\\303\\251\\377\\302\\233x')\"");
    assert_null(strchr(out, '\033'));
    assert_non_null(strstr(out, "\\x1b[2J\xc3\xa9\\xff\\xc2\\x9bx"));
    on_terminal("$K generate text --length 200 --temperature 100");
    for (const char *c = out; *c; c++)
        assert_true((unsigned char)*c >= ' ' || *c == '\n' || *c == '\r' || *c == '\t');
}

/* ---- Curves of logs that say anything ---- */

static void test_plots_of_nonsense(void **state)
{
    (void)state;
    static const char *const logs[] = {
        "{\"epoch\":1,\"step\":1e-320,\"loss\":1}\n{\"epoch\":2,\"step\":2e-320,\"loss\":2}\n",
        "{\"epoch\":1,\"step\":1,\"loss\":1e-320}\n{\"epoch\":2,\"step\":2,\"loss\":1}\n",
        "{\"epoch\":1,\"step\":1,\"loss\":1e15}\n{\"epoch\":2,\"step\":2,\"loss\":1000000000000000.125}\n",
        "{\"epoch\":-1,\"step\":-5,\"loss\":1}\n{\"epoch\":2,\"step\":7,\"loss\":2}\n",
        "{\"epoch\":1e308,\"step\":1e308,\"loss\":1}\n{\"epoch\":2,\"step\":7,\"loss\":2}\n",
        "{\"epoch\":1,\"step\":1,\"loss\":1,\"accuracy\":7}\n{\"epoch\":2,\"step\":2,\"loss\":2,\"accuracy\":-3}\n",
        "{\"epoch\":1,\"step\":1,\"loss\":1e-99}\n{\"epoch\":2,\"step\":2,\"loss\":1e99}\n",
        "{\"epoch\":0,\"step\":0,\"loss\":0,\"accuracy\":0,\"val_loss\":0,\"val_accuracy\":1}\n",
        "{\"epoch\":1e15,\"step\":1e-99,\"loss\":1}\n{\"step\":1e15,\"loss\":1}\n{\"step\":1,\"loss\":1}\n",
    };
    for (size_t i = 0; i < sizeof logs / sizeof *logs; i++) {
        put_text("odd.jsonl", logs[i]);
        int code = shell("timeout 20 $K plot odd.jsonl -o odd.svg && timeout 20 $K plot odd.jsonl -o odd.png");
        if (code != 0)
            fail_msg("%s: ended with %d: %s", logs[i], code, err);
        char *svg = slurp("odd.svg", NULL);
        if (strstr(svg, "nan") || strstr(svg, "inf"))
            fail_msg("%s: %s", logs[i], strstr(svg, "nan") ? strstr(svg, "nan") - 40 : strstr(svg, "inf") - 40);
        free(svg);
    }
}

/* ---- Words that help ---- */

static void test_notes(void **state)
{
    (void)state;
    expect(0, "note: KILN_NUM_THREADS=tow: expected a whole number", "KILN_NUM_THREADS=tow $K plan");
    assert_null(strstr(strstr(err, "KILN_NUM_THREADS") + 1, "KILN_NUM_THREADS")); /* once */
    expect(0, "did you mean KILN_EAGER?", "KILN_EAGRE=1 $K plan");
    expect(0, "--warmup 500: the run has only 3 steps",
           "$K train --data digits:60 --epochs 1 --batch 20 --warmup 500 --save warm");
    expect(0, "--limit 2 ends the run before",
           "$K train --data digits:60 --epochs 9 --limit 2 --batch 20 --warmup 5 --save warm");
    expect(0, NULL, "$K train --data digits:60 --epochs 1 --batch 20 --warmup 1 --save warm");
    assert_null(strstr(err, "warmup"));
    put_text("soft.yaml", "input: [1, 28, 28]\nlayers:\n  - flatten\n  - linear: 10\n  - softmax\n");
    expect(0, "the model ends in a softmax", "$K train --data digits:60 --epochs 2 --model soft.yaml --save soft");
    const char *at = strstr(err, "ends in a softmax");
    assert_null(strstr(at + 1, "ends in a softmax"));
}

/* The log says what was trained as the user said it. */
static void test_first_line(void **state)
{
    (void)state;
    write_images("pictures/eights");
    put_text("net.yaml", "name: Tiny\ninput: [1, 8, 8]\nlayers:\n  - flatten\n  - linear: 3\n");
    expect(0, "model    net.yaml, 195 parameters",
           "$K train --data pictures/eights --model net.yaml --schedule step:every=2 --lr 0.5 --optim sgd --epochs 1 "
           "--batch 9 --save 'said so'");
    assert_non_null(strstr(out, "data     pictures/eights, 27 to train, 3 to test"));
    char *log = slurp("said so/log.jsonl", NULL);
    assert_memory_equal(log, "{\"run\": {\"version\": \"", 21);
    assert_non_null(strstr(log, "\"model\": \"net.yaml\""));
    assert_non_null(strstr(log, "pictures/eights\""));
    assert_non_null(strstr(log, "\"lr\": 0.5, \"schedule\": \"step:every=2\""));
    assert_non_null(strstr(log, "\"command\": \"kiln train --data pictures/eights --model net.yaml"));
    assert_non_null(strstr(log, "--save 'said so'\""));
    free(log);
    expect(0, "gpt2:layers=1,heads=1,embed=8, ",
           "$K train --data fox.txt --length 8 --model gpt2:layers=1,heads=1,embed=8 --limit 1 --save named");
}

static void test_predict_formats(void **state)
{
    (void)state;
    make_run("seer");
    expect(0, "index,label,prediction,probability\n0,", "$K predict seer -o -");
    assert_int_equal(count_lines(out), 11);
    expect(0, "[\n{\"index\": 0, \"label\": ", "$K predict seer --limit 2 -o - --format json");
    assert_int_equal(count_lines(out), 4);
    assert_string_equal(out + strlen(out) - 3, "\n]\n");
    expect(0, "3 predictions written to p.json", "$K predict seer --limit 3 -o p.json");
    expect(0, "3 predictions written to p.json", "$K predict seer --limit 3 -o p.json"); /* its own: replaced */
    expect(0, NULL,
           "mkdir -p shots; $K plot seer -o shots/b.png; $K plot seer -o shots/a.PNG; echo x >shots/notes.txt");
    expect(0, "file,prediction,probability\nshots/a.PNG,", "$K predict seer shots -o -");
    assert_int_equal(count_lines(out), 3);
    expect(0, "shots/b.png", "$K predict seer shots/ own.png -o - --format json");
    assert_int_equal(count_lines(out), 5);
    expect(66, "no pictures in this folder", "mkdir -p bare; $K predict seer bare");
    expect(66, "a folder of pictures comes behind the run", "$K predict shots");
    expect(64, "expected one of: csv json", "$K predict seer --format xml");
}

/* No step is shown as faster than the fastest that was measured. */
static void test_bench(void **state)
{
    (void)state;
    expect(0, "peak: ", "$K bench --batch 1,2,16,64,256,512 --seconds 0.05");
    int rows = 0;
    for (const char *at = out; (at = strstr(at, " %\n")); at += 3) {
        const char *from = at;
        while (from > out && from[-1] >= '0' && from[-1] <= '9')
            from--;
        assert_true(atoi(from) <= 100);
        rows++;
    }
    assert_int_equal(rows, 6);
}

/* ---- Signals ---- */

static void wait_for_text(const char *path, const char *text)
{
    for (int i = 0; i < 6000; i++) {
        char *got = there(path) ? slurp(path, NULL) : NULL;
        bool found = got && strstr(got, text);
        free(got);
        if (found)
            return;
        usleep(10000);
    }
    fail_msg("%s does not say %s", path, text);
}

/* SIGUSR1: a checkpoint in passing. SIGTERM: one, and the end. */
static void test_signals(void **state)
{
    (void)state;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int null = open("/dev/null", O_RDWR), to = open("said.txt", O_WRONLY | O_CREAT | O_TRUNC, 0666);
        dup2(null, 0);
        dup2(to, 1);
        dup2(to, 2);
        execl(command, "kiln", "train", "--data", "digits:60000", "--model", "lenet", "--epochs", "1000",
              "--save-every", "1000000000", "--log-every", "5", "--save", "asked", NULL);
        _exit(127);
    }
    wait_for_text("said.txt", "Epoch 1/1000  5/"); /* it trains, and says so where there is no terminal */
    kill(child, SIGUSR1);
    wait_for_text("said.txt", "Saved asked after ");
    int status;
    assert_int_equal(waitpid(child, &status, WNOHANG), 0); /* it goes on */
    expect(0, "batches of the next one", "$K inspect asked");
    kill(child, SIGTERM);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 130);
    wait_for_text("said.txt", "interrupted: saved asked after ");
    char *log = slurp("asked/log.jsonl", NULL);
    assert_non_null(strstr(log, "{\"step\": 5, "));
    free(log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resume_without_checkpoint),
        cmocka_unit_test(test_inputs_are_not_moved),
        cmocka_unit_test(test_outputs_replace_their_own_kind),
        cmocka_unit_test(test_logs_of_others),
        cmocka_unit_test(test_pipes_and_devices),
        cmocka_unit_test(test_huge_models),
        cmocka_unit_test(test_huge_checkpoint),
        cmocka_unit_test(test_huge_plan),
        cmocka_unit_test(test_pytorch_files),
        cmocka_unit_test(test_terminal),
        cmocka_unit_test(test_plots_of_nonsense),
        cmocka_unit_test(test_notes),
        cmocka_unit_test(test_first_line),
        cmocka_unit_test(test_predict_formats),
        cmocka_unit_test(test_bench),
        cmocka_unit_test(test_signals),
    };
    return cmocka_run_group_tests(tests, command_before, command_after);
}
