#include "common/transport/ucx_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace penstock {
namespace {

// dlerror() is null when the last call went well.
std::string LoaderError() {
  const char* const text = dlerror();
  return text == nullptr ? "unknown error" : text;
}

template <typename Function>
bool Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

Result<const UcxLibrary*> LoadOnce() {
  // Local: an engine may carry a UCX of its own, and neither must see the other's symbols.
  void* const ucp = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
  if (ucp == nullptr) {
    return Status(
        Code::kUnimplemented,
        fmt::format("the ucx wire needs libucp.so.0 (Debian: libucx0): {}", LoaderError()));
  }
  void* const ucs = dlopen("libucs.so.0", RTLD_NOW | RTLD_LOCAL);
  if (ucs == nullptr) return Status(Code::kUnimplemented, LoaderError());
  static UcxLibrary library;
  const char* missing = nullptr;
#define PENSTOCK_UCX_FIND(name) \
  if (!Find(ucp, #name, library.name)) missing = #name;
  PENSTOCK_UCP_FUNCTIONS(PENSTOCK_UCX_FIND)
#undef PENSTOCK_UCX_FIND
  if (!Find(ucs, "ucs_status_string", library.ucs_status_string)) missing = "ucs_status_string";
  if (missing != nullptr) {
    return Status(Code::kUnimplemented, fmt::format("libucp.so.0 has no {}", missing));
  }
  return static_cast<const UcxLibrary*>(&library);
}

}  // namespace

Result<const UcxLibrary*> UcxLibrary::Load() {
  static const Result<const UcxLibrary*> loaded = LoadOnce();
  return loaded;
}

Status UcxStatus(const UcxLibrary& ucx, ucs_status_t status, std::string_view doing) {
  if (status == UCS_OK) return Status::Ok();
  Code code = Code::kDisconnected;
  if (status == UCS_ERR_NO_MEMORY || status == UCS_ERR_NO_RESOURCE ||
      status == UCS_ERR_EXCEEDS_LIMIT) {
    code = Code::kResourceExhausted;
  }
  if (status == UCS_ERR_INVALID_PARAM || status == UCS_ERR_INVALID_ADDR) {
    code = Code::kInvalidArgument;
  }
  return Status(code, fmt::format("{}: {}", doing, ucx.ucs_status_string(status)));
}

}  // namespace penstock
