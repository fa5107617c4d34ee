// What the opaque handles of penstock.h are, and how its calls report errors.

#ifndef PENSTOCK_CLIENT_C_HANDLES_H_
#define PENSTOCK_CLIENT_C_HANDLES_H_

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include "client/c/penstock.h"
#include "client/lib/client.h"

struct penstock_client {
  std::unique_ptr<penstock::Client> client;
};

struct penstock_namespace {
  penstock::Namespace ns;
};

// Alive while the caller has the handle or the callback is still to come.
struct penstock_operation {
  // The operation, once it is done: from the callback when that runs first, else from the handle.
  const penstock::Operation* Finished() const {
    if (const penstock::Operation* seen = in_callback.load(std::memory_order_acquire)) return seen;
    return handle && handle->Done() ? handle.get() : nullptr;
  }

  penstock::OperationPtr handle;
  std::atomic<const penstock::Operation*> in_callback{nullptr};
  std::atomic<bool> freed{false};
  std::shared_ptr<penstock_operation> self;  // The caller's hold.
};

namespace penstock::c {

// Remembers the sentence for penstock_last_error() and gives the number.
penstock_code Report(const Status& status) noexcept;
penstock_code BadArgument(const char* what) noexcept;

inline Duration Millis(uint32_t millis) { return std::chrono::milliseconds(millis); }
inline Deadline After(uint32_t millis) { return Deadline::After(Millis(millis)); }
inline const char* OrEmpty(const char* text) { return text == nullptr ? "" : text; }

// Runs `body`, which returns a penstock_code. No exception leaves a C function: what is thrown for
// lack of memory becomes a code.
template <typename Body>
penstock_code Guarded(Body body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Report(Status(Code::kResourceExhausted, "out of memory"));
  } catch (const std::exception& e) {
    return Report(Status(Code::kInternal, e.what()));
  }
}

// A struct of this library's size, with what the caller's version of it has.
template <typename T>
T CopyIn(const T* from) {
  T copy;
  std::memset(static_cast<void*>(&copy), 0, sizeof(copy));
  if (from != nullptr) std::memcpy(&copy, from, std::min(from->struct_size, sizeof(T)));
  return copy;
}

// Fills as much of the caller's struct as it has. The caller's size stays.
template <typename T>
void CopyOut(T from, T* to) {
  static_assert(std::is_trivially_copyable_v<T>);
  const size_t size = std::min(to->struct_size, sizeof(T));
  from.struct_size = to->struct_size;
  std::memcpy(to, &from, size);
}

// Element `i` of an array whose elements have the caller's size.
template <typename T>
T Element(const T* array, size_t i, size_t size) {
  T copy;
  std::memset(static_cast<void*>(&copy), 0, sizeof(copy));
  std::memcpy(&copy, reinterpret_cast<const char*>(array) + i * size, std::min(size, sizeof(T)));
  return copy;
}

inline ChunkKey ToKey(const penstock_key& key) {
  ChunkKey out;
  std::memcpy(out.bytes.data(), key.bytes, sizeof(key.bytes));
  return out;
}
inline penstock_key FromKey(const ChunkKey& key) {
  penstock_key out;
  std::memcpy(out.bytes, key.bytes.data(), sizeof(out.bytes));
  return out;
}

}  // namespace penstock::c

#endif  // PENSTOCK_CLIENT_C_HANDLES_H_
