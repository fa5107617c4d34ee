#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <thread>

#include "common/transport/event_loop.h"
#include "common/transport/socket.h"

namespace penstock {
namespace {

using std::chrono::milliseconds;

std::unique_ptr<EventLoop> StartLoop() {
  auto loop = EventLoop::Start("test-loop");
  EXPECT_TRUE(loop.ok()) << loop.status().ToString();
  return std::move(loop).value();
}

// Lets the loop take turns until `count`, which only the loop changes, is not 0. Several functions
// may run in one turn, so that one Run() is no turn.
void TurnUntilCounted(EventLoop& loop, const int& count) {
  int seen = 0;
  const Deadline deadline = Deadline::After(std::chrono::seconds(60));
  while (seen == 0 && !deadline.Expired()) loop.Run([&] { seen = count; });
}

TEST(EventLoop, RunsWhatEachThreadPostsInItsOrder) {
  const auto loop = StartLoop();
  std::vector<int> seen[3];
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 1000; ++i) loop->Post([&, t, i] { seen[t].push_back(i); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  loop->Run([] {});
  for (const auto& list : seen) {
    ASSERT_EQ(list.size(), 1000u);
    EXPECT_TRUE(std::is_sorted(list.begin(), list.end()));
  }
}

TEST(EventLoop, RunIsDirectOnTheLoopItself) {
  const auto loop = StartLoop();
  int depth = 0;
  EXPECT_FALSE(loop->InLoop());
  loop->Run([&] {
    EXPECT_TRUE(loop->InLoop());
    loop->Run([&] { ++depth; });
  });
  EXPECT_EQ(depth, 1);
}

TEST(EventLoop, StopRunsWhatWasPostedAndDropsTheRest) {
  const auto loop = StartLoop();
  int ran = 0;
  for (int i = 0; i < 100; ++i) loop->Post([&] { ++ran; });
  loop->Stop();
  EXPECT_EQ(ran, 100);
  const auto held = std::make_shared<int>(1);
  loop->Post([&ran, held] { ++ran; });
  EXPECT_EQ(held.use_count(), 1);
  loop->Run([&] { ++ran; });  // Returns although the loop is gone.
  EXPECT_EQ(ran, 100);
  loop->Stop();
}

TEST(EventLoop, AFunctionThatPostsItselfForEverDoesNotKeepItAlive) {
  const auto loop = StartLoop();
  std::function<void()> again = [&] { loop->Post(again); };
  loop->Post(again);
  loop->Stop();
}

TEST(EventLoop, TimersFireInOrderAndNotBeforeTheirTime) {
  const auto loop = StartLoop();
  std::promise<void> done;
  std::vector<int> order;
  MonotonicTime start;
  const auto arm = [&] {
    start = MonotonicNow();
    std::vector<EventLoop::TimerId> timers;
    timers.push_back(loop->After(milliseconds(30), [&] {
      order.push_back(3);
      EXPECT_GE(MonotonicNow() - start, milliseconds(30));
      done.set_value();
    }));
    timers.push_back(loop->After(milliseconds(10), [&] { order.push_back(1); }));
    const auto cancelled = loop->After(milliseconds(15), [&] { order.push_back(9); });
    timers.push_back(loop->After(milliseconds(20), [&] { order.push_back(2); }));
    loop->CancelTimer(cancelled);
    loop->CancelTimer(cancelled);
    loop->CancelTimer(12345);
    return timers;
  };
  loop->Run([&] {
    // Each counts from its own call: only where those lie close together is their order known.
    auto timers = arm();
    while (MonotonicNow() - start > milliseconds(5)) {
      for (const auto timer : timers) loop->CancelTimer(timer);
      timers = arm();
    }
  });
  done.get_future().wait();
  loop->Run([&] { EXPECT_EQ(order, (std::vector<int>{1, 2, 3})); });
}

TEST(EventLoop, CancelledTimersDoNotPileUp) {
  const auto loop = StartLoop();
  const auto held = std::make_shared<int>(1);
  loop->Run([&] {
    for (int i = 0; i < 100000; ++i) {
      loop->CancelTimer(loop->After(std::chrono::hours(1), [held] {}));
    }
  });
  EXPECT_EQ(held.use_count(), 1);
}

TEST(EventLoop, AWatchMayRemoveItselfAndItsNeighbour) {
  const auto loop = StartLoop();
  const UniqueFd a(eventfd(1, EFD_NONBLOCK));
  const UniqueFd b(eventfd(1, EFD_NONBLOCK));
  int calls = 0;
  loop->Run([&] {
    const auto handler = [&](uint32_t events) {
      EXPECT_EQ(events, static_cast<uint32_t>(EPOLLIN));
      ++calls;
      loop->Unwatch(a.get());
      loop->Unwatch(b.get());
    };
    ASSERT_TRUE(loop->Watch(a.get(), EPOLLIN, handler).ok());
    ASSERT_TRUE(loop->Watch(b.get(), EPOLLIN, handler).ok());
    EXPECT_EQ(loop->Watch(b.get(), EPOLLIN, handler).code(), Code::kInternal);
  });
  TurnUntilCounted(*loop, calls);
  loop->Run([&] { EXPECT_EQ(calls, 1); });
}

TEST(EventLoop, AReusedDescriptorNumberGetsNoOldEvents) {
  const auto loop = StartLoop();
  int old_calls = 0;
  int new_calls = 0;
  loop->Run([&] {
    // The first callback of the turn replaces the other descriptor, whose event is already there.
    const auto fds = std::make_shared<std::vector<int>>();
    for (int i = 0; i < 2; ++i) fds->push_back(eventfd(1, EFD_NONBLOCK));
    for (int i = 0; i < 2; ++i) {
      const Status status = loop->Watch((*fds)[i], EPOLLIN, [&, fds, i](uint32_t) {
        ++old_calls;
        for (const int fd : *fds) {
          loop->Unwatch(fd);
          close(fd);
        }
        // Never readable, and very likely the other's number.
        const int fresh[2] = {eventfd(0, EFD_NONBLOCK), eventfd(0, EFD_NONBLOCK)};
        for (const int fd : fresh) {
          EXPECT_TRUE(loop->Watch(fd, EPOLLIN, [&](uint32_t) { ++new_calls; }).ok());
        }
        EXPECT_TRUE(fresh[0] == (*fds)[1 - i] || fresh[1] == (*fds)[1 - i]);
        *fds = {fresh[0], fresh[1]};
      });
      ASSERT_TRUE(status.ok());
    }
  });
  TurnUntilCounted(*loop, old_calls);
  loop->Run([&] {
    EXPECT_EQ(old_calls, 1);
    EXPECT_EQ(new_calls, 0);
  });
}

TEST(EventLoop, PollersRunUntilIdleAndMayVetoTheSleep) {
  const auto loop = StartLoop();
  std::promise<void> armed;
  int polls = 0;
  int vetoes = 0;
  uint64_t id = 0;
  loop->Run([&] {
    id = loop->AddPoller([&] { return ++polls <= 5; },
                         [&] {
                           if (++vetoes <= 3) return false;
                           if (vetoes == 4) armed.set_value();
                           return true;
                         });
  });
  armed.get_future().wait();
  loop->Run([&] {
    EXPECT_GE(polls, 9);  // Five busy ones, three vetoed ones, and the last.
    loop->RemovePoller(id);
    loop->RemovePoller(id);
    polls = 0;
  });
  loop->Run([&] { EXPECT_EQ(polls, 0); });
}

TEST(EventLoop, APollerMayRemoveItself) {
  const auto loop = StartLoop();
  std::promise<void> done;
  loop->Run([&] {
    const auto id = std::make_shared<uint64_t>(0);
    *id = loop->AddPoller(
        [&, id] {
          loop->RemovePoller(*id);
          done.set_value();
          return false;
        },
        [] { return true; });
  });
  done.get_future().wait();
}

TEST(EventLoop, SleepsWhenThereIsNothingToDo) {
  const auto loop = StartLoop();
  timespec before{}, after{};
  clockid_t clock{};
  loop->Run([&] { ASSERT_EQ(pthread_getcpuclockid(pthread_self(), &clock), 0); });
  std::promise<void> later;
  loop->Run([&] { loop->After(milliseconds(300), [&] { later.set_value(); }); });
  ASSERT_EQ(clock_gettime(clock, &before), 0);
  later.get_future().wait();
  ASSERT_EQ(clock_gettime(clock, &after), 0);
  const auto used =
      (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000;
  EXPECT_LT(used, 30) << "ms of CPU time in 300 ms without work";
}

}  // namespace
}  // namespace penstock
