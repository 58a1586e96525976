/* Reading the code of a segment: see code.h. trace.c writes it. */
#include "plan/code.h"
#include <stdio.h>
#include <string.h>
#include "trace/trace.h"

bool kiln_code_next(const int64_t *code, int64_t ncode, kiln_code_part *p)
{
    if (p->end > p->at) { /* there was one */
        p->imports += !p->op;
        p->nodes += p->op != NULL;
    }
    p->at = p->end;
    if (p->at >= ncode || code[p->at] == KILN_CODE_END)
        return false;
    if (code[p->at] == KILN_CODE_IMPORT) {
        p->op = NULL;
        p->nin = p->nints = 0;
        p->end = p->at + 5 + 2 * (code[p->at + 1] >> 8 & 0xff);
        return true;
    }
    int64_t counts = code[p->at + 2];
    p->op = (const kiln_op *)(intptr_t)code[p->at];
    p->nin = (int)(counts >> 32 & 0xff); /* marks are above it */
    p->nints = (int)(counts >> 16 & 0xffff);
    p->ints = p->at + 3 + p->nin;
    p->end = p->ints + p->nints;
    return true;
}

int kiln_code_places(const kiln_code_part *p, int64_t place[2])
{
    if (!p->op) {
        place[0] = p->at + 4;
        return 1;
    }
    switch (p->op->start) {
    case KILN_START_SLICE:
        place[0] = p->ints + 1;
        place[1] = p->ints + 2;
        return 2;
    case KILN_START_SECOND: place[0] = p->ints + 1; return 1;
    case KILN_START_LAST: place[0] = p->ints + p->nints - 1; return 1;
    default: return 0;
    }
}

void kiln_code_without_places(const int64_t *code, int64_t ncode, int64_t *out)
{
    kiln_code_part p = {0};
    int64_t place[2];
    memcpy(out, code, (size_t)ncode * sizeof *out);
    while (kiln_code_next(code, ncode, &p)) {
        int n = kiln_code_places(&p, place);
        if (n == 2)
            out[place[1]] -= out[place[0]];
        if (n)
            out[place[0]] = 0;
    }
}

/* ---- In words ---- */

/* The name of integer i in a list such as "dim start end step" or "shape... | eps". */
static void name_int(const kiln_op *op, int i, char *name, size_t size)
{
    const char *at = op->attrs ? op->attrs : "";
    snprintf(name, size, "an integer");
    for (int k = 0; *at && *at != '|'; k++) {
        size_t length = strcspn(at, " |");
        bool rest = length > 3 && memcmp(at + length - 3, "...", 3) == 0;
        if (k == i || rest) {
            snprintf(name, size, "%.*s", (int)(rest ? length - 3 : length), at);
            return;
        }
        at += length + strspn(at + length, " ");
    }
}

/* The first operation that comes after an import: what it is an operand of. */
static const char *user_of_import(const int64_t *code, int64_t ncode, kiln_code_part p)
{
    while (kiln_code_next(code, ncode, &p))
        if (p.op)
            return p.op->name;
    return "an operation";
}

void kiln_code_difference(const int64_t *a, int64_t na, const int64_t *b, int64_t nb, char *text, size_t size)
{
    kiln_code_part p = {0}, q = {0};
    for (;;) {
        bool more = kiln_code_next(a, na, &p), other = kiln_code_next(b, nb, &q);
        if (!more || !other || p.op != q.op) {
            if (!more && !other)
                snprintf(text, size, "which results are kept");
            else
                snprintf(text, size, "the operations written%s%s", other && q.op ? ", first at " : "",
                         other && q.op ? q.op->name : "");
            return;
        }
        if (p.end - p.at == q.end - q.at && memcmp(a + p.at, b + q.at, (size_t)(p.end - p.at) * sizeof *a) == 0)
            continue;
        if (!p.op) {
            snprintf(text, size, "the shape or place of an operand of %s", user_of_import(b, nb, q));
            return;
        }
        for (int i = 0; i < p.nints && i < q.nints; i++)
            if (a[p.ints + i] != b[q.ints + i]) {
                char name[40];
                name_int(p.op, i, name, sizeof name);
                snprintf(text, size, "%s(%s)", p.op->name, name);
                return;
            }
        snprintf(text, size, "the operands of %s", p.op->name);
        return;
    }
}
