// References without a session: what the two sides tell each other, what is referred to, and what
// reading it finds.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/transport/references.h"

namespace penstock {
namespace {

using testing::SizeIs;

constexpr SessionToken kToken{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
constexpr size_t kFileBytes = 1u << 20;
constexpr size_t kLong = References::kMinBytes;

DataHeader HeaderIn(const RawDataHeader& raw) {
  return ParseDataHeader(ByteSpan(raw).subspan(sizeof(FrameHeader))).value();
}
MessageType TypeOf(const RawDataHeader& raw) {
  return static_cast<MessageType>(
      ParseFrameHeader(ByteSpan(raw).first(sizeof(FrameHeader))).value().type);
}

class TransportReferences : public testing::Test {
 protected:
  TransportReferences() : fd_(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    EXPECT_EQ(ftruncate(fd_.get(), kFileBytes), 0);
    EXPECT_EQ(fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
    base_ = static_cast<std::byte*>(
        mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0));
    daemon_ = std::make_unique<References>(
        true, kToken, ExportedMemory{.fd = fd_.get(), .base = base_, .bytes = kFileBytes});
    client_ = std::make_unique<References>(false, kToken, std::nullopt);
  }
  ~TransportReferences() override { munmap(base_, kFileBytes); }

  // As two ends of a socket would. `pid`: what the daemon sees of the client.
  void Meet(pid_t pid = getpid(), bool descriptor_arrives = true) {
    const References::Greeting greeting = daemon_->Greet();
    Meet(pid, greeting.header, UniqueFd(descriptor_arrives ? dup(greeting.fd) : -1));
  }
  void Meet(pid_t pid, const RawDataHeader& greeting, UniqueFd fd) {
    const auto offer = client_->OnMemory(HeaderIn(greeting), std::move(fd), 0);
    ASSERT_TRUE(offer.ok() && offer->has_value());
    const auto answer = daemon_->OnMemory(HeaderIn(**offer), UniqueFd(), pid);
    ASSERT_TRUE(answer.ok() && answer->has_value());
    const auto end = client_->OnMemory(HeaderIn(**answer), UniqueFd(), 0);
    EXPECT_TRUE(end.ok() && !end->has_value());
  }

  // The one frame of a payload that lies in `pieces`.
  static OutFrame Frame(const std::vector<iovec>& pieces) {
    uint64_t length = 0;
    for (const iovec& piece : pieces) length += piece.iov_len;
    static SendQueue queue({.max_pieces = kMaxReferences},
                           [](const std::function<void()>& fn) { fn(); });
    queue.Push(7, {.item = 3, .offset = 100, .length = length}, pieces, nullptr);
    OutFrame frame;
    EXPECT_TRUE(queue.NextFrame(frame));
    return frame;
  }
  static std::vector<Reference> Named(const OutFrame& frame) {
    return ParseReferences(frame.references, frame.length).value();
  }

  const UniqueFd fd_;
  std::byte* base_ = nullptr;
  std::unique_ptr<References> daemon_, client_;
};

TEST_F(TransportReferences, WhatLiesInTheDaemonsFileIsReadFromThere) {
  Meet();
  std::memset(base_ + 5000, 'x', kLong);
  OutFrame frame = Frame({{base_ + 5000, 1000}, {base_ + 6000, kLong - 1000}});
  daemon_->Refer(frame);
  ASSERT_TRUE(frame.is_reference());
  EXPECT_EQ(TypeOf(frame.header), MessageType::kReference);
  EXPECT_EQ(HeaderIn(frame.header).offset, 100u);
  EXPECT_EQ(HeaderIn(frame.header).length, kLong);
  const auto named = Named(frame);
  ASSERT_THAT(named, SizeIs(2));
  EXPECT_EQ(named[0].address, 5000u) << "an offset, not an address of the daemon's";
  std::string first(10, ' '), rest(kLong - 10, ' ');
  EXPECT_TRUE(client_->Take(named, {{first.data(), 10}, {rest.data(), rest.size()}}).ok());
  EXPECT_EQ(first + rest, std::string(kLong, 'x'));
}

TEST_F(TransportReferences, WhatLiesInTheClientIsReadFromThere) {
  Meet();
  const std::string payload(kLong, 'y');
  OutFrame frame = Frame({{const_cast<char*>(payload.data()), payload.size()}});
  client_->Refer(frame);
  ASSERT_TRUE(frame.is_reference());
  EXPECT_TRUE(daemon_->Take(Named(frame), {{base_, kLong}}).ok());
  EXPECT_EQ(std::memcmp(base_, payload.data(), kLong), 0);
}

TEST_F(TransportReferences, ShortPayloadsAndForeignMemoryTravel) {
  Meet();
  std::string outside(kLong, 'z');
  for (const auto& pieces :
       std::vector<std::vector<iovec>>{{{base_, kLong - 1}},
                                       {{outside.data(), outside.size()}},
                                       {{base_, kLong}, {outside.data(), 1}},
                                       {{base_ + kFileBytes - 10, 11}, {base_, kLong}}}) {
    OutFrame frame = Frame(pieces);
    daemon_->Refer(frame);
    EXPECT_FALSE(frame.is_reference());
    EXPECT_EQ(TypeOf(frame.header), MessageType::kData);
  }
}

TEST_F(TransportReferences, NothingIsReferredToBeforeTheOtherSideCanReadIt) {
  std::string payload(kLong, 'y');
  const auto referred = [&](const References& from, void* memory) {
    OutFrame frame = Frame({{memory, kLong}});
    from.Refer(frame);
    return frame.is_reference();
  };
  EXPECT_FALSE(referred(*daemon_, base_));
  EXPECT_FALSE(referred(*client_, payload.data()));
  Meet(/*pid=*/0);  // A process that the daemon cannot see, as across containers.
  EXPECT_TRUE(referred(*daemon_, base_));
  EXPECT_FALSE(referred(*client_, payload.data()));
}

TEST_F(TransportReferences, AnotherProcessOfThatNumberIsNotTakenForTheClient) {
  int started[2];
  ASSERT_EQ(pipe2(started, O_CLOEXEC), 0);
  const pid_t other = fork();
  if (other == 0) {
    execlp("sleep", "sleep", "60", nullptr);
    _exit(1);
  }
  close(started[1]);
  char end = 0;
  EXPECT_EQ(read(started[0], &end, 1), 0) << "it has other memory than this process now";
  close(started[0]);
  Meet(other);
  std::string payload(kLong, 'y');
  OutFrame frame = Frame({{payload.data(), payload.size()}});
  client_->Refer(frame);
  EXPECT_FALSE(frame.is_reference());
  kill(other, SIGKILL);
  waitpid(other, nullptr, 0);
}

TEST_F(TransportReferences, WithoutTheDescriptorTheDaemonsPayloadTravels) {
  Meet(getpid(), /*descriptor_arrives=*/false);
  OutFrame frame = Frame({{base_, kLong}});
  daemon_->Refer(frame);
  EXPECT_FALSE(frame.is_reference());
}

TEST_F(TransportReferences, BadMemoryOfEitherSideIsAnErrorAndNoSignal) {
  Meet();
  const Pieces nowhere{{reinterpret_cast<void*>(uintptr_t{8}), 100}};
  EXPECT_EQ(client_->Take({{0, 100}}, nowhere).code(), Code::kBadBuffer);
  EXPECT_EQ(client_->AnswerFor(Status(Code::kBadBuffer)), Code::kOk) << "not the daemon's fault";
  const Status unreadable = daemon_->Take({{8, 100}}, {{base_, 100}});
  EXPECT_EQ(unreadable.code(), Code::kBadBuffer);
  EXPECT_EQ(daemon_->AnswerFor(unreadable), Code::kBadBuffer);
}

TEST_F(TransportReferences, WhatWasNotOfferedIsRefused) {
  std::string room(100, ' ');
  const Pieces to{{room.data(), room.size()}};
  EXPECT_EQ(client_->Take({{0, 100}}, to).code(), Code::kCorruptMessage);
  EXPECT_EQ(daemon_->Take({{0, 100}}, to).code(), Code::kCorruptMessage);
  Meet();
  for (const uint64_t address :
       {uint64_t{kFileBytes - 99}, uint64_t{kFileBytes}, UINT64_MAX - 100}) {
    EXPECT_EQ(client_->Take({{address, 100}}, to).code(), Code::kCorruptMessage);
  }
  EXPECT_TRUE(client_->Take({{kFileBytes - 100, 100}}, to).ok());
}

TEST(TransportReferencesParse, ListsThatDoNotFitTheirPayloadAreRefused) {
  const auto parse = [](const std::vector<Reference>& references, uint64_t payload) {
    const auto* raw = reinterpret_cast<const std::byte*>(references.data());
    return ParseReferences({raw, references.size() * sizeof(Reference)}, payload).status().code();
  };
  EXPECT_EQ(parse({{1, 2}, {3, 4}}, 6), Code::kOk);
  EXPECT_EQ(parse({{1, 2}, {3, 4}}, 7), Code::kCorruptMessage);
  EXPECT_EQ(parse({{1, 2}, {3, 4}}, 5), Code::kCorruptMessage);
  EXPECT_EQ(parse({}, 0), Code::kCorruptMessage);
  EXPECT_EQ(parse({{UINT64_MAX, 2}}, 2), Code::kCorruptMessage);
  EXPECT_EQ(parse({{0, UINT64_MAX}, {0, 1}}, 0), Code::kCorruptMessage);
  EXPECT_EQ(parse(std::vector<Reference>(kMaxReferences + 1, {0, 1}), kMaxReferences + 1),
            Code::kCorruptMessage);
  EXPECT_EQ(ParseReferences(std::vector<std::byte>(17), 1).status().code(), Code::kCorruptMessage);
}

}  // namespace
}  // namespace penstock
