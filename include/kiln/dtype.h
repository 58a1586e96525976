/* Element types: what a tensor holds, and which type comes out when two meet. */
#ifndef KILN_DTYPE_H
#define KILN_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KILN_API __attribute__((visibility("default")))

/* Listed from narrow to wide within a category: promotion relies on that order. */
typedef enum kiln_dtype {
    KILN_BOOL, /* one byte, 0 or 1 */
    KILN_U8,
    KILN_I32,
    KILN_I64,
    KILN_F16,  /* IEEE half: stored in 16 bits, computed in f32 */
    KILN_BF16, /* the upper half of an f32: stored in 16 bits, computed in f32 */
    KILN_F32,
    KILN_F64,
    KILN_DTYPES /* how many there are; also "not given" in options */
} kiln_dtype;

/* Bytes an element takes; 0 for a value that is no dtype. */
KILN_API size_t kiln_dtype_size(kiln_dtype dtype);

/* "f32", "bf16", …; "?" for a value that is no dtype. The string is static. */
KILN_API const char *kiln_dtype_name(kiln_dtype dtype);

/* True for f16, bf16, f32 and f64: the types that can carry gradients. */
KILN_API bool kiln_dtype_is_float(kiln_dtype dtype);

/* The type two tensors of one or more dimensions give together, by PyTorch's rules: the higher category wins
 * (bool < integer < float), then the wider type; f16 with bf16 gives f32. */
KILN_API kiln_dtype kiln_dtype_promote(kiln_dtype a, kiln_dtype b);

#ifdef __cplusplus
}
#endif
#endif
