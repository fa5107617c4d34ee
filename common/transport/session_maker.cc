#include <fmt/format.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "common/transport/exchange.h"
#include "common/transport/listener.h"
#include "common/transport/tcp_wire.h"
#include "common/transport/ucx_wire.h"

namespace penstock {
namespace {

// Sends one message on a fresh socket, whose buffer has room for it, and gives up otherwise.
void SendLast(int fd, MessageType type, ByteSpan body) {
  OutQueue out;
  out.Append(type, 0, body);
  [[maybe_unused]] const auto sent = out.SendTo(fd);
}

bool Contains(const std::vector<std::string>& wires, std::string_view wire) {
  return std::find(wires.begin(), wires.end(), wire) != wires.end();
}

// UCX 1.13 connects over IPv4 only, unless it is by RDMA (docs/decisions/0008).
Result<SocketAddress> UcxAddress(const std::vector<Address>& listening) {
  std::optional<SocketAddress> best;
  for (const Address& one : listening) {
    if (one.kind != Address::Kind::kTcp) continue;
    PENSTOCK_ASSIGN_OR_RETURN(const auto found, Resolve(one, /*passive=*/true));
    if (!best || (best->family() != AF_INET && found.front().family() == AF_INET)) {
      best = found.front();
    }
  }
  if (best) return *best;
  PENSTOCK_ASSIGN_OR_RETURN(const auto found,
                            Resolve({Address::Kind::kTcp, "127.0.0.1", 0}, /*passive=*/true));
  return found.front();
}

std::string JoinWires(const std::vector<std::string>& wires) {
  return fmt::format("{}", fmt::join(wires, ", "));
}

}  // namespace

SessionToken DrawToken() {
  SessionToken token;
  // Never short for so few bytes; without randomness there is no way to go on safely.
  if (getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) std::abort();
  return token;
}

Result<SessionTable::Slot> SessionTable::TakeSlot(const std::shared_ptr<SessionTable>& self,
                                                  size_t& loop) {
  MutexLock lock(self->mu_);
  if (self->closed_) return Status(Code::kBusy, "the daemon is shutting down");
  if (self->taken_ >= self->max_sessions_) {
    return Status(Code::kBusy,
                  fmt::format("the daemon has its {} sessions (retry in 1000 ms)", self->taken_));
  }
  const auto least = std::min_element(self->per_loop_.begin(), self->per_loop_.end());
  const auto index = static_cast<size_t>(least - self->per_loop_.begin());
  ++*least;
  ++self->taken_;
  loop = index;
  return Slot(nullptr, [self, index](void*) { self->FreeSlot(index); });
}

void SessionTable::FreeSlot(size_t loop) {
  MutexLock lock(mu_);
  --per_loop_[loop];
  if (--taken_ == 0) changed_.SignalAll();
}

bool SessionTable::Add(const SessionToken& token, std::shared_ptr<SessionImpl> session) {
  MutexLock lock(mu_);
  if (closed_) return false;
  sessions_.emplace(token, std::move(session));
  return true;
}

void SessionTable::Remove(const SessionToken& token) {
  std::shared_ptr<SessionImpl> session;  // Destroyed after the lock is free.
  MutexLock lock(mu_);
  if (auto node = sessions_.extract(token)) session = std::move(node.mapped());
}

std::shared_ptr<SessionImpl> SessionTable::Find(const SessionToken& token) {
  MutexLock lock(mu_);
  const auto it = sessions_.find(token);
  return it == sessions_.end() ? nullptr : it->second;
}

void SessionTable::Close(const Status& why) {
  MutexLock lock(mu_);
  closed_ = true;
  for (const auto& [token, session] : sessions_) {
    session->loop().Post([session = session, why] { session->Close(why); });
  }
  while (taken_ > 0) changed_.Wait(mu_);
}

// A HELLO that was found good, on its way to the loop of its session.
struct SessionMaker::Request {
  Hello hello;
  uint16_t version = 0;
  std::string wire;
  size_t loop = 0;
  SessionTable::Slot slot;
  mutable UniqueFd fd;
};

SessionMaker::SessionMaker(const ListenOptions& options, std::vector<EventLoop*> loops,
                           OnSession on_session)
    : options_(options),
      loops_(std::move(loops)),
      on_session_(std::move(on_session)),
      table_(std::make_shared<SessionTable>(loops_.size(), options.max_sessions)),
      ucx_address_(UcxAddress(options.addresses)) {}

void SessionMaker::Refused(const Status& why) const {
  if (options_.on_refused) options_.on_refused(why);
}

HelloReply SessionMaker::Reply(const Status& status) const {
  HelloReply reply;
  reply.status = static_cast<uint16_t>(status.code());
  reply.message = status.message();
  reply.incarnation = options_.incarnation;
  reply.software = SoftwareName();
  return reply;
}

void SessionMaker::OnHandshake(UniqueFd fd, const HandshakeMessage& message) {
  switch (static_cast<MessageType>(message.header.type)) {
    case MessageType::kHello:
      return OnHello(std::move(fd), message.body);
    case MessageType::kAttach:
      return OnAttach(std::move(fd), message.body);
    default:
      Refused(Status(Code::kCorruptMessage,
                     fmt::format("{} began with a message of type {} instead of HELLO",
                                 PeerName(fd.get()), message.header.type)));
  }
}

// Whether the local wire can be had with this peer, who reads the memory of all tenants: the
// daemon's own user, or root.
bool SessionMaker::MayBeLocal(int fd) const {
  ucred peer{};
  socklen_t size = sizeof(peer);
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (!options_.exported || getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      address.ss_family != AF_UNIX || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return false;
  }
  // As users look whom the daemon's namespace does not know.
  constexpr uid_t kSomebody = 65534;
  return peer.uid == 0 || (peer.uid == geteuid() && peer.uid != kSomebody);
}

Result<std::shared_ptr<SessionMaker::Request>> SessionMaker::Judge(const Hello& hello, int fd) {
  auto request = std::make_shared<Request>();
  PENSTOCK_ASSIGN_OR_RETURN(request->version,
                            AgreeOnVersion(hello.version_min, hello.version_max, hello.software));
  for (const std::string& wire : options_.wires) {
    const bool known = wire == "tcp" || wire == "ucx" || (wire == "local" && MayBeLocal(fd));
    if (request->wire.empty() && known && Contains(hello.wires, wire)) request->wire = wire;
  }
  if (request->wire.empty()) {
    return Status(Code::kUnimplemented,
                  fmt::format("no common wire: the daemon has {}, the client asks for {}",
                              JoinWires(options_.wires), JoinWires(hello.wires)));
  }
  PENSTOCK_ASSIGN_OR_RETURN(request->slot, SessionTable::TakeSlot(table_, request->loop));
  request->hello = hello;
  return request;
}

void SessionMaker::OnHello(UniqueFd fd, ByteSpan body) {
  const auto hello = ParseHello(body);
  if (!hello.ok()) {
    return Refused(hello.status().Annotate(PeerName(fd.get())));
  }
  const auto request = Judge(*hello, fd.get());
  if (!request.ok()) {
    SendLast(fd.get(), MessageType::kHelloReply, EncodeHelloReply(Reply(request.status())));
    return Refused(request.status().Annotate(PeerName(fd.get())));
  }
  (*request)->fd = std::move(fd);
  loops_[(*request)->loop]->Post(
      [self = shared_from_this(), request = *request] { self->MakeSession(*request); });
}

void SessionMaker::MakeSession(const Request& request) {
  const Hello& hello = request.hello;
  const SessionLimits& limits = options_.limits;
  EventLoop& loop = *loops_[request.loop];
  SessionInfo info;
  info.version = request.version;
  info.peer_incarnation = hello.incarnation;
  info.peer_software = hello.software;
  info.peer_address = PeerName(request.fd.get());
  info.tenant = hello.tenant;
  info.client_name = hello.client_name;
  info.streams = std::clamp<uint32_t>(hello.streams, 1, std::max(1u, limits.max_streams));
  info.max_in_flight = std::clamp<uint32_t>(hello.max_in_flight, 1, limits.max_in_flight);
  info.eager_bytes = limits.eager_bytes;
  info.max_chunk_bytes = limits.max_chunk_bytes;

  HelloReply reply = Reply(Status::Ok());
  reply.version = info.version;
  reply.token = DrawToken();
  reply.streams = info.streams;
  reply.max_in_flight = info.max_in_flight;
  reply.max_chunk_bytes = info.max_chunk_bytes;
  reply.eager_bytes = info.eager_bytes;

  const auto session =
      std::make_shared<SessionImpl>(loop, std::move(request.fd), std::move(info), limits);
  const auto refuse = [&](const Status& why) {
    session->Refuse(EncodeHelloReply(Reply(why)));
    Refused(why.Annotate(session->info().peer_address));
  };
  if (const Status made = MakeWire(request, *session, reply); !made.ok()) return refuse(made);
  if (!table_->Add(reply.token, session)) {
    return refuse(Status(Code::kBusy, "the daemon is shutting down"));
  }
  auto events = on_session_(*session);
  if (!events) {
    table_->Remove(reply.token);
    return refuse(Status(Code::kPermissionDenied, "the daemon refused the session"));
  }
  session->OwnEvents(std::move(events));
  session->SetOnGone([table = table_, token = reply.token, slot = request.slot]() mutable {
    table->Remove(token);
    slot.reset();
  });
  session->Welcome(EncodeHelloReply(reply));
  session->Start();
  loop.After(limits.hello_timeout, [weak = std::weak_ptr<SessionImpl>(session)] {
    const auto alive = weak.lock();
    if (!alive || alive->wire().Ready()) return;
    alive->Close(Status(Code::kDisconnected, "no data stream was attached in time"));
  });
}

Status SessionMaker::MakeWire(const Request& request, SessionImpl& session, HelloReply& reply) {
  reply.wire = request.wire;
  if (reply.wire == "ucx") {
    Status status = MakeUcxWire(session, reply);
    const bool may_fall_back =
        Contains(options_.wires, "tcp") && Contains(request.hello.wires, "tcp");
    if (!status.ok() && !may_fall_back) return status;
    if (!status.ok()) reply.wire = "tcp";
  }
  if (reply.wire == "tcp") {
    session.SetWire(std::make_unique<TcpWire>(session.wire_owner(), reply.streams));
  } else if (reply.wire == "local") {
    reply.streams = 1;
    session.SetWire(std::make_unique<TcpWire>(
        session.wire_owner(), References(/*daemon=*/true, reply.token, options_.exported)));
  } else {
    reply.streams = 0;
  }
  session.SetWireInfo(reply.wire, reply.streams);
  return Status::Ok();
}

Status SessionMaker::MakeUcxWire(SessionImpl& session, HelloReply& reply) {
  PENSTOCK_RETURN_IF_ERROR(ucx_address_.status());
  PENSTOCK_ASSIGN_OR_RETURN(UcxWorker* const worker,
                            UcxWorker::OfThisLoop(session.loop(), options_.ucx_config));
  PENSTOCK_ASSIGN_OR_RETURN(reply.ucx_port, worker->Listen(*ucx_address_));
  reply.ucx_host = options_.advertise_host;
  if (reply.ucx_host.empty() && session.info().peer_address.starts_with("unix:")) {
    // The client is on this host and has reached no address of ours yet.
    const std::string host = ToAddress(*ucx_address_).host;
    reply.ucx_host = host == "0.0.0.0" ? "127.0.0.1" : host == "::" ? "::1" : host;
  }
  auto wire = std::make_unique<UcxWire>(session.wire_owner(), *worker);
  wire->Expect(reply.token);
  session.SetWire(std::move(wire));
  return Status::Ok();
}

void SessionMaker::OnAttach(UniqueFd fd, ByteSpan body) {
  const auto attach = ParseAttach(body);
  if (!attach.ok()) return Refused(attach.status().Annotate(PeerName(fd.get())));
  const auto session = table_->Find(attach->token);
  if (!session) {
    const Status status(Code::kFenced, "there is no such session (any more)");
    SendLast(fd.get(), MessageType::kAttachReply, EncodeVerdict(status));
    return Refused(status.Annotate(PeerName(fd.get())));
  }
  const auto shared = std::make_shared<UniqueFd>(std::move(fd));
  session->loop().Post(
      [self = shared_from_this(), session, shared] { self->Attach(session, std::move(*shared)); });
}

void SessionMaker::Attach(const std::shared_ptr<SessionImpl>& session, UniqueFd fd) {
  // The answer must be the first thing on the stream, so it goes out before the wire may use it.
  const int raw = fd.get();
  Status status = session->closing() ? Status(Code::kFenced, "the session is ending") : Status();
  if (status.ok()) status = session->wire().CanAttach();
  SendLast(raw, MessageType::kAttachReply, EncodeVerdict(status));
  if (status.ok()) {
    status = session->wire().AttachStream(std::move(fd), session);
    if (!status.ok()) session->Close(status);
  }
  if (!status.ok()) Refused(status.Annotate(session->info().peer_address));
}

}  // namespace penstock
