/* Files that data comes from: read from front to back, gzipped ones as what they hold. */
#ifndef KILN_DATA_STREAM_H
#define KILN_DATA_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct kiln_stream kiln_stream;

/* Opens a plain file (no folder, no pipe) for `operation`, the name that errors carry. NULL with an error. The first
 * bytes tell whether it is gzipped where that is asked for. */
kiln_stream *kiln_stream_open(const char *path, bool gzip, const char *operation);
void kiln_stream_close(kiln_stream *f);

/* The bytes it holds: exact, or an upper bound where they have to be inflated first. */
uint64_t kiln_stream_size(const kiln_stream *f, bool *exact);

/* Skips to a place in a file that is not gzipped. */
bool kiln_stream_seek(kiln_stream *f, uint64_t offset);

/* Reads up to `bytes`; fewer only at the end. -1 with an error. */
int64_t kiln_stream_read(kiln_stream *f, void *to, size_t bytes);

/* How much has been read of what the file holds. */
uint64_t kiln_stream_offset(const kiln_stream *f);

#endif
