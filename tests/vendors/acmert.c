/* Acme's runtime library, as a vendor ships one: what is installed, and which devices there are.

   ACME_DEVICES names the devices of this machine by architecture, such as "a100x,b200y"; default is one a100x.
   Compiled with ACME_SMI it is the program acme-smi, which prints the same. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *devices(void) {
    const char *named = getenv("ACME_DEVICES");
    return named != NULL ? named : "a100x";
}

int acmert_version(int *major, int *minor) {
    *major = 1;
    *minor = 2;
    return 0;
}

int acmert_device_count(void) {
    const char *text = devices();
    int count = *text != '\0';
    for (; *text != '\0'; text++) count += *text == ',';
    return count;
}

int acmert_device_arch(int index, char *buffer, size_t size) {
    const char *start = devices();
    if (index < 0 || index >= acmert_device_count()) return 1;
    for (; index > 0; index--) start = strchr(start, ',') + 1;
    return snprintf(buffer, size, "%.*s", (int)strcspn(start, ","), start) >= (int)size;
}

int acmert_device_name(int index, char *buffer, size_t size) {
    char arch[64];
    if (acmert_device_arch(index, arch, sizeof arch) != 0) return 1;
    return snprintf(buffer, size, "Acme %s", arch) >= (int)size;
}

#ifdef ACME_SMI
int main(void) {
    int major, minor;
    char arch[64];
    acmert_version(&major, &minor);
    printf("Acme runtime %d.%d\n", major, minor);
    for (int index = 0; acmert_device_arch(index, arch, sizeof arch) == 0; index++)
        printf("device %d: %s\n", index, arch);
    return 0;
}
#endif
