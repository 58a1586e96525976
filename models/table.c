/* The models by name, and the small language that sets their options: "gpt2:layers=4,embed=128". */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "models.h"

const model_entry model_table[] = {{0}};
