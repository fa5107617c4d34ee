#define PENSTOCK_CHECKSUM_KERNEL kChecksumAvx2
#define PENSTOCK_CHECKSUM_NAME "avx2"
#include "common/format/checksum_kernel.inc"
