/* How people write the digits: the pen's way, digit by digit, in hundredths of the letter's box. */
#include "data/digits.h"

/* P: through here in a curve, C: a corner, S: the pen is put down. */
#define S(x, y)                                                                                                        \
    {                                                                                                                  \
        x, y, '|'                                                                                                      \
    }
#define P(x, y)                                                                                                        \
    {                                                                                                                  \
        x, y, 0                                                                                                        \
    }
#define C(x, y)                                                                                                        \
    {                                                                                                                  \
        x, y, '/'                                                                                                      \
    }
#define GLYPH(...)                                                                                                     \
    {                                                                                                                  \
        sizeof((kiln_pen_point[]){__VA_ARGS__}) / sizeof(kiln_pen_point),                                              \
        {                                                                                                              \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    }

static const kiln_glyph zero[] = {
    GLYPH(S(56, 8), P(30, 22), P(19, 55), P(34, 89), P(60, 91), P(79, 64), P(76, 27), P(54, 9)),
    GLYPH(S(44, 10), P(28, 40), P(30, 75), P(50, 94), P(70, 72), P(71, 34), P(56, 8), P(40, 14)),
};
static const kiln_glyph one[] = {
    GLYPH(S(50, 5), C(50, 95)),
    GLYPH(S(32, 26), C(54, 6), C(52, 95)),
    GLYPH(S(34, 24), C(53, 6), C(52, 94), S(30, 94), C(74, 94)),
};
static const kiln_glyph two[] = {
    GLYPH(S(25, 28), P(38, 9), P(62, 8), P(74, 27), P(58, 56), C(24, 92), C(80, 90)),
    GLYPH(S(25, 24), P(46, 7), P(71, 20), P(64, 48), P(38, 82), P(22, 86), P(30, 72), P(52, 82), P(82, 90)),
};
static const kiln_glyph three[] = {
    GLYPH(S(26, 16), P(48, 6), P(70, 20), P(62, 40), C(42, 47), P(66, 55), P(76, 73), P(58, 93), P(24, 84)),
    GLYPH(S(26, 10), C(72, 10), C(46, 42), P(72, 56), P(70, 84), P(44, 94), P(22, 84)),
};
static const kiln_glyph four[] = {
    GLYPH(S(30, 8), P(25, 34), C(24, 55), C(80, 53), S(67, 10), P(66, 50), C(62, 95)),
    GLYPH(S(62, 95), C(64, 6), C(18, 64), C(84, 64)),
    GLYPH(S(24, 12), P(22, 38), P(36, 55), P(60, 50), P(72, 12), S(72, 12), P(66, 60), P(62, 95)),
};
static const kiln_glyph five[] = {
    GLYPH(S(74, 8), C(34, 8), C(29, 46), P(52, 39), P(75, 58), P(66, 86), P(42, 94), P(22, 84)),
    GLYPH(S(35, 10), C(30, 47), P(56, 42), P(74, 64), P(58, 91), P(23, 88), S(37, 9), C(78, 6)),
};
static const kiln_glyph six[] = {
    GLYPH(S(68, 8), P(42, 28), P(26, 62), P(37, 91), P(62, 91), P(74, 71), P(57, 54), P(36, 61), P(27, 76)),
    GLYPH(S(50, 5), P(32, 36), P(25, 72), P(44, 95), P(68, 84), P(66, 62), P(44, 58), P(27, 74)),
};
static const kiln_glyph seven[] = {
    GLYPH(S(21, 12), C(78, 10), P(56, 48), P(44, 95)),
    GLYPH(S(21, 12), C(78, 10), C(42, 95), S(34, 52), C(74, 49)),
    GLYPH(S(22, 26), C(24, 10), C(76, 10), P(58, 45), P(46, 95)),
};
static const kiln_glyph eight[] = {
    GLYPH(S(69, 19), P(49, 6), P(30, 22), P(45, 45), P(67, 63), P(67, 86), P(46, 95), P(29, 80), P(39, 58), P(62, 39),
          P(70, 20)),
    GLYPH(S(50, 47), P(31, 28), P(50, 7), P(69, 27), P(50, 47), P(27, 70), P(50, 94), P(73, 70), P(51, 47)),
};
static const kiln_glyph nine[] = {
    GLYPH(S(70, 24), P(48, 8), P(28, 29), P(40, 51), P(62, 44), C(71, 20), P(68, 58), P(61, 95)),
    GLYPH(S(68, 20), P(46, 8), P(29, 28), P(46, 50), P(68, 36), P(71, 20), P(72, 60), P(56, 91), P(30, 88)),
};

#define WAYS(digit)                                                                                                    \
    {                                                                                                                  \
        sizeof(digit) / sizeof *(digit), digit                                                                         \
    }
static const struct {
    int count;
    const kiln_glyph *ways;
} digits[10] = {WAYS(zero), WAYS(one), WAYS(two),   WAYS(three), WAYS(four),
                WAYS(five), WAYS(six), WAYS(seven), WAYS(eight), WAYS(nine)};

const kiln_glyph *kiln_glyphs(int digit, int *count)
{
    *count = digits[digit].count;
    return digits[digit].ways;
}
