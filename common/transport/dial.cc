#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "common/transport/exchange.h"
#include "common/transport/hello.h"
#include "common/transport/session_impl.h"
#include "common/transport/tcp_wire.h"
#include "common/transport/ucx_wire.h"

namespace penstock {
namespace {

constexpr uint32_t kMaxStreams = 64;

// On one host sockets win (docs/decisions/0008), and over the loopback device RDMA has no say.
bool IsThisHost(const SocketAddress& address) {
  if (address.family() == AF_UNIX) return true;
  const std::string host = ToAddress(address).host;
  return host.starts_with("127.") || host == "::1" || host.starts_with("::ffff:127.");
}

std::vector<std::string> WiresToAskFor(const std::string& wire,
                                       const std::vector<SocketAddress>& addresses) {
  if (wire != "auto") return {wire};
  if (addresses.front().family() == AF_UNIX) return {"local", "tcp"};
  const bool remote = !std::all_of(addresses.begin(), addresses.end(), IsThisHost);
  if (remote && HasRdmaDevice()) return {"ucx", "tcp"};
  return {"tcp"};
}

// One Dial() under way: find the address, say HELLO, attach the data streams.
class Dialer : public std::enable_shared_from_this<Dialer> {
 public:
  Dialer(EventLoop& loop, const DialOptions& options, const Deadline& deadline,
         SessionEvents& events, OnDialed on_dialed)
      : loop_(loop),
        options_(options),
        deadline_(deadline),
        events_(events),
        on_dialed_(std::move(on_dialed)) {}

  void Start() {
    ResolveAsync(loop_, options_.address, deadline_,
                 [self = shared_from_this()](Result<std::vector<SocketAddress>> found) {
                   if (!found.ok()) return self->Fail(found.status());
                   self->addresses_ = std::move(found).value();
                   self->wires_ = WiresToAskFor(self->options_.wire, self->addresses_);
                   self->SayHello();
                 });
  }

 private:
  using AnswerResult = Result<std::shared_ptr<Exchange::Answer>>;

  void Fail(const Status& status) {
    std::exchange(on_dialed_,
                  nullptr)(status.Annotate(fmt::format("dialing {}", options_.address.ToString())));
  }

  std::vector<std::byte> HelloBody() const {
    Hello hello;
    hello.incarnation = options_.incarnation;
    hello.streams = std::clamp<uint32_t>(options_.streams, 1, kMaxStreams);
    hello.max_in_flight = options_.limits.max_in_flight;
    hello.software = SoftwareName();
    hello.tenant = options_.tenant;
    hello.client_name = options_.client_name;
    hello.wires = wires_;
    return EncodeHello(hello);
  }

  void SayHello() {
    // Every address gets its share of what is left, so that one that swallows packets does not
    // keep the next from being tried.
    const auto left = deadline_.Left() / static_cast<int>(addresses_.size() - at_);
    Exchange::Start(loop_, addresses_[at_], Deadline::After(left), MessageType::kHello, HelloBody(),
                    [self = shared_from_this()](AnswerResult answer) {
                      self->OnHelloAnswer(std::move(answer));
                    });
  }

  void OnHelloAnswer(AnswerResult answer) {
    if (!answer.ok()) {
      const Code code = answer.status().code();
      const bool try_next = (code == Code::kDisconnected || code == Code::kDeadlineExceeded) &&
                            at_ + 1 < addresses_.size();
      if (!try_next) return Fail(answer.status());
      ++at_;
      return SayHello();
    }
    const HandshakeMessage& message = (*answer)->message;
    if (message.header.type != static_cast<uint8_t>(MessageType::kHelloReply)) {
      return Fail(Status(Code::kCorruptMessage,
                         fmt::format("a message of type {} answers HELLO", message.header.type)));
    }
    const auto reply = ParseHelloReply(message.body);
    const Status status = reply.ok() ? CheckReply(*reply) : reply.status();
    if (!status.ok()) return Fail(status);
    control_ = std::move((*answer)->fd);
    reply_ = *reply;
    if (reply->wire == "ucx") return AttachUcx();
    AttachStreams();
  }

  Status CheckReply(const HelloReply& reply) const {
    if (reply.status != 0) return Status(CodeFromWire(reply.status), reply.message);
    PENSTOCK_ASSIGN_OR_RETURN(const uint16_t agreed,
                              AgreeOnVersion(reply.version_min, reply.version_max, reply.software));
    if (reply.version != agreed) {
      return Status(Code::kVersionSkew, fmt::format("{} chose protocol version {}, not {}",
                                                    reply.software, reply.version, agreed));
    }
    if (std::find(wires_.begin(), wires_.end(), reply.wire) == wires_.end()) {
      return Status(Code::kCorruptMessage,
                    fmt::format("{} chose the wire \"{}\"", reply.software, reply.wire));
    }
    if (reply.wire == "ucx") return Status::Ok();
    const uint32_t most = reply.wire == "local" ? 1 : kMaxStreams;
    if (reply.streams == 0 || reply.streams > most) {
      return Status(Code::kCorruptMessage, fmt::format("{} data streams", reply.streams));
    }
    return Status::Ok();
  }

  void AttachStreams() {
    attaching_ = reply_.streams;
    for (uint32_t i = 0; i < reply_.streams; ++i) {
      Exchange::Start(loop_, addresses_[at_], deadline_, MessageType::kAttach,
                      EncodeAttach({reply_.token, i}),
                      [self = shared_from_this()](AnswerResult answer) {
                        self->OnAttachAnswer(std::move(answer));
                      });
    }
  }

  void OnAttachAnswer(AnswerResult answer) {
    const Status status = answer.ok() ? CheckAttached(**answer) : answer.status();
    if (status.ok()) {
      attached_.push_back(std::move((*answer)->fd));
    } else {
      attach_status_ = status;
    }
    if (--attaching_ > 0) return;
    // One stream is enough to go on with: the daemon may be short of descriptors.
    if (attached_.empty()) return Fail(attach_status_.Annotate("attaching data streams"));
    MakeSession();
  }

  static Status CheckAttached(const Exchange::Answer& answer) {
    const FrameHeader& header = answer.message.header;
    if (header.type != static_cast<uint8_t>(MessageType::kAttachReply)) {
      return Status(Code::kCorruptMessage,
                    fmt::format("a message of type {} answers ATTACH", header.type));
    }
    PENSTOCK_ASSIGN_OR_RETURN(const Verdict verdict, ParseVerdict(answer.message.body));
    if (verdict.status != 0) return Status(CodeFromWire(verdict.status), verdict.message);
    return Status::Ok();
  }

  std::shared_ptr<SessionImpl> NewSession() {
    SessionInfo info;
    info.version = reply_.version;
    info.peer_incarnation = reply_.incarnation;
    info.peer_software = reply_.software;
    info.peer_address = PeerName(control_.get());
    info.wire = reply_.wire;
    info.streams = static_cast<uint32_t>(attached_.size());
    info.max_in_flight = reply_.max_in_flight;
    info.eager_bytes = reply_.eager_bytes;
    info.max_chunk_bytes = reply_.max_chunk_bytes;
    auto session =
        std::make_shared<SessionImpl>(loop_, std::move(control_), std::move(info), options_.limits);
    session->SetEvents(events_);
    return session;
  }

  void MakeSession() {
    const auto session = NewSession();
    if (reply_.wire == "local") {
      session->SetWire(std::make_unique<TcpWire>(
          session->wire_owner(), References(/*daemon=*/false, reply_.token, std::nullopt)));
    } else {
      session->SetWire(std::make_unique<TcpWire>(session->wire_owner(), reply_.streams));
    }
    std::exchange(on_dialed_, nullptr)(session.get());
    for (UniqueFd& fd : attached_) {
      const Status status = session->wire().AttachStream(std::move(fd), session);
      if (!status.ok()) session->Close(status);
    }
    session->Start();
  }

  void AttachUcx() {
    Address address = ToAddress(addresses_[at_]);
    if (!reply_.ucx_host.empty()) address = {Address::Kind::kTcp, reply_.ucx_host, 0};
    address.port = reply_.ucx_port;
    ResolveAsync(loop_, address, deadline_,
                 [self = shared_from_this()](Result<std::vector<SocketAddress>> found) {
                   if (!found.ok()) return self->UcxFailed(found.status());
                   self->ConnectUcx(found->front());
                 });
  }

  void ConnectUcx(const SocketAddress& address) {
    const auto worker = UcxWorker::OfThisLoop(loop_, options_.ucx_config);
    if (!worker.ok()) return UcxFailed(worker.status());
    const auto session = NewSession();
    auto made = std::make_unique<UcxWire>(session->wire_owner(), **worker);
    UcxWire& wire = *made;
    session->SetWire(std::move(made));
    // A fallback needs time, too.
    const auto patience = MayFallBack() ? deadline_.Left() / 2 : deadline_.Left();
    wire.Connect(address, reply_.token, Deadline::After(patience), session,
                 [self = shared_from_this(), weak = std::weak_ptr(session)](const Status& status) {
                   const auto alive = weak.lock();
                   if (alive == nullptr) return;
                   if (!status.ok()) {
                     alive->Discard(status);
                     return self->UcxFailed(status);
                   }
                   std::exchange(self->on_dialed_, nullptr)(alive.get());
                   alive->Start();
                 });
  }

  bool MayFallBack() const { return wires_.size() > 1; }

  void UcxFailed(const Status& status) {
    control_.Reset();
    if (!MayFallBack()) return Fail(status.Annotate("attaching the ucx wire"));
    wires_ = {"tcp"};
    SayHello();
  }

  EventLoop& loop_;
  const DialOptions options_;
  const Deadline deadline_;
  SessionEvents& events_;
  OnDialed on_dialed_;
  std::vector<std::string> wires_;
  std::vector<SocketAddress> addresses_;
  size_t at_ = 0;
  UniqueFd control_;
  HelloReply reply_;
  std::vector<UniqueFd> attached_;
  uint32_t attaching_ = 0;
  Status attach_status_;
};

Status CheckOptions(const DialOptions& options) {
  if (IsWireName(options.wire)) return Status::Ok();
  return Status(
      Code::kInvalidArgument,
      fmt::format("\"{}\" is not a wire; expected auto, local, tcp or ucx", options.wire));
}

}  // namespace

void Dial(EventLoop& loop, const DialOptions& options, const Deadline& deadline,
          SessionEvents& events, OnDialed on_dialed) {
  if (const Status status = CheckOptions(options); !status.ok()) {
    loop.Post([status, on_dialed = std::move(on_dialed)] { on_dialed(status); });
    return;
  }
  const auto dialer =
      std::make_shared<Dialer>(loop, options, deadline, events, std::move(on_dialed));
  loop.Post([dialer] { dialer->Start(); });
}

}  // namespace penstock
