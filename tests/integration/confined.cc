// Runs a program the way containers and careful operators do.
//
//   confined [--deny-process-vm] [--own-pids] [--user UID] COMMAND...
//
//   --deny-process-vm  process_vm_readv() fails with EPERM (seccomp)
//   --own-pids         it is process 1 of its own namespace and sees no other
//   --user UID         it has that user and group, and no capability
//
// Exits with 125 where the system does not let it, otherwise like the command.

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kRefused = 125;

[[noreturn]] void Refused(const char* what) {
  std::perror(what);
  std::exit(kRefused);
}

void DenyProcessVm() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (1 /* EPERM */ & SECCOMP_RET_DATA)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{sizeof(filter) / sizeof(filter[0]), filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) Refused("PR_SET_NO_NEW_PRIVS");
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) Refused("PR_SET_SECCOMP");
}

// The caller goes on as process 1 of the new namespace; its parent waits for it here.
void OwnPids() {
  if (unshare(CLONE_NEWPID) != 0) Refused("unshare");
  const pid_t child = fork();
  if (child < 0) Refused("fork");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    return;
  }
  int status = 0;
  waitpid(child, &status, 0);
  std::exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

void BecomeUser(const char* text) {
  uid_t id = 0;
  if (std::from_chars(text, text + std::strlen(text), id).ec != std::errc()) std::exit(2);
  if (setresgid(id, id, id) != 0) Refused("setresgid");
  if (setresuid(id, id, id) != 0) Refused("setresuid");
}

}  // namespace

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  int at = 1;
  for (; at < argc && std::strncmp(argv[at], "--", 2) == 0; ++at) {
    if (std::strcmp(argv[at], "--deny-process-vm") == 0) {
      DenyProcessVm();
    } else if (std::strcmp(argv[at], "--own-pids") == 0) {
      OwnPids();
    } else if (std::strcmp(argv[at], "--user") == 0 && at + 1 < argc) {
      BecomeUser(argv[++at]);
    } else {
      return 2;
    }
  }
  if (at == argc) return 2;
  execv(argv[at], argv + at);
  std::perror(argv[at]);
  return kRefused;
}
