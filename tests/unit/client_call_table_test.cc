// CallTable on a session that the test scripts: the moments between the end of a session and the
// news of it.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/lib/call_table.h"
#include "client/lib/fetch_call.h"
#include "tests/unit/scripted_session.h"

namespace penstock {
namespace {

class ClientCallTable : public testing::Test, public OperationOwner {
 protected:
  ClientCallTable() { session_.mutable_info().max_in_flight = 1; }
  ~ClientCallTable() override { loop_->Stop(); }

  EventLoop& loop() override { return *loop_; }
  void Abort(const std::shared_ptr<OperationState>&, const Status&) override {}

  // A fetch of one chunk into `room_`.
  std::shared_ptr<Call> Fetch() {
    auto operation = std::make_shared<OperationState>(
        *this, OperationState::Kind::kFetch, Deadline::After(std::chrono::hours(1)), nullptr);
    operation->mutable_items().resize(1);
    FetchCall::Target target;
    target.room = PieceMap({{room_.data(), room_.size()}});
    return std::make_shared<FetchCall>(operation, std::make_shared<FetchPlan>(),
                                       std::vector<FetchCall::Target>{std::move(target)});
  }

  const std::unique_ptr<EventLoop> loop_ = std::move(EventLoop::Start("table-test")).value();
  ScriptedSession session_{*loop_};
  std::string room_ = std::string(8, ' ');
  std::vector<std::string> told_;
  CallTable table_{CallTable::Callbacks{
      .on_done = [this](Call& call) { told_.push_back(call.operation()->status().ToString()); },
      .on_heard = [] {},
      .on_stray_reply = [](uint64_t, const ReplyHead&) {},
      .on_closed = [this](const Status&) { told_.emplace_back("closed"); }}};
};

TEST_F(ClientCallTable, ACallThatWaitsWhenASessionEndsIsSentOnTheNextOne) {
  const auto first = Fetch(), second = Fetch();
  loop_->Run([&] {
    table_.Attach(session_);
    table_.Add(first);
    table_.Add(second);
    EXPECT_EQ(first->phase, Call::Phase::kSent);
    EXPECT_EQ(second->phase, Call::Phase::kQueued) << "beyond the window";
    session_.Close(Status(Code::kDisconnected));
    // The first one leaves the window before the end of the session is told.
    table_.Abort(first, Status(Code::kCancelled));
    table_.OnMessage(MessageType::kReply, first->id,
                     EncodeReply(ReplyHead::From(MessageType::kFetch, Status(Code::kCancelled))));
    EXPECT_EQ(second->phase, Call::Phase::kQueued);
    table_.OnClosed(Status(Code::kDisconnected));
    ScriptedSession next(*loop_);
    table_.Attach(next);
    table_.SendQueued();
    EXPECT_EQ(second->phase, Call::Phase::kSent);
    EXPECT_EQ(next.waiting_messages(), 1u);
    table_.OnClosed(Status(Code::kDisconnected));
  });
}

TEST_F(ClientCallTable, AnOperationIsOverOnlyOnceTheEndOfItsSessionIsKnown) {
  loop_->Run([&] {
    table_.Attach(session_);
    const auto fetch = Fetch();
    table_.Add(fetch);
    const DataHeader header{.item = 0, .length = 8};
    Pieces pieces;
    ASSERT_TRUE(table_.Locate(fetch->id, header, pieces));
    session_.Close(Status(Code::kDisconnected));
    table_.OnData(fetch->id, header, Status(Code::kDisconnected));
    EXPECT_TRUE(told_.empty()) << told_[0];
    table_.OnClosed(Status(Code::kDisconnected));
    ASSERT_EQ(told_.size(), 2u);
    EXPECT_EQ(told_[0], "closed");
    EXPECT_EQ(told_[1].substr(0, 12), "DISCONNECTED");
  });
}

}  // namespace
}  // namespace penstock
