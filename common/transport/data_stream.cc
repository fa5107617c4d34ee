#include "common/transport/data_stream.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace penstock {
namespace {

// One system call moves at most this much...
constexpr uint64_t kBytesPerCall = 512u << 10;
// ...and one turn of the loop that much for each direction of a stream, so that the others get
// theirs.
constexpr uint64_t kBytesPerTurn = 1u << 20;
constexpr size_t kPiecesPerCall = 64;
constexpr size_t kFramesAtOnce = 32;
constexpr size_t kScratchBytes = 64u << 10;
// Answers to references that wait for room in the socket. A peer that reads its answers has fewer:
// what they answer was in its own queue, or in the socket.
constexpr size_t kMaxAnswersWaiting = 16384;
// Ends a turn, so that they get out.
constexpr size_t kAnswersPerTurn = 512;

// Where goes what nobody wants to have. Never read. On the heap: a thread_local array would be part
// of every thread's stack, and threads of other libraries with small stacks could not be started.
MutableByteSpan Scratch() {
  thread_local const auto buffer = std::make_unique<std::byte[]>(kScratchBytes);
  return {buffer.get(), kScratchBytes};
}
// What is sent for memory that we may not touch any more.
constexpr std::array<std::byte, kScratchBytes> kZeros{};

iovec Vector(const void* base, size_t size) { return {const_cast<void*>(base), size}; }

}  // namespace

Status DataStream::Start(std::shared_ptr<void> keep) {
  return owner_.loop().Watch(fd_.get(), EPOLLIN,
                             [this, keep = std::move(keep)](uint32_t events) { OnReady(events); });
}

void DataStream::Stop() {
  if (!fd_.valid()) return;
  owner_.loop().Unwatch(fd_.get());
  // Also where a forked child has the socket: see PeerIsThere().
  if (references_ != nullptr) shutdown(fd_.get(), SHUT_RDWR);
  fd_.Reset();
}

void DataStream::OnReady(uint32_t events) {
  if (owner_.closing()) return;
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) Read();
  if ((events & EPOLLOUT) != 0 && !owner_.closing()) Write();
}

void DataStream::Lose(const Status& why) {
  lost_ = true;
  owner_.loop().Unwatch(fd_.get());
  owner_.ConnectionLost(why);
}

// ---------------------------------------------------------------------------------- incoming

void DataStream::Read() {
  ReadTurn();
  if (!lost_ && !owner_.closing()) AnswerReferences();
}

void DataStream::ReadTurn() {
  for (uint64_t moved = 0; moved < kBytesPerTurn && answers_.size() < kAnswersPerTurn;) {
    std::array<iovec, kPiecesPerCall + 1> iov;
    size_t wanted = 0;
    const size_t count = ReadVector(iov, wanted);
    const ssize_t got = Receive(std::span(iov).first(count));
    if (got < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      if (errno == EINTR) continue;
      if (errno == EFAULT) {  // Ours is good memory. Nothing was taken from the socket.
        discard_ = true;
        incoming_status_ = Status(Code::kBadBuffer, "the destination cannot be written");
        continue;
      }
      return Lose(
          Status(Code::kDisconnected, fmt::format("reading a data stream: {}", ErrnoText(errno))));
    }
    if (got == 0) {
      return Lose(Status(Code::kDisconnected, "the peer closed a data stream"));
    }
    last_in_ = MonotonicNow();
    owner_.NoteReceived();
    referred_bytes_read_ = 0;
    Advance(static_cast<size_t>(got));
    if (owner_.closing() || lost_) return;
    moved += static_cast<uint64_t>(got) + referred_bytes_read_;
    if (static_cast<size_t>(got) < wanted) return;  // The socket is empty.
  }
}

// As readv(), and takes the descriptor that comes along.
ssize_t DataStream::Receive(std::span<iovec> iov) {
  if (references_ == nullptr || !references_->wants_descriptor()) {
    return readv(fd_.get(), iov.data(), static_cast<int>(iov.size()));
  }
  msghdr message{};
  message.msg_iov = iov.data();
  message.msg_iovlen = iov.size();
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_LEN(sizeof(int));  // Room for one: the kernel closes any others.
  const ssize_t got = recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0) return got;
  for (cmsghdr* one = CMSG_FIRSTHDR(&message); one != nullptr; one = CMSG_NXTHDR(&message, one)) {
    if (one->cmsg_level != SOL_SOCKET || one->cmsg_type != SCM_RIGHTS) continue;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(one), sizeof(fd));
    received_ = UniqueFd(fd);
  }
  return got;
}

// What the next system call should fill, `wanted` bytes in all.
size_t DataStream::ReadVector(std::span<iovec> iov, size_t& wanted) {
  size_t count = 0;
  uint64_t body = 0;
  if (expect_ == Expect::kExtra) {
    body = std::min<uint64_t>(extra_left_, kScratchBytes);
    iov[count++] = Vector(Scratch().data(), body);
  } else if (expect_ == Expect::kReferences) {
    body = references_want_ - references_have_;
    iov[count++] = Vector(raw_references_.data() + references_have_, body);
  } else if (expect_ == Expect::kPayload && discard_) {
    body = std::min<uint64_t>(payload_left_, kScratchBytes);
    iov[count++] = Vector(Scratch().data(), body);
  } else if (expect_ == Expect::kPayload) {
    body = std::min(payload_left_, kBytesPerCall);
    count = cursor_.Peek(body, iov.first(iov.size() - 1));
  }
  wanted = body;
  const bool header_is_next =
      expect_ == Expect::kHeader || (expect_ == Expect::kPayload && body == payload_left_);
  if (header_is_next) {
    const size_t size = raw_header_.size() - header_have_;
    iov[count++] = Vector(raw_header_.data() + header_have_, size);
    wanted += size;
  }
  return count;
}

void DataStream::Advance(size_t bytes) {
  while (bytes > 0 && !owner_.closing()) {
    if (expect_ == Expect::kHeader) {
      // The header is always the last thing that a call reads.
      header_have_ += bytes;
      bytes = 0;
      if (header_have_ == raw_header_.size() && !OnHeader()) return;
    } else if (expect_ == Expect::kExtra) {
      const uint64_t take = std::min<uint64_t>(bytes, extra_left_);
      extra_left_ -= take;
      bytes -= take;
      if (extra_left_ == 0) BeginPayload();
    } else if (expect_ == Expect::kReferences) {
      const size_t take = std::min(bytes, references_want_ - references_have_);
      references_have_ += take;
      bytes -= take;
      if (references_have_ == references_want_) OnReferences();
    } else {
      const uint64_t take = std::min<uint64_t>(bytes, payload_left_);
      if (!discard_) cursor_.Skip(take);
      payload_left_ -= take;
      bytes -= take;
      if (payload_left_ == 0) EndPayload();
    }
  }
}

// False when the stream is out of step.
bool DataStream::OnHeader() {
  header_have_ = 0;
  const ByteSpan raw(raw_header_);
  const auto frame = ParseFrameHeader(raw.first(sizeof(FrameHeader)));
  auto data = ParseDataHeader(raw.subspan(sizeof(FrameHeader)));
  Status status = frame.ok() ? data.status() : frame.status();
  if (status.ok()) status = CheckHeader(*frame, *data);
  if (!status.ok()) {
    owner_.Close(status);
    return false;
  }
  request_id_ = frame->request_id;
  data_ = *data;
  const auto type = static_cast<MessageType>(frame->type);
  extra_left_ = frame->body_bytes - sizeof(DataHeader);
  if (type == MessageType::kMemory) {
    OnMemory();
  } else if (type == MessageType::kTaken) {
    OnTaken();
  } else if (type == MessageType::kReference) {
    references_want_ = std::exchange(extra_left_, 0);
    references_have_ = 0;
    expect_ = Expect::kReferences;
  } else if (extra_left_ > 0) {
    expect_ = Expect::kExtra;
  } else {
    BeginPayload();
  }
  return !owner_.closing();
}

Status DataStream::CheckHeader(const FrameHeader& frame, const DataHeader& data) const {
  const auto type = static_cast<MessageType>(frame.type);
  const bool local = type == MessageType::kReference || type == MessageType::kTaken ||
                     type == MessageType::kMemory;
  const bool known = type == MessageType::kData || (local && references_ != nullptr);
  if (!known || frame.body_bytes < sizeof(DataHeader)) {
    return Status(Code::kCorruptMessage,
                  fmt::format("a message of type {} on a data stream", frame.type));
  }
  const uint64_t extra = frame.body_bytes - sizeof(DataHeader);
  if (type == MessageType::kReference ? extra == 0 || extra > raw_references_.size()
                                      : local && extra > 0) {
    return Status(Code::kCorruptMessage,
                  fmt::format("a message of type {} with {} bytes", frame.type, frame.body_bytes));
  }
  if (type == MessageType::kReference && data.length > References::kMaxBytes) {
    return Status(Code::kTooLarge, fmt::format("a reference to {} bytes; the limit is {}",
                                               data.length, References::kMaxBytes));
  }
  if (type != MessageType::kMemory && data.length > owner_.max_data_bytes()) {
    return Status(Code::kTooLarge, fmt::format("a data frame of {} bytes; the limit is {}",
                                               data.length, owner_.max_data_bytes()));
  }
  return Status::Ok();
}

// ---------------------------------------------------------------------------------- references

void DataStream::Greet() {
  const References::Greeting greeting = references_->Greet();
  iovec iov = Vector(greeting.header.data(), greeting.header.size());
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  if (greeting.fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const one = CMSG_FIRSTHDR(&message);
    one->cmsg_level = SOL_SOCKET;
    one->cmsg_type = SCM_RIGHTS;
    one->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(one), &greeting.fd, sizeof(int));
  }
  const ssize_t sent = sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  // A fresh socket has room for so little.
  if (sent == static_cast<ssize_t>(greeting.header.size())) return;
  Lose(Status(Code::kDisconnected, fmt::format("greeting a client: {}", ErrnoText(errno))));
}

void DataStream::OnMemory() {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(fd_.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) peer.pid = 0;
  const auto answer = references_->OnMemory(data_, std::move(received_), peer.pid);
  if (!answer.ok()) return owner_.Close(answer.status());
  if (answer->has_value()) Queue(**answer);
}

void DataStream::OnTaken() {
  if (referred_.empty()) {
    return owner_.Close(Status(Code::kCorruptMessage, "an answer to no reference"));
  }
  const OutFrame frame = std::move(referred_.front());
  referred_.pop_front();
  last_taken_ = MonotonicNow();
  const Code code = CodeFromWire(data_.status);
  source_.FrameTaken(
      frame, data_.status == 0 ? Status::Ok() : Status(code, "the other side could not read it"));
}

void DataStream::OnReferences() {
  expect_ = Expect::kHeader;
  const auto references =
      ParseReferences(ByteSpan(raw_references_).first(references_want_), data_.length);
  if (!references.ok()) return owner_.Close(references.status());
  pieces_.clear();
  if (!owner_.events().Locate(request_id_, data_, pieces_)) {
    answers_.push_back(Code::kOk);
    return;
  }
  const Status status =
      TotalBytes(pieces_) == data_.length
          ? references_->Take(*references, pieces_)
          : Status(Code::kBadBuffer, "the destination has another size than the data");
  referred_bytes_read_ += data_.length;
  const bool lost = !PeerIsThere();
  const bool out_of_step = status.code() == Code::kCorruptMessage;
  if (owner_.closing() || lost || out_of_step) {
    // FailIncoming() follows, as for payload that breaks off.
    expect_ = Expect::kPayload;
    payload_left_ = data_.length;
    report_ = discard_ = true;
    if (lost) {
      Lose(Status(Code::kDisconnected, "the peer closed a data stream"));
    } else if (out_of_step) {
      owner_.Close(status);
    }
    return;
  }
  answers_.push_back(references_->AnswerFor(status));
  owner_.events().OnData(request_id_, data_, status);
}

// Whether what was read was the peer's to give until it had been read: it has not closed the
// socket, and its process, whose number another may have by now, has not ended.
bool DataStream::PeerIsThere() const {
  std::array<pollfd, 2> ends{pollfd{fd_.get(), POLLRDHUP, 0},
                             pollfd{references_->process(), POLLIN, 0}};
  return poll(ends.data(), ends.size(), 0) == 0;
}

void DataStream::AnswerReferences() {
  if (answers_.empty()) return;
  for (const Code code : std::exchange(answers_, {})) {
    Queue(EncodeDataHeader(0, {.status = static_cast<uint16_t>(code)}, MessageType::kTaken));
  }
  Write();
  if (frames_.size() <= kMaxAnswersWaiting) return;
  owner_.Close(Status(Code::kResourceExhausted, "the peer does not read its answers"));
}

void DataStream::Queue(const RawDataHeader& header) {
  OutFrame frame;
  frame.header = header;
  if (frames_.empty()) last_out_ = MonotonicNow();
  frames_.push_back(std::move(frame));
  WantWrite(true);
}

// ---------------------------------------------------------------------------------- incoming

void DataStream::BeginPayload() {
  expect_ = Expect::kPayload;
  payload_left_ = data_.length;
  pieces_.clear();
  incoming_status_ = Status::Ok();
  report_ = false;
  discard_ = true;
  if (data_.status != 0) {
    owner_.events().OnDataFailed(request_id_, data_);
  } else {
    report_ = owner_.events().Locate(request_id_, data_, pieces_);
    discard_ = !report_;
    if (report_ && TotalBytes(pieces_) != data_.length) {
      discard_ = true;
      incoming_status_ = Status(Code::kBadBuffer, "the destination has another size than the data");
    }
    cursor_ = PieceCursor(pieces_);
  }
  if (payload_left_ == 0) EndPayload();
}

void DataStream::EndPayload() {
  if (owner_.closing()) return;  // FailIncoming() follows.
  expect_ = Expect::kHeader;
  if (!std::exchange(report_, false)) return;
  owner_.events().OnData(request_id_, data_, incoming_status_);
}

void DataStream::AbandonIncoming(uint64_t request_id) {
  if (expect_ != Expect::kPayload || request_id_ != request_id) return;
  discard_ = true;
  report_ = false;
}

void DataStream::FailIncoming(const Status& why) {
  if (expect_ != Expect::kPayload || !std::exchange(report_, false)) return;
  discard_ = true;
  owner_.Defer([&events = owner_.events(), id = request_id_, data = data_, why] {
    events.OnData(id, data, why);
  });
}

// ---------------------------------------------------------------------------------- outgoing

void DataStream::Write() {
  if (lost_) return;
  uint64_t moved = 0;
  while (moved < kBytesPerTurn) {
    Fill();
    if (frames_.empty()) return WantWrite(false);
    std::array<iovec, kPiecesPerCall> iov;
    size_t wanted = 0;
    msghdr message{};
    message.msg_iov = iov.data();
    message.msg_iovlen = WriteVector(iov, front_only_, wanted);
    const ssize_t sent = sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return WantWrite(true);
      if (errno == EINTR) continue;
      if (errno == EFAULT) {
        OnWriteFault();
        continue;
      }
      return Lose(
          Status(Code::kDisconnected, fmt::format("writing a data stream: {}", ErrnoText(errno))));
    }
    last_out_ = MonotonicNow();
    OnSent(static_cast<size_t>(sent));
    moved += static_cast<uint64_t>(sent);
  }
  WantWrite(true);  // There may be more: the next turn goes on.
}

// Takes frames until one call has enough to do.
void DataStream::Fill() {
  uint64_t bytes = 0;
  for (const OutFrame& frame : frames_) bytes += frame.left();
  while (frames_.size() < kFramesAtOnce && bytes < kBytesPerCall) {
    OutFrame frame;
    if (!source_.NextFrame(frame)) return;
    if (frames_.empty()) last_out_ = MonotonicNow();
    bytes += frame.left();
    frames_.push_back(std::move(frame));
  }
}

size_t DataStream::WriteVector(std::span<iovec> iov, bool front_only, size_t& wanted) const {
  size_t count = 0;
  wanted = 0;
  for (const OutFrame& frame : frames_) {
    if (count == iov.size() || wanted >= kBytesPerCall) break;
    if (frame.sent < kDataHeaderBytes) {
      iov[count++] = Vector(frame.header.data() + frame.sent, kDataHeaderBytes - frame.sent);
      wanted += kDataHeaderBytes - frame.sent;
    }
    if (frame.is_reference()) {
      if (count == iov.size()) break;
      const size_t done = frame.sent - std::min<uint64_t>(frame.sent, kDataHeaderBytes);
      iov[count++] = Vector(frame.references.data() + done, frame.references.size() - done);
      wanted += frame.references.size() - done;
      if (front_only) break;
      continue;
    }
    const uint64_t payload_sent = frame.sent - std::min<uint64_t>(frame.sent, kDataHeaderBytes);
    const uint64_t left = frame.length - payload_sent;
    uint64_t bytes = std::min(left, kBytesPerCall);
    if (frame.zeros) {
      for (uint64_t done = 0; done < bytes && count < iov.size();) {
        const size_t take = std::min<uint64_t>(bytes - done, kZeros.size());
        iov[count++] = Vector(kZeros.data(), take);
        done += take;
        wanted += take;
      }
    } else {
      count += frame.cursor.Peek(bytes, iov.subspan(count));
      wanted += bytes;
    }
    // What does not fit whole must be the end: the next frame may not overtake it.
    if (front_only || bytes < left) break;
  }
  return count;
}

void DataStream::OnSent(size_t bytes) {
  while (bytes > 0) {
    OutFrame& frame = frames_.front();
    const uint64_t header = std::min<uint64_t>(
        bytes, kDataHeaderBytes - std::min<uint64_t>(frame.sent, kDataHeaderBytes));
    const uint64_t payload = std::min(bytes - header, frame.left() - header);
    if (!frame.zeros && !frame.is_reference()) frame.cursor.Skip(payload);
    frame.sent += header + payload;
    bytes -= header + payload;
    if (frame.left() > 0) return;
    front_only_ = false;
    if (frame.is_reference()) {
      if (referred_.empty()) last_taken_ = MonotonicNow();
      referred_.push_back(std::move(frame));
    } else if (frame.item != nullptr) {
      source_.FrameSent(frame);
    }
    frames_.pop_front();
  }
}

void DataStream::OnWriteFault() {
  // The kernel does not say whose memory it was: find out by sending the first frame alone.
  if (!front_only_ && frames_.size() > 1) {
    front_only_ = true;
    return;
  }
  front_only_ = false;
  const auto item = frames_.front().item;
  source_.BadMemory(item);
}

void DataStream::DropFrames(const OutItem& item) {
  std::erase_if(frames_, [&item](const OutFrame& frame) {
    return frame.item.get() == &item && frame.sent == 0;
  });
  for (OutFrame& frame : frames_) {
    if (frame.item.get() == &item) frame.zeros = true;
  }
}

void DataStream::CollectItems(std::vector<std::shared_ptr<OutItem>>& items) const {
  for (const OutFrame& frame : frames_) {
    if (frame.item != nullptr) items.push_back(frame.item);
  }
  for (const OutFrame& frame : referred_) items.push_back(frame.item);
}

bool DataStream::Refers(const OutItem& item) const {
  const auto is = [&item](const OutFrame& frame) {
    return frame.item.get() == &item && frame.is_reference();
  };
  return std::any_of(referred_.begin(), referred_.end(), is) ||
         std::any_of(frames_.begin(), frames_.end(), is);
}

bool DataStream::Refers(uint64_t request_id) const {
  const auto is = [request_id](const OutFrame& frame) {
    return frame.is_reference() && frame.item->request_id == request_id;
  };
  return std::any_of(referred_.begin(), referred_.end(), is) ||
         std::any_of(frames_.begin(), frames_.end(), is);
}

void DataStream::WantWrite(bool want) {
  if (want_write_ == want) return;
  want_write_ = want;
  owner_.loop().SetEvents(fd_.get(), want ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

Status DataStream::CheckProgress(MonotonicTime now, Duration patience) const {
  if (!frames_.empty() && now - last_out_ > patience) {
    return Status(Code::kDisconnected, "the peer does not read its data");
  }
  if (!referred_.empty() && now - last_taken_ > patience) {
    return Status(Code::kDisconnected, "the peer does not read what it was referred to");
  }
  if ((expect_ != Expect::kHeader || header_have_ > 0) && now - last_in_ > patience) {
    return Status(Code::kDisconnected, "the peer stopped in the middle of a data frame");
  }
  return Status::Ok();
}

}  // namespace penstock
