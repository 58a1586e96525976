/* The kiln command as people meet it: help, training, evaluating, predicting, files. What it says to bad input is in
 * test_cli_bad.c. */
#include "support/command.h"
#include "support/where.h"

static const char *const names[] = {"train", "eval", "predict", "generate", "inspect",
                                    "plot",  "plan", "bench",   "devices"};
enum { COMMANDS = sizeof names / sizeof *names };

/* ---- Words ---- */

static void test_usage(void **state)
{
    (void)state;
    expect(64, "usage: kiln COMMAND", "$K");
    expect(0, "usage: kiln COMMAND", "$K help");
    expect(0, "usage: kiln train", "$K help train");
    expect(0, "kiln 0.", "$K --version");
    expect(64, "did you mean kiln train?", "$K trian");
    expect(64, "the commands are", "$K xyzzyx");
    expect(64, "did you mean kiln eval?", "$K help evla");
    expect(64, "the command comes first", "$K --batch 3");
    expect(64, "did you mean --batch?", "$K train --bacth 3");
    expect(64, "did you mean --weight-decay?", "$K train --weight_decay=0.1");
    expect(64, "--help lists the options", "$K train --zzzzzz");
    expect(64, "--batch needs a value", "$K train --batch");
    expect(64, "--resume takes no value", "$K train --resume=yes");
    expect(64, "expected a whole number of at least 1", "$K train --batch 3x");
    expect(64, "expected a whole number of at least 1", "$K train --batch ' 3'");
    expect(64, "expected a whole number of at least 1", "$K train --batch 0");
    expect(64, "expected a whole number", "$K train --epochs 99999999999999999999");
    expect(64, "expected a number above 0", "$K train --lr nan");
    expect(64, "expected a number above 0", "$K train --lr=-1");
    expect(64, "expected a number from 0 to 0.999", "$K train --dropout 1");
    expect(64, "like 800000, 512M or 2G", "$K train --mem-limit 3x");
    expect(64, "with commas between them", "$K bench --batch 32,,64");
    expect(64, "did you mean 'mlp'?", "$K train --model mpl");
    expect(64, "did you mean 'layers'?", "$K train --model gpt2:lyers=3 --data x.txt");
    expect(64, "did you mean adamw?", "$K train --optim adamww");
    expect(64, "did you mean cosine?", "$K train --schedule cosin");
    expect(64, "cosine takes final", "$K train --schedule cosine:end=1");
    expect(64, "from 0 to 1", "$K train --schedule cosine:final=2");
    expect(64, "one argument too many", "$K train mnist");
    expect(64, "one argument too many", "$K eval a b");
    expect(64, "takes text", "$K train --model gpt2");
    expect(64, "ends in .svg or .png", "$K plot x.jsonl -o x.gif");
}

/* Help fits a screen and has an example. */
static void test_help(void **state)
{
    (void)state;
    for (int i = 0; i < COMMANDS; i++) {
        assert_int_equal(shell("$K %s --help", names[i]), 0);
        assert_string_equal(err, "");
        assert_non_null(strstr(out, "Example"));
        if (count_lines(out) > 40)
            fail_msg("kiln %s --help has %d lines", names[i], count_lines(out));
        for (char *line = out; *line; line += strcspn(line, "\n") + 1)
            if (strcspn(line, "\n") > 80)
                fail_msg("kiln %s --help: too wide: %.*s", names[i], (int)strcspn(line, "\n"), line);
    }
}

/* Every option of every --help is in the manual and in the completion. */
static void test_manual_and_completion(void **state)
{
    (void)state;
    char *manual = slurp(test_file("../docs/kiln.1"), NULL);
    assert_int_equal(shell("$K completion"), 0);
    char *completion = strdup(out);
    assert_non_null(completion);
    for (int i = 0; i < COMMANDS; i++) {
        char word[80];
        snprintf(word, sizeof word, ".Cm %s", names[i]);
        assert_non_null(strstr(manual, word));
        assert_int_equal(shell("$K %s --help", names[i]), 0);
        int options = 0;
        for (char *line = out; *line; line += strcspn(line, "\n") + 1) {
            char *at = strstr(line, "--");
            if (line[0] != ' ')
                continue;
            for (; at && at < line + 24; at = strstr(at + 2, "--")) { /* several may share a line */
                char name[40];
                snprintf(name, sizeof name, "%.*s", (int)strcspn(at + 2, " ,[\n"), at + 2);
                options++;
                snprintf(word, sizeof word, "Fl Fl %s", name);
                if (!strstr(manual, word))
                    fail_msg("--%s of kiln %s is not in the manual", name, names[i]);
                snprintf(word, sizeof word, "--%s", name);
                if (!strstr(completion, word))
                    fail_msg("--%s of kiln %s is not in the completion", name, names[i]);
            }
        }
        assert_true(options >= 1);
    }
    free(manual);
    free(completion);
}

/* Bash takes the completion, and it completes. */
static void test_completion_runs(void **state)
{
    (void)state;
    if (shell("command -v bash") != 0)
        skip_because("bash is not installed");
    const char *ask = "bash -c 'compopt() { :; }; source <($K completion); "
                      "COMP_WORDS=(%s); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _kiln; echo \"${COMPREPLY[@]}\"'";
    char line[2048];
    const struct {
        const char *words, *want;
    } cases[] = {{"kiln tr", "train\n"},
                 {"kiln train --sched", "--schedule\n"},
                 {"kiln train --optim ad", "adadelta adafactor adagrad adam adamw\n"},
                 {"kiln train --model len", "lenet\n"},
                 {"kiln train --optim = lio", "lion\n"},
                 {"kiln train --fit", "--fit-memory --fit-memory=local\n"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(line, sizeof line, ask, cases[i].words);
        expect(0, cases[i].want, line);
    }
}

/* ---- Training and what comes after it ---- */

static void test_train(void **state)
{
    (void)state;
    expect(0, "Saved kiln-run/: best.safetensors, log.jsonl, curve.svg", "$K train --data digits:600 --epochs 2");
    assert_null(strchr(out, '\033')); /* no terminal: no escape codes, no lines that move */
    assert_null(strchr(out, '\r'));
    assert_null(strchr(err, '\033'));
    assert_non_null(strstr(out, "mlp, 235,146 parameters"));
    assert_non_null(strstr(out, "600 to train, 100 to test"));
    assert_non_null(strstr(out, "Epoch 2/2"));
    assert_true(there("kiln-run/best.safetensors") && there("kiln-run/log.jsonl") && there("kiln-run/curve.svg"));

    /* eval says what training said about the best epoch */
    double loss = -1, accuracy = -1, again = -1, accuracy_again = -1;
    const char *line = strstr(out, "Best epoch");
    assert_non_null(line);
    assert_int_equal(sscanf(strstr(line, "loss"), "loss %lf, accuracy %lf", &loss, &accuracy), 2);
    expect(0, "top-5", "$K eval");
    assert_int_equal(sscanf(strstr(out, "loss"), "loss %lf", &again), 1);
    assert_int_equal(sscanf(strstr(out, "accuracy"), "accuracy %lf", &accuracy_again), 1);
    assert_true(loss == again && accuracy == accuracy_again);
    expect(0, "row: the label", "$K eval --confusion --limit 50");
    assert_non_null(strstr(out, "samples     50\n"));

    /* a second run moves the first aside */
    expect(0, "is now in kiln-run.1", "$K train --data digits:600 --epochs 1 --limit 3");
    assert_true(there("kiln-run.1/best.safetensors") && there("kiln-run/best.safetensors"));
    expect(0, "autocast to bf16", "$K train --data digits:400 --epochs 1 --save amp --amp");
    expect(0, "\"autocast\": \"bf16\"", "head -1 amp/log.jsonl");
    expect(0, "accuracy", "$K eval amp --amp");
    expect(0, NULL, "$K predict amp --amp");
    expect(0, "autocast to bf16", "$K train --data digits:400 --epochs 2 --save amp --resume"); /* as it was begun */
    expect(0, NULL, "$K train -q --data digits:200 --epochs 1 --save half --save-dtype bf16");
    expect(0, "BF16", "$K inspect half/best.safetensors");
    assert_null(strstr(out, "F32"));
    expect(0, "accuracy", "$K eval half"); /* loaded as f32 */
    expect(0, NULL, "$K train -q --data digits:200 --epochs 1 --save second --init half/best.safetensors");
    expect(64, "save-dtype", "$K train --save-dtype i64");
}

static void test_predict(void **state)
{
    (void)state;
    expect(0, "of 10 right", "$K predict kiln-run.1");
    assert_int_equal(count_lines(out), 12);
    expect(0, "100 predictions", "$K predict kiln-run.1 --out answers.csv");
    char *csv = slurp("answers.csv", NULL);
    assert_memory_equal(csv, "index,label,prediction,probability\n0,", 37);
    assert_int_equal(count_lines(csv), 101);
    free(csv);
    expect(66, "no.png: No such file", "$K predict kiln-run no.png");
    expect(65, "not a PNG file", "$K predict kiln-run answers.csv");
    expect(0, NULL, "$K plot kiln-run -o p.png");
    expect(0, "p.png: ", "$K predict kiln-run p.png");
    expect(74, "/dev/full", "$K predict kiln-run --out /dev/full");
}

static void test_inspect(void **state)
{
    (void)state;
    expect(0, "kiln.model   mlp:channels=1,height=28,width=28,classes=10", "$K inspect kiln-run.1/best.safetensors");
    assert_non_null(strstr(out, "6 tensors, 235,146 elements"));
    assert_non_null(strstr(out, "256x784"));
    expect(0, "trained      2 of 2 epochs, 20 steps", "$K inspect kiln-run.1"); /* a run: a report */
    assert_non_null(strstr(out, "model        mlp, 235,146 parameters\n             mlp:channels=1,height=28"));
    assert_non_null(strstr(out, "data         digits:600, 600 to train, 100 to test"));
    assert_non_null(strstr(out, "recipe       adam at 0.001, cosine; batch 64, seed 0"));
    assert_non_null(strstr(out, "best         epoch "));
    assert_non_null(strstr(out, "command      kiln train --data digits:600 --epochs 2\n"));
    assert_non_null(strstr(out, "256x784"));
    expect(0, "state.json", "$K inspect kiln-run.1/step-00000020"); /* a checkpoint: all that is in it */
    assert_non_null(strstr(out, "exp_avg"));
    expect(0, "std", "$K inspect --stats kiln-run.1/best.safetensors");

    /* a NaN is found: the last four bytes of the file are the last element */
    size_t bytes;
    char *file = slurp("kiln-run.1/best.safetensors", &bytes);
    memcpy(file + bytes - 4, (float[]){__builtin_nanf("")}, 4);
    put("nan.safetensors", file, bytes);
    expect(0, "1 not finite", "$K inspect --stats nan.safetensors");
    put("cut.safetensors", file, bytes - 7);
    expect(65, "cut.safetensors", "$K inspect cut.safetensors");
    free(file);
    expect(66, "No such file", "$K inspect nothing.safetensors");
    expect(66, "neither weights nor a checkpoint", "mkdir -p empty; $K inspect empty");
}

static void test_plot(void **state)
{
    (void)state;
    expect(0, "Written: a.svg", "$K plot kiln-run.1/log.jsonl -o a.svg --title 'a < b'");
    char *svg = slurp("a.svg", NULL);
    assert_memory_equal(svg, "<svg ", 5);
    assert_non_null(strstr(svg, "a &lt; b"));
    assert_non_null(strstr(svg, "Accuracy"));
    assert_non_null(strstr(svg, "prefers-color-scheme: dark"));
    free(svg);
    expect(0, "Written: a.png", "$K plot kiln-run.1 kiln-run -o a.png");
    char *png = slurp("a.png", NULL);
    assert_memory_equal(png, "\x89PNG", 4);
    free(png);
    put_text("few.csv", "epoch,step,loss,val_loss\n1,10,2.5,2.4\n2,20,1.5,\n");
    expect(0, "curve.svg", "$K plot few.csv");
    put_text("bad.jsonl", "{\"epoch\": 1, \"step\": 3, \"loss\": 1}\n{\"epoch\": 2,\n");
    expect(65, "bad.jsonl: line 2", "$K plot bad.jsonl");
    put_text("half.jsonl", "{\"epoch\": 1, \"step\": 3, \"loss\": 1}\n{\"epoch\": 2,");
    expect(0, NULL, "$K plot half.jsonl"); /* a line that is just being written */
    put_text("none.jsonl", "{\"run\": {}}\n");
    expect(65, "no losses", "$K plot none.jsonl");
    put_text("bad.csv", "epoch,step,loss\n1,10,abc\n");
    expect(65, "bad.csv: line 2: \"abc\" is no number", "$K plot bad.csv");
    expect(66, "No such file", "$K plot nothing.jsonl");
    expect(74, "/dev/full",
           "ln -sf /dev/full full.svg; $K plot few.csv -o full.svg >/dev/null 2>e; cat e; grep -q . e; "
           "$K plot few.csv --out=full.svg || { r=$?; echo /dev/full; exit $r; }");
}

/* A run that was cut off goes on to the same bits, with other numbers of threads and workers. */
static void test_resume(void **state)
{
    (void)state;
    const char *how = "--data digits:600 --epochs 3 --seed 7 --schedule one-cycle --clip 1 --ema 0.9 --quiet "
                      "--flip --crop 2";
    assert_int_equal(shell("$K train %s --save whole", how), 0);
    assert_string_equal(out, "");
    assert_string_equal(err, "");
    assert_int_equal(shell("$K train %s --save parts --limit 13 --workers 0 --threads 1", how), 0);
    expect(0, "Epoch 3/3", "$K train --save parts --resume --workers 2"); /* all the rest is in the run */
    assert_non_null(strstr(out, "model    mlp, "));                       /* as it was named then */
    assert_non_null(strstr(out, "images   mirrored at random, shifted by up to 2 pixels\n"));
    assert_same_files("whole/best.safetensors", "parts/best.safetensors");
    assert_int_equal(shell("cmp whole/step-*/model.safetensors parts/step-*/model.safetensors && "
                           "cmp whole/step-*/optim.safetensors parts/step-*/optim.safetensors"),
                     0);
    expect(65, "0.weight", "$K train --save parts --resume --model lenet");
    expect(0, "from the start", "$K train --save fresh --resume --data digits:100 --limit 1");
}

static void test_init(void **state)
{
    (void)state;
    assert_int_equal(shell("$K train -q --data digits:100 --epochs 1 --init whole/best.safetensors --lr 1e-11 "
                           "--save started"),
                     0);
    double before = 0, after = 1;
    expect(0, "loss", "$K eval whole --data digits:600");
    assert_int_equal(sscanf(strstr(out, "loss"), "loss %lf", &before), 1);
    expect(0, "loss", "$K eval started --data digits:600");
    assert_int_equal(sscanf(strstr(out, "loss"), "loss %lf", &after), 1);
    assert_true(before == after); /* steps that small change nothing that is shown */
    expect(65, "do not fit", "$K train --model lenet --init whole/best.safetensors --save x");
    expect(66, "nothing.safetensors", "$K train --init nothing.safetensors --save x");
    assert_false(there("x"));
}

static void wait_for(const char *path)
{
    for (int i = 0; i < 6000 && !there(path); i++)
        usleep(10000);
    assert_true(there(path));
}

/* Ctrl-C saves, says how to go on, and that works. */
static void test_interrupt(void **state)
{
    (void)state;
    const int signals[] = {SIGINT, SIGTERM};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(shell("rm -rf 'my run'"), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            int null = open("/dev/null", O_RDWR), to = open("int.txt", O_WRONLY | O_CREAT | O_TRUNC, 0666);
            dup2(null, 0);
            dup2(null, 1);
            dup2(to, 2);
            execl(command, "kiln", "train", "--data", "digits:2000", "--epochs", "100000", "--save", "my run", NULL);
            _exit(127);
        }
        wait_for("my run/best.safetensors"); /* the first epoch is over */
        kill(child, signals[i]);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 130);
        char *said = slurp("int.txt", NULL);
        assert_non_null(strstr(said, "interrupted: saved my run after "));
        assert_non_null(strstr(said, "kiln train --data digits:2000 --epochs 100000 --save 'my run' --resume\n"));
        free(said);
    }
    expect(0, "steps", "$K train --save 'my run' --resume --epochs 1");
}

/* ---- Text, model files, IDX files ---- */

/* Tokens that are no bytes are numbers. */
static void test_tokens(void **state)
{
    (void)state;
    expect(0, NULL,
           "seq 2000 >numbers.txt; $K train -q --data numbers.txt "
           "--model gpt2:vocabulary=300,layers=1,heads=2,embed=16 --length 16 --limit 2 --save tokens");
    expect(0, NULL, "$K generate tokens --prompt ' 7 299\t0' --length 5");
    assert_int_equal(strncmp(out, "7 299 0 ", 8), 0);
    int count = 0;
    for (char *at = strtok(out, " \n"); at; at = strtok(NULL, " \n"), count++)
        assert_true(strspn(at, "0123456789") == strlen(at) && atoi(at) < 300);
    assert_int_equal(count, 3 + 5);
    expect(64, "300 tokens", "$K generate tokens");
    expect(64, "'300' is no token", "$K generate tokens --prompt '7 300'");
    expect(64, "'abc' is no token", "$K generate tokens --prompt 'abc'");
    expect(64, "'7,8' is no token", "$K generate tokens --prompt '7,8 9'");
    expect(64, "'99999999999999999999' is no token", "$K generate tokens --prompt 99999999999999999999");
}

static void test_text(void **state)
{
    (void)state;
    assert_int_equal(shell("for i in $(seq 300); do echo \"$i: the quick brown fox jumps over the lazy dog\"; done "
                           ">fox.txt"),
                     0);
    expect(0, "kiln generate text",
           "$K train --data fox.txt --model gpt2:layers=1,heads=2,embed=16 --length 16 --limit 5 --save text");
    assert_non_null(strstr(out, "perplexity"));
    expect(0, "perplexity", "$K eval text --limit 20");
    expect(0, "perplexity",
           "$K train --data fox.txt --model llama:layers=1,heads=4,kv_heads=2,embed=16 --length 16 --limit 5 --save "
           "llama");
    expect(0, "kv_heads=2", "$K inspect llama");
    expect(64, "sees the whole text at once", "$K train --data fox.txt --model bert:layers=1,heads=2,embed=16");
    expect(0, NULL, "$K generate text --prompt 'the quick brown fox is longer' --length 30 --seed 3");
    assert_int_equal(strlen("the quick brown fox is longer") + 30 + 1, strlen(out));
    char *first = strdup(out);
    expect(0, NULL, "$K generate text --prompt 'the quick brown fox is longer' --length 30 --seed 3");
    assert_string_equal(first, out);
    expect(0, NULL, "$K generate text --prompt the --length 10 --amp");
    expect(0, NULL, "$K generate text --prompt 'the quick brown fox is longer' --length 30 --seed 4");
    assert_string_not_equal(first, out);
    free(first);

    /* the likeliest byte each time: no seed matters, and neither does how much room there is after the text */
    expect(0, NULL, "$K generate text --prompt abc --length 4 --temperature 0 --seed 1");
    first = strdup(out);
    expect(0, NULL, "$K generate text --prompt abc --length 4 --top-k 1 --context 8");
    assert_string_equal(first, out);
    free(first);
    expect(64, "sees at most 16", "$K generate text --context 17");

    /* no share of all probability is the likeliest byte, all of it any; a text may outgrow the context many times */
    expect(0, NULL, "$K generate text --prompt abc --length 100 --temperature 0 --context 8");
    first = strdup(out);
    expect(0, NULL, "$K generate text --prompt abc --length 100 --top-p 0 --context 8");
    assert_string_equal(first, out);
    expect(0, NULL, "$K generate text --prompt abc --length 100 --top-p 1e-9 --temperature 2 --context 8");
    assert_string_equal(first, out);
    free(first);
    expect(64, "--top-p", "$K generate text --top-p 1.5");
    expect(0, NULL, "$K generate text --prompt abc --length 9 --stats");
    assert_true(strlen(out) == 3 + 9 + 1 && strstr(err, "prompt      3 bytes in") &&
                strstr(err, "written     8 bytes"));
    expect(0, NULL, "$K generate text --length 1 --stats");
    assert_null(strstr(err, "written"));
    shell("$K generate text --length 1000000000 >long.txt & "
          "while kill -0 $! && [ ! -s long.txt ]; do sleep 0.1; done; kill -INT $!; wait $!; echo $?");
    assert_string_equal(out, "130\n");
    assert_string_equal(err, "");
    expect(64, "takes images, and the data is text", "$K train --data fox.txt --model lenet");
    expect(64, "continues texts", "$K predict text");
    expect(64, "no model of text", "$K generate kiln-run");
    expect(64, "--confusion is for models that tell classes apart", "$K eval text --confusion");
}

static void test_model_file(void **state)
{
    (void)state;
    const char *model = "input: [1, 28, 28]\nlayers:\n  - flatten\n  - linear: 16\n  - relu\n  - linear: 10\n";
    put_text("small.yaml", model);
    expect(0, "small", "$K train --model small.yaml --data digits:200 --epochs 1 --save own");
    expect(0, "accuracy", "mv small.yaml gone.yaml; $K eval own"); /* the run has the model in it */
    expect(0, "- linear: 16", "$K inspect own");
    expect(66, "small.yaml", "$K train --model small.yaml");
    put_text("bad.yaml", "input: [1, 28, 28]\nlayers:\n  - linaer: 16\n");
    expect(65, "bad.yaml:3", "$K train --model bad.yaml");
    put_text("five.yaml", "input: [1, 28, 28]\nlayers:\n  - flatten\n  - linear: 5\n");
    expect(65, "has 10 classes", "$K train --model five.yaml --save x");
    put_text("other.yaml", "input: [3, 28, 28]\nlayers:\n  - flatten\n  - linear: 10\n");
    expect(65, "takes inputs of 3x28x28", "$K train --model other.yaml --save x");
    const char *header = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    char file[128] = {(char)strlen(header)};
    memcpy(file + 8, header, strlen(header));
    put("bare.safetensors", file, 8 + strlen(header) + 4);
    expect(64, "does not say which model", "$K eval bare.safetensors");
    expect(65, "do not fit", "$K eval bare.safetensors --model mlp");
}

/* 60 images of 8x8: a bright band at the top, in the middle or at the bottom is their label, 0 … 2. */
static void write_idx(void)
{
    enum { COUNT = 60, SIDE = 8 };
    unsigned char images[16 + COUNT * SIDE * SIDE] = {0, 0, 8, 3, 0, 0, 0, COUNT, 0, 0, 0, SIDE, 0, 0, 0, SIDE};
    unsigned char labels[8 + COUNT] = {0, 0, 8, 1, 0, 0, 0, COUNT};
    for (int i = 0; i < COUNT; i++) {
        labels[8 + i] = (unsigned char)(i % 3);
        memset(images + 16 + i * SIDE * SIDE + i % 3 * 3 * SIDE, 200 + i % 50, 2 * SIDE);
    }
    assert_int_equal(shell("mkdir -p idx"), 0);
    put("idx/train-images-idx3-ubyte", images, sizeof images);
    put("idx/train-labels-idx1-ubyte", labels, sizeof labels);
    put("cut-images-idx3-ubyte", images, sizeof images - 100);
    put("cut-labels-idx1-ubyte", labels, sizeof labels);
}

static void test_idx(void **state)
{
    (void)state;
    write_idx();
    expect(0, "48 to train, 12 to test, each 1x8x8, 3 classes",
           "$K train --data idx --split 0.8 --epochs 30 --batch 8 --save bands");
    expect(0, "accuracy    100.00 %", "$K eval bands");
    expect(0, "samples     60\n", "$K eval bands --split 0");
    expect(0, "54 to train, 6 to test", "$K train --data idx/train-images-idx3-ubyte --limit 1 --save band");
    expect(0, "60 to train, 60 to test",
           "cp idx/train-images-idx3-ubyte idx/t10k-images-idx3-ubyte; "
           "cp idx/train-labels-idx1-ubyte idx/t10k-labels-idx1-ubyte; "
           "$K train --data idx --limit 1 --save bands2");
    expect(64, "a batch of 61", "$K train --data idx --batch 61 --save x; r=$?; rm -rf x; exit $r");
    expect(65, "cut-images-idx3-ubyte", "$K train --data cut-images-idx3-ubyte --save x");
    expect(65, "has 3 classes", "$K train --data idx --model mlp:classes=2 --save x");
    expect(66, "no IDX files", "$K train --data empty");
    expect(66, "nowhere: No such file", "$K train --data nowhere");
    expect(66, "did you mean --data digits?", "$K train --data digit");
    assert_false(there("x"));
}

/* A batch that does not fit is refused, or gone through in parts, and so does the run that goes on. */
static void test_fit_memory(void **state)
{
    (void)state;
    const char *with = "$K train --model lenet --data digits:600 --batch 300 --device cpu --mem-limit 12M --save parts";
    char line[300];
    expect(71, "needs",
           "$K train --model lenet --data digits:600 --batch 300 --device cpu --mem-limit 12M --save whole");
    snprintf(line, sizeof line, "%s --fit-memory --epochs 1", with);
    expect(0, "in parts of ", line);
    assert_non_null(strstr(out, "batch 300 (in parts where it does not fit)"));
    assert_int_equal(shell("grep -c '\"micro_batch\"' parts/log.jsonl"), 0);
    snprintf(line, sizeof line, "%s --resume --epochs 2", with);
    expect(0, "Epoch 2/2", line);
    expect(64, "did you mean local?", "$K train --fit-memory=locla");
    expect(64, "takes no value", "$K train --tf32=local");
}

/* ---- Exit codes that are left, and streams ---- */

static void test_exit_codes(void **state)
{
    (void)state;
    expect(69, "kiln devices lists", "$K train --device cuda:77");
    expect(64, "kiln devices lists", "$K train --device nonsense");
    expect(71, "needs", "$K train --data digits:100 --device cpu --mem-limit 1100K --save x");
    expect(71, "not even a batch of 1 fits into 3.",
           "$K train --data digits:100 --device cpu --batch auto --mem-limit 3M --save x");
    expect(64, "a whole number", "$K train --batch automatic");
    expect(0, "the largest that fits into 8.0 MiB (planned peak ",
           "$K train --data digits:900 --device cpu --batch auto --mem-limit 8M --epochs 1 --save found");
    expect(0, "planned were ",
           "cd found && grep -q '\"memory_peak\"' log.jsonl && grep -q '\"planned_peak\"' log.jsonl && "
           "cd .. && $K train --data digits:900 --device cpu --batch auto --epochs 2 --resume --save found");
    expect(0, "", "grep -o '\"batch\": [0-9]*' found/log.jsonl | sort -u | wc -l | grep -qx 1");
    expect(0, "less than without --amp",
           "$K train --data digits:900 --model lenet --device cpu --batch 300 --amp --epochs 1 --save amp");
    expect(0, "all samples fit into",
           "$K train --data digits:200 --device cpu --batch auto --mem-limit 1G --epochs 1 --save all");
    expect(0, "with batch ", "$K plan --batch auto --mem-limit 8M");
    expect(65, "the loss became", "$K train --data digits:100 --optim sgd --lr 1e6 --epochs 3 --save diverged");
    expect(74, "standard output", "$K devices >/dev/full");
    expect(74, "/dev/full", "$K train --data digits:100 --limit 2 --log /dev/full --save x");
    expect(66, "does not exist", "$K train --data digits:100 --save no/such/folder");
    expect(66, "kiln train makes it", "mkdir -p bare && cd bare && $K eval");
    expect(65, "garbage.safetensors", "echo nonsense of some length >garbage.safetensors; $K eval garbage.safetensors");
}

/* A reader that goes away is no error. */
static void test_closed_pipe(void **state)
{
    (void)state;
    expect(0, NULL, "$K inspect kiln-run.1 --stats | head -1 >/dev/null");
    assert_string_equal(err, "");
    expect(0, NULL, "trap '' PIPE; $K inspect kiln-run.1 | true");
    assert_string_equal(err, "");
    expect(0, NULL, "{ $K train --data digits:200 --epochs 2 --save piped; echo $? >code.txt; } | true");
    assert_string_equal(err, "");
    char *code = slurp("code.txt", NULL);
    assert_string_equal(code, "0\n");
    free(code);
    assert_true(there("piped/best.safetensors"));
}

/* On a terminal errors are coloured, unless NO_COLOR asks for none. */
static void test_colour(void **state)
{
    (void)state;
    if (shell("command -v script") != 0)
        skip_because("script is not installed");
    expect(0, "did you mean kiln train?", "TERM=xterm script -qc \"$K trian\" /dev/null");
    assert_non_null(strchr(out, '\033'));
    expect(0, "did you mean kiln train?", "NO_COLOR=1 TERM=xterm script -qc \"$K trian\" /dev/null");
    assert_null(strchr(out, '\033'));
    expect(0, "Epoch 1/1", "NO_COLOR=1 TERM=xterm script -qc \"$K train --data digits:200 --epochs 1\" /dev/null");
    assert_null(strstr(out, "\033[3")); /* a line that moves may be cleared, but nothing is coloured */
    assert_null(strstr(out, "\033[1"));
}

static void test_looking(void **state)
{
    (void)state;
    expect(0, "cpu ", "$K devices");
    assert_non_null(strstr(out, "cuda"));
    expect(0, "235,146 parameters", "$K plan --batch 16");
    assert_non_null(strstr(out, "together"));
    expect(0, "matmul", "$K plan --kernels --summary --model lenet");
    expect(0, "largest batch within 8.0 MiB: ", "$K plan --mem-limit 8M");
    expect(0, "of its operations a second time for the backward pass",
           "$K plan --model gpt2:layers=4,embed=64,heads=2,context=64,vocabulary=300 --batch 16 --mem-limit 20M");
    expect(0, "That fits 2.0 GiB", "$K plan --mem-limit 2G");
    expect(0, "It does not fit 1.0 MiB", "$K plan --mem-limit 1M");
    expect(0, "not even a batch of 1", "$K plan --mem-limit 1M");
    expect(0, "samples/s", "$K bench --batch 8,16 --seconds 0.01");
    assert_int_equal(count_lines(out), 7);
    expect(0, "samples/s", "$K bench --batch 8 --seconds 0.01 --amp");
    expect(0, "linear, backward                  *\n", "$K bench --batch 8,16 --seconds 0.01 --kernels");
    assert_non_null(strstr(out, "kernels of a step with batch 16, one after the other:\n"));
    assert_non_null(strstr(out, "adam                              *.bias\n"));
    expect(0, "conv2d                            *\n",
           "$K bench --model lenet --batch 4 --seconds 0.01 --kernels --amp=bf16 --device sim");
    expect(0, "of conv2d in ", "$K plan --kernels --model lenet");
    expect(64, "is for models of text", "$K plan --length 5");
}

/* ---- On a GPU ---- */

static void test_gpu(void **state)
{
    (void)state;
    expect(0, NULL, "$SHOW_GPUS $K devices");
    if (!strstr(out, "cuda:0")) {
        skip_because(strstr(out, "cuda"));
    }
    expect(0, "device   cuda:0 (", "$SHOW_GPUS $K train --data digits:3000 --epochs 3 --save gpu");
    expect(0, "\"device\": \"cuda:0\", \"tf32\": false", "head -1 gpu/log.jsonl");
    expect(0, "products in TF32", "$SHOW_GPUS $K train --data digits:600 --epochs 1 --save fast --tf32");
    expect(0, "\"tf32\": true", "head -1 fast/log.jsonl");
    expect(0, "accuracy", "$SHOW_GPUS $K eval gpu --device cuda");
    expect(0, "accuracy", "$SHOW_GPUS $K eval gpu --device cpu");
    expect(71, "takes for itself", "$SHOW_GPUS $K train --data digits:100 --mem-limit 1100K --save x");
    expect(0, "the step", "$SHOW_GPUS $K plan --device cuda");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_usage),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_manual_and_completion),
        cmocka_unit_test(test_completion_runs),
        cmocka_unit_test(test_train),
        cmocka_unit_test(test_predict),
        cmocka_unit_test(test_inspect),
        cmocka_unit_test(test_plot),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_init),
        cmocka_unit_test(test_interrupt),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_model_file),
        cmocka_unit_test(test_idx),
        cmocka_unit_test(test_fit_memory),
        cmocka_unit_test(test_exit_codes),
        cmocka_unit_test(test_closed_pipe),
        cmocka_unit_test(test_colour),
        cmocka_unit_test(test_looking),
        cmocka_unit_test(test_gpu),
    };
    return cmocka_run_group_tests(tests, command_before, command_after);
}
