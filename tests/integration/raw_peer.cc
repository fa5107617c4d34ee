#include "tests/integration/raw_peer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace penstock {
namespace {

UniqueFd Connect(const Address& address) {
  const auto found = Resolve(address, /*passive=*/false);
  EXPECT_TRUE(found.ok());
  UniqueFd fd(socket(found->front().family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(fd.get(), found->front().get(), found->front().length), 0) << strerror(errno);
  return fd;
}

}  // namespace

std::vector<std::byte> Frame(MessageType type, uint64_t request_id, ByteSpan body) {
  const FrameHeader header = MakeFrameHeader(type, request_id, static_cast<uint32_t>(body.size()));
  ByteWriter out;
  out.Write(header).Append(body);
  return out.Release();
}

RawPeer::RawPeer(const Address& address) : RawPeer(Connect(address)) {}

RawPeer::RawPeer(UniqueFd fd) : fd_(std::move(fd)) {
  const timeval patience{20, 0};
  setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  setsockopt(fd_.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
}

void RawPeer::Send(ByteSpan bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;  // Closed by the other side: what the test looks at comes next.
    bytes = bytes.subspan(static_cast<size_t>(sent));
  }
}

void RawPeer::Send(MessageType type, uint64_t request_id, ByteSpan body) {
  Send(Frame(type, request_id, body));
}

bool RawPeer::SendSome(ByteSpan bytes) {
  pollfd ready{fd_.get(), POLLOUT, 0};
  if (poll(&ready, 1, 1000) != 1) return false;
  return send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
}

bool RawPeer::ReadExactly(std::byte* to, size_t size) {
  while (size > 0) {
    const ssize_t got = recv(fd_.get(), to, size, 0);
    if (got <= 0) return false;
    to += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

std::optional<HandshakeMessage> RawPeer::Read() {
  std::byte raw[sizeof(FrameHeader)];
  if (!ReadExactly(raw, sizeof(raw))) return std::nullopt;
  const auto header = ParseFrameHeader(raw);
  EXPECT_TRUE(header.ok()) << header.status().ToString();
  if (!header.ok()) return std::nullopt;
  HandshakeMessage message{*header, std::vector<std::byte>(header->body_bytes)};
  if (!ReadExactly(message.body.data(), message.body.size())) return std::nullopt;
  return message;
}

bool RawPeer::ReadToEnd() {
  char buffer[4096];
  while (true) {
    const ssize_t got = recv(fd_.get(), buffer, sizeof(buffer), 0);
    if (got == 0 || (got < 0 && errno == ECONNRESET)) return true;
    if (got < 0) return false;
  }
}

void RawPeer::HalfClose() { shutdown(fd_.get(), SHUT_WR); }

HelloReply RawPeer::SayHello(uint32_t streams, const std::string& wire) {
  Hello hello;
  hello.streams = streams;
  hello.max_in_flight = 10;
  hello.software = "raw 1.0";
  hello.tenant = "default";
  hello.wires = {wire};
  Send(MessageType::kHello, 0, EncodeHello(hello));
  const auto message = Read();
  EXPECT_TRUE(message.has_value()) << "no answer to HELLO";
  if (!message) return {};
  const auto reply = ParseHelloReply(message->body);
  EXPECT_TRUE(reply.ok());
  return reply.ok() ? *reply : HelloReply();
}

}  // namespace penstock
