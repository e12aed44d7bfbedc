/* Stands between a process and the C library, preloaded: fails, shortens and counts calls on files below TORTURE_ROOT and on
   connections, kills or stops a process at one of them, moves the clock, and records changes for `power_loss`. Rules lie in shared memory: `shim.py`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { OPEN = 1, READ = 2, WRITE = 4, SYNC = 8, RENAME = 16, UNLINK = 32, TRUNCATE = 64, LINK = 128, MKDIR = 256, SEND = 512, RECEIVE = 1024 };
enum { FAIL = 1, SHORT, KILL, TORN, STOP, CUT };
enum { ANYONE, BROKER, OTHERS };
enum { RULES = 8, PART = 64, DESCRIPTORS = 1 << 16 };

struct rule {
    int64_t ops, kind, value, who, skip, times, fired;
    char part[PART];
};
struct control {
    int64_t calls, broker, has_quota, quota, lock, ahead_s;
    struct rule rules[RULES];
};

static struct control *control;
static const char *root;
static size_t root_size;
static int record = -1;
static unsigned char ours[DESCRIPTORS];

#define REAL(name) (*(__typeof__(&real_##name))resolved((void **)&real_##name, #name))
static int (*real_open64)(const char *, int, ...);
static int (*real_openat64)(int, const char *, int, ...);
static int (*real_close)(int);
static ssize_t (*real_read)(int, void *, size_t);
static ssize_t (*real_pread64)(int, void *, size_t, off64_t);
static ssize_t (*real_preadv64v2)(int, const struct iovec *, int, off64_t, int);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite64)(int, const void *, size_t, off64_t);
static ssize_t (*real_pwritev64)(int, const struct iovec *, int, off64_t);
static ssize_t (*real_sendfile64)(int, int, off64_t *, size_t);
static int (*real_ftruncate64)(int, off64_t);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static int (*real_renameat)(int, const char *, int, const char *);
static int (*real_unlinkat)(int, const char *, int);
static int (*real_linkat)(int, const char *, int, const char *, int);
static int (*real_mkdirat)(int, const char *, mode_t);
static ssize_t (*real_send)(int, const void *, size_t, int);
static ssize_t (*real_recv)(int, void *, size_t, int);
static int (*real_clock_gettime)(clockid_t, struct timespec *);

static void **resolved(void **place, const char *name) {
    if (!*place) *place = dlsym(RTLD_NEXT, name);
    return place;
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("TORTURE_CONTROL");
    root = getenv("TORTURE_ROOT");
    if (!path || !root) return;
    root_size = strlen(root);
    int fd = REAL(open64)(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *map = mmap(0, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REAL(close)(fd);
    if (map == MAP_FAILED) return;
    const char *to = getenv("TORTURE_RECORD");
    if (to) record = REAL(open64)(to, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    control = map;
}

/* Which calls are met. */

static const char *name_of(int at, const char *path, char *room) {
    if (path[0] == '/') return path;
    char link[64];
    ssize_t size;
    if (at == AT_FDCWD) {
        if (!getcwd(room, PATH_MAX)) return "";
        size = strlen(room);
    } else {
        char *end = link + sizeof link;
        *--end = 0;
        do *--end = '0' + at % 10; while (at /= 10);
        end -= 14;
        memcpy(end, "/proc/self/fd/", 14);
        if ((size = readlink(end, room, PATH_MAX - 1)) < 0) return "";
    }
    if (path[0] && size + 2 + strlen(path) < PATH_MAX) {
        room[size++] = '/';
        strcpy(room + size, path);
    } else {
        room[size] = 0;
    }
    return room;
}

static int is_ours(const char *path) {
    return control && !strncmp(path, root, root_size) && (path[root_size] == '/' || !path[root_size]);
}

static int has(int fd) { return control && fd >= 0 && fd < DESCRIPTORS && ours[fd]; }

/* The rule that applies to this call, after it has killed, stopped or cut; else 0. */
static struct rule *meet(int64_t op, const char *path, int fd) {
    __atomic_fetch_add(&control->calls, 1, __ATOMIC_SEQ_CST);
    for (struct rule *rule = control->rules; rule < control->rules + RULES; rule++) {
        if (!(rule->ops & op) || rule->times <= 0 || (rule->part[0] && !strstr(path, rule->part))) continue;
        if (rule->who && (rule->who == BROKER) != (getpid() == control->broker)) continue;
        if (__atomic_fetch_sub(&rule->skip, 1, __ATOMIC_SEQ_CST) > 0) continue;
        if (__atomic_fetch_sub(&rule->times, 1, __ATOMIC_SEQ_CST) <= 0) continue;
        __atomic_fetch_add(&rule->fired, 1, __ATOMIC_SEQ_CST);
        pid_t victim = rule->value ? (pid_t)control->broker : getpid();
        if (rule->kind == KILL) kill(victim, SIGKILL);
        if (rule->kind == STOP) kill(victim, SIGSTOP);
        if (rule->kind == CUT) shutdown(fd, SHUT_RDWR);
        return rule;
    }
    return 0;
}

static struct rule *meet_fd(int64_t op, int fd) {
    char room[PATH_MAX];
    return meet(op, name_of(fd, "", room), fd);
}

static int fails(struct rule *rule) {
    if (!rule || rule->kind != FAIL) return 0;
    errno = (int)rule->value;
    return 1;
}

static size_t shortened(struct rule *rule, size_t size) {
    return rule && (rule->kind == SHORT || rule->kind == TORN) && size > 1 ? size / 2 : size;
}

/* The part of a write that the rule, and the space that is left, allow; -1 with errno. */
static ssize_t allowed(struct rule *rule, size_t size) {
    if (fails(rule)) return -1;
    size = shortened(rule, size);
    if (control->has_quota && size) {
        int64_t left = __atomic_fetch_sub(&control->quota, (int64_t)size, __ATOMIC_SEQ_CST);
        if (left < (int64_t)size) {
            __atomic_store_n(&control->quota, 0, __ATOMIC_SEQ_CST);
            if (left <= 0) return errno = ENOSPC, -1;
            size = left;
        }
    }
    return size;
}

static void torn(struct rule *rule) {
    if (rule && rule->kind == TORN) kill(rule->value ? (pid_t)control->broker : getpid(), SIGKILL);
}

/* The record: one entry for each change and sync, in their order. */

struct entry {
    uint32_t size;
    uint32_t op;
    uint64_t call, inode;
    int64_t offset;
    uint32_t first, second;
};

static void hold(void) {
    if (record < 0) return;
    int64_t free = 0;
    while (!__atomic_compare_exchange_n(&control->lock, &free, 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        free = 0;
        sched_yield();
    }
}

static void let_go(void) {
    int kept = errno;
    if (record >= 0) __atomic_store_n(&control->lock, 0, __ATOMIC_SEQ_CST);
    errno = kept;
}

static void tell(struct entry entry, const char *name, const struct iovec *data, int count, size_t size) {
    if (record < 0) return;
    int kept = errno;
    struct iovec parts[2 + 64] = {{&entry, sizeof entry}, {(void *)name, strlen(name)}};
    int used = 2;
    for (size_t left = size; left && count-- && used < 66; data++) {
        size_t here = data->iov_len < left ? data->iov_len : left;
        parts[used++] = (struct iovec){data->iov_base, here};
        left -= here;
    }
    entry.call = (uint64_t)__atomic_load_n(&control->calls, __ATOMIC_SEQ_CST);
    entry.first = strlen(name);
    entry.second = size;
    entry.size = sizeof entry + entry.first + entry.second;
    if (writev(record, parts, used) != (ssize_t)entry.size) abort();
    errno = kept;
}

static void tell_fd(int code, int fd, int64_t offset, const struct iovec *data, int count, size_t size) {
    char room[PATH_MAX];
    struct stat status;
    if (record < 0 || fstat(fd, &status)) return;
    if (code == 's' && S_ISDIR(status.st_mode)) code = 'S';
    tell((struct entry){.op = code, .inode = status.st_ino, .offset = offset}, name_of(fd, "", room), data, count, size);
}

static void tell_names(int code, const char *name, const char *second) {
    struct iovec data = {(void *)second, strlen(second)};
    tell((struct entry){.op = code}, name, &data, 1, data.iov_len);
}

/* Opening and closing. */

static int opened(int at, const char *path, int flags, mode_t mode) {
    char room[PATH_MAX];
    const char *name = control && path ? name_of(at, path, room) : "";
    if (!is_ours(name)) {
        int fd = REAL(openat64)(at, path, flags, mode);
        if (control && fd >= 0 && fd < DESCRIPTORS) ours[fd] = 0;
        return fd;
    }
    if (fails(meet(OPEN, name, -1))) return -1;
    int creates = flags & O_CREAT;
    if (creates && control->has_quota && control->quota <= 0 && faccessat(at, path, F_OK, 0)) return errno = ENOSPC, -1;
    hold();
    int was = creates && record >= 0 ? !faccessat(at, path, F_OK, 0) : 1;
    int fd = REAL(openat64)(at, path, flags, mode);
    if (fd >= 0 && fd < DESCRIPTORS) {
        ours[fd] = 1;
        if (!was) tell_fd('c', fd, 0, 0, 0, 0);
        else if (flags & O_TRUNC) tell_fd('t', fd, 0, 0, 0, 0);
    }
    let_go();
    return fd;
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | __O_TMPFILE)) { \
        va_list list; \
        va_start(list, flags); \
        mode = va_arg(list, int); \
        va_end(list); \
    }
int open64(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int open(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags) return opened(at, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags) return opened(at, path, flags, mode); }

int close(int fd) {
    if (fd >= 0 && fd < DESCRIPTORS) ours[fd] = 0;
    return REAL(close)(fd);
}

/* Reading. */

ssize_t read(int fd, void *to, size_t size) {
    if (!has(fd)) return REAL(read)(fd, to, size);
    struct rule *rule = meet_fd(READ, fd);
    return fails(rule) ? -1 : REAL(read)(fd, to, shortened(rule, size));
}

ssize_t pread64(int fd, void *to, size_t size, off64_t at) {
    if (!has(fd)) return REAL(pread64)(fd, to, size, at);
    struct rule *rule = meet_fd(READ, fd);
    return fails(rule) ? -1 : REAL(pread64)(fd, to, shortened(rule, size), at);
}
ssize_t pread(int fd, void *to, size_t size, off_t at) { return pread64(fd, to, size, at); }

ssize_t preadv64v2(int fd, const struct iovec *parts, int count, off64_t at, int flags) {
    if (!has(fd)) return REAL(preadv64v2)(fd, parts, count, at, flags);
    struct rule *rule = meet_fd(READ, fd);
    if (fails(rule)) return -1;
    struct iovec first = {parts->iov_base, shortened(rule, parts->iov_len)};
    return rule && rule->kind == SHORT ? REAL(preadv64v2)(fd, &first, 1, at, flags) : REAL(preadv64v2)(fd, parts, count, at, flags);
}
ssize_t preadv2(int fd, const struct iovec *parts, int count, off_t at, int flags) { return preadv64v2(fd, parts, count, at, flags); }

/* Writing. */

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) {
    if (!has(fd)) return REAL(pwritev64)(fd, parts, count, at);
    struct rule *rule = meet_fd(WRITE, fd);
    size_t size = 0;
    for (int index = 0; index < count; index++) size += parts[index].iov_len;
    ssize_t may = allowed(rule, size);
    if (may < 0) return -1;
    hold();
    struct iovec some[64];
    int used = 0;
    for (size_t left = may; left && used < 64 && used < count; used++) {
        some[used] = (struct iovec){parts[used].iov_base, parts[used].iov_len < left ? parts[used].iov_len : left};
        left -= some[used].iov_len;
    }
    ssize_t done = REAL(pwritev64)(fd, some, used, at);
    if (done > 0) tell_fd('w', fd, at, some, used, done);
    let_go();
    torn(rule);
    return done;
}
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) { return pwritev64(fd, parts, count, at); }
ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t at, int flags) { return pwritev64(fd, parts, count, at); }

ssize_t pwrite64(int fd, const void *from, size_t size, off64_t at) {
    if (!has(fd)) return REAL(pwrite64)(fd, from, size, at);
    struct iovec part = {(void *)from, size};
    return pwritev64(fd, &part, 1, at);
}
ssize_t pwrite(int fd, const void *from, size_t size, off_t at) { return pwrite64(fd, from, size, at); }

ssize_t write(int fd, const void *from, size_t size) {
    if (!has(fd)) return REAL(write)(fd, from, size);
    struct rule *rule = meet_fd(WRITE, fd);
    ssize_t may = allowed(rule, size);
    if (may < 0) return -1;
    hold();
    ssize_t done = REAL(write)(fd, from, may);
    struct iovec part = {(void *)from, size};
    if (done > 0) tell_fd('w', fd, lseek(fd, 0, SEEK_CUR) - done, &part, 1, done);
    let_go();
    torn(rule);
    return done;
}

ssize_t sendfile64(int out, int in, off64_t *at, size_t size) {
    if (!has(out) && !has(in)) return REAL(sendfile64)(out, in, at, size);
    struct rule *rule = meet_fd(has(out) ? WRITE : READ, has(out) ? out : in);
    ssize_t may = has(out) ? allowed(rule, size) : fails(rule) ? -1 : (ssize_t)shortened(rule, size);
    if (may < 0) return -1;
    hold();
    off64_t from = at ? *at : lseek(in, 0, SEEK_CUR);
    ssize_t done = REAL(sendfile64)(out, in, at, may);
    if (has(out) && done > 0 && record >= 0) {
        struct iovec part = {malloc(done), done};
        if (REAL(pread64)(in, part.iov_base, done, from) != done) abort();
        tell_fd('w', out, lseek(out, 0, SEEK_CUR) - done, &part, 1, done);
        free(part.iov_base);
    }
    let_go();
    torn(rule);
    return done;
}
ssize_t sendfile(int out, int in, off_t *at, size_t size) { return sendfile64(out, in, at, size); }

/* Callers copy by other means. */
ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t size, unsigned flags) { return errno = ENOSYS, -1; }

int ftruncate64(int fd, off64_t size) {
    if (!has(fd)) return REAL(ftruncate64)(fd, size);
    if (fails(meet_fd(TRUNCATE, fd))) return -1;
    hold();
    int done = REAL(ftruncate64)(fd, size);
    if (!done) tell_fd('t', fd, size, 0, 0, 0);
    let_go();
    return done;
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

static int synced(int fd, int (*sync)(int)) {
    if (!has(fd)) return sync(fd);
    if (fails(meet_fd(SYNC, fd))) return -1;
    hold();
    int done = sync(fd);
    if (!done) tell_fd('s', fd, 0, 0, 0, 0);
    let_go();
    return done;
}
int fsync(int fd) { return synced(fd, REAL(fsync)); }
int fdatasync(int fd) { return synced(fd, REAL(fdatasync)); }

/* Names. */

#define NAMED(op, at, path) \
    char room[PATH_MAX]; \
    const char *name = control ? name_of(at, path, room) : ""; \
    int mine = is_ours(name); \
    if (mine && fails(meet(op, name, -1))) return -1; \
    if (mine) hold();
#define TOLD(code, second) \
    if (mine && !done) tell_names(code, name, second); \
    if (mine) let_go(); \
    return done;

int renameat(int at, const char *path, int new_at, const char *new_path) {
    char new_room[PATH_MAX];
    NAMED(RENAME, at, path)
    int done = REAL(renameat)(at, path, new_at, new_path);
    TOLD('r', name_of(new_at, new_path, new_room))
}
int rename(const char *path, const char *new_path) { return renameat(AT_FDCWD, path, AT_FDCWD, new_path); }

int linkat(int at, const char *path, int new_at, const char *new_path, int flags) {
    char new_room[PATH_MAX];
    NAMED(LINK, at, path)
    int done = REAL(linkat)(at, path, new_at, new_path, flags);
    TOLD('l', name_of(new_at, new_path, new_room))
}
int link(const char *path, const char *new_path) { return linkat(AT_FDCWD, path, AT_FDCWD, new_path, 0); }

int unlinkat(int at, const char *path, int flags) {
    NAMED(UNLINK, at, path)
    int done = REAL(unlinkat)(at, path, flags);
    TOLD(flags & AT_REMOVEDIR ? 'd' : 'u', "")
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdirat(int at, const char *path, mode_t mode) {
    NAMED(MKDIR, at, path)
    int done = REAL(mkdirat)(at, path, mode);
    TOLD('m', "")
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

/* Connections. */

static int is_connection(int fd) {
    int domain = 0;
    socklen_t size = sizeof domain;
    return control && !getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) && domain == AF_INET;
}

ssize_t send(int fd, const void *from, size_t size, int flags) {
    if (!is_connection(fd)) return REAL(send)(fd, from, size, flags);
    struct rule *rule = meet(SEND, "", fd);
    return fails(rule) ? -1 : REAL(send)(fd, from, shortened(rule, size), flags);
}

ssize_t recv(int fd, void *to, size_t size, int flags) {
    if (!is_connection(fd)) return REAL(recv)(fd, to, size, flags);
    struct rule *rule = meet(RECEIVE, "", fd);
    return fails(rule) ? -1 : REAL(recv)(fd, to, shortened(rule, size), flags);
}

/* Time. */

int clock_gettime(clockid_t id, struct timespec *now) {
    int done = REAL(clock_gettime)(id, now);
    if (!done && control && id == CLOCK_REALTIME) now->tv_sec += control->ahead_s;
    return done;
}
