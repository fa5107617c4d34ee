// Who holds an address that cannot be bound.

#ifndef PENSTOCK_COMMON_TRANSPORT_SOCKET_OWNER_H_
#define PENSTOCK_COMMON_TRANSPORT_SOCKET_OWNER_H_

#include <string>

#include "common/transport/socket.h"

namespace penstock {

// "pid 123 (redis-server)", or empty when the kernel does not tell (the process of another user).
// Slow: reads /proc. For error messages.
std::string DescribeSocketOwner(const SocketAddress& address);

}  // namespace penstock

#endif  // PENSTOCK_COMMON_TRANSPORT_SOCKET_OWNER_H_
