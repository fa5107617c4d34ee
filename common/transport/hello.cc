#include "common/transport/hello.h"

#include <fmt/format.h>

#include <algorithm>

namespace penstock {
namespace {

// Writes a body: the size of the fixed part is known when the first string comes.
class BodyWriter {
 public:
  BodyWriter() { out_.U32(0); }

  template <typename T>
  BodyWriter& Field(const T& value) {
    out_.Write(value);
    return *this;
  }
  BodyWriter& EndFixed() {
    out_.Patch<uint32_t>(0, static_cast<uint32_t>(out_.size()));
    return *this;
  }
  BodyWriter& String(std::string_view text) {
    text = text.substr(0, kMaxHelloString);
    out_.U16(static_cast<uint16_t>(text.size())).Append(AsBytes(text));
    return *this;
  }
  std::vector<std::byte> Release() { return out_.Release(); }

 private:
  ByteWriter out_;
};

// Reads a body of a version that may know more, or fewer, fields than we do. Fields that are not
// there are zero, strings that are not there are empty, as long as the part that version 1 had is.
class BodyReader {
 public:
  BodyReader(ByteSpan body, size_t least_fixed_bytes) : fixed_({}), strings_({}) {
    ByteReader head(body);
    const uint32_t fixed_bytes = head.U32();
    ok_ = head.ok() && fixed_bytes >= least_fixed_bytes && fixed_bytes <= body.size();
    if (!ok_) return;
    fixed_ = ByteReader(body.subspan(4, fixed_bytes - 4));
    strings_ = ByteReader(body.subspan(fixed_bytes));
  }

  template <typename T>
  T Field() {
    return fixed_.Read<T>();
  }
  std::string String() {
    const ByteSpan text = strings_.Take(strings_.U16());
    if (text.size() > kMaxHelloString) ok_ = false;
    return ok_ ? std::string(AsText(text)) : "";
  }
  bool ok() const { return ok_ && fixed_.ok() && strings_.ok(); }

 private:
  ByteReader fixed_;
  ByteReader strings_;
  bool ok_ = false;
};

constexpr size_t kHelloFixed = 28;
constexpr size_t kHelloReplyFixed = 58;
constexpr size_t kAttachFixed = 24;
constexpr size_t kVerdictFixed = 6;

Status Corrupt(std::string_view what) {
  return Status(Code::kCorruptMessage, fmt::format("{} does not parse", what));
}

}  // namespace

std::vector<std::byte> EncodeHello(const Hello& hello) {
  const auto wires = static_cast<uint32_t>(std::min(hello.wires.size(), kMaxHelloWires));
  BodyWriter out;
  out.Field(hello.version_min)
      .Field(hello.version_max)
      .Field(hello.streams)
      .Field(hello.incarnation)
      .Field(hello.max_in_flight)
      .Field(wires)
      .EndFixed();
  out.String(hello.software).String(hello.tenant).String(hello.client_name);
  for (uint32_t i = 0; i < wires; ++i) out.String(hello.wires[i]);
  return out.Release();
}

Result<Hello> ParseHello(ByteSpan body) {
  BodyReader in(body, kHelloFixed);
  Hello hello;
  hello.version_min = in.Field<uint16_t>();
  hello.version_max = in.Field<uint16_t>();
  hello.streams = in.Field<uint32_t>();
  hello.incarnation = in.Field<uint64_t>();
  hello.max_in_flight = in.Field<uint32_t>();
  const auto wires = in.Field<uint32_t>();
  hello.software = in.String();
  hello.tenant = in.String();
  hello.client_name = in.String();
  if (wires > kMaxHelloWires) return Corrupt("HELLO");
  for (uint32_t i = 0; i < wires; ++i) hello.wires.push_back(in.String());
  if (!in.ok() || hello.version_min > hello.version_max) return Corrupt("HELLO");
  return hello;
}

std::vector<std::byte> EncodeHelloReply(const HelloReply& reply) {
  BodyWriter out;
  out.Field(reply.status)
      .Field(reply.version)
      .Field(reply.version_min)
      .Field(reply.version_max)
      .Field(reply.incarnation)
      .Field(reply.token)
      .Field(reply.streams)
      .Field(reply.max_in_flight)
      .Field(reply.max_chunk_bytes)
      .Field(reply.eager_bytes)
      .Field(reply.ucx_port)
      .EndFixed();
  out.String(reply.software).String(reply.wire).String(reply.message).String(reply.ucx_host);
  return out.Release();
}

Result<HelloReply> ParseHelloReply(ByteSpan body) {
  BodyReader in(body, kHelloReplyFixed);
  HelloReply reply;
  reply.status = in.Field<uint16_t>();
  reply.version = in.Field<uint16_t>();
  reply.version_min = in.Field<uint16_t>();
  reply.version_max = in.Field<uint16_t>();
  reply.incarnation = in.Field<uint64_t>();
  reply.token = in.Field<SessionToken>();
  reply.streams = in.Field<uint32_t>();
  reply.max_in_flight = in.Field<uint32_t>();
  reply.max_chunk_bytes = in.Field<uint64_t>();
  reply.eager_bytes = in.Field<uint32_t>();
  reply.ucx_port = in.Field<uint16_t>();
  reply.software = in.String();
  reply.wire = in.String();
  reply.message = in.String();
  reply.ucx_host = in.String();
  if (!in.ok()) return Corrupt("HELLO_REPLY");
  return reply;
}

std::vector<std::byte> EncodeAttach(const Attach& attach) {
  return BodyWriter().Field(attach.token).Field(attach.stream).EndFixed().Release();
}

Result<Attach> ParseAttach(ByteSpan body) {
  BodyReader in(body, kAttachFixed);
  Attach attach;
  attach.token = in.Field<SessionToken>();
  attach.stream = in.Field<uint32_t>();
  if (!in.ok()) return Corrupt("ATTACH");
  return attach;
}

std::vector<std::byte> EncodeVerdict(const Status& status) {
  BodyWriter out;
  out.Field(static_cast<uint16_t>(status.code())).EndFixed().String(status.message());
  return out.Release();
}

Result<Verdict> ParseVerdict(ByteSpan body) {
  BodyReader in(body, kVerdictFixed);
  Verdict verdict;
  verdict.status = in.Field<uint16_t>();
  verdict.message = in.String();
  if (!in.ok()) return Corrupt("a verdict");
  return verdict;
}

Result<uint16_t> AgreeOnVersion(uint16_t peer_min, uint16_t peer_max, std::string_view who) {
  const uint16_t agreed = std::min(peer_max, kProtocolVersion);
  if (agreed >= std::max(peer_min, kOldestProtocolVersion)) return agreed;
  return Status(Code::kVersionSkew,
                fmt::format("{} speaks protocol versions {} to {}, {} speaks {} to {}",
                            SoftwareName(), kOldestProtocolVersion, kProtocolVersion,
                            who.empty() ? "the other side" : who, peer_min, peer_max));
}

std::string SoftwareName() { return "penstock " PENSTOCK_VERSION; }

}  // namespace penstock
