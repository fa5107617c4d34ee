// References: how the local wire moves bytes. Instead of payload, the sender tells where it lies,
// and the receiver reads it there, once, straight into its place:
//
// * a daemon's chunks lie in its arena, a file in memory whose descriptor, sealed against writing,
//   the client gets over the Unix socket: it reads with preadv();
// * a client's memory is read by the daemon with process_vm_readv(), where the system lets it.
//
// Both report bad memory on either side as an error instead of a signal. Either direction may be
// impossible (containers): then payload travels on the socket as with the tcp wire.
//
// The sender keeps the memory until the receiver has answered, or the socket is closed; a receiver
// that finds the socket closed after it has read throws away what it read.
//
// Normative text: docs/formats/wire.md. Threads: the session's loop only.

#ifndef PENSTOCK_COMMON_TRANSPORT_REFERENCES_H_
#define PENSTOCK_COMMON_TRANSPORT_REFERENCES_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/transport/endpoint.h"
#include "common/transport/hello.h"
#include "common/transport/send_queue.h"
#include "common/transport/socket.h"

namespace penstock {

// One piece of a payload, as it travels.
struct Reference {
  uint64_t address = 0;  // Of the sender's process, or an offset into the file it has sent.
  uint64_t length = 0;
};
static_assert(sizeof(Reference) == 16);

// Reads `bytes` of a frame whose pieces add up to `payload_bytes`. Errors: kCorruptMessage.
Result<std::vector<Reference>> ParseReferences(ByteSpan bytes, uint64_t payload_bytes);

class References {
 public:
  // Payloads below this travel: an answer costs more than copying them twice.
  static constexpr uint64_t kMinBytes = 32u << 10;
  // Longest payload of one reference: reading it holds up all sessions of the loop.
  static constexpr uint64_t kMaxBytes = 1u << 20;

  // `exported`: what the daemon lets clients read; a client exports nothing.
  References(bool daemon, const SessionToken& token, const std::optional<ExportedMemory>& exported)
      : daemon_(daemon), token_(token), exported_(exported) {}
  ~References();
  References(References&&) = default;

  // The daemon's first word on a fresh stream. The descriptor is to be sent along.
  struct Greeting {
    RawDataHeader header;
    int fd = -1;
  };
  bool speaks_first() const { return daemon_; }
  // Until then nobody has a reason to send one.
  bool wants_descriptor() const { return !daemon_ && heard_ == 0; }
  Greeting Greet() const;
  // The other side's word about its memory. What to answer, if anything. `fd` is the descriptor
  // that came along; `peer` the process on the other side of the socket, 0 if the system hides it.
  // Errors: kCorruptMessage (it has said all that there is to say).
  Result<std::optional<RawDataHeader>> OnMemory(const DataHeader& header, UniqueFd fd, pid_t peer);

  // Makes a reference of the frame where that is possible.
  void Refer(OutFrame& frame) const;
  bool may_refer() const { return may_refer_; }
  void ReferNoMore() { may_refer_ = false; }
  // Copies what `from` names into `to`. Errors: kBadBuffer (either side's memory), kCorruptMessage
  // (what was not offered), kPermissionDenied.
  Status Take(const std::vector<Reference>& from, const Pieces& to) const;
  // What the sender must hear of the outcome of Take(): what was wrong on its side.
  Code AnswerFor(const Status& taken) const { return file_.valid() ? Code::kOk : taken.code(); }
  // A pidfd of the process whose memory is read, readable once it has ended; -1 if there is none.
  int process() const { return process_.get(); }

 private:
  bool ProbePeer(pid_t peer, uint64_t address);
  void TakeFile(UniqueFd fd, uint64_t bytes);
  Status TakeFromFile(Reference from, PieceCursor& to) const;
  Status TakeFromProcess(Reference from, PieceCursor& to) const;

  const bool daemon_;
  const SessionToken token_;  // Its address is the client's proof that its memory can be read.
  const std::optional<ExportedMemory> exported_;
  int heard_ = 0;           // MEMORYs of the other side.
  bool may_refer_ = false;  // The other side can read ours.
  UniqueFd file_;           // The other side's, of `file_bytes_`.
  uint64_t file_bytes_ = 0;
  pid_t peer_ = 0;    // The process whose memory we can read; 0: none.
  UniqueFd process_;  // The same.
};

}  // namespace penstock

#endif  // PENSTOCK_COMMON_TRANSPORT_REFERENCES_H_
