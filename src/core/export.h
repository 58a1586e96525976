/* What plugins may use of the library besides the public interface. */
#ifndef KILN_CORE_EXPORT_H
#define KILN_CORE_EXPORT_H

#define KILN_PLUGIN_API __attribute__((visibility("default")))

#endif
