/* Rows of predictions in three formats. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "cli/table.h"

bool table_is_csv(const char *head)
{
    return !strncmp(head, "index,", 6) || !strncmp(head, "file,prediction", 15);
}

bool table_is_json(const char *head)
{
    return !strncmp(head, "[\n{\"index\": ", 12) || !strncmp(head, "[\n{\"file\": ", 11) || !strcmp(head, "[\n]\n");
}

/* ---- CSV ---- */

/* File names are others' texts: a terminal is not shown what would move its cursor about. */
static void put_cell(FILE *out, const char *text)
{
    char *shown = isatty(fileno(out)) ? shown_text(text) : NULL;
    const char *at = shown ? shown : text;
    bool quoted = at[strcspn(at, ",\"\r\n")] != '\0';
    if (quoted)
        fputc('"', out);
    for (; *at; at++)
        fputs(*at == '"' ? "\"\"" : (char[]){*at, '\0'}, out);
    if (quoted)
        fputc('"', out);
    free(shown);
}

static void csv_head(const table *t)
{
    fprintf(t->out, "%s%s%s\n", t->files ? "file" : "index", t->labels ? ",label" : "",
            t->classes ? ",prediction,probability" : ",error");
}

static void csv_row(const table *t, const prediction *p)
{
    if (t->files)
        put_cell(t->out, p->file);
    else
        fprintf(t->out, "%lld", (long long)p->index);
    if (t->labels)
        fprintf(t->out, ",%lld", (long long)p->label);
    if (t->classes)
        fprintf(t->out, ",%lld,%.6g\n", (long long)p->answer, p->probability);
    else
        fprintf(t->out, ",%.6g\n", p->error);
}

/* ---- JSON ---- */

/* JSON takes text in UTF-8 alone. */
static json_t *text_of_file(const char *file)
{
    json_t *text = json_string(file);
    if (text)
        return text;
    char *shown = shown_text(file);
    text = json_string(shown);
    free(shown);
    return text;
}

static void json_row(const table *t, const prediction *p)
{
    json_t *o = json_object();
    json_object_set_new(o, t->files ? "file" : "index", t->files ? text_of_file(p->file) : json_integer(p->index));
    if (t->labels)
        json_object_set_new(o, "label", json_integer(p->label));
    if (t->classes) {
        json_object_set_new(o, "prediction", json_integer(p->answer));
        json_object_set_new(o, "probability", json_real(p->probability));
    } else {
        json_object_set_new(o, "error", json_real(p->error));
    }
    char *text = json_dumps(o, JSON_REAL_PRECISION(6));
    json_decref(o);
    if (!text)
        exit(fail(EX_OSERR, "out of memory"));
    fprintf(t->out, "%s%s", t->rows ? ",\n" : "", text);
    free(text);
}

/* ---- The screen ---- */

static void screen_head(const table *t)
{
    fprintf(t->out, "%8s%s%s\n", "sample", t->labels ? "   label" : "",
            t->classes ? "   prediction   probability" : "   mean squared error");
}

static void screen_row(const table *t, const prediction *p)
{
    if (t->files) {
        put_shown(t->out, p->file);
        fprintf(t->out, ": %lld (%.2f %%)\n", (long long)p->answer, 100 * p->probability);
        return;
    }
    fprintf(t->out, "%8lld", (long long)p->index);
    if (t->labels)
        fprintf(t->out, "%8lld", (long long)p->label);
    if (t->classes)
        fprintf(t->out, "%13lld%12.2f %%%s\n", (long long)p->answer, 100 * p->probability,
                t->labels && p->answer != p->label ? "   wrong" : "");
    else
        fprintf(t->out, "%21.6f\n", p->error);
}

/* ---- All of them ---- */

void table_row(table *t, const prediction *p)
{
    if (!t->rows && t->format == TABLE_CSV)
        csv_head(t);
    if (!t->rows && t->format == TABLE_JSON)
        fputs("[\n", t->out);
    if (!t->rows && t->format == TABLE_SCREEN && !t->files)
        screen_head(t);
    if (t->format == TABLE_CSV)
        csv_row(t, p);
    else if (t->format == TABLE_JSON)
        json_row(t, p);
    else
        screen_row(t, p);
    t->rows++;
}

void table_end(table *t)
{
    if (t->format == TABLE_JSON)
        fputs(t->rows ? "\n]\n" : "[\n]\n", t->out);
}
