#define PENSTOCK_CHECKSUM_KERNEL kChecksumAvx512
#define PENSTOCK_CHECKSUM_NAME "avx512"
#include "common/format/checksum_kernel.inc"
