#include "client/lib/memory_map.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <string>
#include <string_view>

namespace penstock {
namespace {

// PROCMAP_QUERY of linux/fs.h, which the distribution's headers do not have yet.
struct MapQuery {
  uint64_t size;
  uint64_t query_flags;
  uint64_t query_addr;
  uint64_t vma_start;
  uint64_t vma_end;
  uint64_t vma_flags;
  uint64_t vma_page_size;
  uint64_t vma_offset;
  uint64_t inode;
  uint32_t dev_major;
  uint32_t dev_minor;
  uint32_t vma_name_size;
  uint32_t build_id_size;
  uint64_t vma_name_addr;
  uint64_t build_id_addr;
};
static_assert(sizeof(MapQuery) == 104);
constexpr unsigned long kMapQuery = _IOWR('f', 17, MapQuery);
constexpr uint64_t kMapReadable = 1, kMapWritable = 2;

// mincore() writes one byte a page; this many pages are asked for at a time.
constexpr size_t kPagesPerAsk = 4096;

// True if every page of [begin, end) belongs to some mapping.
bool IsMapped(uintptr_t begin, uintptr_t end) {
  static const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  std::array<unsigned char, kPagesPerAsk> resident;
  begin &= ~(page - 1);
  while (begin < end) {
    const size_t bytes = std::min<uintptr_t>(end - begin, kPagesPerAsk * page);
    if (mincore(reinterpret_cast<void*>(begin), bytes, resident.data()) != 0) return false;
    begin += bytes;
  }
  return true;
}

std::string ReadAll(int fd) {
  std::string text;
  std::array<char, 64 << 10> buffer;
  off_t offset = 0;
  for (;;) {
    const ssize_t got = pread(fd, buffer.data(), buffer.size(), offset);
    if (got <= 0) return text;
    text.append(buffer.data(), static_cast<size_t>(got));
    offset += got;
  }
}

}  // namespace

MemoryMap::MemoryMap() : MemoryMap(Method::kQuery) {}

MemoryMap::MemoryMap(Method method) : method_(method) {
  if (method_ == Method::kTrust) return;
  fd_ = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (fd_ < 0) {
    method_ = Method::kTrust;
  } else if (method_ == Method::kQuery) {
    const auto here = reinterpret_cast<uintptr_t>(this);
    if (Query(here).end <= here) method_ = Method::kListing;
  }
}

MemoryMap::~MemoryMap() {
  if (fd_ >= 0) close(fd_);
}

Status MemoryMap::Look::Check(std::span<const iovec> pieces) {
  for (const iovec& piece : pieces) {
    if (piece.iov_len == 0) continue;
    const auto begin = reinterpret_cast<uintptr_t>(piece.iov_base);
    if (begin == 0) return Status(Code::kBadBuffer, "null address");
    if (piece.iov_len > std::numeric_limits<uintptr_t>::max() - begin) {
      return Status(Code::kBadBuffer, fmt::format("{:#x} + {} bytes wraps", begin, piece.iov_len));
    }
    const uintptr_t end = begin + piece.iov_len;
    if (begin >= begin_ && end <= end_) continue;
    for (uintptr_t at = begin; at < end;) {
      const Mapping mapping = map_.Find(at, end);
      if (mapping.end <= at) {
        return Status(Code::kBadBuffer, fmt::format("{:#x} is not mapped", at));
      }
      if (access_ == Access::kRead ? !mapping.readable : !mapping.writable) {
        return Status(
            Code::kBadBuffer,
            fmt::format("{:#x} is not {}", at, access_ == Access::kRead ? "readable" : "writable"));
      }
      // Neighbouring mappings that are good, too, are remembered as one.
      if (mapping.begin != end_) begin_ = mapping.begin;
      end_ = mapping.end;
      at = mapping.end;
    }
  }
  return Status::Ok();
}

MemoryMap::Mapping MemoryMap::Find(uintptr_t address, uintptr_t end) {
  switch (method_) {
    case Method::kQuery:
      return Query(address);
    case Method::kListing:
      return FindListed(address, end);
    case Method::kTrust:
      break;
  }
  return {address, end, true, true};
}

MemoryMap::Mapping MemoryMap::Query(uintptr_t address) const {
  MapQuery query{};
  query.size = sizeof(query);
  query.query_addr = address;
  if (ioctl(fd_, kMapQuery, &query) != 0) return {};
  return {query.vma_start, query.vma_end, (query.vma_flags & kMapReadable) != 0,
          (query.vma_flags & kMapWritable) != 0};
}

// A listing may be old: what it says is only believed of pages that are still there, and what it
// does not say is asked again. The part that is asked for is all that is vouched for.
MemoryMap::Mapping MemoryMap::FindListed(uintptr_t address, uintptr_t end) {
  MutexLock lock(mu_);
  for (const bool fresh : {false, true}) {
    if (fresh) ReadListing();
    auto it = std::upper_bound(listed_.begin(), listed_.end(), address,
                               [](uintptr_t a, const Mapping& m) { return a < m.end; });
    if (it == listed_.end() || it->begin > address) continue;
    Mapping found = *it;
    found.begin = address;
    found.end = std::min(found.end, end);
    if (!fresh && (!found.writable || !found.readable)) continue;
    if (IsMapped(found.begin, found.end)) return found;
  }
  return {};
}

void MemoryMap::ReadListing() {
  listed_.clear();
  const std::string text = ReadAll(fd_);
  // "55d0c8c00000-55d0c8c21000 rw-p 00000000 00:00 0   [heap]"
  for (size_t at = 0; at < text.size();) {
    const size_t line_end = std::min(text.find('\n', at), text.size());
    const std::string_view line(text.data() + at, line_end - at);
    at = line_end + 1;
    Mapping mapping;
    const char* last = line.data() + line.size();
    const auto begin = std::from_chars(line.data(), last, mapping.begin, 16);
    if (begin.ec != std::errc() || begin.ptr == last) continue;
    const auto end = std::from_chars(begin.ptr + 1, last, mapping.end, 16);
    if (end.ec != std::errc() || last - end.ptr < 3) continue;
    mapping.readable = end.ptr[1] == 'r';
    mapping.writable = end.ptr[2] == 'w';
    listed_.push_back(mapping);
  }
}

}  // namespace penstock
