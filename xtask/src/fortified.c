// The functions that glibc's headers make of fprintf and snprintf, and musl lacks. libnftnl copies the names of xt's
// extensions by snprintf; the rest prints.

#include <stdarg.h>
#include <stdio.h>

int __fprintf_chk(FILE *to, int flag, const char *format, ...)
{
	(void)flag;
	va_list list;
	va_start(list, format);
	int length = vfprintf(to, format, list);
	va_end(list);
	return length;
}

int __snprintf_chk(char *to, size_t room, int flag, size_t size, const char *format, ...)
{
	(void)flag;
	(void)size;
	va_list list;
	va_start(list, format);
	int length = vsnprintf(to, room, format, list);
	va_end(list);
	return length;
}
