#include "common/transport/exchange.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

namespace penstock {
namespace {

// A Unix socket with a full backlog says so at once: how long until the next try.
constexpr std::chrono::milliseconds kBacklogRetry{10};

}  // namespace

Result<std::optional<HandshakeMessage>> HandshakeReader::Read(int fd) {
  std::optional<HandshakeMessage> message;
  std::array<std::byte, 4096> buffer;
  while (!message) {
    const size_t want = std::min(assembler_.missing_bytes(), buffer.size());
    const ssize_t got = recv(fd, buffer.data(), want, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return message;
    if (got < 0) return Status(Code::kDisconnected, ErrnoText(errno));
    if (got == 0) return Status(Code::kDisconnected, "the other side closed the connection");
    PENSTOCK_RETURN_IF_ERROR(
        assembler_.Feed(ByteSpan(buffer).first(static_cast<size_t>(got)),
                        [&message](const FrameHeader& header, ByteSpan body) {
                          message = HandshakeMessage{header, {body.begin(), body.end()}};
                          return false;
                        }));
  }
  return message;
}

std::shared_ptr<Exchange> Exchange::Start(EventLoop& loop, const SocketAddress& to,
                                          const Deadline& deadline, MessageType type, ByteSpan body,
                                          Done done) {
  std::shared_ptr<Exchange> self(new Exchange(loop, to, std::move(done)));
  self->out_.Append(type, 0, body);
  self->timer_ = loop.After(deadline.Left(), [self] {
    self->Finish(Status(Code::kDeadlineExceeded,
                        fmt::format("{} {} in time", ToString(self->to_),
                                    self->connected_ ? "does not answer" : "cannot be reached")));
  });
  self->Connect();
  return self;
}

void Exchange::Connect() {
  const auto self = shared_from_this();
  auto fd = StartConnect(to_);
  if (!fd.ok() && fd.status().code() == Code::kBusy) {
    retry_ = loop_.After(kBacklogRetry, [self] { self->Connect(); });
    return;
  }
  Status status = fd.status();
  if (status.ok()) {
    fd_ = std::move(fd).value();
    status = loop_.Watch(fd_.get(), EPOLLOUT, [self](uint32_t events) { self->OnReady(events); });
  }
  if (!status.ok()) loop_.Post([self, status] { self->Finish(status); });
}

void Exchange::OnReady(uint32_t events) {
  const Status status = Advance(events);
  if (!status.ok()) {
    Finish(status.Annotate(fmt::format("talking to {}", ToString(to_))));
  }
}

Status Exchange::Advance(uint32_t events) {
  if (!connected_) {
    PENSTOCK_RETURN_IF_ERROR(FinishConnect(fd_.get(), to_));
    connected_ = true;
  }
  // An answer may be there before our message is out: a refusal.
  if ((events & ~EPOLLOUT) != 0) {
    PENSTOCK_ASSIGN_OR_RETURN(auto message, reader_.Read(fd_.get()));
    if (message) {
      loop_.Unwatch(fd_.get());
      Finish(std::make_shared<Answer>(Answer{std::move(fd_), *std::move(message)}));
      return Status::Ok();
    }
  }
  if (!out_.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN([[maybe_unused]] const size_t sent, out_.SendTo(fd_.get()));
  }
  loop_.SetEvents(fd_.get(), out_.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT);
  return Status::Ok();
}

void Exchange::Cancel() {
  done_ = nullptr;
  Finish(Status(Code::kCancelled));
}

void Exchange::Finish(Result<std::shared_ptr<Answer>> result) {
  const auto self = shared_from_this();
  loop_.CancelTimer(timer_);
  loop_.CancelTimer(retry_);
  if (fd_.valid()) {
    loop_.Unwatch(fd_.get());
    fd_.Reset();
  }
  if (const auto done = std::exchange(done_, nullptr)) done(std::move(result));
}

}  // namespace penstock
