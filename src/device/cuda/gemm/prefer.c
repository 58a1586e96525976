/* What the library's order of its own ways is mistaken about, as measured: a table by what stands behind a product and
 * which tile it would take first. Microseconds on an H200, cuBLASLt 13.1, bf16, by kiln_bench_cuda_layers, for layers
 * of rows : inputs : outputs; the library's first way and the one taken instead.
 *
 * With a bias, 128×128:
 * - 32768 : 768 : 2304, 192×192: 211 → 156
 * - 32768 : 768 : 3072, 192×192: 272 → 223
 * - 32768 : 3072 : 768, 256×128: 237 → 211
 * - 32768 : 768 : 768, 256×128: 72 → 61
 * - 16384 : 384 : 1536, 256×128: 45 → 37
 * - 16384 : 384 : 1152, 192×192: 34 → 28
 * - 16384 : 1536 : 384, 192×128: 35 → 33
 *
 * Without, instead of 192×192, 128×160 (or, marked *, where that is not offered, 128×128):
 * - 32768 : 768 : 2304: 168 → 153
 * - 32768 : 768 : 3072: 233 → 208
 * - 32768 : 3072 : 768, gradient: 219 → 206
 * - 16384 : 384 : 1152: 30 → 26*
 *
 * Short sums without, instead of 256×128, the same:
 * - 32768 : 768 : 768: 63 → 59, gradient 71 → 61
 * - 16384 : 384 : 1536: 36 → 35
 * - 16384 : 1536 : 384, gradient: 40 → 34*
 * - 16640 : 192 : 768: 14.6 → 13.6
 *
 * Long sums keep 256×128: 152 against 154 and 177 for the gradient of 32768 : 768 : 2304. Products in several parts and
 * small ones were not found to gain, other dtypes and devices were not measured: they take what comes first. */
#include "device/cuda/gemm/prefer.h"
#include <cublasLt.h>

enum { SHORT_SUM = 768, LEAST_RESULT = 132 * 128 * 128 /* a tile for each multiprocessor */, TILES = 2, ANY = 0 };

static const struct {
    bool bias;
    uint32_t first; /* the tile that the library would take */
    int64_t most_k;
    uint32_t tiles[TILES]; /* to take instead, the first that is offered */
} table[] = {
    {true, ANY, INT64_MAX, {CUBLASLT_MATMUL_TILE_128x128}},
    {false, CUBLASLT_MATMUL_TILE_192x192, INT64_MAX, {CUBLASLT_MATMUL_TILE_128x160, CUBLASLT_MATMUL_TILE_128x128}},
    {false, CUBLASLT_MATMUL_TILE_256x128, SHORT_SUM, {CUBLASLT_MATMUL_TILE_128x160, CUBLASLT_MATMUL_TILE_128x128}},
};

static bool was_measured(const kiln_cuda_product *p, int capability)
{
    return p->dtype == KILN_BF16 && capability == 90 && p->batch == 1 && !p->sum && p->m >= LEAST_RESULT / p->n;
}

int kiln_cuda_prefer(const kiln_cuda_product *p, int capability, const kiln_cuda_offer *offers, int n)
{
    if (!was_measured(p, capability) || offers[0].splits > 1)
        return 0;
    for (size_t row = 0; row < sizeof table / sizeof *table; row++) {
        if (table[row].bias != (p->bias != 0) || p->k > table[row].most_k ||
            (table[row].first != ANY && table[row].first != offers[0].tile))
            continue;
        for (int t = 0; t < TILES; t++)
            for (int i = 0; i < n; i++)
                if (table[row].tiles[t] && offers[i].tile == table[row].tiles[t] && offers[i].splits <= 1)
                    return i;
    }
    return 0;
}
