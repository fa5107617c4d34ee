// Bodies of the session's own messages: HELLO, HELLO_REPLY, ATTACH, ATTACH_REPLY, GOODBYE.
// Normative text: docs/formats/wire.md.
//
// Every body is [u32 fixed_bytes | fixed fields] and then strings, each [u16 size | bytes]. Later
// versions append fields and strings; what a reader does not know it skips. The layout of HELLO and
// of HELLO_REPLY never changes otherwise, so that any two versions can at least tell each other
// why they do not work together.
//
// Encode*() and Parse*() are pure. Parsers trust nothing; their only error is kCorruptMessage.

#ifndef PENSTOCK_COMMON_TRANSPORT_HELLO_H_
#define PENSTOCK_COMMON_TRANSPORT_HELLO_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/transport/frame.h"

namespace penstock {

// Names a session to connections that join it later. Drawn by the daemon, unguessable.
using SessionToken = std::array<uint8_t, 16>;

// Longest string in these bodies; senders cut what is longer.
inline constexpr size_t kMaxHelloString = 1024;
inline constexpr size_t kMaxHelloWires = 16;
// Longest body that a side accepts before the session exists.
inline constexpr uint32_t kMaxHelloBody = 64u << 10;

struct Hello {
  uint16_t version_min = kOldestProtocolVersion;
  uint16_t version_max = kProtocolVersion;
  uint32_t streams = 0;        // Data streams that the client would like.
  uint64_t incarnation = 0;    // Of the client's process.
  uint32_t max_in_flight = 0;  // Requests that the client would like to have in flight.
  std::string software;
  std::string tenant;
  std::string client_name;
  std::vector<std::string> wires;  // That the client can use, best first.
};

struct HelloReply {
  uint16_t status = 0;  // A Code. Other than kOk: no session, `message` says why.
  uint16_t version = 0;
  uint16_t version_min = kOldestProtocolVersion;
  uint16_t version_max = kProtocolVersion;
  uint64_t incarnation = 0;  // Of the daemon's process.
  SessionToken token{};
  uint32_t streams = 0;
  uint32_t max_in_flight = 0;
  uint64_t max_chunk_bytes = 0;
  uint32_t eager_bytes = 0;
  uint16_t ucx_port = 0;  // Where the ucx wire listens; 0 for other wires.
  std::string software;
  std::string wire;
  std::string message;
  std::string ucx_host;  // Empty: the host that the client reached already.
};

struct Attach {
  SessionToken token{};
  uint32_t stream = 0;  // Which of the data streams, from 0.
};

// Also the body of GOODBYE.
struct Verdict {
  uint16_t status = 0;
  std::string message;
};

std::vector<std::byte> EncodeHello(const Hello& hello);
std::vector<std::byte> EncodeHelloReply(const HelloReply& reply);
std::vector<std::byte> EncodeAttach(const Attach& attach);
std::vector<std::byte> EncodeVerdict(const Status& status);

Result<Hello> ParseHello(ByteSpan body);
Result<HelloReply> ParseHelloReply(ByteSpan body);
Result<Attach> ParseAttach(ByteSpan body);
// The status that travelled, or kCorruptMessage.
Result<Verdict> ParseVerdict(ByteSpan body);

// The version that a session between the two ranges uses. Errors: kVersionSkew naming both ranges;
// `who` is the software of the other side.
Result<uint16_t> AgreeOnVersion(uint16_t peer_min, uint16_t peer_max, std::string_view who);

// "penstock 0.1.0"
std::string SoftwareName();

}  // namespace penstock

#endif  // PENSTOCK_COMMON_TRANSPORT_HELLO_H_
