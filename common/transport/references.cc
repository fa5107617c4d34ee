#include "common/transport/references.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

namespace penstock {
namespace {

// What MEMORY says, in the field `item`.
constexpr uint32_t kFile = 1;      // A descriptor comes along; `length` bytes may be read from it.
constexpr uint32_t kHasFile = 2;   // References into that file can be read.
constexpr uint32_t kProbe = 4;     // The session's token lies at `offset` in this process.
constexpr uint32_t kMayRefer = 8;  // It was found there: references to this process can be read.

RawDataHeader MemoryFrame(uint32_t flags, uint64_t offset = 0, uint64_t length = 0) {
  return EncodeDataHeader(0, {.item = flags, .offset = offset, .length = length},
                          MessageType::kMemory);
}

// Descriptors that a forked child of ours closes as the first thing it does. One of a daemon's
// arena would keep all of its memory after the daemon has ended. No lock, which a child might find
// taken.
class NotForChildren {
 public:
  // Those that find no place, with more sessions than anybody has, are kept by children.
  static void Add(int fd) {
    [[maybe_unused]] static const int once = pthread_atfork(nullptr, nullptr, CloseAll);
    for (std::atomic<int>& place : places_) {
      int free = 0;
      if (place.compare_exchange_strong(free, fd)) return;
    }
  }
  static void Close(UniqueFd fd) {
    for (std::atomic<int>& place : places_) {
      int ours = fd.get();
      if (place.compare_exchange_strong(ours, 0)) break;
    }
    fd.Reset();  // Afterwards: a child must not close what gets the number next.
  }

 private:
  static void CloseAll() {
    for (std::atomic<int>& place : places_) {
      if (const int fd = place.exchange(0); fd != 0) close(fd);
    }
  }
  static inline std::array<std::atomic<int>, 256> places_{};  // 0: free.
};

Status ReadFailure(const char* what) {
  if (errno == EFAULT) return Status(Code::kBadBuffer, "memory of either side cannot be accessed");
  return Status(Code::kPermissionDenied, fmt::format("{}: {}", what, ErrnoText(errno)));
}

}  // namespace

Result<std::vector<Reference>> ParseReferences(ByteSpan bytes, uint64_t payload_bytes) {
  const size_t count = bytes.size() / sizeof(Reference);
  if (count == 0 || count > kMaxReferences || bytes.size() % sizeof(Reference) != 0) {
    return Status(Code::kCorruptMessage, fmt::format("{} bytes of references", bytes.size()));
  }
  std::vector<Reference> references(count);
  std::memcpy(references.data(), bytes.data(), bytes.size());
  uint64_t left = payload_bytes;
  for (const Reference& one : references) {
    uint64_t end = 0;
    if (one.length > left || __builtin_add_overflow(one.address, one.length, &end)) {
      return Status(Code::kCorruptMessage, "references that do not fit their payload");
    }
    left -= one.length;
  }
  if (left > 0) return Status(Code::kCorruptMessage, "references to less than their payload");
  return references;
}

// ------------------------------------------------------------------------------ what is offered

References::Greeting References::Greet() const {
  if (!exported_) return {MemoryFrame(0), -1};
  return {MemoryFrame(kFile, 0, exported_->bytes), exported_->fd};
}

References::~References() {
  if (file_.valid()) NotForChildren::Close(std::move(file_));
}

Result<std::optional<RawDataHeader>> References::OnMemory(const DataHeader& header, UniqueFd fd,
                                                          pid_t peer) {
  const int most = daemon_ ? 1 : 2;
  if (++heard_ > most) return Status(Code::kCorruptMessage, "memory offered once too often");
  if (daemon_) {
    may_refer_ = exported_ && (header.item & kHasFile) != 0;
    if ((header.item & kProbe) == 0) return std::optional<RawDataHeader>();
    if (!ProbePeer(peer, header.offset)) {
      peer_ = 0;
      process_.Reset();
    }
    return std::optional(MemoryFrame(peer_ != 0 ? kMayRefer : 0));
  }
  if ((header.item & kMayRefer) != 0) may_refer_ = true;
  if (heard_ > 1) return std::optional<RawDataHeader>();
  if ((header.item & kFile) != 0) TakeFile(std::move(fd), header.length);
  return std::optional(MemoryFrame((file_.valid() ? kHasFile : 0) | kProbe,
                                   reinterpret_cast<uintptr_t>(token_.data()), token_.size()));
}

// Only memory that stays as long as it is: reading any other file could block or be cut short.
void References::TakeFile(UniqueFd fd, uint64_t bytes) {
  if (!fd.valid()) return;
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  struct stat file {};
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd.get(), &file) != 0 ||
      static_cast<uint64_t>(file.st_size) < bytes) {
    return;
  }
  NotForChildren::Add(fd.get());
  file_ = std::move(fd);
  file_bytes_ = bytes;
}

// A process number says little: another process may have it by now, or the same one in another
// namespace. What only the client knows says enough; that it is still the same process later is for
// process() to say, which is opened first.
bool References::ProbePeer(pid_t peer, uint64_t address) {
  if (peer <= 0) return false;
  peer_ = peer;
  process_ = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, peer, 0)));
  if (!process_.valid()) return false;  // Linux before 5.3, or forbidden.
  SessionToken found{};
  const iovec to{found.data(), found.size()};
  const iovec from{reinterpret_cast<void*>(address), found.size()};
  const ssize_t got = process_vm_readv(peer_, &to, 1, &from, 1, 0);
  return got == static_cast<ssize_t>(found.size()) && found == token_;
}

// ------------------------------------------------------------------------------------- sending

void References::Refer(OutFrame& frame) const {
  if (!may_refer_ || frame.length < kMinBytes || frame.item->header.status != 0) return;
  std::array<iovec, kMaxReferences> pieces;
  uint64_t described = frame.length;
  const size_t count = frame.cursor.Peek(described, pieces);
  if (described != frame.length) return;
  std::array<Reference, kMaxReferences> references;
  for (size_t i = 0; i < count; ++i) {
    const auto* const base = static_cast<const std::byte*>(pieces[i].iov_base);
    references[i] = {reinterpret_cast<uintptr_t>(base), pieces[i].iov_len};
    if (!daemon_) continue;
    const uint64_t offset = references[i].address - reinterpret_cast<uintptr_t>(exported_->base);
    if (offset >= exported_->bytes || pieces[i].iov_len > exported_->bytes - offset) return;
    references[i].address = offset;
  }
  const auto* const raw = reinterpret_cast<const std::byte*>(references.data());
  frame.references.assign(raw, raw + count * sizeof(Reference));
  DataHeader slice = frame.item->header;
  slice.offset += frame.item->given_out - frame.length;
  slice.length = frame.length;
  frame.header = EncodeDataHeader(frame.item->request_id, slice, MessageType::kReference,
                                  static_cast<uint32_t>(frame.references.size()));
}

// ------------------------------------------------------------------------------------ receiving

Status References::Take(const std::vector<Reference>& from, const Pieces& to) const {
  PieceCursor cursor(to);
  for (const Reference& one : from) {
    if (one.length == 0) continue;
    if (file_.valid()) {
      PENSTOCK_RETURN_IF_ERROR(TakeFromFile(one, cursor));
    } else if (peer_ != 0) {
      PENSTOCK_RETURN_IF_ERROR(TakeFromProcess(one, cursor));
    } else {
      return Status(Code::kCorruptMessage, "a reference to memory that was not offered");
    }
  }
  return Status::Ok();
}

Status References::TakeFromFile(Reference from, PieceCursor& to) const {
  if (from.address >= file_bytes_ || from.length > file_bytes_ - from.address) {
    return Status(Code::kCorruptMessage, "a reference past the end of the daemon's memory");
  }
  while (from.length > 0) {
    std::array<iovec, kMaxReferences> pieces;
    uint64_t bytes = from.length;
    const size_t count = to.Peek(bytes, pieces);
    const ssize_t got = preadv(file_.get(), pieces.data(), static_cast<int>(count),
                               static_cast<off_t>(from.address));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ReadFailure("reading the daemon's memory");
    if (got == 0) return Status(Code::kCorruptMessage, "the daemon's memory ends early");
    to.Skip(static_cast<uint64_t>(got));
    from.address += static_cast<uint64_t>(got);
    from.length -= static_cast<uint64_t>(got);
  }
  return Status::Ok();
}

Status References::TakeFromProcess(Reference from, PieceCursor& to) const {
  while (from.length > 0) {
    std::array<iovec, kMaxReferences> pieces;
    uint64_t bytes = from.length;
    const size_t count = to.Peek(bytes, pieces);
    const iovec remote{reinterpret_cast<void*>(from.address), bytes};
    const ssize_t got = process_vm_readv(peer_, pieces.data(), count, &remote, 1, 0);
    if (got < 0) return ReadFailure("reading the client's memory");
    if (got == 0) return Status(Code::kBadBuffer, "the client's memory cannot be read");
    to.Skip(static_cast<uint64_t>(got));
    from.address += static_cast<uint64_t>(got);
    from.length -= static_cast<uint64_t>(got);
  }
  return Status::Ok();
}

}  // namespace penstock
