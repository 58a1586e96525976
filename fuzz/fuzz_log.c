/* The log of a run, JSON lines or CSV, read and drawn: refused with an error, or a picture that has no numbers that are
 * none. The first byte says which of the two it is. */
#include "fuzz.h"
#include "cli/chart.h"

/* Asked for by what parses options, which is not done here. */
void command_help(const command *c, FILE *out)
{
    (void)c;
    (void)out;
}

static char csv[64]; /* a name that ends in .csv for the file that has the bytes */

static void remove_name(void)
{
    unlink(csv);
    *strrchr(csv, '/') = 0;
    rmdir(csv);
}

static const char *as_csv(const char *path)
{
    if (*csv)
        return csv;
    char folder[] = "/tmp/kiln-fuzz-XXXXXX";
    must(mkdtemp(folder));
    snprintf(csv, sizeof csv, "%s/log.csv", folder);
    must(symlink(path, csv) == 0 && atexit(remove_name) == 0);
    return csv;
}

/* What was drawn, as text or pixels; freed by the caller. */
static char *picture(const curves *log, bool png)
{
    double width, height;
    char *bytes = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&bytes, &size);
    chart_size(1, log, &width, &height);
    must(width > 0 && width < 10000 && height > 0 && height < 10000);
    canvas *c = png ? canvas_png(width, height) : canvas_svg(width, height);
    chart_draw(c, 1, log, NULL);
    must(c->finish(c, out));
    fclose(out);
    must(size > 0);
    return bytes;
}

/* Whether a number in a tag is none. What stands between tags is the log's own words, which may be "nan". */
static bool tags_have_nan(const char *svg)
{
    bool tag = false;
    for (const char *c = svg; *c; c++) {
        if (*c == '<' || *c == '>')
            tag = *c == '<';
        else if (tag && (strncmp(c, "nan", 3) == 0 || strncmp(c, "inf", 3) == 0))
            return true;
    }
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    const char *path = fuzz_file(0, data + 1, size - 1);
    curves log = {0};
    if (curves_read(&log, data[0] % 2 ? as_csv(path) : path) == 0) {
        char *svg = picture(&log, false);
        must(!tags_have_nan(svg));
        free(svg);
        free(picture(&log, true));
    }
    curves_free(&log);
    return 0;
}
