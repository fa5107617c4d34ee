#define PENSTOCK_CHECKSUM_KERNEL kChecksumBaseline
#define PENSTOCK_CHECKSUM_NAME "baseline"
#include "common/format/checksum_kernel.inc"
