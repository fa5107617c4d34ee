// A peer made of bare bytes: what the other side does when it is old, new, broken or hostile.

#ifndef PENSTOCK_TESTS_INTEGRATION_RAW_PEER_H_
#define PENSTOCK_TESTS_INTEGRATION_RAW_PEER_H_

#include <optional>
#include <string>
#include <vector>

#include "common/transport/endpoint.h"
#include "common/transport/exchange.h"
#include "common/transport/hello.h"
#include "common/transport/socket.h"

namespace penstock {

// A blocking socket; every call gives up after 20 s.
class RawPeer {
 public:
  // Connects to `address`; a test failure if that does not work.
  explicit RawPeer(const Address& address);
  // Takes over a connected socket.
  explicit RawPeer(UniqueFd fd);

  void Send(ByteSpan bytes);
  void Send(MessageType type, uint64_t request_id, ByteSpan body);
  // As many bytes as the socket takes without waiting. False once it takes none for a second.
  bool SendSome(ByteSpan bytes);
  // The next message, or nothing at the end of the stream.
  std::optional<HandshakeMessage> Read();
  // Reads until the other side closes. False if it does not.
  bool ReadToEnd();
  // No more bytes from this side.
  void HalfClose();
  void Close() { fd_.Reset(); }

  // HELLO as version 1 has it; returns the answer.
  HelloReply SayHello(uint32_t streams = 1, const std::string& wire = "tcp");
  int fd() const { return fd_.get(); }

 private:
  bool ReadExactly(std::byte* to, size_t size);
  UniqueFd fd_;
};

// A message as it travels.
std::vector<std::byte> Frame(MessageType type, uint64_t request_id, ByteSpan body);

}  // namespace penstock

#endif  // PENSTOCK_TESTS_INTEGRATION_RAW_PEER_H_
