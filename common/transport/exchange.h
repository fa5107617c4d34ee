// Exchange: one connection attempt that sends one message and waits for one answer. What HELLO and
// ATTACH are made of on the client's side, and the reading half on the daemon's.

#ifndef PENSTOCK_COMMON_TRANSPORT_EXCHANGE_H_
#define PENSTOCK_COMMON_TRANSPORT_EXCHANGE_H_

#include <functional>
#include <memory>
#include <vector>

#include "common/transport/hello.h"
#include "common/transport/message_assembler.h"
#include "common/transport/out_queue.h"
#include "common/transport/socket.h"

namespace penstock {

struct HandshakeMessage {
  FrameHeader header;
  std::vector<std::byte> body;
};

// Reads one message from a non-blocking socket and not a byte more, so that the socket can be
// handed on.
class HandshakeReader {
 public:
  // The message; or nothing, if the rest has not arrived. Errors: kDisconnected, kCorruptMessage,
  // kTooLarge.
  Result<std::optional<HandshakeMessage>> Read(int fd);

 private:
  MessageAssembler assembler_{kMaxHelloBody};
};

class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  struct Answer {
    UniqueFd fd;
    HandshakeMessage message;
  };
  using Done = std::function<void(Result<std::shared_ptr<Answer>>)>;

  // Calls `done` on `loop`, exactly once unless the exchange is cancelled or the loop stops. From
  // the loop's thread.
  static std::shared_ptr<Exchange> Start(EventLoop& loop, const SocketAddress& to,
                                         const Deadline& deadline, MessageType type, ByteSpan body,
                                         Done done);
  void Cancel();

 private:
  Exchange(EventLoop& loop, const SocketAddress& to, Done done)
      : loop_(loop), to_(to), done_(std::move(done)) {}

  void Connect();
  void OnReady(uint32_t events);
  Status Advance(uint32_t events);
  void Finish(Result<std::shared_ptr<Answer>> result);

  EventLoop& loop_;
  const SocketAddress to_;
  Done done_;
  UniqueFd fd_;
  bool connected_ = false;
  OutQueue out_;
  HandshakeReader reader_;
  EventLoop::TimerId timer_ = 0;
  EventLoop::TimerId retry_ = 0;
};

}  // namespace penstock

#endif  // PENSTOCK_COMMON_TRANSPORT_EXCHANGE_H_
