/* Checkpoints: the tensors of model, optimizer and average as safetensors, everything else in state.json. Loading
 * checks all of it, reads all of it, and only then changes anything. */
#include "kiln/io.h"

#include <math.h>
#include <string.h>

#include "core/alloc.h"
#include "core/counts.h"
#include "core/fail.h"
#include "core/sized.h"
#include "io/checkpoint.h"
#include "io/safetensors.h"

static const char who[] = "checkpoint";

/* The tensors that belong in a file, and what they are for messages; false with an error. */
static bool part_of(const kiln_checkpoint *c, int file, kiln_params *tensors, const char **what)
{
    static const char *const names[KILN_STATE_FILES] = {"the model", "the optimizer", "the average"};
    uint64_t raised = kiln_fail_count();
    *what = names[file];
    *tensors = file == KILN_STATE_MODEL ? kiln_state(c->model)
               : file == KILN_STATE_EMA ? kiln_ema_state(c->ema)
                                        : kiln_optim_state(c->optim);
    return kiln_fail_count() == raised;
}

static bool has_part(const kiln_checkpoint *c, int file)
{
    return file == KILN_STATE_MODEL ? c->model != NULL : file == KILN_STATE_EMA ? c->ema != NULL : c->optim != NULL;
}

/* ---- Saving ---- */

static bool note_optim(const kiln_checkpoint *c, kiln_train_state *s)
{
    s->has_scaler = c->scaler != NULL;
    if (c->scaler && !kiln_scaler_get_(c->scaler, &s->scaler, sizeof s->scaler))
        return false;
    if (c->schedule) {
        s->has_schedule = true;
        s->schedule = kiln_schedule_get(c->schedule);
    }
    if (!c->optim)
        return true;
    const char *name = kiln_optim_name(c->optim);
    s->groups = kiln_optim_groups(c->optim);
    s->optim_steps = kiln_optim_steps(c->optim);
    if (!name || strlen(name) >= sizeof s->optim || s->groups > KILN_STATE_GROUPS)
        return kiln_fail(KILN_E_ARGUMENT, who, "an optimizer of more than %d groups cannot be kept", KILN_STATE_GROUPS);
    strcpy(s->optim, name);
    for (int i = 0; i < s->groups; i++)
        s->lr[i] = kiln_optim_lr(c->optim, i);
    return true;
}

bool kiln_checkpoint_check(const kiln_checkpoint *c)
{
    kiln_train_state s = {0};
    kiln_params tensors;
    const char *what;
    return note_optim(c, &s) && part_of(c, KILN_STATE_MODEL, &tensors, &what) &&
           kiln_safetensors_check(tensors, c->nmeta, c->meta, who);
}

static bool write_part(const kiln_checkpoint *c, int file, const char *folder, kiln_train_state *s)
{
    kiln_params tensors;
    const char *what;
    if (!has_part(c, file))
        return true;
    if (!part_of(c, file, &tensors, &what))
        return false;
    bool model = file == KILN_STATE_MODEL;
    char *path = kiln_path_join(folder, kiln_state_names[file]);
    s->has[file] = path && kiln_safetensors_write(path, tensors, model ? c->nmeta : 0, model ? c->meta : NULL, who,
                                                  true, &s->size[file]);
    kiln_free(path);
    return s->has[file];
}

static bool save(const char *folder, const kiln_checkpoint *c, int keep)
{
    const int64_t counts[] = {c->step, c->epoch, c->batch, keep};
    for (int i = 0; i < 4; i++)
        if (counts[i] < 0 || counts[i] > KILN_COUNT_MAX)
            return kiln_fail(KILN_E_ARGUMENT, who, "step, epoch, batch and keep are numbers from 0 up to 2^53");
    kiln_train_state s = {.step = c->step, .epoch = c->epoch, .batch = c->batch, .seed = c->seed};
    s.random = kiln_random_get();
    kiln_step_folder step;
    bool ok = note_optim(c, &s) && kiln_step_folder_begin(&step, folder, c->step);
    if (!ok)
        return false;
    for (int file = 0; ok && file < KILN_STATE_FILES; file++)
        ok = write_part(c, file, step.path, &s);
    ok = ok && kiln_state_write(&s, c->extra, step.path) && kiln_step_folder_publish(&step, keep ? keep : 1);
    kiln_step_folder_end(&step);
    return ok;
}

bool kiln_checkpoint_save_(const char *folder, const kiln_checkpoint *given, size_t size, int keep)
{
    kiln_checkpoint c = {0};
    if (given && !KILN_TAKE_SIZED(who, c, given, size))
        return false;
    if (!folder || !*folder || !c.model)
        return kiln_ok() && kiln_fail(KILN_E_ARGUMENT, who, "a folder and a model are needed to save");
    return save(folder, &c, keep);
}

/* ---- Loading ---- */

static bool check_optim(const kiln_checkpoint *c, const kiln_train_state *s, const char *path)
{
    if (c->schedule && !s->has_schedule)
        return kiln_fail(KILN_E_FORMAT, who, "%s was saved without a learning-rate schedule", path);
    if (c->scaler && !s->has_scaler)
        return kiln_fail(KILN_E_FORMAT, who, "%s was saved without a gradient scaler", path);
    if (!c->optim)
        return true;
    const char *name = kiln_optim_name(c->optim);
    if (!s->optim[0])
        return kiln_fail(KILN_E_FORMAT, who, "%s was saved without an optimizer", path);
    if (!name || strcmp(name, s->optim) != 0)
        return kiln_fail(KILN_E_FORMAT, who, "%s was saved with the optimizer %s; this one is %s", path, s->optim,
                         name ? name : "none");
    if (kiln_optim_groups(c->optim) != s->groups)
        return kiln_fail(KILN_E_FORMAT, who, "%s was saved with %d groups of parameters; this optimizer has %d", path,
                         s->groups, kiln_optim_groups(c->optim));
    return true;
}

/* Opens a file of the checkpoint and compares its tensors with those it is for. */
static bool open_part(const kiln_checkpoint *c, int file, const kiln_train_state *s, const char *folder, kiln_match *m)
{
    if (!has_part(c, file))
        return true;
    m->who = who;
    if (!part_of(c, file, &m->want, &m->what))
        return false;
    if (!s->has[file]) {
        kiln_fail(KILN_E_FORMAT, who, "%s was saved without %s: there is no %s", folder, m->what,
                  kiln_state_names[file]);
        return kiln_hint("go on as the run began, or start afresh in another folder");
    }
    char *path = kiln_path_join(folder, kiln_state_names[file]);
    m->file = path ? kiln_safetensors_open(path) : NULL;
    kiln_free(path);
    return m->file && kiln_match_check(m);
}

static bool set_rates(const kiln_checkpoint *c, const kiln_train_state *s)
{
    bool ok = !c->schedule || kiln_schedule_set(c->schedule, s->schedule);
    ok = ok && (!c->scaler || kiln_scaler_set(c->scaler, s->scaler));
    for (int i = 0; ok && c->optim && i < s->groups; i++) /* after the schedule, which sets rates, too */
        ok = kiln_optim_set_lr(c->optim, i, s->lr[i]);
    return ok;
}

/* Everything was checked and read: now it is taken over, or, should that fail, put back. */
static bool apply(kiln_checkpoint *c, kiln_train_state *s, kiln_match *const *parts, int n)
{
    kiln_train_state before = {0};
    if (!note_optim(c, &before))
        return false;
    if (!set_rates(c, s) || !kiln_match_assign(parts, n)) {
        set_rates(c, &before);
        return false;
    }
    if (c->optim && !kiln_optim_set_steps(c->optim, s->optim_steps)) /* it looks at the tensors: only now */
        return false;
    kiln_random_set(s->random);
    c->step = s->step;
    c->epoch = s->epoch;
    c->batch = s->batch;
    c->seed = s->seed;
    c->extra = s->extra;
    s->extra = NULL;
    return true;
}

static bool load(const char *folder, kiln_checkpoint *c)
{
    kiln_train_state s = {0};
    int lock;
    char *path = kiln_step_folder_newest(folder, &s, &lock);
    if (!path)
        return false;
    kiln_match parts[KILN_STATE_FILES] = {0}, *present[KILN_STATE_FILES];
    int n = 0;
    bool ok = check_optim(c, &s, path);
    for (int file = 0; ok && file < KILN_STATE_FILES; file++)
        if ((ok = open_part(c, file, &s, path, &parts[file])) && parts[file].file)
            present[n++] = &parts[file];
    kiln_step_folder_release(&lock); /* files that are open can be read, whatever becomes of their names */
    for (int i = 0; ok && i < n; i++)
        ok = kiln_match_read(present[i]);
    ok = ok && apply(c, &s, present, n);
    for (int file = 0; file < KILN_STATE_FILES; file++)
        kiln_match_end(&parts[file]);
    kiln_string_free(s.extra);
    kiln_free(path);
    return ok;
}

bool kiln_checkpoint_load_(const char *folder, kiln_checkpoint *given, size_t size)
{
    kiln_checkpoint c;
    if (!folder || !given)
        return kiln_ok() && kiln_fail(KILN_E_ARGUMENT, who, "a folder is needed to load from");
    if (!KILN_TAKE_SIZED(who, c, given, size) || !load(folder, &c))
        return false;
    KILN_GIVE_SIZED(given, size, c);
    return true;
}

char *kiln_checkpoint_find(const char *folder)
{
    if (!folder)
        return kiln_ok() ? kiln_fail(KILN_E_ARGUMENT, who, "the folder is NULL") : NULL;
    kiln_train_state s = {0};
    int lock;
    char *path = kiln_step_folder_newest(folder, &s, &lock);
    kiln_step_folder_release(&lock);
    kiln_string_free(s.extra);
    return path;
}
