/* Loaded before the C library (LD_PRELOAD): counts a process's calls on files below some folders, and at one of them
   fails, or kills the process. Python, libsndfile, coremltools, safetensors and tokenizers all call through here. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define FOLDERS 4

static char folders[FOLDERS][PATH_MAX];
static int folder_count = 0, log_file = -1, error_number = 0;
static long chosen = -1, counted = 0;

/* folder: one more folder whose files count. */
void robustness_watch(const char *folder) {
    if (folder_count < FOLDERS) strncpy(folders[folder_count++], folder, PATH_MAX - 1);
}

/* log: descriptor to which a line of each call is written, or -1. number: the call, from 0, that is disturbed, or -1.
   error: its errno; 0 kills the process there, in the middle of what it writes. */
void robustness_arm(int log, long number, int error) {
    log_file = log, chosen = number, error_number = error, counted = 0;
}

static int is_watched(const char *path) {
    for (int i = 0; i < folder_count; i++) {
        size_t length = strlen(folders[i]);
        if (!strncmp(path, folders[i], length) && (path[length] == '/' || path[length] == 0)) return 1;
    }
    return 0;
}

static void path_of(int descriptor, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = syscall(SYS_readlink, link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = 0;
}

static void absolute(int folder, const char *name, char *path) {
    char start[PATH_MAX] = "";
    if (name[0] != '/') {
        if (folder != AT_FDCWD) path_of(folder, start);
        else if (syscall(SYS_getcwd, start, PATH_MAX) < 0) start[0] = 0;
    }
    snprintf(path, PATH_MAX, name[0] == '/' ? "%s%s" : "%s/%s", start, name);
}

/* 0: go on. 1: errno is set, fail. 2: write a part, then die. */
static int disturbed(const char *kind, const char *path) {
    if (!folder_count || !is_watched(path)) return 0;
    int before = errno;
    long number = __sync_fetch_and_add(&counted, 1);
    if (log_file >= 0) {
        char line[PATH_MAX + 64];
        int length = snprintf(line, sizeof line, "%s %s\n", kind, path);
        syscall(SYS_write, log_file, line, length);
    }
    errno = before;
    if (number != chosen) return 0;
    if (error_number) {
        errno = error_number;
        return 1;
    }
    return 2;
}

static void die(void) { syscall(SYS_kill, getpid(), SIGKILL); for (;;) pause(); }

static int at_path(const char *kind, int folder, const char *name) {
    char path[PATH_MAX];
    absolute(folder, name, path);
    int what = disturbed(kind, path);
    if (what == 2) die();
    return what;
}

static int at_file(const char *kind, int descriptor) {
    if (!folder_count || descriptor == log_file) return 0;
    char path[PATH_MAX];
    path_of(descriptor, path);
    return disturbed(kind, path);
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define MODE mode_t mode = 0; if (flags & (O_CREAT | O_TMPFILE)) { \
    va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }
#define KIND(flags) ((flags) & O_CREAT ? "create" : "open")

#define OPEN(name) int name(const char *path, int flags, ...) { REAL(name); MODE; \
    return at_path(KIND(flags), AT_FDCWD, path) ? -1 : real(path, flags, mode); }
#define OPENAT(name) int name(int folder, const char *path, int flags, ...) { REAL(name); MODE; \
    return at_path(KIND(flags), folder, path) ? -1 : real(folder, path, flags, mode); }
#define FOPEN(name) FILE *name(const char *path, const char *mode) { REAL(name); \
    return at_path(mode[0] == 'r' ? "open" : "create", AT_FDCWD, path) ? NULL : real(path, mode); }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
FOPEN(fopen)
FOPEN(fopen64)

ssize_t write(int descriptor, const void *bytes, size_t count) {
    REAL(write);
    int what = at_file("write", descriptor);
    if (what == 2) { real(descriptor, bytes, count / 2); die(); }
    return what ? -1 : real(descriptor, bytes, count);
}

#define PWRITE(name, offset_type) ssize_t name(int descriptor, const void *bytes, size_t count, offset_type at) { \
    REAL(name); int what = at_file("write", descriptor); \
    if (what == 2) { real(descriptor, bytes, count / 2, at); die(); } \
    return what ? -1 : real(descriptor, bytes, count, at); }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define ONE(kind, name, result, parameters, arguments, descriptor) result name parameters { REAL(name); \
    int what = at_file(kind, descriptor); if (what == 2) die(); return what ? -1 : real arguments; }
ssize_t sendfile(int, int, off_t *, size_t);
ssize_t sendfile64(int, int, off64_t *, size_t);
ssize_t copy_file_range(int, off64_t *, int, off64_t *, size_t, unsigned);
ONE("write", writev, ssize_t, (int f, const struct iovec *v, int n), (f, v, n), f)
ONE("write", sendfile, ssize_t, (int f, int g, off_t *o, size_t n), (f, g, o, n), f)
ONE("write", sendfile64, ssize_t, (int f, int g, off64_t *o, size_t n), (f, g, o, n), f)
ONE("write", copy_file_range, ssize_t, (int f, off64_t *o, int g, off64_t *p, size_t n, unsigned u), (f, o, g, p, n, u), g)
ONE("truncate", ftruncate, int, (int f, off_t n), (f, n), f)
ONE("truncate", ftruncate64, int, (int f, off64_t n), (f, n), f)
ONE("fsync", fsync, int, (int f), (f), f)
ONE("fsync", fdatasync, int, (int f), (f), f)

int rename(const char *from, const char *to) {
    REAL(rename);
    return at_path("rename", AT_FDCWD, to) ? -1 : real(from, to);
}
int renameat(int a, const char *from, int b, const char *to) {
    REAL(renameat);
    return at_path("rename", b, to) ? -1 : real(a, from, b, to);
}
int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    return at_path("mkdir", AT_FDCWD, path) ? -1 : real(path, mode);
}
int mkdirat(int folder, const char *path, mode_t mode) {
    REAL(mkdirat);
    return at_path("mkdir", folder, path) ? -1 : real(folder, path, mode);
}
