/* A file's tensors against those of a module, an optimizer or an average: everything is compared first, then read, then
 * assigned, so that nothing changes unless all of it fits and could be read. */
#include "io/safetensors.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/fail.h"
#include "ops/op.h"

enum { TOLD = 5 }; /* differences that a message names; the others are counted */

typedef struct differences {
    int64_t count, told;
    char text[400];
    size_t used;
} differences;

__attribute__((format(printf, 2, 3))) static void differ(differences *d, const char *format, ...)
{
    if (d->count++ >= TOLD)
        return;
    char one[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(one, sizeof one, format, arguments);
    va_end(arguments);
    if (d->used + strlen(one) + 3 > sizeof d->text)
        return; /* no room: counted only */
    d->told++;
    d->used += (size_t)snprintf(d->text + d->used, sizeof d->text - d->used, "%s%s", d->used ? "; " : "", one);
}

static void compare(const kiln_match *m, differences *d, int64_t i, const kiln_safetensor *t)
{
    kiln_tensor *want = m->want.tensors[i];
    const char *name = m->want.names[i];
    kiln_dtype dtype = kiln_dtype_of(want);
    if (t->ndim != kiln_ndim(want) || memcmp(t->shape, kiln_shape(want), (size_t)t->ndim * sizeof(int64_t)))
        differ(d, "%.80s is %s in the file, %s in %s", name, kiln_shape_text(t->ndim, t->shape),
               kiln_shape_text(kiln_ndim(want), kiln_shape(want)), m->what);
    else if (t->dtype != dtype &&
             (t->dtype == KILN_DTYPES || !kiln_dtype_is_float(t->dtype) || !kiln_dtype_is_float(dtype)))
        differ(d, "%.80s holds %s in the file, %s in %s", name, t->dtype_name, kiln_dtype_name(dtype), m->what);
}

/* Marks the file's tensors that somebody wants; returns how many, -1 with an error. */
static int64_t compare_all(const kiln_match *m, differences *d, bool *wanted)
{
    int64_t common = 0;
    for (int64_t i = 0; i < m->want.count; i++) {
        int64_t at = kiln_safetensors_find(m->file, m->want.names[i]);
        if (at >= 0) {
            common++;
            wanted[at] = true;
            compare(m, d, i, kiln_safetensors_at(m->file, at));
        } else if (!m->partial) {
            kiln_tensor *t = m->want.tensors[i];
            differ(d, "missing %.80s %s", m->want.names[i], kiln_shape_text(kiln_ndim(t), kiln_shape(t)));
        }
    }
    for (int64_t i = 0; !m->partial && i < m->file->count; i++) {
        const kiln_safetensor *t = &m->file->tensors[i];
        if (!wanted[i])
            differ(d, "unexpected %.80s %s", t->name, kiln_shape_text(t->ndim, t->shape));
    }
    return common;
}

bool kiln_match_check(const kiln_match *m)
{
    differences d = {0};
    bool *wanted = kiln_alloc_zero((size_t)m->file->count, sizeof *wanted);
    if (!wanted)
        return false;
    int64_t common = compare_all(m, &d, wanted), all = m->want.count;
    for (int64_t i = 0; !m->partial && i < m->file->count; i++)
        all += !wanted[i];
    kiln_free(wanted);
    if (d.count) {
        kiln_fail(KILN_E_FORMAT, m->who, "%s: %lld of %lld tensors do not fit: %s%s", m->file->path, (long long)d.count,
                  (long long)(m->partial ? common : all), d.text, d.count > d.told ? "; …" : "");
        return kiln_hint("the file is of another model, or of the same one with other sizes");
    }
    if (m->partial && !common && m->want.count) {
        kiln_fail(KILN_E_FORMAT, m->who,
                  "%s: none of its %lld tensors has a name that %s knows: it has %.80s, not %.80s", m->file->path,
                  (long long)m->file->count, m->what, m->file->count ? m->file->tensors[0].name : "none",
                  m->want.names[0]);
        return false;
    }
    return true;
}

bool kiln_match_read(kiln_match *m)
{
    m->loaded = kiln_alloc_zero((size_t)m->want.count, sizeof *m->loaded);
    if (!m->loaded)
        return false;
    for (int64_t i = 0; i < m->want.count; i++) {
        int64_t at = kiln_safetensors_find(m->file, m->want.names[i]);
        if (at < 0)
            continue;
        m->loaded[i] = kiln_keep(kiln_safetensors_load(m->file, at, kiln_device_of(m->want.tensors[i])));
        if (!m->loaded[i])
            return false;
    }
    return true;
}

bool kiln_match_assign(kiln_match *const *matches, int n)
{
    uint64_t raised = kiln_fail_count();
    bool ok = true;
    kiln_step /* all of it or nothing */
        kiln_no_grad
            for (int k = 0; k < n; k++)
                for (int64_t i = 0; ok && i < matches[k]->want.count; i++) {
                    kiln_tensor *value = matches[k]->loaded[i];
                    ok = !value || kiln_assign(matches[k]->want.tensors[i], value);
                }
    return ok && kiln_fail_count() == raised;
}

void kiln_match_end(kiln_match *m)
{
    for (int64_t i = 0; m->loaded && i < m->want.count; i++)
        kiln_release(m->loaded[i]);
    kiln_free(m->loaded);
    m->loaded = NULL;
    kiln_safetensors_close(m->file);
    m->file = NULL;
}

static bool state_to_save(kiln_module *m, kiln_params *state)
{
    *state = kiln_state(m);
    if (m && (state->count || kiln_ok()))
        return true;
    return kiln_ok() && kiln_fail(KILN_E_ARGUMENT, "module_save", "the module is NULL");
}

bool kiln_module_save(kiln_module *m, const char *path)
{
    kiln_params state;
    return state_to_save(m, &state) &&
           kiln_safetensors_write(path ? path : "", state, 0, NULL, "module_save", false, NULL);
}

bool kiln_module_save_as(kiln_module *m, const char *path, kiln_dtype dtype)
{
    kiln_params state;
    return state_to_save(m, &state) && kiln_safetensors_write_as(path, state, 0, NULL, dtype, "module_save");
}

bool kiln_module_load(kiln_module *m, const char *path, bool partial)
{
    if (!m)
        return kiln_ok() ? kiln_fail(KILN_E_ARGUMENT, "module_load", "the module is NULL") : false;
    uint64_t raised = kiln_fail_count();
    kiln_match match = {.want = kiln_state(m), .who = "module_load", .what = "the module", .partial = partial};
    if (kiln_fail_count() != raised)
        return false;
    match.file = kiln_safetensors_open(path);
    bool ok = match.file && kiln_match_check(&match) && kiln_match_read(&match) &&
              kiln_match_assign(&(kiln_match *){&match}, 1);
    kiln_match_end(&match);
    return ok;
}
