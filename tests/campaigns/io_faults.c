/* Preloaded library that kills the process at a file operation, or lets the operation fail.
 *
 * It counts the operations on paths with a prefix, of all threads of a process. It is inactive until
 * io_faults_arm() is called, or until a process with the variable IO_FAULTS starts:
 *
 *     IO_FAULTS="<prefix>\n<report>\n<operation>\n<action>\n<errno>\n<lasting>\n<reads>"
 *     IO_FAULTS_RANK=<value of RANK of the process that is concerned>
 *
 * The report receives one line per operation while operations are only counted (operation -1), otherwise one line for
 * each operation that fails. Before the first error, the files with the prefix are copied into the directory
 * "<report>.files".
 *
 * An error occurs at the first operation, from the given one on, at which a file system reports it:
 *
 * ENOSPC, EDQUOT  creating a file or directory, a link, writing beyond the end of a file; the first error also at
 *                 fsync, close and rename. Removing, renaming, reading and overwriting need no space.
 * EROFS           every operation except reading and closing
 * others          every operation
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { FAIL = 0, KILL = 1, SHORT = 2 };

static char root[PATH_MAX], copies[PATH_MAX + 8];
static int report = -1;
static long target = -1;
static int action, error_number, lasting, with_reads;
static atomic_long next_operation;
static atomic_int armed, begun;

void io_faults_arm(const char *prefix, const char *report_path, long operation, int what, int number, int repeated,
                   int reads) {
    snprintf(root, sizeof root, "%s", prefix);
    report = (int)syscall(SYS_openat, AT_FDCWD, report_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    snprintf(copies, sizeof copies, operation < 0 || what == KILL ? "" : "%s.files", report_path);
    target = operation;
    action = what, error_number = number, lasting = repeated, with_reads = reads;
    atomic_store(&next_operation, 0), atomic_store(&begun, 0);
    atomic_store(&armed, 1);
}

__attribute__((constructor)) static void arm_from_environment(void) {
    const char *settings = getenv("IO_FAULTS"), *concerned = getenv("IO_FAULTS_RANK"), *rank = getenv("RANK");
    char directory[PATH_MAX], report_path[PATH_MAX];
    long operation;
    int what, number, repeated, reads;
    if (!settings || (concerned && (!rank || strcmp(concerned, rank)))) return;
    if (sscanf(settings, "%4095[^\n]\n%4095[^\n]\n%ld\n%d\n%d\n%d\n%d", directory, report_path, &operation, &what,
               &number, &repeated, &reads) == 7)
        io_faults_arm(directory, report_path, operation, what, number, repeated, reads);
}

static void write_report(const char *name, const char *path, long operation) {
    char line[PATH_MAX + 64];
    int length = snprintf(line, sizeof line, "%ld %s %s\n", operation, name, path + strlen(root));
    if (report >= 0) syscall(SYS_write, report, line, length < (int)sizeof line ? length : (int)sizeof line - 1);
}

static int is_one_of(const char *name, const char *const *names) {
    while (*names && strcmp(name, *names)) names++;
    return *names != NULL;
}

/* Whether a file system reports the error number at an operation. */
static int can_fail(const char *name, int is_first) {
    static const char *const allocating[] = {"create", "extend", "mkdir", "mkdirat", "link", "linkat", NULL};
    static const char *const delayed[] = {"fsync", "fdatasync", "close", "rename", "renameat", NULL};
    static const char *const reading[] = {"read", "close", NULL};
    if (error_number == ENOSPC || error_number == EDQUOT)
        return is_one_of(name, allocating) || (is_first && is_one_of(name, delayed));
    return error_number != EROFS || !is_one_of(name, reading);
}

/* Copy the files at the time of the first error: what is committed then must not be lost. */
static void copy_files(void) {
    char command[3 * PATH_MAX + 128];
    if (!*copies) return;
    /* The child process inherits no fault, since it is not armed. */
    snprintf(command, sizeof command, "mkdir '%s' && cp -a '%s'* '%s' 2>/dev/null", copies, root, copies);
    if (system(command) == -1) perror("io_faults");
}

/* Return what to do at an operation on a path: 0 to execute it, 1 to fail, 2 to write half of the data. */
static int check_path(const char *name, const char *path) {
    if (strncmp(path, root, strlen(root))) return 0;
    long operation = atomic_fetch_add(&next_operation, 1);
    int due = target >= 0 && operation >= target, is_first = 0;
    if (due && action == KILL) {
        write_report(name, path, operation);
        syscall(SYS_kill, getpid(), SIGKILL), pause();
    }
    if (due && atomic_load(&begun)) due = lasting && can_fail(name, 0);
    else if (due) due = is_first = can_fail(name, 1) && !atomic_exchange(&begun, 1);
    if (is_first) copy_files();
    if (target < 0 || due) write_report(name, path, operation);
    if (!due) return 0;
    errno = error_number;
    return action == SHORT && is_first ? 2 : 1;
}

static int check_at(const char *name, int directory, const char *path) {
    char whole[2 * PATH_MAX], link[64], base[PATH_MAX];
    if (!atomic_load(&armed) || !path) return 0;
    if (path[0] == '/') return check_path(name, path);
    snprintf(link, sizeof link, directory == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", directory);
    long length = syscall(SYS_readlinkat, AT_FDCWD, link, base, sizeof base - 1);
    if (length < 0) return 0;
    base[length] = 0;
    snprintf(whole, sizeof whole, "%s/%s", base, path);
    return check_path(name, whole);
}

static int check_descriptor(const char *name, int descriptor) {
    char link[64], path[PATH_MAX];
    if (!atomic_load(&armed)) return 0;
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    long length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    errno = saved;
    if (length <= 0 || path[0] != '/') return 0;
    path[length] = 0;
    return check_path(name, path);
}

/* A descriptor that was opened for reading. */
static int is_read_only(int descriptor) { return (fcntl(descriptor, F_GETFL) & O_ACCMODE) == O_RDONLY; }

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

#define OPEN_MODE(flags) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { \
        va_list more; \
        va_start(more, flags); \
        mode = va_arg(more, mode_t); \
        va_end(more); \
    }

static int opens(int flags) { return with_reads || flags & (O_ACCMODE | O_CREAT | O_TRUNC); }

static int exists(int directory, const char *path) {
    int saved = errno, missing = faccessat(directory, path, F_OK, AT_SYMLINK_NOFOLLOW);
    errno = saved;
    return !missing;
}

static const char *name_open(int flags, int directory, const char *path) {
    if (!(flags & (O_ACCMODE | O_CREAT | O_TRUNC))) return "read";
    return flags & O_CREAT && !exists(directory, path) ? "create" : "open";
}

/* A write at a position, -1 for the current one: whether it needs space. */
static const char *name_write(int descriptor, off64_t at, size_t size) {
    struct stat state;
    int saved = errno, is_append = fcntl(descriptor, F_GETFL) & O_APPEND;
    if (at < 0 && !is_append) at = lseek64(descriptor, 0, SEEK_CUR);
    int extends = is_append || fstat(descriptor, &state) || at + (off64_t)size > state.st_size;
    errno = saved;
    return extends ? "extend" : "write";
}

static size_t get_total(const struct iovec *data, int count) {
    size_t total = 0;
    while (count-- > 0) total += data++->iov_len;
    return total;
}

#define DEFINE_OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(int, name, const char *, int, ...); \
        OPEN_MODE(flags) \
        if (opens(flags) && check_at(name_open(flags, AT_FDCWD, path), AT_FDCWD, path)) return -1; \
        return real(path, flags, mode); \
    }
#define DEFINE_OPENAT(name) \
    int name(int directory, const char *path, int flags, ...) { \
        REAL(int, name, int, const char *, int, ...); \
        OPEN_MODE(flags) \
        if (opens(flags) && check_at(name_open(flags, directory, path), directory, path)) return -1; \
        return real(directory, path, flags, mode); \
    }
#define DEFINE_FOPEN(name) \
    FILE *name(const char *path, const char *mode) { \
        REAL(FILE *, name, const char *, const char *); \
        int flags = (mode[0] == 'r' ? 0 : O_CREAT) | (mode[0] == 'w' ? O_TRUNC : 0) | (strchr(mode, '+') ? O_RDWR : 0); \
        if (opens(flags) && check_at(name_open(flags, AT_FDCWD, path), AT_FDCWD, path)) return NULL; \
        return real(path, mode); \
    }
/* With a short write, half of the data is written; if the error is lasting, the next operation fails. */
#define DEFINE_WRITE(name, at, total, parameters, arguments, ...) \
    ssize_t name parameters { \
        REAL(ssize_t, name, __VA_ARGS__); \
        int due = check_descriptor(name_write(descriptor, at, total), descriptor); \
        if (due == 1) return -1; \
        if (due == 2 && size > 1) size /= 2; \
        return real arguments; \
    }
#define DEFINE_DESCRIPTOR(name, parameters, arguments, ...) \
    int name parameters { \
        REAL(int, name, __VA_ARGS__); \
        return check_descriptor(#name, descriptor) ? -1 : real arguments; \
    }
#define DEFINE_PATH(name, at, parameters, arguments, ...) \
    int name parameters { \
        REAL(int, name, __VA_ARGS__); \
        return check_at(#name, at, path) ? -1 : real arguments; \
    }
/* A directory that exists needs nothing. */
#define DEFINE_MKDIR(name, at, parameters, arguments, ...) \
    int name parameters { \
        REAL(int, name, __VA_ARGS__); \
        return !exists(at, path) && check_at(#name, at, path) ? -1 : real arguments; \
    }

DEFINE_OPEN(open)
DEFINE_OPEN(open64)
DEFINE_OPENAT(openat)
DEFINE_OPENAT(openat64)
DEFINE_FOPEN(fopen)
DEFINE_FOPEN(fopen64)
DEFINE_WRITE(write, -1, size, (int descriptor, const void *data, size_t size), (descriptor, data, size), int,
             const void *, size_t)
DEFINE_WRITE(pwrite, at, size, (int descriptor, const void *data, size_t size, off_t at), (descriptor, data, size, at),
             int, const void *, size_t, off_t)
DEFINE_WRITE(pwrite64, at, size, (int descriptor, const void *data, size_t size, off64_t at),
             (descriptor, data, size, at), int, const void *, size_t, off64_t)
DEFINE_WRITE(writev, -1, get_total(data, size), (int descriptor, const struct iovec *data, int size),
             (descriptor, data, size), int, const struct iovec *, int)
DEFINE_WRITE(sendfile, -1, size, (int descriptor, int source, off_t *at, size_t size), (descriptor, source, at, size),
             int, int, off_t *, size_t)
DEFINE_WRITE(sendfile64, -1, size, (int descriptor, int source, off64_t *at, size_t size),
             (descriptor, source, at, size), int, int, off64_t *, size_t)
/* Nothing is forced to the disk, which only matters after a power failure. */
int fsync(int descriptor) { return check_descriptor("fsync", descriptor) ? -1 : 0; }
int fdatasync(int descriptor) { return check_descriptor("fdatasync", descriptor) ? -1 : 0; }
DEFINE_DESCRIPTOR(ftruncate, (int descriptor, off_t size), (descriptor, size), int, off_t)
DEFINE_DESCRIPTOR(ftruncate64, (int descriptor, off64_t size), (descriptor, size), int, off64_t)
DEFINE_PATH(rename, AT_FDCWD, (const char *path, const char *target_path), (path, target_path), const char *,
            const char *)
DEFINE_PATH(renameat, directory, (int directory, const char *path, int other, const char *target_path),
            (directory, path, other, target_path), int, const char *, int, const char *)
DEFINE_PATH(link, AT_FDCWD, (const char *path, const char *target_path), (path, target_path), const char *,
            const char *)
DEFINE_PATH(linkat, directory, (int directory, const char *path, int other, const char *target_path, int flags),
            (directory, path, other, target_path, flags), int, const char *, int, const char *, int)
DEFINE_PATH(unlink, AT_FDCWD, (const char *path), (path), const char *)
DEFINE_PATH(unlinkat, directory, (int directory, const char *path, int flags), (directory, path, flags), int,
            const char *, int)
DEFINE_PATH(rmdir, AT_FDCWD, (const char *path), (path), const char *)
DEFINE_MKDIR(mkdir, AT_FDCWD, (const char *path, mode_t mode), (path, mode), const char *, mode_t)
DEFINE_MKDIR(mkdirat, directory, (int directory, const char *path, mode_t mode), (directory, path, mode), int,
             const char *, mode_t)
DEFINE_PATH(truncate, AT_FDCWD, (const char *path, off_t size), (path, size), const char *, off_t)

/* The descriptor is closed in any case, as by Linux. */
int close(int descriptor) {
    REAL(int, close, int);
    int due = atomic_load(&armed) && !is_read_only(descriptor) ? check_descriptor("close", descriptor) : 0;
    int number = errno, result = real(descriptor);
    if (!due) return result;
    errno = number;
    return -1;
}

int fclose(FILE *file) {
    REAL(int, fclose, FILE *);
    int due = atomic_load(&armed) && !is_read_only(fileno(file)) ? check_descriptor("close", fileno(file)) : 0;
    int number = errno, result = real(file);
    if (!due) return result;
    errno = number;
    return EOF;
}
