#include "client/lib/client_impl.h"

#include <errno.h>
#include <fmt/format.h>
#include <unistd.h>

#include <utility>

namespace penstock {
namespace {

Status CheckOptions(const ClientOptions& options) {
  const auto bad = [](std::string what) { return Status(Code::kInvalidArgument, std::move(what)); };
  if (!IsWireName(options.wire)) {
    return bad(fmt::format("wire \"{}\": expected auto, local, tcp or ucx", options.wire));
  }
  if (options.streams == 0) return bad("streams: at least 1");
  if (options.max_in_flight == 0) return bad("max_in_flight: at least 1");
  if (options.connect_timeout <= Duration::zero() || options.reconnect_min <= Duration::zero() ||
      options.reconnect_max < options.reconnect_min || options.patience < Duration::zero()) {
    return bad("times must be positive, and reconnect_max at least reconnect_min");
  }
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<Client>> Client::Create(const ClientOptions& options) {
  PENSTOCK_RETURN_IF_ERROR(CheckOptions(options));
  PENSTOCK_ASSIGN_OR_RETURN(Address address, Address::Parse(options.address));
  PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<EventLoop> loop, EventLoop::Start("penstock-client"));
  ClientOptions complete = options;
  if (complete.name.empty()) {
    complete.name = fmt::format("{}:{}", program_invocation_short_name, getpid());
  }
  auto client = std::make_unique<ClientImpl>(std::move(complete), address, std::move(loop));
  client->Start();
  return std::unique_ptr<Client>(std::move(client));
}

ClientImpl::ClientImpl(ClientOptions options, const Address& address,
                       std::unique_ptr<EventLoop> loop)
    : options_(std::move(options)),
      pid_(getpid()),
      book_(std::make_shared<NamespaceBook>(
          [this](const Fingerprint& ns, std::vector<std::byte> descriptor) {
            loop_->Post(
                [this, ns, descriptor = std::move(descriptor)] { TellNamespace(ns, descriptor); });
          })),
      loop_(std::move(loop)),
      table_(std::make_unique<CallTable>(CallTable::Callbacks{
          .on_done = [this](Call& call) { CallDone(call.operation()); },
          .on_heard = [this] { silent_ = false; },
          .on_stray_reply = [this](uint64_t id, const ReplyHead& head) { OnStrayReply(id, head); },
          .on_closed = [this](const Status& why) { OnClosed(why); }})),
      link_(std::make_unique<Link>(
          *loop_, options_, address, *table_,
          Link::Callbacks{
              .on_up = [this](Session& session, bool restarted) { OnUp(session, restarted); },
              .on_down = [this](const Status& why) { OnDown(why); }})) {}

void ClientImpl::Start() {
  loop_->Run([this] { link_->Start(); });
}

ClientImpl::~ClientImpl() {
  if (getpid() != pid_) {
    // A forked child: the loop's thread stayed with the parent and may have been in the middle of
    // anything, so what belongs to it is left alone.
    (void)link_.release();
    (void)table_.release();
    (void)loop_.release();
    return;
  }
  closing_ = true;
  loop_->Run([this] {
    table_->AbortAll(Status(Code::kCancelled, "the client is closing"));
    link_->Stop();
  });
  {
    MutexLock lock(mu_);
    while (session_open_ || in_flight_ > 0) changed_.Wait(mu_);
  }
  loop_->Stop();
  book_->Detach();  // Handles may outlive the loop.
}

bool ClientImpl::WaitConnected(const Deadline& deadline) {
  MutexLock lock(mu_);
  while (!link_stats_.connected) {
    if (!changed_.WaitUntil(mu_, deadline.at())) return link_stats_.connected;
  }
  return true;
}

ClientStats ClientImpl::stats() const {
  ClientStats stats;
  {
    MutexLock lock(mu_);
    stats = link_stats_;
  }
  stats.in_flight = in_flight_;
  stats.operations = counters_.operations;
  stats.failed_operations = counters_.failed;
  stats.cancelled_operations = counters_.cancelled;
  stats.fetched_chunks = counters_.fetched_chunks;
  stats.fetched_bytes = counters_.fetched_bytes;
  stats.missed_chunks = counters_.missed_chunks;
  stats.stored_chunks = counters_.stored_chunks;
  stats.stored_bytes = counters_.stored_bytes;
  stats.checksum_failures = counters_.checksum_failures;
  return stats;
}

Result<Namespace> ClientImpl::OpenNamespace(const NamespaceDescriptor& descriptor) {
  return book_->Open(descriptor);
}

void ClientImpl::TellNamespace(const Fingerprint& ns, ByteSpan descriptor) {
  if (link_->session() == nullptr) return;
  const OpenNamespaceRequest request{.descriptor = descriptor, .close = !book_->IsOpen(ns)};
  opening_[table_->SendStray(MessageType::kOpenNamespace, request.Encode())] = ns;
}

void ClientImpl::OnStrayReply(uint64_t id, const ReplyHead& head) {
  if (head.status != Code::kOk) Note(head.ToStatus());
  const auto it = opening_.find(id);
  if (it == opening_.end()) return;
  book_->Answered(it->second, head.ToStatus());
  opening_.erase(it);
}

ClientImpl::OperationRef ClientImpl::NewOperation(OperationState::Kind kind, size_t items,
                                                  const Deadline& deadline, OnDone on_done,
                                                  Status& refused) {
  auto operation = std::make_shared<OperationState>(static_cast<OperationOwner&>(*this), kind,
                                                    deadline, std::move(on_done));
  operation->mutable_items().resize(items);
  ++counters_.operations;
  if (++in_flight_ > options_.max_in_flight) {
    refused = Status(Code::kBusy, fmt::format("{} operations are in flight (max_in_flight)",
                                              options_.max_in_flight));
  } else {
    refused = WhyNot(deadline);
  }
  return operation;
}

Status ClientImpl::WhyNot(const Deadline& deadline) const {
  if (getpid() != pid_) return Status(Code::kInvalidArgument, "this client belongs to the parent");
  if (closing_) return Status(Code::kCancelled, "the client is closing");
  if (deadline.Expired()) return Status(Code::kDeadlineExceeded, "expired before it began");
  if (link_->state() == Link::State::kDown) {
    MutexLock lock(mu_);
    return Status(Code::kDisconnected, link_stats_.last_error);
  }
  if (silent_) return Status(Code::kDisconnected, "the daemon does not answer");
  return Status::Ok();
}

OperationPtr ClientImpl::Refuse(const OperationRef& operation, const Status& why) {
  for (ItemResult& item : operation->mutable_items()) item.status = why;
  operation->AddStatus(why);
  ++counters_.failed;
  LeaveFlight();
  operation->Complete(/*in_forked_child=*/getpid() != pid_);
  return std::make_shared<OperationHandle>(operation);
}

void ClientImpl::Launch(const OperationRef& operation) {
  loop_->Post([this, operation] {
    operation->open_calls = 1;  // The launch itself, until Launched().
    operation->timer =
        loop_->After(operation->deadline().Left(), [this, operation] { OnDeadline(operation); });
  });
}

void ClientImpl::AddCalls(const OperationRef& operation, std::vector<std::shared_ptr<Call>> calls) {
  loop_->Post([this, operation, calls = std::move(calls)]() mutable {
    for (std::shared_ptr<Call>& call : calls) AddOnLoop(operation, std::move(call));
  });
}

OperationPtr ClientImpl::Launched(const OperationRef& operation) {
  loop_->Post([this, operation] { CallDone(operation); });
  return std::make_shared<OperationHandle>(operation);
}

OperationPtr ClientImpl::RunOne(const OperationRef& operation, std::shared_ptr<Call> call) {
  loop_->Post([this, operation, call = std::move(call)]() mutable {
    operation->timer =
        loop_->After(operation->deadline().Left(), [this, operation] { OnDeadline(operation); });
    AddOnLoop(operation, std::move(call));
  });
  return std::make_shared<OperationHandle>(operation);
}

void ClientImpl::AddOnLoop(const OperationRef& operation, std::shared_ptr<Call> call) {
  ++operation->open_calls;
  Status why = operation->abort_reason;
  if (why.ok() && closing_) why = Status(Code::kCancelled, "the client is closing");
  if (why.ok() && link_->state() == Link::State::kDown) {
    why = Status(Code::kDisconnected, link_->last_error().ToString());
  }
  if (why.ok()) return table_->Add(std::move(call));
  call->Fail(why);
  CallDone(operation);
}

void ClientImpl::Abort(const OperationRef& operation, const Status& why) {
  if (operation->Done() || !operation->abort_reason.ok()) return;
  operation->abort_reason = why;
  // A copy: the end of the last call clears the list.
  for (const std::weak_ptr<Call>& weak : std::vector<std::weak_ptr<Call>>(operation->calls)) {
    if (const auto call = weak.lock()) table_->Abort(call, why);
  }
}

void ClientImpl::OnDeadline(const OperationRef& operation) {
  if (link_->session() != nullptr && table_->Silence() >= options_.patience &&
      !silent_.exchange(true)) {
    Note(Status(Code::kDisconnected, "the daemon does not answer"));
    // The answer to this ends the silence. No reservation has the number 0.
    table_->SendStray(MessageType::kRelease, ReleaseRequest{}.Encode());
  }
  Abort(operation, Status(Code::kDeadlineExceeded));
}

void ClientImpl::CallDone(const OperationRef& operation) {
  if (--operation->open_calls > 0) return;
  loop_->CancelTimer(operation->timer);
  operation->calls.clear();
  if (book_->AnyRefused()) ExplainRefusals(*operation);
  Count(*operation);
  LeaveFlight();
  operation->Complete();
}

// Before the operation is seen to be done: who waited for it may start another one at once. Under
// the lock, or a destructor that has just looked would never be woken.
void ClientImpl::LeaveFlight() {
  if (getpid() != pid_) {  // A forked child: nobody waits, and the lock may be taken for ever.
    --in_flight_;
    return;
  }
  MutexLock lock(mu_);
  if (--in_flight_ == 0) changed_.SignalAll();
}

// To a daemon that refused a namespace it is one that it does not know: nothing is found, and
// nothing can be stored.
void ClientImpl::ExplainRefusals(OperationState& operation) {
  std::vector<ItemResult>& items = operation.mutable_items();
  for (size_t i = 0; i < operation.namespaces.size(); ++i) {
    const Status why = book_->Refusal(operation.namespaces[i]);
    if (why.ok()) continue;
    if (items.empty()) operation.AddStatus(why);
    const bool one_each = operation.namespaces.size() == items.size();
    for (size_t k = one_each ? i : 0; k < (one_each ? i + 1 : items.size()); ++k) {
      const Code code = items[k].status.code();
      if (code == Code::kMiss || code == Code::kInvalidArgument) items[k].status = why;
    }
  }
}

void ClientImpl::Count(const OperationState& operation) {
  const Code code = operation.status().code();
  if (code == Code::kCancelled) {
    ++counters_.cancelled;
  } else if (code != Code::kOk) {
    ++counters_.failed;
  }
  if (operation.kind() == OperationState::Kind::kOther) return;
  const bool fetch = operation.kind() == OperationState::Kind::kFetch;
  uint64_t chunks = 0, bytes = 0, missed = 0;
  for (const ItemResult& item : operation.items()) {
    if (item.status.ok()) {
      ++chunks;
      bytes += item.bytes;
    } else if (item.status.code() == Code::kMiss) {
      ++missed;
    }
  }
  (fetch ? counters_.fetched_chunks : counters_.stored_chunks) += chunks;
  (fetch ? counters_.fetched_bytes : counters_.stored_bytes) += bytes;
  if (fetch) counters_.missed_chunks += missed;
}

void ClientImpl::OnUp(Session& session, bool restarted) {
  // Before anybody sees that it is connected: what is opened from then on is told by itself.
  const auto namespaces = book_->List();
  {
    MutexLock lock(mu_);
    link_stats_.connected = session_open_ = true;
    link_stats_.daemon_incarnation = session.info().peer_incarnation;
    link_stats_.daemon_software = session.info().peer_software;
    link_stats_.wire = session.info().wire;
    link_stats_.last_error.clear();
    ++link_stats_.connects;
    if (restarted) ++link_stats_.daemon_restarts;
    changed_.SignalAll();
  }
  table_->Attach(session);
  // Before everything that may need them: messages arrive in order.
  for (const auto& [ns, descriptor] : namespaces) TellNamespace(ns, descriptor);
  table_->SendQueued();
}

void ClientImpl::OnDown(const Status& why) {
  Note(why);
  table_->FailQueued(Status(Code::kDisconnected, why.ToString()));
}

void ClientImpl::OnClosed(const Status& why) {
  link_->Closed(why);
  silent_ = false;
  opening_.clear();
  MutexLock lock(mu_);
  link_stats_.connected = session_open_ = false;
  link_stats_.last_error = why.ToString();
  ++link_stats_.disconnects;
  changed_.SignalAll();
}

void ClientImpl::Note(const Status& error) {
  MutexLock lock(mu_);
  link_stats_.last_error = error.ToString();
}

}  // namespace penstock
