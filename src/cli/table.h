/* Where predictions go: a table on the screen, or rows of CSV or JSON. */
#ifndef KILN_CLI_TABLE_H
#define KILN_CLI_TABLE_H

#include "cli/cli.h"

typedef enum table_format { TABLE_SCREEN, TABLE_CSV, TABLE_JSON } table_format;

typedef struct table {
    FILE *out;
    table_format format;
    bool classes; /* predictions are classes with probabilities; otherwise errors */
    bool labels;  /* samples have labels */
    bool files;   /* rows are files, not samples of a data set */
    int64_t rows; /* so far */
    int64_t right;
} table;

typedef struct prediction {
    int64_t index;    /* of the sample */
    const char *file; /* or the picture */
    int64_t label, answer;
    double probability, error;
} prediction;

void table_row(table *t, const prediction *p); /* the first one brings the head along */
void table_end(table *t);
bool table_is_csv(const char *head); /* whether a file that begins so is such a table */
bool table_is_json(const char *head);

#endif
