/* Any text as a model file: refused with the file's name, or a module that takes the input it says it takes. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_begin();
    uint64_t before = fuzz_in_use();
    kiln_model_file about;
    kiln_module *m = kiln_model_parse((const char *)data, size, "fuzzed", &about);
    must(m || kiln_last_error()->code == KILN_E_MEMORY || strstr(kiln_last_error()->message, "fuzzed"));
    fuzz_end(m != NULL);
    if (m) {
        int ndim;
        int64_t shape[KILN_MAX_DIMS] = {2}, out[KILN_MAX_DIMS];
        memcpy(shape + 1, about.shape, (size_t)about.ndim * sizeof *shape);
        bool fits = kiln_module_shape(m, about.ndim + 1, shape, about.dtype, &ndim, out);
        must(fits || kiln_last_error()->code == KILN_E_MEMORY);
        kiln_error_clear();
    }
    kiln_module_free(m);
    kiln_step {
    } /* runs off what nobody reads any more */
    kiln_error_clear();
    must(fuzz_in_use() == before);
    return 0;
}
