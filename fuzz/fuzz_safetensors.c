/* Any bytes as a safetensors file: refused with an error, or each tensor in it can be found and loaded, or is refused
 * for its type. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_begin();
    uint64_t before = fuzz_in_use();
    kiln_safetensors *f = kiln_safetensors_open(fuzz_file(0, data, size));
    fuzz_end(f != NULL);
    uint64_t bytes = 0;
    for (int64_t i = 0; i < kiln_safetensors_count(f); i++) {
        const kiln_safetensor *t = kiln_safetensors_at(f, i);
        must(kiln_safetensors_find(f, t->name) == i);
        must(t->bytes <= size && t->offset <= size - t->bytes);
        bytes += t->bytes;
        kiln_tensor *loaded = kiln_safetensors_load(f, i, KILN_CPU);
        fuzz_end(loaded != NULL);
        must(!loaded || (uint64_t)kiln_numel(loaded) * kiln_dtype_size(t->dtype) == t->bytes);
        kiln_release(loaded);
    }
    must(bytes <= size); /* no byte belongs to two */
    for (int i = 0; i < kiln_safetensors_metas(f); i++) {
        kiln_meta pair = kiln_safetensors_meta_at(f, i);
        must(kiln_safetensors_meta(f, pair.key) == pair.value);
    }
    kiln_safetensors_close(f);
    must(fuzz_in_use() == before);
    return 0;
}
