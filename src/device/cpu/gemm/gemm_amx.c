/* Products of bf16 with AMX: tile registers of 16 rows of 64 bytes. One instruction multiplies 16 rows of 16 pairs by
 * 16 pairs of 16 columns and adds to 16 × 16 f32. Subnormal numbers count as zeros. */
#include "device/cpu/gemm/gemm_kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AMX_BF16__)

#include "device/cpu/gemm/gemm_pairs.h"

enum { SIDE = 16, LINE = 64 }; /* rows of a register, and bytes of each */

/* As the instruction reads it: all eight registers whole. */
typedef struct shapes {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} shapes;

static void begin(void)
{
    static const shapes whole __attribute__((aligned(64))) = {.palette = 1,
                                                              .bytes = {LINE, LINE, LINE, LINE, LINE, LINE, LINE, LINE},
                                                              .rows = {SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE}};
    _tile_loadconfig(&whole);
}

static void end(void)
{
    _tile_release();
}

/* Registers 0 to 3 are the sums of two by two squares, 4 and 5 rows of s, 6 and 7 columns of v. */
KILN_GEMM_INLINE void squares(const int tall, const int vectors, int64_t k, const char *s, const char *v, int64_t v_k,
                              char *c, int64_t c_row, int accumulate)
{
    const char *below = s + k * LINE;
    char *lower = c + SIDE * c_row;
    if (accumulate) {
        _tile_loadd(0, c, c_row);
        if (vectors > 1)
            _tile_loadd(1, c + LINE, c_row);
        if (tall > 1)
            _tile_loadd(2, lower, c_row);
        if (tall > 1 && vectors > 1)
            _tile_loadd(3, lower + LINE, c_row);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t p = 0; p < k; p += SIDE, s += SIDE * LINE, below += SIDE * LINE, v += SIDE * v_k) {
        _tile_loadd(6, v, v_k);
        _tile_loadd(4, s, LINE);
        _tile_dpbf16ps(0, 4, 6);
        if (vectors > 1) {
            _tile_loadd(7, v + LINE, v_k);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (tall > 1) {
            _tile_loadd(5, below, LINE);
            _tile_dpbf16ps(2, 5, 6);
            if (vectors > 1)
                _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, c, c_row);
    if (vectors > 1)
        _tile_stored(1, c + LINE, c_row);
    if (tall > 1)
        _tile_stored(2, lower, c_row);
    if (tall > 1 && vectors > 1)
        _tile_stored(3, lower + LINE, c_row);
}

/* Rows that fill no register are summed beside C. What lies behind the last row of s is read, and leaves no trace. */
KILN_GEMM_INLINE void tile(const int rows, const int vectors, int64_t k, const void *s, const void *v, int64_t v_k,
                           void *c, int64_t c_row, int accumulate)
{
    const int tall = rows > SIDE ? 2 : 1;
    if (rows == tall * SIDE) {
        squares(tall, vectors, k, s, v, 4 * v_k, c, 4 * c_row, accumulate);
        return;
    }
    char beside[2 * SIDE * 2 * LINE] __attribute__((aligned(64)));
    const int64_t line = (int64_t)vectors * LINE;
    for (int r = 0; accumulate && r < rows; r++)
        memcpy(beside + r * line, (const char *)c + r * 4 * c_row, (size_t)line);
    squares(tall, vectors, k, s, v, 4 * v_k, beside, line, accumulate);
    for (int r = 0; r < rows; r++)
        memcpy((char *)c + r * 4 * c_row, beside + r * line, (size_t)line);
}

/* clang-format off */
#define ROWS(X)                                                                                                        \
    X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16)                             \
    X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31) X(32)
/* clang-format on */

#define TILE(rows, vectors)                                                                                            \
    static void tile_##vectors##_##rows(int64_t k, const void *s, int64_t s_row, int64_t s_k, const void *v,           \
                                        int64_t v_k, void *c, int64_t c_row, int accumulate, const void *soon)         \
    {                                                                                                                  \
        (void)s_row, (void)s_k, (void)soon;                                                                            \
        tile(rows, vectors, k, s, v, v_k, c, c_row, accumulate);                                                       \
    }
#define TILES(rows) TILE(rows, 1) TILE(rows, 2)
ROWS(TILES)
#define ONE(rows) [(rows)-1] = tile_1_##rows,
#define TWO(rows) [(rows)-1] = tile_2_##rows,

static const kiln_gemm_pairs table = {
    .real = {.lanes = SIDE, .rows = 2 * SIDE, .tile = {{{ROWS(ONE)}, {ROWS(TWO)}}, {{ROWS(ONE)}, {ROWS(TWO)}}}},
    .pack = pack_pairs,
    .pack_squares = pack_squares,
    .unit = SIDE,
    .cycles = 1.0 / SIDE,
    .begin = begin,
    .end = end};
const kiln_gemm_pairs *const kiln_gemm_amx = &table;

#else

const kiln_gemm_pairs *const kiln_gemm_amx = NULL;

#endif
