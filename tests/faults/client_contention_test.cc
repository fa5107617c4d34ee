// Many clients, each with a session of its own, and what they may see of one another: whole values,
// what the others were told is stored, and nothing of another generation.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/integration/client_values.h"
#include "tests/integration/daemon_process.h"
#include "tests/integration/daemon_raw_client.h"

namespace penstock {
namespace {

using testing::AnyOf;

class ClientContention : public testing::Test {
 protected:
  void SetUp() override {
    auto daemon = DaemonProcess::Start({.args = {"--arena.size=256MiB"}});
    ASSERT_TRUE(daemon.ok()) << daemon.status().ToString();
    daemon_ = std::move(*daemon);
  }
  struct One {
    std::unique_ptr<Client> client;
    Namespace ns;
  };
  One Connect(const NamespaceDescriptor& descriptor = TestDescriptor()) const {
    ClientOptions options;
    options.address = daemon_->address().ToString();
    options.wire = "tcp";
    One one{.client = std::move(Client::Create(options)).value()};
    EXPECT_TRUE(one.client->WaitConnected(Soon())) << one.client->stats().last_error;
    one.ns = *one.client->OpenNamespace(descriptor);
    return one;
  }
  static Code Put(One& one, const ChunkKey& key, std::string value, bool replace = true) {
    const auto store = one.client->Store({ToStore(one.ns, key, value)}, replace, Soon());
    EXPECT_TRUE(store->Wait(Soon(60)));
    return store->items()[0].status.code();
  }
  static Result<std::string> Get(One& one, const ChunkKey& key, size_t room) {
    std::string value(room, Landing::kPoison);
    const auto fetch = one.client->Fetch({{one.ns, key, {Piece(value)}}}, {}, Soon());
    EXPECT_TRUE(fetch->Wait(Soon(60)));
    if (!fetch->items()[0].status.ok()) return fetch->items()[0].status;
    value.resize(fetch->items()[0].bytes);
    return value;
  }
  static uint32_t Matched(One& one, const ChunkKey& key) {
    const auto match = one.client->Match({{one.ns, {key}}}, {}, Soon());
    EXPECT_TRUE(match->Wait(Soon(60)));
    return match->match().chunks;
  }

  // Eight clients store versions of one key while four others look at it.
  void RaceOnOneKey(size_t bytes, uint32_t rounds) {
    constexpr uint32_t kWriters = 8, kReaders = 4;
    const ChunkKey key =
        NamedKey(TestDescriptor().ComputeFingerprint(), "contested" + std::to_string(bytes));
    std::atomic<uint32_t> writing{kWriters}, wrong{0}, read{0};
    std::vector<std::thread> threads;
    for (uint32_t w = 0; w < kWriters; ++w) {
      threads.emplace_back([&, w] {
        One one = Connect();
        for (uint32_t i = 0; i < rounds; ++i) {
          const Code code =
              Put(one, key, TellingBytes(key, w * 1000 + i, bytes), /*replace=*/i % 2 == 0);
          EXPECT_THAT(code, AnyOf(Code::kOk, Code::kAlreadyExists, Code::kBusy));
        }
        --writing;
      });
    }
    for (uint32_t r = 0; r < kReaders; ++r) {
      threads.emplace_back([&] {
        One one = Connect();
        while (writing > 0) {
          const auto got = Get(one, key, bytes + 64);
          if (!got.ok()) {
            wrong += got.status().code() == Code::kMiss ? 0 : 1;
            continue;
          }
          ++read;
          if (got->size() != bytes || (bytes >= 64 && !ToldVersion(key, *got))) ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0u) << bytes;
    EXPECT_GT(read, 0u) << bytes;
    // What is said to be there can be had; one drop is enough; then it is gone for both questions.
    One after = Connect();
    EXPECT_EQ(Matched(after, key), 1u);
    EXPECT_TRUE(Get(after, key, bytes).ok());
    EXPECT_EQ(after.client->Drop(after.ns, {key}, Soon())->Wait(Soon()), true);
    EXPECT_EQ(Matched(after, key), 0u);
    EXPECT_EQ(Get(after, key, bytes).status().code(), Code::kMiss);
  }

  std::unique_ptr<DaemonProcess> daemon_;
};

TEST_F(ClientContention, WritersOfOneKeyNeverShowHalfAValue) {
  RaceOnOneKey(0, 60);
  RaceOnOneKey(1, 60);
  RaceOnOneKey(4096, 60);
  RaceOnOneKey(4u << 20, 6);
}

TEST_F(ClientContention, WhatOneClientWasToldIsStoredAnotherFindsAtOnce) {
  One writer = Connect(), reader = Connect();
  for (uint32_t i = 0; i < 2000; ++i) {
    const ChunkKey key = NamedKey(writer.ns.fingerprint(), std::to_string(i));
    const std::string value = Value(i % 3 == 0 ? 100'000 : 100 + i, i);
    ASSERT_EQ(Put(writer, key, value), Code::kOk);
    if (i % 2 == 0) {
      ASSERT_EQ(Matched(reader, key), 1u) << i;
    }
    const auto got = Get(reader, key, value.size());
    ASSERT_TRUE(got.ok()) << i << got.status().ToString();
    ASSERT_TRUE(*got == value) << i;
  }
}

// An adapter is loaded again under its old name: the new generation starts from nothing, and what
// old workers still store never reaches it.
TEST_F(ClientContention, AGenerationOfAnAdapterNeverSeesTheOneBefore) {
  NamespaceDescriptor first = TestDescriptor(), second = TestDescriptor();
  first.adapter = second.adapter = "support-bot";
  first.adapter_generation = 1;
  second.adapter_generation = 2;
  constexpr uint32_t kKeys = 20;
  const auto name = [](uint32_t i) { return "chunk" + std::to_string(i); };
  {
    One one = Connect(first);
    for (uint32_t i = 0; i < kKeys; ++i) {
      const ChunkKey key = NamedKey(one.ns.fingerprint(), name(i));
      ASSERT_EQ(Put(one, key, TellingBytes(key, 1, 5000)), Code::kOk);
    }
  }
  std::atomic<bool> over{false};
  std::vector<std::thread> old_workers;
  for (int t = 0; t < 4; ++t) {
    old_workers.emplace_back([&] {
      One one = Connect(first);
      for (uint32_t i = 0; !over; ++i) {
        const ChunkKey key = NamedKey(one.ns.fingerprint(), name(i % kKeys));
        EXPECT_THAT(Put(one, key, TellingBytes(key, 1, 5000)), AnyOf(Code::kOk, Code::kBusy));
      }
    });
  }
  One reader = Connect(second);
  for (uint32_t i = 0; i < 1000; ++i) {
    const ChunkKey own = NamedKey(reader.ns.fingerprint(), name(i % kKeys));
    const ChunkKey old = NamedKey(first.ComputeFingerprint(), name(i % kKeys));
    EXPECT_EQ(Matched(reader, own), 0u);
    EXPECT_EQ(Get(reader, own, 5000).status().code(), Code::kMiss);
    // Not even under the old generation's very keys.
    EXPECT_EQ(Matched(reader, old), 0u);
    EXPECT_EQ(Get(reader, old, 5000).status().code(), Code::kFormatMismatch);
  }
  over = true;
  for (std::thread& worker : old_workers) worker.join();
}

}  // namespace
}  // namespace penstock
