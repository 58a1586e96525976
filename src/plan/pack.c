/* A second way to lay out the arena, for steps that memory is short for: the largest buffers first, each at the lowest
 * offset where nothing lies that is there at the same time. Buffers that come and go at will leave holes behind when
 * they are placed in the order of the kernels; this way leaves hardly any, but takes the square of their number. */
#include <stdlib.h>
#include "plan/draft.h"

typedef struct piece {
    int32_t buffer, first, last; /* of which buffer, and of those that go on in its place */
    int64_t bytes, offset;
} piece;

static int by_size(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return x->first != y->first ? (x->first < y->first ? -1 : 1) : (x->buffer > y->buffer) - (x->buffer < y->buffer);
}

/* Puts the piece where it fits, into the list of those that have their place, which is in the order of offsets. */
static void put(const piece **placed, int64_t n, piece *p)
{
    int64_t at = 0, i = 0;
    for (; i < n; i++) {
        const piece *q = placed[i];
        if (q->last < p->first || q->first > p->last)
            continue;
        if (q->offset >= at + p->bytes)
            break;
        at = q->offset + q->bytes > at ? q->offset + q->bytes : at;
    }
    p->offset = at;
    for (i = n; i > 0 && placed[i - 1]->offset > at; i--)
        placed[i] = placed[i - 1];
    placed[i] = p;
}

bool kiln_draft_pack(kiln_draft *d, const int32_t *follows, int64_t *end, const int64_t *bytes)
{
    kiln_plan *p = d->plan;
    int64_t n = 0;
    piece *pieces = KILN_ARENA_NEW(&d->scratch, piece, p->nbuffers);
    const piece **placed = KILN_ARENA_NEW(&d->scratch, const piece *, p->nbuffers);
    int32_t *piece_of = KILN_ARENA_NEW(&d->scratch, int32_t, p->nbuffers);
    if (!pieces || !placed || !piece_of)
        return false;
    for (int32_t b = 0; b < p->nbuffers; b++) /* who goes on in another's place was met after it, or is a workspace */
        if (p->buffers[b].place == KILN_IN_ARENA && follows[b] < 0) {
            piece_of[b] = (int32_t)n;
            pieces[n++] = (piece){b, p->buffers[b].first, p->buffers[b].last, bytes[b], 0};
        }
    for (int32_t b = 0; b < p->nbuffers; b++) {
        int32_t root = b;
        while (follows[root] >= 0)
            root = follows[root];
        if (root == b || p->buffers[b].place != KILN_IN_ARENA)
            continue;
        piece *x = &pieces[piece_of[root]];
        x->last = p->buffers[b].last > x->last ? p->buffers[b].last : x->last;
    }
    qsort(pieces, (size_t)n, sizeof *pieces, by_size);
    int64_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        put(placed, i, &pieces[i]);
        most = pieces[i].offset + pieces[i].bytes > most ? pieces[i].offset + pieces[i].bytes : most;
    }
    if (most >= *end)
        return true;
    *end = most;
    for (int64_t i = 0; i < n; i++)
        p->buffers[pieces[i].buffer].offset = pieces[i].offset;
    for (int32_t b = 0; b < p->nbuffers; b++) {
        int32_t root = b;
        while (follows[root] >= 0)
            root = follows[root];
        if (p->buffers[b].place == KILN_IN_ARENA)
            p->buffers[b].offset = p->buffers[root].offset;
    }
    return true;
}
