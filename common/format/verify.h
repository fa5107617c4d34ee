// The one place where stored bytes are judged. The daemon calls it before it commits a chunk, the
// reader after the last hop; every path (single, batch, range, local, remote, each tier) ends here.
//
// Errors name the chunk (shortened key), the segment and the lengths, never the bytes.

#ifndef PENSTOCK_COMMON_FORMAT_VERIFY_H_
#define PENSTOCK_COMMON_FORMAT_VERIFY_H_

#include <sys/uio.h>

#include <cstdint>
#include <span>

#include "common/base/status.h"
#include "common/format/manifest.h"
#include "common/format/selection.h"
#include "common/keys/chunk_key.h"

namespace penstock {

// `pieces`, read in order, are exactly the selected segments, one after the other in chunk order.
// Piece and segment boundaries need not agree. Nothing is written; the memory must not change
// meanwhile. Errors: kChecksumMismatch (a segment differs, or there are more or fewer bytes than
// the selection has), kFormatMismatch (nothing is selected). REQUIRES: manifest.Validate().ok().
Status VerifySegments(const ChunkKey& key, const Manifest& manifest, const Selection& selection,
                      std::span<const iovec> pieces);

// One segment by its number, for readers that take a chunk layer by layer. Errors: as above,
// kInvalidArgument (no such segment).
Status VerifySegment(const ChunkKey& key, const Manifest& manifest, uint32_t index,
                     std::span<const iovec> pieces);

}  // namespace penstock

#endif  // PENSTOCK_COMMON_FORMAT_VERIFY_H_
