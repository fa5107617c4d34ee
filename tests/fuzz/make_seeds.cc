// Writes the first inputs of every corpus with the real encoders: make_seeds FOLDER. Run it after a
// format gained a field, and keep what it writes.

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/format/manifest.h"
#include "common/format/selection.h"
#include "common/keys/namespace.h"
#include "common/protocol/messages.h"
#include "common/transport/frame.h"
#include "common/transport/hello.h"

namespace penstock {
namespace {

class Corpus {
 public:
  explicit Corpus(std::filesystem::path folder) : folder_(std::move(folder)) {}

  // `selector`: a byte before the encoding, for harnesses that choose a decoder by it; -1: none.
  void Add(const std::string& target, const std::string& name, ByteSpan bytes, int selector = -1) {
    std::filesystem::create_directories(folder_ / target);
    std::ofstream file(folder_ / target / name, std::ios::binary | std::ios::trunc);
    if (selector >= 0) file.put(static_cast<char>(selector));
    file.write(AsText(bytes).data(), static_cast<std::streamsize>(bytes.size()));
    ok_ = ok_ && file.good();
  }
  bool ok() const { return ok_; }

 private:
  std::filesystem::path folder_;
  bool ok_ = true;
};

ChunkKey Key(uint8_t fill) {
  ChunkKey key;
  std::memset(static_cast<void*>(&key), fill, sizeof(key));
  return key;
}
Fingerprint Space(uint8_t fill) {
  Fingerprint ns;
  std::memset(static_cast<void*>(&ns), fill, sizeof(ns));
  return ns;
}

NamespaceDescriptor Descriptor() {
  NamespaceDescriptor descriptor;
  descriptor.tenant = "default";
  descriptor.model = "gemma-3-270m";
  descriptor.model_revision = "0123abcd";
  descriptor.kv_dtype = "bfloat16";
  descriptor.kv_scale_mode = "none";
  descriptor.layout = "vllm.LBHNC.v1";
  descriptor.block_tokens = 128;
  descriptor.chunk_tokens = 256;
  descriptor.group_kind = "sliding:512";
  descriptor.extension = {{"hash", "sha256"}, {"seed", "0"}};
  return descriptor;
}

void AddFormats(Corpus& corpus) {
  corpus.Add("namespace", "plain", Descriptor().Encode());
  corpus.Add("namespace", "json", AsBytes(Descriptor().ToJson(NamespaceDescriptor::Salt::kShow)));
  corpus.Add("selection", "layers", Selection::Layers(3, 4).Encode());
  corpus.Add("selection", "kinds", Selection::Kinds({SegmentKind::kK, SegmentKind::kV}).Encode());
  corpus.Add("manifest", "plain", Manifest::Plain(65536, 7, 256).Encode());
  Manifest layered;
  layered.token_count = 3;
  layered.tag = 9;
  for (uint16_t layer = 0; layer < 4; ++layer) {
    Segment segment;
    segment.kind = SegmentKind::kKv;
    segment.layer_first = layer;
    segment.layer_count = 1;
    segment.logical_bytes = segment.stored_bytes = 4096;
    layered.segments.push_back(segment);
  }
  layered.positions = {5, 6, 9};
  corpus.Add("manifest", "layered", layered.Encode());

  const FrameHeader frame = MakeFrameHeader(MessageType::kMatch, 12, 345);
  corpus.Add("frame", "header", {reinterpret_cast<const std::byte*>(&frame), sizeof(frame)});
  const std::string messages("\1\0\0\2\5\0\3\364\1\4\15\2", 12);  // Empty, short, long, too large.
  corpus.Add("frame", "messages", AsBytes(messages));
  DataHeader data;
  data.item = 1;
  data.offset = 1u << 20;
  data.length = 1u << 20;
  corpus.Add("frame", "data", {reinterpret_cast<const std::byte*>(&data), sizeof(data)});
}

void AddHellos(Corpus& corpus) {
  Hello hello;
  hello.streams = 2;
  hello.incarnation = 99;
  hello.max_in_flight = 64;
  hello.software = SoftwareName();
  hello.tenant = "default";
  hello.client_name = "worker-0";
  hello.wires = {"ucx", "tcp"};
  corpus.Add("hello", "hello", EncodeHello(hello), 0);
  HelloReply reply;
  reply.version = 1;
  reply.incarnation = 100;
  reply.streams = 2;
  reply.max_chunk_bytes = 1u << 30;
  reply.software = SoftwareName();
  reply.wire = "tcp";
  corpus.Add("hello", "reply", EncodeHelloReply(reply), 1);
  corpus.Add("hello", "attach", EncodeAttach({.stream = 1}), 2);
  corpus.Add("hello", "goodbye", EncodeVerdict(Status(Code::kBusy, "too many sessions")), 3);
}

void AddTexts(Corpus& corpus) {
  corpus.Add("address", "tcp", AsBytes("tcp://127.0.0.1:7411"));
  corpus.Add("address", "v6", AsBytes("tcp://[::1]:0"));
  corpus.Add("address", "bare", AsBytes("node-1:7411"));
  corpus.Add("address", "unix", AsBytes("unix:///run/penstock.sock"));
  corpus.Add("address", "bytes", AsBytes("1.5 GiB"));
  corpus.Add("address", "duration", AsBytes("250ms"));
  corpus.Add("address", "key", AsBytes(std::string(60, 'a') + "09AF"));
  corpus.Add("config", "yaml",
             AsBytes("# What.\nlisten: [a, b]\nstore:\n  bytes: 4GiB\n  x: \"y\"\n"), 0);
  corpus.Add("config", "flags",
             AsBytes("--text=a b\n--flag\n--count=-2\n--bytes=64KiB\n--auto-bytes=auto\n"
                     "--patience\n250ms\n--list=x, y"),
             1);
}

void AddRequests(Corpus& corpus) {
  const std::vector<std::byte> descriptor = Descriptor().Encode();
  corpus.Add("messages", "open_namespace", OpenNamespaceRequest{descriptor}.Encode(), 0);

  MatchRequest match;
  match.deadline_ms = 50;
  match.reserve_ttl_ms = 1000;
  match.want_details = true;
  match.groups = {{Space(1), 0, {Key(1), Key(2)}}, {Space(2), 2, {Key(3), Key(4)}}};
  corpus.Add("messages", "match", match.Encode(), 1);

  FetchRequest fetch;
  fetch.deadline_ms = 50;
  fetch.reservation = 77;
  const std::vector<std::byte> selection = Selection::Layers(0, 2).Encode();
  fetch.selection = selection;
  fetch.namespaces = {Space(1)};
  fetch.items = {{Key(1), 4096, 0}, {Key(2), 4096, 0}};
  corpus.Add("messages", "fetch", fetch.Encode(), 2);

  const std::vector<std::byte> manifest = Manifest::Plain(4096, 7, 256).Encode();
  StoreRequest store;
  store.deadline_ms = 50;
  store.namespaces = {Space(1)};
  store.items = {{Key(1), 4096, 0, Key(9), manifest}, {Key(2), 4096, 0, {}, manifest}};
  corpus.Add("messages", "store", store.Encode(), 3);

  corpus.Add("messages", "statuses", ItemStatuses{{Code::kOk, Code::kMiss}}.Encode(), 4);
  KeysRequest keys;
  keys.ttl_ms = 1000;
  keys.ns = Space(1);
  keys.keys = {Key(1), Key(2)};
  corpus.Add("messages", "keys", keys.Encode(), 5);
  corpus.Add("messages", "release", ReleaseRequest{77}.Encode(), 6);
  corpus.Add("messages", "stat", StatRequest{Space(1), Key(1)}.Encode(), 7);
}

void AddReplies(Corpus& corpus) {
  const std::vector<std::byte> manifest = Manifest::Plain(4096, 7, 256).Encode();
  const auto head = [](MessageType type) { return ReplyHead::From(type, Status::Ok()); };
  MatchReply match;
  match.matched_chunks = 1;
  match.matched_bytes = 4096;
  match.details = {{4096, 0, 0, Tier::kDram}};
  corpus.Add("messages", "match_reply", EncodeReply(head(MessageType::kMatch), match), 8);
  FetchReply fetch;
  fetch.items = {{Code::kOk, 4096, manifest}, {Code::kMiss, 0, {}}};
  corpus.Add("messages", "fetch_reply", EncodeReply(head(MessageType::kFetch), fetch), 8);
  StatReply stat;
  stat.stored_bytes = 4096;
  stat.tier = Tier::kDram;
  stat.manifest = manifest;
  corpus.Add("messages", "stat_reply", EncodeReply(head(MessageType::kStat), stat), 8);
  corpus.Add("messages", "store_reply",
             EncodeReply(head(MessageType::kStore), ItemStatuses{{Code::kOk, Code::kBusy}}), 8);
  const auto busy = ReplyHead::From(MessageType::kStore, Status(Code::kBusy, "too many"), 20);
  corpus.Add("messages", "busy_reply", EncodeReply(busy), 8);
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_seeds FOLDER\n");
    return 2;
  }
  penstock::Corpus corpus(argv[1]);
  penstock::AddFormats(corpus);
  penstock::AddHellos(corpus);
  penstock::AddTexts(corpus);
  penstock::AddRequests(corpus);
  penstock::AddReplies(corpus);
  if (!corpus.ok()) std::fprintf(stderr, "cannot write below %s\n", argv[1]);
  return corpus.ok() ? 0 : 1;
}
