/* Safetensors files that are read: opening, asking, loading tensors. A header is believed only after kiln_safe_header
 * has checked it; data goes from the file to the device in pieces. */
#include "io/safetensors.h"

#include <string.h>

#include "core/alloc.h"
#include "core/available.h"
#include "core/fail.h"
#include "ops/op.h"
#include "tensor/memory.h"
#include "tensor/scope.h"
#include "trace/shapes.h"

enum { PREFIX = 8, HEADER_MAX = 100000000, PIECE = 1 << 20 };

static const char who[] = "safetensors";

/* What torch.save writes: a zip file, or, before that, pickles. Many have their weights as such a file. */
static bool is_of_pytorch(const kiln_safetensors *f, const unsigned char *prefix)
{
    bool zip = !memcmp(prefix, "PK\3\4", 4), pickle = prefix[0] == 0x80 && prefix[1] >= 2 && prefix[1] <= 5;
    if (!zip && !pickle)
        return false;
    kiln_fail(KILN_E_FORMAT, who, "%s is a %s, as torch.save writes it, and no safetensors file", f->path,
              zip ? "zip file" : "Python pickle");
    kiln_hint(
        "convert it in Python: import torch, safetensors.torch as s; w = torch.load(\"model.pt\", "
        "map_location=\"cpu\", weights_only=True); s.save_file({k: v.clone().contiguous() for k, v in w.items()}, "
        "\"model.safetensors\")");
    return true;
}

static bool read_header(kiln_safetensors *f)
{
    unsigned char prefix[PREFIX];
    uint64_t bytes = 0;
    if (f->file.size < PREFIX)
        return kiln_fail(KILN_E_FORMAT, who, "%s: %llu bytes are no safetensors file", f->path,
                         (unsigned long long)f->file.size);
    if (!kiln_file_read(&f->file, prefix, PREFIX, 0))
        return false;
    for (int i = 0; i < PREFIX; i++)
        bytes |= (uint64_t)prefix[i] << 8 * i;
    if (bytes > HEADER_MAX && is_of_pytorch(f, prefix))
        return false;
    if (bytes > HEADER_MAX || bytes > f->file.size - PREFIX) {
        kiln_fail(KILN_E_FORMAT, who, "%s: byte 0: a header of %llu bytes is announced; the file has %llu in all%s",
                  f->path, (unsigned long long)bytes, (unsigned long long)f->file.size,
                  bytes > HEADER_MAX ? ", and 100 MB is the most a header may take" : "");
        return kiln_hint("the file is cut off or is no safetensors file");
    }
    char *text = kiln_alloc((size_t)bytes, 1);
    bool ok = text && kiln_file_read(&f->file, text, (size_t)bytes, PREFIX) &&
              kiln_safe_header(f, text, (size_t)bytes, f->file.size - PREFIX - bytes);
    kiln_free(text);
    return ok;
}

kiln_safetensors *kiln_safetensors_open(const char *path)
{
    kiln_safetensors *f = kiln_alloc_zero(1, sizeof *f);
    if (!f)
        return NULL;
    f->file.fd = -1;
    f->path = path ? kiln_path_join("", path) : NULL;
    if ((path && !f->path) || !kiln_file_open(&f->file, f->path, who) || !read_header(f)) {
        kiln_safetensors_close(f);
        return NULL;
    }
    return f;
}

void kiln_safetensors_close(kiln_safetensors *f)
{
    if (!f)
        return;
    kiln_file_close(&f->file);
    kiln_arena_free(&f->names);
    kiln_free(f->tensors);
    kiln_free(f->by_name);
    kiln_free(f->meta);
    kiln_free(f->path);
    kiln_free(f);
}

int64_t kiln_safetensors_count(const kiln_safetensors *f)
{
    return kiln_given(f, who) ? f->count : 0;
}

const kiln_safetensor *kiln_safetensors_at(const kiln_safetensors *f, int64_t i)
{
    if (!kiln_given(f, who))
        return NULL;
    if (i < 0 || i >= f->count)
        return kiln_fail(KILN_E_INDEX, who, "%s has %lld tensors; there is no number %lld", f->path,
                         (long long)f->count, (long long)i);
    return &f->tensors[i];
}

int64_t kiln_safetensors_find(const kiln_safetensors *f, const char *name)
{
    for (int64_t low = 0, high = kiln_given(f, who) && name ? f->count : 0; low < high;) {
        int64_t middle = low + (high - low) / 2;
        int order = strcmp(f->by_name[middle].name, name);
        if (order == 0)
            return f->by_name[middle].index;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

int kiln_safetensors_metas(const kiln_safetensors *f)
{
    return kiln_given(f, who) ? (int)f->metas : 0;
}

kiln_meta kiln_safetensors_meta_at(const kiln_safetensors *f, int i)
{
    if (!kiln_given(f, who))
        return (kiln_meta){0};
    if (i >= 0 && i < f->metas)
        return f->meta[i];
    kiln_fail(KILN_E_INDEX, who, "%s has %lld pairs of metadata; there is no number %d", f->path, (long long)f->metas,
              i);
    return (kiln_meta){0};
}

const char *kiln_safetensors_meta(const kiln_safetensors *f, const char *key)
{
    for (int64_t i = 0; kiln_given(f, who) && key && i < f->metas; i++)
        if (!strcmp(f->meta[i].key, key))
            return f->meta[i].value;
    return NULL;
}

/* A bool is 0 or 1: kernels rely on it. */
static bool check_bools(const kiln_safetensors *f, const kiln_safetensor *t, const uint8_t *data, size_t n,
                        uint64_t offset)
{
    for (size_t i = 0; t->dtype == KILN_BOOL && i < n; i++)
        if (data[i] > 1)
            return kiln_fail(KILN_E_FORMAT, who, "%s: byte %llu, in '%.80s': %d is neither false (0) nor true (1)",
                             f->path, (unsigned long long)(offset + i), t->name, data[i]);
    return true;
}

static bool fill_storage(const kiln_safetensors *f, const kiln_safetensor *t, kiln_storage *s)
{
    if (!t->bytes)
        return true;
    uint8_t *piece = kiln_alloc(t->bytes < PIECE ? (size_t)t->bytes : PIECE, 1);
    bool ok = piece;
    for (uint64_t done = 0; ok && done < t->bytes;) {
        size_t n = t->bytes - done < PIECE ? (size_t)(t->bytes - done) : PIECE;
        ok = kiln_file_read(&f->file, piece, n, t->offset + done) && check_bools(f, t, piece, n, t->offset + done) &&
             kiln_copy_in(s->device, s->address + done, piece, n);
        done += n;
    }
    kiln_free(piece);
    return ok;
}

kiln_tensor *kiln_safetensors_load(kiln_safetensors *f, int64_t i, kiln_device device)
{
    const kiln_safetensor *t = kiln_safetensors_at(f, i);
    if (!t)
        return NULL;
    if (t->dtype == KILN_DTYPES) {
        kiln_fail(KILN_E_DTYPE, who, "%s: '%.80s' holds %s, a type that Kiln does not have", f->path, t->name,
                  t->dtype_name);
        return kiln_hint("convert it to F32, F16, BF16, I64 or another that Kiln has");
    }
    if (!kiln_shapes_refuse(who) || (device == KILN_CPU && !kiln_fits_memory(t->bytes, f->path, who)))
        return NULL;
    kiln_storage *s = kiln_storage_new(device, (size_t)t->bytes);
    if (!s || !kiln_memory_take(device, s->bytes, &s->block)) {
        kiln_storage_unref(s);
        return NULL;
    }
    s->has_memory = true;
    s->address = s->block.address;
    if (!fill_storage(f, t, s)) {
        kiln_storage_unref(s);
        return NULL;
    }
    return kiln_tensor_make(s, t->dtype, t->ndim, t->shape, NULL, 0);
}

bool kiln_safetensors_load_into(kiln_safetensors *f, int64_t i, kiln_tensor *t)
{
    const kiln_safetensor *source = kiln_safetensors_at(f, i);
    if (!source || !t)
        return source ? kiln_fail_null(who, 3) : NULL;
    kiln_dtype dtype = kiln_dtype_of(t);
    if (source->ndim != kiln_ndim(t) || memcmp(source->shape, kiln_shape(t), (size_t)source->ndim * sizeof(int64_t)))
        return kiln_fail(KILN_E_SHAPE, who, "%s: '%.80s' is %s, but the tensor it is to be loaded into is %s", f->path,
                         source->name, kiln_shape_text(source->ndim, source->shape),
                         kiln_shape_text(kiln_ndim(t), kiln_shape(t)));
    if (source->dtype != dtype &&
        !(source->dtype != KILN_DTYPES && kiln_dtype_is_float(source->dtype) && kiln_dtype_is_float(dtype)))
        return kiln_fail(KILN_E_DTYPE, who, "%s: '%.80s' holds %s, but the tensor it is to be loaded into holds %s",
                         f->path, source->name, source->dtype_name, kiln_dtype_name(dtype));
    bool ok = false;
    kiln_inner_scope
        kiln_no_grad {
            kiln_tensor *loaded = kiln_safetensors_load(f, i, kiln_device_of(t));
            ok = loaded && kiln_assign(t, loaded);
        }
    return ok;
}
