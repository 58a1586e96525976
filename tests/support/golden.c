/* The reader of golden files: a line is a keyword and words, see golden/make_golden.py. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "support/golden.h"

bool golden_open(golden_file *f, const char *path)
{
    memset(f, 0, sizeof *f);
    FILE *file = fopen(path, "rb");
    if (!file)
        return false;
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    f->text = f->at = calloc((size_t)size + 1, 1);
    bool whole = f->text && fread(f->text, 1, (size_t)size, file) == (size_t)size;
    fclose(file);
    if (!whole)
        golden_close(f);
    return whole;
}

void golden_close(golden_file *f)
{
    free(f->text);
    memset(f, 0, sizeof *f);
}

void golden_case_free(golden_case *c)
{
    for (int i = 0; i < GOLDEN_TENSORS; i++) {
        free(c->in[i].data);
        free(c->out[i].data);
        free(c->grad[i].data);
    }
    memset(c, 0, sizeof *c);
}

static bool read_dtype(const char *word, kiln_dtype *dtype)
{
    for (int d = 0; d < KILN_DTYPES; d++)
        if (!strcmp(word, kiln_dtype_name((kiln_dtype)d))) {
            *dtype = (kiln_dtype)d;
            return true;
        }
    return false;
}

/* "2 3 : elements" from the words strtok_r has not handed out yet. */
static bool read_tensor(char **rest, golden_tensor *t)
{
    char *word;
    t->present = true;
    t->count = 1;
    while ((word = strtok_r(NULL, " ", rest)) && strcmp(word, ":")) {
        if (t->ndim == KILN_MAX_DIMS)
            return false;
        t->shape[t->ndim++] = strtoll(word, NULL, 10);
        t->count *= t->shape[t->ndim - 1];
    }
    t->data = calloc((size_t)t->count + 1, sizeof(double));
    for (int64_t i = 0; i < t->count; i++) {
        if (!(word = strtok_r(NULL, " ", rest)))
            return false;
        t->data[i] = strtod(word, NULL);
    }
    return !strtok_r(NULL, " ", rest);
}

static bool read_typed(char **rest, golden_tensor *list, int *count)
{
    char *word = strtok_r(NULL, " ", rest);
    if (*count == GOLDEN_TENSORS || !word)
        return false;
    golden_tensor *t = &list[(*count)++];
    if (!strcmp(word, "-"))
        return true;
    return read_dtype(word, &t->dtype) && read_tensor(rest, t);
}

static bool read_line(golden_case *c, char *line)
{
    char *rest, *word = strtok_r(line, " ", &rest);
    if (!strcmp(word, "case") || !strcmp(word, "text")) {
        char *value = strtok_r(NULL, " ", &rest);
        snprintf(*word == 'c' ? c->op : c->text, *word == 'c' ? sizeof c->op : sizeof c->text, "%s",
                 value ? value : "");
        return value != NULL;
    }
    if (!strcmp(word, "ints") || !strcmp(word, "floats")) {
        bool whole = *word == 'i';
        while ((word = strtok_r(NULL, " ", &rest))) {
            if (c->nints == GOLDEN_NUMBERS || c->nfloats == GOLDEN_NUMBERS)
                return false;
            if (whole)
                c->ints[c->nints++] = strtoll(word, NULL, 10);
            else
                c->floats[c->nfloats++] = strtod(word, NULL);
        }
        return true;
    }
    if (!strcmp(word, "in") || !strcmp(word, "in*")) {
        bool wants = word[2] == '*';
        bool ok = read_typed(&rest, c->in, &c->nin);
        if (ok)
            c->in[c->nin - 1].wants_grad = wants;
        return ok;
    }
    if (!strcmp(word, "out"))
        return read_typed(&rest, c->out, &c->nout);
    if (!strcmp(word, "grad") && (word = strtok_r(NULL, " ", &rest))) {
        int i = atoi(word);
        return i >= 0 && i < GOLDEN_TENSORS && read_tensor(&rest, &c->grad[i]);
    }
    return false;
}

int golden_next(golden_file *f, golden_case *c)
{
    memset(c, 0, sizeof *c);
    while (*f->at) {
        char *line = f->at, *end = strchr(line, '\n');
        f->at = end ? end + 1 : line + strlen(line);
        if (end)
            *end = 0;
        f->line++;
        if (!strcmp(line, "end"))
            return 1;
        if (!c->line)
            c->line = f->line;
        if (!*line || !read_line(c, line))
            return -1;
    }
    return c->line ? -1 : 0;
}
