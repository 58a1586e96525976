/* Finds the chains of join.def among a group's instructions. Longer chains stand first in the table and are tried
 * first. */
#include "device/cpu/group/join.h"
#include <string.h>

enum { A = -1, B = -2, C = -3, MOST = 4 };

typedef struct entry {
    int16_t row;
    int8_t operand[2];
} entry;

typedef struct chain {
    int length;
    entry entry[MOST];
} chain;

static const chain chains[KILN_JOINS] = {
#define KILN_JOIN(name, operands, scalars, expression, ...)                                                            \
    {sizeof((entry[]){__VA_ARGS__}) / sizeof(entry), {__VA_ARGS__}},
#include "device/cpu/group/join.def"
#undef KILN_JOIN
};

typedef struct match {
    int16_t operand[3]; /* registers of A, B, C; -1 while unknown */
    int instr[MOST];    /* the instruction of each entry */
} match;

/* The instruction that makes a register; -1 for loads. */
static int maker(const kiln_cpu_group *e, int16_t reg, int before)
{
    for (int i = before; i-- > 0;)
        if (e->instrs[i].dst == reg)
            return i;
    return -1;
}

/* Does entry n of the chain fit the instruction? Inner entries must have no other reader than the chain. */
static bool fits(const kiln_cpu_group *e, const chain *c, int n, int instr, const int *uses, bool outermost, match *m)
{
    if (instr < 0)
        return false;
    const kiln_cpu_instr *in = &e->instrs[instr];
    bool plain = in->row == c->entry[n].row && in->dtype == in->from && !in->after && in->joined < 0;
    if (!plain || (!outermost && uses[in->dst] != 1))
        return false;
    m->instr[n] = instr;
    for (int k = 0; k < kiln_pw_rows[in->row].arity; k++) {
        int8_t operand = c->entry[n].operand[k];
        if (operand < 0)
            m->operand[-1 - operand] = in->src[k];
        else if (!fits(e, c, operand, maker(e, in->src[k], instr), uses, false, m))
            return false;
    }
    return true;
}

static void replace(kiln_cpu_group *e, int join, const chain *c, const match *m, int *uses)
{
    int n = c->length;
    kiln_cpu_instr *in = &e->instrs[m->instr[n - 1]];
    in->joined = (int8_t)join;
    in->fn = e->table->joined[kiln_pw_class_of((kiln_dtype)in->dtype)][join];
    memcpy(in->src, m->operand, sizeof in->src);
    in->nscalars = 0;
    for (int i = 0; i < n; i++) {
        const kiln_cpu_instr *part = &e->instrs[m->instr[i]];
        if (kiln_pw_rows[c->entry[i].row].scalars)
            in->scalar[in->nscalars++] = part->scalars;
        if (i < n - 1) {
            uses[part->dst] = 0;
            e->instrs[m->instr[i]].fn = NULL; /* done by the join */
        }
    }
}

void kiln_cpu_join(kiln_cpu_group *e, int *uses)
{
    for (int i = e->ninstrs; i-- > 0;) {
        kiln_pw_class cls = kiln_pw_class_of((kiln_dtype)e->instrs[i].dtype);
        if (!e->instrs[i].fn || !e->table->joined[cls])
            continue;
        for (int j = 0; j < KILN_JOINS; j++) {
            match m = {.operand = {-1, -1, -1}};
            if (fits(e, &chains[j], chains[j].length - 1, i, uses, true, &m)) {
                replace(e, j, &chains[j], &m, uses);
                break;
            }
        }
    }
    int n = 0;
    for (int i = 0; i < e->ninstrs; i++)
        if (e->instrs[i].fn)
            e->instrs[n++] = e->instrs[i];
    e->ninstrs = n;
}
