/* A file that grows line by line while a run goes on, can be watched meanwhile, and is gone on with by a run that is
 * resumed: the log, the history. A file that is there and is no journal of the kind is never touched. */
#ifndef KILN_TRAIN_JOURNAL_H
#define KILN_TRAIN_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How far a journal had come when a checkpoint was made. All zero: nothing was written yet. */
typedef struct kiln_mark {
    int64_t bytes;
    uint64_t hash; /* of these bytes */
    bool hashed;   /* checkpoints of earlier versions know the bytes alone */
} kiln_mark;

typedef struct kiln_journal {
    int file; /* -1: none */
    char *path;
    const char *what; /* "log", for messages */
    kiln_mark mark;   /* of what was written so far */
} kiln_journal;

/* What a journal of this kind begins with; `text` may be cut off anywhere. */
typedef bool (*kiln_journal_begins)(const char *text);

/* Opens one. With an empty mark it begins anew: a file that is there must be a journal of the kind, and is emptied.
 * Otherwise it goes on after the mark, what comes behind it is dropped; a file that does not begin with the marked
 * bytes is refused, one that is shorter is gone on with after its last whole line. Pipes and devices are written to as
 * they are. False with an error. */
bool kiln_journal_open(kiln_journal *j, const char *path, const char *what, kiln_mark mark, kiln_journal_begins begins);
bool kiln_journal_put(kiln_journal *j, const char *text, size_t bytes);
bool kiln_journal_sync(kiln_journal *j);  /* makes it safe on disk, where it is a file */
char *kiln_journal_read(kiln_journal *j); /* all up to the mark, and a 0; NULL with an error; freed with kiln_free */
void kiln_journal_close(kiln_journal *j);

#endif
