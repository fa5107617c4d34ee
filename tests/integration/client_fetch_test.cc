// What a fetch delivers, whatever a daemon sends: the committed bytes, each once, or a named error.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>

#include "tests/integration/client_puppet.h"
#include "tests/integration/client_values.h"

namespace penstock {
namespace {

class ClientFetch : public testing::Test {
 protected:
  ClientFetch() : client_(puppet_.Connect()), ns_(*client_->OpenNamespace(TestDescriptor())) {}

  ChunkKey Key(const std::string& name) { return NamedKey(ns_.fingerprint(), name); }

  OperationPtr FetchOne(const ChunkKey& key, Landing& landing, const FetchOptions& options = {}) {
    return client_->Fetch({ToFetch(ns_, key, landing)}, options, Soon());
  }
  // Waits for the operation and gives the code of its only item.
  static Code Outcome(const OperationPtr& operation) {
    EXPECT_TRUE(operation->Wait(Soon()));
    EXPECT_EQ(operation->items().size(), 1u);
    return operation->items()[0].status.code();
  }
  // Fetches a value of which the daemon says and sends what `send` does.
  Code FetchWith(const std::string& value, Landing& landing,
                 const std::function<void(const Puppet::Message&, const ChunkKey&)>& send) {
    const ChunkKey key = Key("value");
    const OperationPtr fetch = FetchOne(key, landing);
    send(puppet_.Next(MessageType::kFetch), key);
    const Code code = Outcome(fetch);
    EXPECT_TRUE(landing.GuardsIntact());
    if (code == Code::kOk) {
      EXPECT_EQ(landing.view().substr(0, value.size()), value);
    }
    return code;
  }
  void ReplyWith(const Puppet::Message& m, const ChunkKey& key, std::string_view value) {
    FetchAnswer answer;
    answer.Add(key, value);
    puppet_.Reply(m, answer.reply);
  }

  Puppet puppet_;
  std::unique_ptr<Client> client_;
  Namespace ns_;
};

TEST_F(ClientFetch, DeliversWhetherTheReplyComesFirstOrLast) {
  const std::string value = Value(100'000, 1);
  Landing first(value.size()), last(value.size());
  EXPECT_EQ(FetchWith(value, first,
                      [&](const auto& m, const auto& key) {
                        ReplyWith(m, key, value);
                        puppet_.Data(m.id, 0, 0, value);
                      }),
            Code::kOk);
  EXPECT_EQ(FetchWith(value, last,
                      [&](const auto& m, const auto& key) {
                        puppet_.Data(m.id, 0, 0, value);
                        ReplyWith(m, key, value);
                      }),
            Code::kOk);
  EXPECT_EQ(client_->stats().fetched_bytes, 2 * value.size());
}

TEST_F(ClientFetch, PutsFramesInTheirPlaceInWhateverOrderTheyCome) {
  const std::string value = Value(3'000'000, 2);
  Landing landing(value.size() + 10);
  EXPECT_EQ(FetchWith(value, landing,
                      [&](const auto& m, const auto& key) {
                        for (const size_t part : {2, 0, 1}) {
                          puppet_.Data(m.id, 0, part * 1'000'000,
                                       value.substr(part * 1'000'000, 1'000'000));
                        }
                        ReplyWith(m, key, value);
                      }),
            Code::kOk);
  EXPECT_EQ(landing.view().substr(value.size()), std::string(10, Landing::kPoison));
}

TEST_F(ClientFetch, ScattersOverPiecesOfAnySize) {
  const std::string value = Value(10'000, 3);
  std::array<Landing, 4> parts = {Landing(1), Landing(4095), Landing(5000), Landing(904)};
  std::vector<iovec> pieces = {{nullptr, 0}};
  for (Landing& part : parts) pieces.push_back(part.piece());
  const ChunkKey key = Key("scattered");
  const OperationPtr fetch = client_->Fetch({{ns_, key, pieces}}, {}, Soon());
  const auto m = puppet_.Next(MessageType::kFetch);
  ReplyWith(m, key, value);
  for (size_t at = 0; at < value.size(); at += 999) {
    puppet_.Data(m.id, 0, at, value.substr(at, 999));
  }
  ASSERT_EQ(Outcome(fetch), Code::kOk);
  std::string got;
  for (Landing& part : parts) {
    got += part.view();
    EXPECT_TRUE(part.GuardsIntact());
  }
  EXPECT_EQ(got, value);
}

TEST_F(ClientFetch, WrongBytesAreAChecksumMismatchAndCounted) {
  std::string value = Value(50'000, 4);
  std::string torn = value;
  torn[31'337] ^= 1;
  Landing landing(value.size());
  EXPECT_EQ(FetchWith(value, landing,
                      [&](const auto& m, const auto& key) {
                        ReplyWith(m, key, value);
                        puppet_.Data(m.id, 0, 0, torn);
                      }),
            Code::kChecksumMismatch);
  EXPECT_EQ(client_->stats().checksum_failures, 1u);
  EXPECT_EQ(client_->stats().fetched_chunks, 0u);
}

TEST_F(ClientFetch, BytesOfAnotherKeyDoNotPass) {
  const std::string value = Value(5'000, 5);
  Landing landing(value.size());
  EXPECT_EQ(FetchWith(value, landing,
                      [&](const auto& m, const auto&) {
                        ReplyWith(m, Key("another"), value);
                        puppet_.Data(m.id, 0, 0, value);
                      }),
            Code::kChecksumMismatch);
}

TEST_F(ClientFetch, FewerBytesThanTheManifestHasDoNotPass) {
  const std::string value = Value(5'000, 6);
  Landing landing(value.size());
  EXPECT_EQ(FetchWith(value, landing,
                      [&](const auto& m, const auto& key) {
                        FetchAnswer answer;
                        answer.Add(key, value);
                        answer.reply.items[0].payload_bytes = 4'000;
                        puppet_.Reply(m, answer.reply);
                        puppet_.Data(m.id, 0, 0, value.substr(0, 4'000));
                      }),
            Code::kChecksumMismatch);
}

TEST_F(ClientFetch, ARangeThatComesTwiceIsRefused) {
  const std::string value = Value(20'000, 7);
  Landing landing(value.size());
  EXPECT_EQ(FetchWith(value, landing,
                      [&](const auto& m, const auto& key) {
                        puppet_.Data(m.id, 0, 0, value.substr(0, 10'000));
                        // Without the refusal the count would be reached and the hole delivered.
                        puppet_.Data(m.id, 0, 5'000, value.substr(5'000, 10'000));
                        ReplyWith(m, key, value);
                      }),
            Code::kCorruptMessage);
}

TEST_F(ClientFetch, BytesBeyondTheRoomAreRefusedAndNotWritten) {
  const std::string value = Value(20'000, 8);
  Landing landing(10'000);
  // No answer follows: the client ends it by itself.
  EXPECT_EQ(FetchWith(value, landing,
                      [&](const auto& m, const auto&) {
                        puppet_.Data(m.id, 0, 5'000, value.substr(5'000, 10'000));
                      }),
            Code::kCorruptMessage);
  EXPECT_TRUE(landing.Untouched());
}

TEST_F(ClientFetch, BytesBeyondTheAnnouncedLengthAreRefused) {
  const std::string value = Value(20'000, 9);
  Landing landing(value.size());
  EXPECT_EQ(FetchWith(value, landing,
                      [&](const auto& m, const auto& key) {
                        puppet_.Data(m.id, 0, 0, value);
                        ReplyWith(m, key, value.substr(0, 10'000));
                      }),
            Code::kCorruptMessage);
}

TEST_F(ClientFetch, DataForItemsThatDoNotExistIsThrownAway) {
  const std::string value = Value(1'000, 10);
  Landing landing(value.size());
  EXPECT_EQ(FetchWith(value, landing,
                      [&](const auto& m, const auto& key) {
                        puppet_.Data(m.id, 1, 0, value);
                        puppet_.Data(m.id + 1000, 0, 0, value);
                        puppet_.FailItem(m.id, 77, Code::kMiss);
                        ReplyWith(m, key, value);
                        puppet_.Data(m.id, 0, 0, value);
                      }),
            Code::kOk);
}

TEST_F(ClientFetch, AnItemThatTheSenderGivesUpHasItsCode) {
  const std::string value = Value(1'000, 11);
  Landing landing(value.size());
  EXPECT_EQ(FetchWith(value, landing,
                      [&](const auto& m, const auto& key) {
                        ReplyWith(m, key, value);
                        puppet_.FailItem(m.id, 0, Code::kIoError);
                      }),
            Code::kIoError);
}

TEST_F(ClientFetch, EveryKindOfNothingHasItsOwnCode) {
  const std::string value = Value(3'000, 12);
  struct Case {
    const char* name;
    Code answered;
    uint64_t bytes;
  };
  const Case cases[] = {{"absent", Code::kMiss, 0},
                        {"too small", Code::kBufferTooSmall, 99'999},
                        {"other tag", Code::kFormatMismatch, 0},
                        {"busy", Code::kBusy, 0},
                        {"denied", Code::kPermissionDenied, 0}};
  std::vector<Landing> landings(std::size(cases) + 1, Landing(value.size()));
  std::vector<FetchItem> items;
  FetchAnswer answer;
  for (size_t i = 0; i < std::size(cases); ++i) {
    items.push_back(ToFetch(ns_, Key(cases[i].name), landings[i]));
    answer.Add(cases[i].answered, cases[i].bytes);
  }
  items.push_back(ToFetch(ns_, Key("empty"), landings.back()));
  answer.Add(Key("empty"), "");
  const OperationPtr fetch = client_->Fetch(std::move(items), {}, Soon());
  puppet_.Reply(puppet_.Next(MessageType::kFetch), answer.reply);
  ASSERT_TRUE(fetch->Wait(Soon()));
  EXPECT_TRUE(fetch->status().ok());
  for (size_t i = 0; i < std::size(cases); ++i) {
    EXPECT_EQ(fetch->items()[i].status.code(), cases[i].answered) << cases[i].name;
    EXPECT_TRUE(landings[i].Untouched());
  }
  EXPECT_EQ(fetch->items()[1].bytes, 99'999u);
  // An empty value is present, and empty: neither a miss nor an error.
  EXPECT_TRUE(fetch->items().back().status.ok()) << fetch->items().back().status.ToString();
  EXPECT_EQ(fetch->items().back().bytes, 0u);
}

TEST_F(ClientFetch, ResultsArePositionalWithDuplicatesAndTheBadItemIsNamed) {
  const std::string a = Value(2'000, 13), b = Value(3'000, 14);
  std::vector<Landing> landings(4, Landing(3'000));
  const ChunkKey ka = Key("a"), kb = Key("b"), kc = Key("c");
  const OperationPtr fetch =
      client_->Fetch({ToFetch(ns_, ka, landings[0]), ToFetch(ns_, kb, landings[1]),
                      ToFetch(ns_, ka, landings[2]), ToFetch(ns_, kc, landings[3])},
                     {}, Soon());
  const auto m = puppet_.Next(MessageType::kFetch);
  FetchAnswer answer;
  answer.Add(ka, a);
  answer.Add(kb, b);
  answer.Add(ka, a);
  answer.Add(Code::kIoError);
  puppet_.Data(m.id, 2, 0, a);
  puppet_.Data(m.id, 0, 0, a);
  puppet_.Data(m.id, 1, 0, b);
  puppet_.Reply(m, answer.reply);
  ASSERT_TRUE(fetch->Wait(Soon()));
  ASSERT_EQ(fetch->items().size(), 4u);
  EXPECT_EQ(landings[0].view().substr(0, a.size()), a);
  EXPECT_EQ(landings[1].view(), b);
  EXPECT_EQ(landings[2].view().substr(0, a.size()), a);
  EXPECT_EQ(fetch->items()[1].token_count, 256u);
  EXPECT_EQ(fetch->items()[3].status.code(), Code::kIoError);
  EXPECT_THAT(fetch->items()[3].status.message(),
              testing::AllOf(testing::HasSubstr("item 3"), testing::HasSubstr(kc.ToShortHex())));
}

TEST_F(ClientFetch, AnEmptyBatchIsDoneAndOk) {
  const OperationPtr fetch = client_->Fetch({}, {}, Soon());
  ASSERT_TRUE(fetch->Wait(Soon()));
  EXPECT_TRUE(fetch->status().ok());
  EXPECT_TRUE(fetch->items().empty());
}

TEST_F(ClientFetch, BigBatchesGoInSeveralRequestsAndComeBackInOrder) {
  constexpr size_t kItems = 5'000;
  std::vector<FetchItem> items;
  std::vector<char> room(kItems);
  for (size_t i = 0; i < kItems; ++i) {
    items.push_back({ns_, Key(std::to_string(i)), {{&room[i], 1}}});
  }
  const OperationPtr fetch = client_->Fetch(std::move(items), {}, Soon());
  for (size_t answered = 0; answered < kItems;) {
    const auto m = puppet_.Next(MessageType::kFetch);
    const auto request = FetchRequest::Decode(m.body);
    ASSERT_TRUE(request.ok());
    ASSERT_LE(request->items.size(), kMaxItems);
    FetchReply reply;
    for (size_t i = 0; i < request->items.size(); ++i, ++answered) {
      EXPECT_EQ(request->items[i].key, Key(std::to_string(answered)));
      const Code code = answered % 7 == 0 ? Code::kBusy : Code::kMiss;
      reply.items.push_back({.status = code});
    }
    puppet_.Reply(m, reply);
  }
  ASSERT_TRUE(fetch->Wait(Soon()));
  for (size_t i = 0; i < kItems; ++i) {
    ASSERT_EQ(fetch->items()[i].status.code(), i % 7 == 0 ? Code::kBusy : Code::kMiss) << i;
  }
}

TEST_F(ClientFetch, InexactChunksAndOtherTagsAreNotDeliveredToWhoDidNotAsk) {
  const std::string value = Value(4'000, 15);
  const ChunkKey key = Key("tagged");
  const auto fetch = [&](const FetchOptions& options, uint32_t flags, uint64_t tag) {
    Landing landing(value.size());
    const OperationPtr operation = FetchOne(key, landing, options);
    const auto m = puppet_.Next(MessageType::kFetch);
    Manifest manifest = PlainManifest(key, value);
    manifest.flags = flags;
    manifest.tag = tag;
    const auto encoded = manifest.Encode();
    puppet_.Reply(m, FetchReply{{{Code::kOk, value.size(), encoded}}});
    puppet_.Data(m.id, 0, 0, value);
    return Outcome(operation);
  };
  EXPECT_EQ(fetch({}, 0, 0), Code::kOk);
  EXPECT_EQ(fetch({}, kManifestLossy, 0), Code::kFormatMismatch);
  EXPECT_EQ(fetch({}, kManifestQueryDependent, 0), Code::kFormatMismatch);
  EXPECT_EQ(fetch({.accept_inexact = true}, kManifestLossy, 0), Code::kOk);
  EXPECT_EQ(fetch({}, 0, 5), Code::kFormatMismatch);
  EXPECT_EQ(fetch({.tag = 5}, 0, 5), Code::kOk);
}

TEST_F(ClientFetch, ARefusedRequestIsTheStatusOfEveryItem) {
  Landing landing(100);
  const OperationPtr fetch = FetchOne(Key("x"), landing);
  puppet_.Refuse(puppet_.Next(MessageType::kFetch), Status(Code::kBusy, "full up"));
  EXPECT_EQ(Outcome(fetch), Code::kBusy);
  EXPECT_EQ(fetch->status().code(), Code::kBusy);
  EXPECT_THAT(fetch->status().message(), testing::HasSubstr("full up"));
}

TEST_F(ClientFetch, AnAnswerThatDoesNotFitTheRequestIsAnErrorAndNoMore) {
  Landing landing(100);
  const OperationPtr fetch = FetchOne(Key("x"), landing);
  puppet_.Reply(puppet_.Next(MessageType::kFetch), FetchReply{});
  EXPECT_EQ(Outcome(fetch), Code::kCorruptMessage);
  EXPECT_TRUE(client_->stats().connected);
}

TEST_F(ClientFetch, BadMemoryIsNamedItemByItemBeforeAnyIo) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  auto* pages = static_cast<std::byte*>(
      mmap(nullptr, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_EQ(mprotect(pages + page, page, PROT_READ), 0);
  ASSERT_EQ(munmap(pages + 3 * page, page), 0);
  const std::string value = Value(100, 16);
  Landing good(value.size());
  const ChunkKey key = Key("k");
  const std::vector<std::vector<iovec>> bad = {
      {{nullptr, 10}},                                   // Null.
      {{pages + page, 10}},                              // Read-only.
      {{pages, page + 1}},                               // Its last byte is read-only.
      {{pages + 3 * page - 1, 2}},                       // One past the end.
      {good.piece(), {pages + 3 * page, 1}},             // One bad piece among good ones.
      {{reinterpret_cast<void*>(UINTPTR_MAX - 5), 10}},  // Wraps.
  };
  std::vector<FetchItem> items;
  for (const auto& pieces : bad) items.push_back({ns_, key, pieces});
  items.push_back({Namespace(), key, {good.piece()}});
  items.push_back(ToFetch(ns_, key, good));
  const OperationPtr fetch = client_->Fetch(std::move(items), {}, Soon());
  const auto m = puppet_.Next(MessageType::kFetch);
  EXPECT_EQ(FetchRequest::Decode(m.body)->items.size(), 1u);
  ReplyWith(m, key, value);
  puppet_.Data(m.id, 0, 0, value);
  ASSERT_TRUE(fetch->Wait(Soon()));
  for (size_t i = 0; i < bad.size(); ++i) {
    EXPECT_EQ(fetch->items()[i].status.code(), Code::kBadBuffer) << i;
  }
  EXPECT_EQ(fetch->items()[bad.size()].status.code(), Code::kInvalidArgument);
  EXPECT_TRUE(fetch->items().back().status.ok());
  EXPECT_EQ(good.view(), value);
  munmap(pages, 3 * page);
}

TEST_F(ClientFetch, MemoryUnmappedUnderAFetchIsAnErrorAndNoCrash) {
  constexpr size_t kBytes = 1 << 20;
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const ChunkKey key = Key("gone");
  const std::string value = Value(kBytes, 17);
  const OperationPtr fetch = client_->Fetch({{ns_, key, {{memory, kBytes}}}}, {}, Soon());
  const auto m = puppet_.Next(MessageType::kFetch);
  ASSERT_EQ(munmap(memory, kBytes), 0);
  puppet_.Data(m.id, 0, 0, value);
  ReplyWith(m, key, value);
  EXPECT_EQ(Outcome(fetch), Code::kBadBuffer);
  // The session survives, and so does what else is on it.
  Landing landing(100);
  const OperationPtr next = FetchOne(key, landing);
  puppet_.Reply(puppet_.Next(MessageType::kFetch), FetchReply{{{Code::kMiss, 0, {}}}});
  EXPECT_EQ(Outcome(next), Code::kMiss);
  EXPECT_EQ(puppet_.sessions(), 1u);
}

}  // namespace
}  // namespace penstock
