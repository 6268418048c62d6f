/* The logger that plugins call: variadic, which a function of Rust cannot be. */
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

typedef void (*oxccl_sink)(int level, unsigned long flags, const char *file, int line,
                           const char *text);

static _Atomic(oxccl_sink) sink;

void private_oxccl_plugin_set_sink(oxccl_sink to) { atomic_store(&sink, to); }

void private_oxccl_plugin_log(int level, unsigned long flags, const char *file, int line,
                              const char *fmt, ...) {
  oxccl_sink to = atomic_load(&sink);
  if (!to || !fmt) return;
  char text[2048];
  va_list arguments;
  va_start(arguments, fmt);
  int length = vsnprintf(text, sizeof text, fmt, arguments);
  va_end(arguments);
  if (length >= 0) to(level, flags, file ? file : "", line, text);
}
