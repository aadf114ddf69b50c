/* A stand-in for libnccl.so.2 on one machine without GPUs: NCCL's own signatures, data over sockets of the kernel.
   Both sides of a weight transfer load it in place of NCCL, so that everything but NCCL and CUDA is what runs. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define RANKS 16
#define NAMES 64
typedef struct { char internal[128]; } ncclUniqueId;
typedef struct { int rank, ranks, peers[RANKS]; } Comm;
typedef Comm *ncclComm_t;
enum { OK = 0, SYSTEM = 2, ARGUMENT = 4, USAGE = 5, REMOTE = 6 };
static const size_t SIZES[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
static struct { char name[64]; int socket; } listening[NAMES];
static int names;

static int all_out(int fd, const char *data, size_t left) {
  while (left > 0) {
    ssize_t done = send(fd, data, left, MSG_NOSIGNAL);
    if (done <= 0) { if (done < 0 && errno == EINTR) continue; return REMOTE; }
    data += done; left -= (size_t)done;
  }
  return OK;
}
static int all_in(int fd, char *data, size_t left) {
  while (left > 0) {
    ssize_t done = recv(fd, data, left, 0);
    if (done <= 0) { if (done < 0 && errno == EINTR) continue; return REMOTE; }
    data += done; left -= (size_t)done;
  }
  return OK;
}
static socklen_t address(const char *name, struct sockaddr_un *at) {
  memset(at, 0, sizeof *at);
  at->sun_family = AF_UNIX;
  strcpy(at->sun_path + 1, name); /* in the kernel's own name space: no file */
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
}

const char *ncclGetErrorString(int result) { return result == REMOTE ? "remote process exited" : "invalid usage"; }
int ncclGetVersion(int *version) { *version = 22907; return OK; }
int ncclGetUniqueId(ncclUniqueId *id) {
  struct sockaddr_un at;
  if (names == NAMES) return USAGE;
  memset(id, 0, sizeof *id);
  snprintf(id->internal, 64, "nccl-stand-in-%d-%d", (int)getpid(), names);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  socklen_t length = address(id->internal, &at);
  if (fd < 0 || bind(fd, (struct sockaddr *)&at, length) != 0 || listen(fd, RANKS) != 0) return SYSTEM;
  strcpy(listening[names].name, id->internal);
  listening[names++].socket = fd;
  memset(id->internal + 64, 0x5a, 64); /* an id is 128 bytes, all of which must arrive */
  return OK;
}
int ncclCommInitRank(ncclComm_t *out, int ranks, ncclUniqueId id, int rank) {
  Comm *comm = calloc(1, sizeof *comm);
  for (int i = 64; i < 128; i++) if (id.internal[i] != 0x5a) return ARGUMENT;
  if (ranks > RANKS || rank < 0 || rank >= ranks) return ARGUMENT;
  comm->rank = rank; comm->ranks = ranks;
  if (rank == 0) {
    int fd = -1;
    for (int i = 0; i < names; i++) if (strcmp(listening[i].name, id.internal) == 0) fd = listening[i].socket;
    if (fd < 0) return USAGE;
    for (int i = 1; i < ranks; i++) {
      int who = 0, peer = accept(fd, NULL, NULL);
      if (peer < 0 || all_in(peer, (char *)&who, sizeof who) != OK || who < 1 || who >= ranks) return REMOTE;
      comm->peers[who] = peer;
    }
  } else {
    struct sockaddr_un at;
    socklen_t length = address(id.internal, &at);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&at, length) != 0) return REMOTE;
    if (all_out(fd, (char *)&rank, sizeof rank) != OK) return REMOTE;
    comm->peers[0] = fd;
  }
  *out = comm;
  return OK;
}
int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, ncclComm_t comm, void *stream) {
  if (comm == NULL || type != 7 || op != 0) return ARGUMENT;
  size_t size = count * sizeof(float);
  memmove(to, from, size);
  if (comm->rank > 0) return all_out(comm->peers[0], to, size) || all_in(comm->peers[0], to, size) ? REMOTE : OK;
  float *part = malloc(size);
  int result = OK;
  for (int i = 1; i < comm->ranks && result == OK; i++) {
    result = all_in(comm->peers[i], (char *)part, size);
    for (size_t k = 0; k < count && result == OK; k++) ((float *)to)[k] += part[k];
  }
  for (int i = 1; i < comm->ranks && result == OK; i++) result = all_out(comm->peers[i], to, size);
  free(part);
  return result;
}
int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, ncclComm_t comm, void *stream) {
  if (comm == NULL || type < 0 || type > 9 || root != 0) return ARGUMENT;
  size_t size = count * SIZES[type];
  if (comm->rank > 0) return all_in(comm->peers[0], to, size);
  int result = OK;
  for (int i = 1; i < comm->ranks && result == OK; i++) result = all_out(comm->peers[i], from, size);
  return result;
}
int ncclCommAbort(ncclComm_t comm) {
  for (int i = 0; i < comm->ranks; i++) if (comm->peers[i] > 0) shutdown(comm->peers[i], SHUT_RDWR);
  return OK;
}
/* What vLLM looks for in the library and does not call here. */
#define ABSENT(name) int name(void) { return USAGE; }
ABSENT(ncclReduce) ABSENT(ncclAllGather) ABSENT(ncclReduceScatter) ABSENT(ncclSend) ABSENT(ncclRecv)
ABSENT(ncclCommDestroy) ABSENT(ncclCommSuspend) ABSENT(ncclCommResume) ABSENT(ncclGroupStart) ABSENT(ncclGroupEnd)
ABSENT(ncclCommWindowRegister) ABSENT(ncclCommWindowDeregister) ABSENT(ncclCommQueryProperties)
