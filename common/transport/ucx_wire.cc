#include "common/transport/ucx_wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/transport/memory_registration.h"

namespace penstock {
namespace {

// What UCX may have in its hands for one session. More only waits in its queues, where it cannot be
// taken back.
constexpr uint64_t kBytesInFlight = 8u << 20;
constexpr size_t kFramesInFlight = 64;
// What one turn of the loop begins to send, so that others get theirs.
constexpr uint64_t kBytesPerTurn = 2u << 20;
// How long nothing may move while an operation that was abandoned goes on. (With a peer that is
// only slow, it ends by itself.)
constexpr std::chrono::seconds kStopPatience{1};
// The longest that an abandoned transfer may take while others of the session move.
constexpr std::chrono::seconds kStopLimit{10};
// How long a closing endpoint may still move what has begun.
constexpr std::chrono::milliseconds kDrainPatience{500};

// UCX must not meet memory that is not there: it would take the process along. What is registered
// was looked at then; for the rest it is done now, which takes as long as reading /proc/self/maps.
Status CheckUsable(std::span<const iovec> pieces, bool writable) {
  if (IsRegistered(pieces, writable)) return Status::Ok();
  for (const iovec& piece : pieces) {
    if (piece.iov_len == 0) continue;
    PENSTOCK_RETURN_IF_ERROR(CheckMapped(piece.iov_base, piece.iov_len, writable));
  }
  return Status::Ok();
}

constexpr SendQueue::Options kCutting = {.slice_bytes = 1u << 20, .scattered_bytes = 64u << 10};

}  // namespace

// Pieces as UCX wants them. Lives as long as the operation.
struct UcxWire::UcxPieces {
  std::vector<ucp_dt_iov_t> list;

  // Describes all of `cursor`'s next `bytes`.
  void Set(PieceCursor cursor, uint64_t bytes) {
    std::array<iovec, 64> iov;
    while (bytes > 0) {
      uint64_t described = bytes;
      const size_t count = cursor.Peek(described, iov);
      for (size_t i = 0; i < count; ++i) list.push_back({iov[i].iov_base, iov[i].iov_len});
      cursor.Skip(described);
      bytes -= described;
    }
  }
  // Fills in the datatype, and returns what to pass as buffer and count.
  std::pair<void*, size_t> Describe(ucp_request_param_t& param) {
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
    param.datatype = ucp_dt_make_contig(1);
    if (list.empty()) return {nullptr, 0};
    if (list.size() == 1) return {list[0].buffer, list[0].length};
    param.datatype = UCP_DATATYPE_IOV;
    return {list.data(), list.size()};
  }
};

// A frame that UCX sends.
struct UcxWire::Outgoing {
  const UcxLibrary* ucx = nullptr;
  UcxWire* wire = nullptr;
  OutFrame frame;
  UcxPieces pieces;
};

// A payload that UCX fetches.
struct UcxWire::Incoming {
  const UcxLibrary* ucx = nullptr;
  UcxWire* wire = nullptr;
  uint64_t request_id = 0;
  DataHeader header;
  UcxPieces pieces;
  bool abandoned = false;
};

// An Abandon() whose operations have not ended.
struct UcxWire::Wait {
  uint64_t request_id = 0;
  std::function<void()> done;
  EventLoop::TimerId timer = 0;
  const MonotonicTime since = MonotonicNow();
};

UcxWire::UcxWire(WireOwner& owner, UcxWorker& worker)
    : owner_(owner),
      worker_(worker),
      queue_(kCutting, [&owner](std::function<void()> fn) { owner.Defer(std::move(fn)); }) {}

UcxWire::~UcxWire() {
  // Only a loop that ends before its sessions leaves something here.
  for (Outgoing* const one : outgoing_) one->wire = nullptr;
  for (Incoming* const one : incoming_) one->wire = nullptr;
  if (endpoint_ != nullptr && !endpoint_given_up_) endpoint_->user = nullptr;
  if (expected_) worker_.Forget(*expected_);
  worker_.loop().CancelTimer(connect_timer_);
  worker_.loop().CancelTimer(drain_timer_);
}

// ---------------------------------------------------------------------------------- attaching

void UcxWire::Expect(const SessionToken& token) {
  expected_ = token;
  worker_.Expect(token, [this](UcxEndpoint* endpoint) {
    expected_.reset();
    endpoint_ = endpoint;
    endpoint->user = this;
    attached_ = true;
    if (!owner_.closing()) owner_.ScheduleFlush();
  });
}

void UcxWire::Connect(const SocketAddress& address, const SessionToken& token,
                      const Deadline& deadline, std::shared_ptr<void> keep,
                      std::function<void(const Status&)> attached) {
  on_attached_ = std::move(attached);
  const auto endpoint = worker_.Connect(address, token, *this);
  if (!endpoint.ok()) {
    owner_.Defer([this, status = endpoint.status()] { TellAttached(status); });
    return;
  }
  endpoint_ = *endpoint;
  connect_timer_ = worker_.loop().After(deadline.Left(), [this, keep = std::move(keep)] {
    TellAttached(Status(Code::kDeadlineExceeded, "the daemon's ucx wire does not answer"));
  });
}

void UcxWire::TellAttached(const Status& status) {
  if (const auto attached = std::exchange(on_attached_, nullptr)) attached(status);
  // With it goes what kept the owner of this wire.
  worker_.loop().CancelTimer(connect_timer_);
}

void UcxWire::OnUcxAttached() {
  attached_ = true;
  owner_.Defer([this] { TellAttached(failure_); });
}

void UcxWire::OnUcxError(const Status& why) {
  if (on_attached_) {
    failure_ = why;
    return owner_.Defer([this, why] { TellAttached(why); });
  }
  if (stopped_) return CloseSoon();
  if (!owner_.closing()) owner_.ConnectionLost(why);
}

Status UcxWire::CanAttach() const {
  return Status(Code::kInvalidArgument, "the ucx wire has no data streams");
}

Status UcxWire::AttachStream(UniqueFd /*fd*/, std::shared_ptr<void> /*keep*/) {
  return CanAttach();
}

// ---------------------------------------------------------------------------------- outgoing

void UcxWire::Send(uint64_t request_id, const DataHeader& header, std::span<const iovec> payload,
                   Session::SendDone done) {
  if (Status usable = CheckUsable(payload, /*writable=*/false); usable.ok()) {
    queue_.Push(request_id, header, payload, std::move(done));
  } else {
    OutItem refused;
    refused.request_id = request_id;
    refused.header = header;
    queue_.ReportFailure(refused, Code::kBadBuffer);
    owner_.Defer([done = std::move(done), why = std::move(usable)] {
      if (done) done(why);
    });
  }
  owner_.ScheduleFlush();
}

void UcxWire::Flush() {
  uint64_t begun = 0;
  while (attached_ && !owner_.closing() && bytes_in_flight_ < kBytesInFlight &&
         outgoing_.size() < kFramesInFlight) {
    if (begun > kBytesPerTurn) return owner_.ScheduleFlush();
    auto outgoing = std::make_unique<Outgoing>();
    if (!queue_.NextFrame(outgoing->frame)) return;
    outgoing->ucx = &worker_.ucx();
    outgoing->wire = this;
    outgoing->pieces.Set(outgoing->frame.cursor, outgoing->frame.length);
    begun += kDataHeaderBytes + outgoing->frame.length;
    Start(std::move(outgoing));
  }
}

void UcxWire::Start(std::unique_ptr<Outgoing> outgoing) {
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.flags = UCP_AM_SEND_FLAG_REPLY;
  param.user_data = outgoing.get();
  param.cb.send = [](void* request, ucs_status_t status, void* user_data) {
    auto* const sent = static_cast<Outgoing*>(user_data);
    sent->ucx->ucp_request_free(request);
    if (sent->wire == nullptr) {
      delete sent;
    } else {
      sent->wire->OnSent(sent, status);
    }
  };
  const auto [buffer, count] = outgoing->pieces.Describe(param);
  Outgoing* const sending = outgoing.release();
  outgoing_.insert(sending);
  bytes_in_flight_ += sending->frame.length;
  if (outgoing_.size() == 1) last_progress_ = MonotonicNow();
  const ucs_status_ptr_t request = worker_.ucx().ucp_am_send_nbx(
      endpoint_->handle, static_cast<unsigned>(MessageType::kData), sending->frame.header.data(),
      sending->frame.header.size(), buffer, count, &param);
  if (request == nullptr) return OnSent(sending, UCS_OK);
  if (UCS_PTR_IS_ERR(request)) OnSent(sending, UCS_PTR_STATUS(request));
}

void UcxWire::OnSent(Outgoing* outgoing, ucs_status_t status) {
  const std::unique_ptr<Outgoing> sent(outgoing);
  outgoing_.erase(outgoing);
  bytes_in_flight_ -= sent->frame.length;
  if (status != UCS_OK) {
    const Status why = UcxStatus(worker_.ucx(), status, "sending on the ucx wire");
    queue_.Fail(*sent->frame.item, stopped_ ? why_ : why);
    queue_.DropFailed();
    if (!owner_.closing()) owner_.ConnectionLost(why);
  }
  queue_.FrameSent(sent->frame);
  if (!queue_.empty() && !owner_.closing()) owner_.ScheduleFlush();
  OperationEnded();
}

// ---------------------------------------------------------------------------------- incoming

bool UcxWire::OnUcxData(ByteSpan raw, void* data, size_t length, bool rendezvous) {
  if (owner_.closing()) return false;
  owner_.NoteReceived();
  const auto frame = ParseFrameHeader(raw);
  if (!frame.ok()) {
    owner_.Close(frame.status());
    return false;
  }
  const auto header = ParseDataHeader(raw.subspan(sizeof(FrameHeader)));
  Status status = header.status();
  if (status.ok() && header->length != length) {
    status = Status(Code::kCorruptMessage, "a payload of another length than its header says");
  }
  if (status.ok() && length > owner_.max_data_bytes()) {
    status = Status(Code::kTooLarge, fmt::format("a data frame of {} bytes; the limit is {}",
                                                 length, owner_.max_data_bytes()));
  }
  if (!status.ok()) {
    owner_.Close(status);
    return false;
  }
  return Deliver(frame->request_id, *header, data, rendezvous);
}

bool UcxWire::Deliver(uint64_t request_id, const DataHeader& header, void* data, bool rendezvous) {
  SessionEvents& events = owner_.events();
  if (header.status != 0) {
    events.OnDataFailed(request_id, header);
    return false;
  }
  Pieces pieces;
  if (!events.Locate(request_id, header, pieces)) return false;
  Status status;
  if (TotalBytes(pieces) != header.length) {
    status = Status(Code::kBadBuffer, "the destination has another size than the data");
  } else if (status = CheckUsable(pieces, /*writable=*/true); !status.ok()) {
    // Told below.
  } else if (rendezvous) {
    auto incoming = std::make_unique<Incoming>();
    incoming->ucx = &worker_.ucx();
    incoming->wire = this;
    incoming->request_id = request_id;
    incoming->header = header;
    incoming->pieces.Set(PieceCursor(pieces), header.length);
    return Fetch(std::move(incoming), data);
  } else {
    const auto* from = static_cast<const std::byte*>(data);
    for (const iovec& piece : pieces) {
      if (piece.iov_len > 0) std::memcpy(piece.iov_base, from, piece.iov_len);
      from += piece.iov_len;
    }
  }
  events.OnData(request_id, header, status);
  return false;
}

bool UcxWire::Fetch(std::unique_ptr<Incoming> incoming, void* descriptor) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.user_data = incoming.get();
  param.cb.recv_am = [](void* request, ucs_status_t status, size_t, void* user_data) {
    auto* const fetched = static_cast<Incoming*>(user_data);
    const UcxLibrary& ucx = *fetched->ucx;
    ucx.ucp_request_free(request);
    if (fetched->wire == nullptr) {
      delete fetched;
    } else {
      fetched->wire->OnFetched(fetched, UcxStatus(ucx, status, "fetching on the ucx wire"));
    }
  };
  const auto [buffer, count] = incoming->pieces.Describe(param);
  Incoming* const fetching = incoming.release();
  incoming_.insert(fetching);
  if (incoming_.size() == 1) last_progress_ = MonotonicNow();
  const ucs_status_ptr_t request =
      worker_.ucx().ucp_am_recv_data_nbx(worker_.handle(), descriptor, buffer, count, &param);
  if (request == nullptr) {
    OnFetched(fetching, Status::Ok());
  } else if (UCS_PTR_IS_ERR(request)) {
    OnFetched(fetching,
              UcxStatus(worker_.ucx(), UCS_PTR_STATUS(request), "fetching on the ucx wire"));
  }
  return true;
}

void UcxWire::OnFetched(Incoming* incoming, const Status& status) {
  const std::unique_ptr<Incoming> fetched(incoming);
  incoming_.erase(incoming);
  owner_.NoteReceived();
  if (!fetched->abandoned && owner_.closing()) {
    const Status why = status.ok() || !stopped_ ? status : why_;
    owner_.Defer([this, id = fetched->request_id, header = fetched->header, why] {
      owner_.events().OnData(id, header, why);
    });
  } else if (!fetched->abandoned) {
    owner_.events().OnData(fetched->request_id, fetched->header, status);
  }
  OperationEnded();
}

// ---------------------------------------------------------------------------------- stopping

void UcxWire::OperationEnded() {
  last_progress_ = MonotonicNow();
  CheckWaits();
  CheckStopped();
}

bool UcxWire::Busy(uint64_t request_id) const {
  return std::any_of(outgoing_.begin(), outgoing_.end(),
                     [=](const Outgoing* one) {
                       return one->frame.item->request_id == request_id && one->frame.length > 0;
                     }) ||
         std::any_of(incoming_.begin(), incoming_.end(),
                     [=](const Incoming* one) { return one->request_id == request_id; });
}

void UcxWire::Abandon(uint64_t request_id, std::function<void()> done) {
  auto items = queue_.Waiting();
  for (const Outgoing* const one : outgoing_) items.push_back(one->frame.item);
  std::sort(items.begin(), items.end());
  items.erase(std::unique(items.begin(), items.end()), items.end());
  for (const auto& item : items) {
    // What only says that an item failed has no memory, and the peer still wants to know.
    if (item->request_id != request_id || item->failed || item->header.status != 0) continue;
    queue_.Fail(*item, Status(Code::kCancelled, "abandoned by its sender"));
    queue_.ReportFailure(*item, Code::kCancelled);
    owner_.ScheduleFlush();
  }
  queue_.DropFailed();
  for (Incoming* const one : incoming_) {
    if (one->request_id == request_id) one->abandoned = true;
  }
  if (!Busy(request_id)) return owner_.Defer(std::move(done));
  auto wait = std::make_unique<Wait>();
  wait->request_id = request_id;
  wait->done = std::move(done);
  WatchWait(*wait);
  waits_.push_back(std::move(wait));
}

// UCX cannot take an operation back. Closing by force can.
void UcxWire::WatchWait(Wait& wait) {
  wait.timer = worker_.loop().After(kStopPatience, [this, &wait] {
    const MonotonicTime now = MonotonicNow();
    if (now - last_progress_ < kStopPatience && now - wait.since < kStopLimit) {
      return WatchWait(wait);
    }
    owner_.Close(Status(Code::kDisconnected, "an abandoned transfer did not end"));
  });
}

void UcxWire::CheckWaits() {
  for (const auto& wait : waits_) {
    if (Busy(wait->request_id)) continue;
    worker_.loop().CancelTimer(wait->timer);
    owner_.Defer(std::move(wait->done));
    wait->done = nullptr;
  }
  std::erase_if(waits_, [](const std::unique_ptr<Wait>& wait) { return wait->done == nullptr; });
}

Status UcxWire::CheckProgress(MonotonicTime now, Duration patience) const {
  const bool busy = !outgoing_.empty() || !incoming_.empty();
  if (!busy || now - last_progress_ <= patience) return Status::Ok();
  return Status(Code::kDisconnected, "nothing moves on the ucx wire");
}

void UcxWire::Shutdown(const Status& why, std::function<void()> stopped) {
  why_ = why;
  stopped_ = std::move(stopped);
  if (expected_) worker_.Forget(*expected_);
  expected_.reset();
  auto items = queue_.Waiting();
  for (const Outgoing* const one : outgoing_) items.push_back(one->frame.item);
  for (const auto& item : items) queue_.Fail(*item, why);
  queue_.DropFailed();
  if (endpoint_ != nullptr) {
    endpoint_closed_ = false;
    drain_timer_ = worker_.loop().After(kDrainPatience, [this] { CloseEndpoint(); });
  }
  CheckStopped();
}

// Not from inside UCX. This wire lives until the endpoint is closed.
void UcxWire::CloseSoon() {
  worker_.loop().Post([this] { CloseEndpoint(); });
}

void UcxWire::CloseEndpoint() {
  if (std::exchange(endpoint_given_up_, true)) return;
  worker_.loop().CancelTimer(drain_timer_);
  worker_.Close(endpoint_, [this] {
    endpoint_closed_ = true;
    CheckStopped();
  });
}

// The endpoint is closed by force, which is the only way that ends in any case, but if possible
// with nothing on its way: cut off in the middle, UCX 1.13 has completed an operation twice now and
// then, which ends the process (docs/decisions/0008).
void UcxWire::CheckStopped() {
  const bool idle = outgoing_.empty() && incoming_.empty();
  if (stopped_ && idle && !endpoint_closed_ && !endpoint_given_up_) return CloseSoon();
  if (!stopped_ || !endpoint_closed_ || !outgoing_.empty() || !incoming_.empty()) return;
  CheckWaits();
  std::exchange(stopped_, nullptr)();
}

}  // namespace penstock
