// The requests of a client and the answers of a daemon. Format: docs/formats/messages.md,
// version 1.
//
// Every body starts with the length of its fixed part, and every array states the length of one of
// its elements, so that a later version appends fields and an earlier one skips them. Decoders
// accept any bytes: they return kCorruptMessage or kTooLarge and never read outside their input.
// Views (ByteSpan) in a decoded message point into the input.
//
// Durations are milliseconds, relative: two machines share no clock. A namespace is named by its
// fingerprint; a request lists those it uses once and its items refer to them by position.

#ifndef PENSTOCK_COMMON_PROTOCOL_MESSAGES_H_
#define PENSTOCK_COMMON_PROTOCOL_MESSAGES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/keys/chunk_key.h"
#include "common/transport/frame.h"

namespace penstock {

// What one request may hold. A daemon answers more with kTooLarge.
inline constexpr uint32_t kMaxItems = 16384;
inline constexpr uint32_t kMaxNamespaces = 64;
inline constexpr uint32_t kMaxGroups = 64;
inline constexpr uint32_t kMaxMessageText = 4096;

// Where a chunk lies.
enum class Tier : uint8_t { kNone = 0, kGpu = 1, kDram = 2, kSsd = 3, kRemote = 4 };

// kOpenNamespace: makes a namespace known, so that chunks may be stored in it, and keeps it open
// while the session lasts. Idempotent.
struct OpenNamespaceRequest {
  ByteSpan descriptor;  // NamespaceDescriptor::Encode().
  // The session needs it no longer. (A daemon that does not know the flag opens it once more.)
  bool close = false;

  std::vector<std::byte> Encode() const;
  static Result<OpenNamespaceRequest> Decode(ByteSpan body);
};

// kMatch: the longest stored prefix.
struct MatchRequest {
  struct Group {
    Fingerprint ns;
    uint32_t window_chunks = 0;  // 0: full attention, every chunk of the prefix is needed.
    std::vector<ChunkKey> keys;  // Of chunk 0, 1, 2, ...: the same number in every group.
  };
  uint32_t deadline_ms = 0;
  uint32_t reserve_ttl_ms = 0;  // Not 0: keep what is needed to fetch the answer.
  bool want_details = false;
  std::vector<Group> groups;

  std::vector<std::byte> Encode() const;
  static Result<MatchRequest> Decode(ByteSpan body);
};

struct MatchReply {
  struct Detail {  // Of one chunk that a fetch of the answer needs; groups in order, keys in order.
    uint64_t stored_bytes = 0;
    uint32_t group = 0;
    uint32_t index = 0;
    Tier tier = Tier::kNone;
    friend bool operator==(const Detail&, const Detail&) = default;
  };
  uint32_t matched_chunks = 0;
  uint64_t matched_bytes = 0;  // Of everything that a fetch of the answer needs.
  uint64_t reservation = 0;    // 0: nothing is reserved.
  std::vector<Detail> details;
};

// kFetch: bytes of chunks into the client's memory. They come as DATA frames, item by item in the
// order of the request where nothing is slow; the reply may come before, between or after them.
struct FetchRequest {
  struct Item {
    ChunkKey key;
    uint64_t capacity = 0;  // Bytes that the client has room for.
    uint32_t ns = 0;        // Position in `namespaces`.
  };
  uint32_t deadline_ms = 0;
  bool accept_inexact = false;  // Lossy or query-dependent bytes are welcome.
  uint64_t reservation = 0;
  uint64_t tag = 0;    // Must equal the manifest's, unless that is 0.
  ByteSpan selection;  // Selection::Encode(); empty: everything.
  std::vector<Fingerprint> namespaces;
  std::vector<Item> items;

  std::vector<std::byte> Encode() const;
  static Result<FetchRequest> Decode(ByteSpan body);
};

struct FetchReply {
  struct Item {
    Code status = Code::kMiss;
    uint64_t payload_bytes = 0;  // kOk: that many come as DATA. kBufferTooSmall: room needed.
    ByteSpan manifest;           // kOk: Manifest::Encode().
  };
  std::vector<Item> items;
};

// kStore: bytes of chunks out of the client's memory. Without `eager` the daemon answers with
// kGrant and the client sends the bytes of the granted items; with `eager` (small totals, see
// SessionInfo::eager_bytes) there is no grant and the client sends all bytes at once. The reply
// comes when every item is committed or refused.
struct StoreRequest {
  struct Item {
    ChunkKey key;
    uint64_t payload_bytes = 0;
    uint32_t ns = 0;
    std::optional<ChunkKey> parent;  // The chunk before this one, for retention.
    ByteSpan manifest;
  };
  uint32_t deadline_ms = 0;
  bool replace = false;  // Replace a committed chunk instead of kAlreadyExists.
  bool eager = false;
  std::vector<Fingerprint> namespaces;
  std::vector<Item> items;

  std::vector<std::byte> Encode() const;
  static Result<StoreRequest> Decode(ByteSpan body);
};

// The body of kGrant, and what the replies to kStore, kTouch, kPin and kDrop add: one status an
// item, in the order of the request. In a grant, kOk means: send the bytes.
struct ItemStatuses {
  std::vector<Code> statuses;

  void EncodeTo(ByteWriter& out) const;
  std::vector<std::byte> Encode() const;
  static Result<ItemStatuses> Decode(ByteSpan bytes);
};

// kTouch, kPin (ttl 0: unpin), kDrop.
struct KeysRequest {
  uint32_t deadline_ms = 0;
  uint32_t ttl_ms = 0;
  // Of kDrop: what is stored is to be checked, and dropped only if its checksums do not agree. The
  // answer comes before the check: kOk for what will be looked at.
  bool if_damaged = false;
  Fingerprint ns;
  std::vector<ChunkKey> keys;

  std::vector<std::byte> Encode() const;
  static Result<KeysRequest> Decode(ByteSpan body);
};

// kRelease: gives a reservation back. Answered with kFenced when it is not there any more.
struct ReleaseRequest {
  uint64_t reservation = 0;

  std::vector<std::byte> Encode() const;
  static Result<ReleaseRequest> Decode(ByteSpan body);
};

// kStat: what is stored under one key. (kCancel has an empty body: its request id is that of the
// request to cancel, which is then answered with kCancelled if it was not answered yet. kCancel
// itself has no reply.)
struct StatRequest {
  Fingerprint ns;
  ChunkKey key;

  std::vector<std::byte> Encode() const;
  static Result<StatRequest> Decode(ByteSpan body);
};

struct StatReply {
  uint64_t stored_bytes = 0;
  uint32_t token_count = 0;
  uint32_t pins = 0;
  uint32_t children = 0;
  uint32_t idle_ms = 0;  // Since the last use.
  Tier tier = Tier::kNone;
  ByteSpan manifest;
};

// kReply: a head that is the same for every request, then what the request's type adds, which is
// there only when `status` is kOk.
struct ReplyHead {
  MessageType request = MessageType::kReply;
  Code status = Code::kOk;
  uint32_t retry_after_ms = 0;  // With kBusy.
  std::string message;          // At most kMaxMessageText bytes; longer ones are cut.

  static ReplyHead From(MessageType request, const Status& status, uint32_t retry_after_ms = 0);
  Status ToStatus() const { return Status(status, message); }
};

std::vector<std::byte> EncodeReply(const ReplyHead& head);
std::vector<std::byte> EncodeReply(const ReplyHead& head, const MatchReply& reply);
std::vector<std::byte> EncodeReply(const ReplyHead& head, const FetchReply& reply);
std::vector<std::byte> EncodeReply(const ReplyHead& head, const ItemStatuses& reply);
std::vector<std::byte> EncodeReply(const ReplyHead& head, const StatReply& reply);

struct DecodedReply {
  ReplyHead head;
  ByteSpan rest;  // What the request's type adds.
};
Result<DecodedReply> DecodeReply(ByteSpan body);
Result<MatchReply> DecodeMatchReply(ByteSpan rest);
Result<FetchReply> DecodeFetchReply(ByteSpan rest);
Result<StatReply> DecodeStatReply(ByteSpan rest);

}  // namespace penstock

#endif  // PENSTOCK_COMMON_PROTOCOL_MESSAGES_H_
