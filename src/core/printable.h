/* Texts with names of others in them (of files, tensors, layers) before they are shown: what would move the cursor of a
 * terminal about becomes a question mark. */
#ifndef KILN_CORE_PRINTABLE_H
#define KILN_CORE_PRINTABLE_H

void kiln_make_printable(char *text); /* in place; characters of UTF-8 and line ends stay */

#endif
