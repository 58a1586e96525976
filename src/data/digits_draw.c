/* Draws one digit: the points of a glyph are moved a little each, joined to curves, bent by a smooth random field,
 * turned, slanted, stretched and shifted, and inked segment by segment; then come specks and noise. All of it is drawn
 * from Philox by the sample's number.
 *
 * This is what a training run on drawn digits waits for, so pixels are worked on four at a time (columns come in sevens
 * of four), and only near the segment that is being drawn. */
#include "data/digits.h"
#include <stdbool.h>
#include <string.h>
#include "core/philox.h"
#ifdef __SSE__
#include <xmmintrin.h>
#endif

enum {
    SIDE = KILN_DIGIT_SIDE,
    PIECES = 3, /* segments between two points of a curve */
    MOST_SEGMENTS = (KILN_PEN_POINTS - 1) * PIECES,
    GRID = 4 /* the random field's nodes along one side */
};

/* How much samples differ: deviations where there is no least and most. Chosen by training: a linear classifier gets
 * 88 % of the test set right, the network 784-256-128-10 98.8 % after ten epochs. */
#define KEY          0x6B696C6E64696769u
#define POINT_JITTER 0.030f /* of each point, in letter boxes, as the field's nodes */
#define FIELD        0.088f
#define TURN         0.14f /* radians */
#define SLANT        0.17f
#define WIDTH        0.12f /* of the box's width, as HEIGHT of its height */
#define HEIGHT       0.08f
#define BOX_WIDTH    19.5f /* pixels, as all that follows */
#define BOX_HEIGHT   20.5f
#define SHIFT        0.9f
#define PEN_THIN     0.75f /* a radius */
#define PEN_THICK    1.65f
#define INK_LEAST    0.70f /* the darkest there is: 1 */
#define NOISE_LEAST  0.02f
#define NOISE_MOST   0.13f
#define PIXEL_MEAN   0.1395f /* measured over 100,000 samples, before normalisation */
#define PIXEL_STD    0.2615f

/* ---- Random numbers, in the order they are asked for ---- */

typedef struct draw {
    uint32_t counter[4], word[4];
    int left;
} draw;

static uint32_t next_word(draw *r)
{
    if (!r->left) {
        kiln_philox_words((uint32_t)KEY, (uint32_t)(KEY >> 32), r->counter, r->word);
        r->counter[2]++;
        r->left = 4;
    }
    return r->word[--r->left];
}

static float uniform(draw *r, float from, float to)
{
    return from + (to - from) * kiln_uniform_f32(next_word(r));
}

/* Close to normal, and never far out: the sum of a word's four bytes, of deviation 1. */
static float bell(draw *r)
{
    uint32_t w = next_word(r), pairs = (w & 0x00ff00ffu) + (w >> 8 & 0x00ff00ffu);
    return ((float)(int32_t)((pairs & 0xffffu) + (pairs >> 16)) - 510.0f) * (1.0f / 147.80f);
}

typedef struct point {
    float x, y;
} point;

/* Two numbers in a row: C does not say in which order the parts of one expression are evaluated. */
static point bell_pair(draw *r, float scale)
{
    float x = scale * bell(r);
    float y = scale * bell(r);
    return (point){x, y};
}

/* ---- Where the pen goes ---- */

typedef struct segment {
    point a, b;
} segment;

typedef struct path {
    segment segments[MOST_SEGMENTS];
    int count;
} path;

/* The curve between p1 and p2 at t, by Catmull and Rom. */
static float curve(float p0, float p1, float p2, float p3, float t)
{
    float c1 = p2 - p0, c2 = 2 * p0 - 5 * p1 + 4 * p2 - p3, c3 = 3 * (p1 - p2) + p3 - p0;
    return p1 + 0.5f * t * (c1 + t * (c2 + t * c3));
}

/* Joins the points: curves through points, broken at corners and where the pen is lifted. */
static void join(const kiln_glyph *g, const point *p, path *out)
{
    out->count = 0;
    for (int i = 0; i + 1 < g->points; i++) {
        if (g->point[i + 1].how == '|')
            continue;
        bool sharp = g->point[i].how != 0;
        bool last = g->point[i + 1].how == '/' || i + 2 == g->points || g->point[i + 2].how == '|';
        point p0 = sharp ? p[i] : p[i - 1], p3 = last ? p[i + 1] : p[i + 2], from = p[i];
        for (int k = 1; k <= PIECES; k++) {
            float t = (float)k * (1.0f / PIECES);
            point to = {curve(p0.x, p[i].x, p[i + 1].x, p3.x, t), curve(p0.y, p[i].y, p[i + 1].y, p3.y, t)};
            out->segments[out->count++] = (segment){from, to};
            from = to;
        }
    }
}

/* A field that moves points: random at the nodes of a grid over the box, quadratic splines between them. */
typedef struct field {
    point node[GRID][GRID];
} field;

static point bend(const field *f, point p)
{
    float at[2] = {p.x * (GRID - 2), p.y * (GRID - 2)}, w[2][3];
    int cell[2];
    for (int d = 0; d < 2; d++) {
        cell[d] = at[d] < 0 ? 0 : at[d] >= GRID - 2 ? GRID - 3 : (int)at[d];
        float t = at[d] - (float)cell[d];
        t = t < 0 ? 0 : t > 1 ? 1 : t;
        w[d][0] = 0.5f * (1 - t) * (1 - t);
        w[d][1] = 0.5f + t * (1 - t);
        w[d][2] = 0.5f * t * t;
    }
    for (int row = 0; row < 3; row++)
        for (int column = 0; column < 3; column++) {
            float weight = w[1][row] * w[0][column];
            p.x += weight * f->node[cell[1] + row][cell[0] + column].x;
            p.y += weight * f->node[cell[1] + row][cell[0] + column].y;
        }
    return p;
}

/* From the box to pixels. */
typedef struct affine {
    float xx, xy, x, yx, yy, y;
} affine;

static affine draw_affine(draw *r)
{
    float angle = TURN * bell(r), slant = SLANT * bell(r) - 0.08f; /* most people lean to the right */
    float width = BOX_WIDTH * (1 + WIDTH * bell(r)), height = BOX_HEIGHT * (1 + HEIGHT * bell(r));
    float q = angle * angle;
    float sine = angle * (1 - q * (1.0f / 6) * (1 - q * (1.0f / 20)));
    float cosine = 1 - q * 0.5f * (1 - q * (1.0f / 12) * (1 - q * (1.0f / 30)));
    affine a = {.xx = cosine * width, .xy = (cosine * slant - sine) * height};
    a.yx = sine * width;
    a.yy = (sine * slant + cosine) * height;
    float middle = (SIDE - 1) * 0.5f;
    a.x = middle + SHIFT * bell(r) - 0.5f * (a.xx + a.xy);
    a.y = middle + SHIFT * bell(r) - 0.5f * (a.yx + a.yy);
    return a;
}

static point apply(const affine *a, point p)
{
    return (point){a->xx * p.x + a->xy * p.y + a->x, a->yx * p.x + a->yy * p.y + a->y};
}

/* ---- Ink ---- */

typedef float four __attribute__((vector_size(16)));
typedef uint32_t four_words __attribute__((vector_size(16)));
typedef int32_t four_ints __attribute__((vector_size(16)));

#ifdef __SSE__
static inline four lesser(four a, four b)
{
    return _mm_min_ps(a, b);
}
static inline four greater(four a, four b)
{
    return _mm_max_ps(a, b);
}
#else
static inline four pick(four_ints mask, four a, four b)
{
    return (four)((mask & (four_ints)a) | (~mask & (four_ints)b));
}
static inline four lesser(four a, four b)
{
    return pick(a < b, a, b);
}
static inline four greater(four a, four b)
{
    return pick(a > b, a, b);
}
#endif

static inline four all(float x)
{
    return (four){x, x, x, x};
}

/* The pixels from `low` to `high` that lie in the image: *first to *end. */
static void clip(float low, float high, int *first, int *end)
{
    float from = low < 0 ? 0 : low, to = high > SIDE - 1 ? SIDE - 1 : high;
    *first = (int)from;
    *end = to < from ? *first : (int)to + 1;
}

/* Inks a segment: full up to `inner` from it, none from `outer` on, the darker of old and new. */
static void ink(four *pixels, segment s, float inner, float outer)
{
    float bx = s.b.x - s.a.x, by = s.b.y - s.a.y, length = bx * bx + by * by;
    four run = all(1.0f / (length + 1e-6f)), slope = all(1.0f / (outer * outer - inner * inner));
    four top = all(outer * outer), zero = all(0), one = all(1);
    int row, rows, column, columns;
    clip((s.a.y < s.b.y ? s.a.y : s.b.y) - outer, (s.a.y < s.b.y ? s.b.y : s.a.y) + outer, &row, &rows);
    clip((s.a.x < s.b.x ? s.a.x : s.b.x) - outer, (s.a.x < s.b.x ? s.b.x : s.a.x) + outer, &column, &columns);
    for (; row < rows; row++)
        for (int c = column / 4; c * 4 < columns; c++) {
            float left = (float)(c * 4) - s.a.x;
            four x = {left, left + 1, left + 2, left + 3}, y = all((float)row - s.a.y);
            four t = lesser(greater((x * all(bx) + y * all(by)) * run, zero), one);
            x -= t * all(bx);
            y -= t * all(by);
            four dark = lesser((top - x * x - y * y) * slope, one); /* what is below zero loses to what is there */
            four *at = pixels + row * (SIDE / 4) + c;
            *at = greater(*at, dark);
        }
}

/* Dust: short strokes of a fine pen somewhere. */
static void draw_specks(draw *r, four *pixels)
{
    for (int n = (int)(next_word(r) % 4); n > 0; n--) {
        float x = uniform(r, 0, SIDE - 1), y = uniform(r, 0, SIDE - 1), size = uniform(r, 0.5f, 1.1f);
        point way = bell_pair(r, 1.2f);
        ink(pixels, (segment){{x, y}, {x + way.x, y + way.y}}, 0.1f, size);
    }
}

/* The paper's grain, and from ink (0 to 1) to normalised values. */
static void finish(draw *r, four *pixels)
{
    float darkness = uniform(r, INK_LEAST, 1), noise = uniform(r, NOISE_LEAST, NOISE_MOST);
    four_words s = {0};
    for (int i = 0; i < 4; i++)
        s[i] = next_word(r) | 1;
    four scale = all(noise * (1.0f / 147.80f)), zero = all(0), one = all(1);
    for (int i = 0; i < KILN_DIGIT_PIXELS / 4; i++) {
        s ^= s << 13; /* Marsaglia's xorshift: four streams */
        s ^= s >> 17;
        s ^= s << 5;
        four_words pairs = (s & 0x00ff00ffu) + (s >> 8 & 0x00ff00ffu);
        four_ints sum = (four_ints)((pairs & 0xffffu) + (pairs >> 16)) - 510;
        four v = pixels[i] * darkness + __builtin_convertvector(sum, four) * scale;
        pixels[i] = (lesser(greater(v, zero), one) - all(PIXEL_MEAN)) * all(1.0f / PIXEL_STD);
    }
}

float kiln_digit_paper(void)
{
    return (0 - PIXEL_MEAN) * (1.0f / PIXEL_STD);
}

int kiln_digit_draw(uint64_t index, float *out)
{
    draw r = {.counter = {(uint32_t)index, (uint32_t)(index >> 32), 0, 0}};
    int ways, digit = (int)(next_word(&r) % 10);
    const kiln_glyph *glyph = kiln_glyphs(digit, &ways);
    glyph += next_word(&r) % (uint32_t)ways;

    point p[KILN_PEN_POINTS];
    for (int i = 0; i < glyph->points; i++) {
        p[i] = bell_pair(&r, POINT_JITTER);
        p[i].x += (float)glyph->point[i].x * 0.01f;
        p[i].y += (float)glyph->point[i].y * 0.01f;
    }
    path way;
    join(glyph, p, &way);
    field f;
    for (int i = 0; i < GRID * GRID; i++)
        f.node[i / GRID][i % GRID] = bell_pair(&r, FIELD);
    affine a = draw_affine(&r);

    four pixels[KILN_DIGIT_PIXELS / 4] = {{0}};
    float radius = uniform(&r, PEN_THIN, PEN_THICK), swell = uniform(&r, -0.25f, 0.25f);
    for (int i = 0; i < way.count; i++) {
        segment s = {apply(&a, bend(&f, way.segments[i].a)), apply(&a, bend(&f, way.segments[i].b))};
        float wide =
            radius * (1 + swell * (2 * (float)i / (float)way.count - 1)); /* the pen is pressed down or lifted */
        ink(pixels, s, wide > 0.6f ? wide - 0.6f : 0, wide + 0.5f);
    }
    draw_specks(&r, pixels);
    finish(&r, pixels);
    memcpy(out, pixels, sizeof pixels);
    return digit;
}
