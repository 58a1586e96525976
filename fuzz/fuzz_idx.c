/* Two IDX files, images and labels: the first two bytes say how long the first is. Refused with an error, or every
 * sample can be read. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_begin();
    size_t cut = size < 2 ? 0 : (size_t)(data[0] | data[1] << 8);
    data += size < 2 ? size : 2;
    size -= size < 2 ? size : 2;
    cut = cut < size ? cut : size;
    uint64_t before = fuzz_in_use();
    const char *images = fuzz_file(0, data, cut), *labels = cut < size ? fuzz_file(1, data + cut, size - cut) : NULL;
    kiln_dataset *d = kiln_data_idx(images, labels);
    fuzz_end(d != NULL);
    if (d && kiln_data_count(d) > 0) {
        kiln_loader *l = kiln_loader_new(d, .batch = 3);
        must(l != NULL || !kiln_ok());
        kiln_batch b;
        for (int i = 0; i < 4 && l && kiln_loader_next(l, &b); i++)
            must(b.size > 0 && b.x);
        kiln_loader_free(l);
        kiln_error_clear();
    }
    kiln_data_free(d);
    must(fuzz_in_use() == before);
    return 0;
}
